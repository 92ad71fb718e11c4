from __future__ import annotations

import pytest

from tidegate.common.errors import ConfigurationError, JobGraphError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.operator_ids import id_of_uid


def program(rename: str = "", parallelism: int = 1, extra: bool = False, uid: str | None = None) -> list[str]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    source = env.from_collection([1, 2, 3])
    if extra:
        source.map(abs).print()
    mapped = source.map(lambda value: value)
    if rename:
        source.name(rename + "source")
        mapped.name(rename + "map")
    if uid:
        mapped.uid(uid)
    mapped.map(lambda value: value).print()
    mapped.map(lambda value: value).print()
    graph = build_job_graph(env._operators, env._graph_settings()).job_graph
    return [op.operator_id for vertex in graph.vertices for op in vertex.operators]


def test_ids_are_stable_and_distinct():
    first, second = program(), program()
    assert first == second
    assert len(set(first)) == len(first)
    assert all(len(i) == 32 and int(i, 16) >= 0 for i in first)


def test_ids_do_not_depend_on_names_or_parallelism():
    assert sorted(program()) == sorted(program(rename="other ")) == sorted(program(parallelism=3))


def test_the_ids_are_these_for_ever():
    """A checkpoint of an earlier version finds its operators by these: they must never change."""
    assert id_of_uid("count") == "5b7717dd056083456e7e84e9c3c6f09d"
    assert program()[:2] == ["986ac6b7a00fd66b158df072893895ae", "b6fe639f025ad65695e7b71640d8f5e0"]


def test_the_id_of_a_uid_does_not_depend_on_the_position():
    assert id_of_uid("m") in program(uid="m")
    assert id_of_uid("m") in program(uid="m", extra=True)


def test_duplicate_uids_name_both_operators():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).map(abs).name("First").uid("same")
    stream.map(abs).name("Second").uid("same").print()
    with pytest.raises(JobGraphError, match="'same' is used twice, by 'First' and by 'Second'"):
        build_job_graph(env._operators)


def test_a_uid_hash_is_the_id():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).map(abs).set_uid_hash("0123456789abcdef0123456789ABCDEF")
    stream.print()
    built = build_job_graph(env._operators)
    assert built.operator_ids[stream._transformation.id] == "0123456789abcdef0123456789abcdef"
    with pytest.raises(ConfigurationError, match="32 hex digits"):
        stream.set_uid_hash("xyz")


def test_a_uid_hash_that_clashes_is_an_error():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).map(abs).uid("a")
    stream.map(abs).set_uid_hash(id_of_uid("a")).print()
    with pytest.raises(JobGraphError, match="same id"):
        build_job_graph(env._operators)


def test_generated_uids_can_be_forbidden():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_config().disable_auto_generated_uids()
    env.from_collection([1]).uid("source").map(abs).name("Forgotten").print()
    with pytest.raises(JobGraphError, match="'Forgotten' has no uid"):
        build_job_graph(env._operators, env._graph_settings())
