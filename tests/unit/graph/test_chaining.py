from __future__ import annotations

import pytest

from tidegate.common.errors import JobGraphError
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import (
    CoMapFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import DiscardingSink, NumberSequenceSource
from tidegate.datastream.data_stream import DataStream
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import ChainLink, JobGraph, PartitionKind
from tidegate.graph.operator_specs import KeyedProcessSpec
from tidegate.graph.stream_graph import default_max_parallelism


class Identity(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class KeyedIdentity(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Both(CoMapFunction):
    def map1(self, value):
        return value

    def map2(self, value):
        return value


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def numbers(env: StreamExecutionEnvironment, name: str = "Numbers") -> DataStream:
    return env.from_source(NumberSequenceSource(1, 100), WatermarkStrategy.no_watermarks(), name)


def graph(env: StreamExecutionEnvironment) -> JobGraph:
    return build_job_graph(env._operators, env._graph_settings(), "job").job_graph


def names(job: JobGraph) -> list[str]:
    return [vertex.name for vertex in job.vertices]


def plus_one(value: int) -> int:
    return value + 1


# ---------------------------------------------------------------- what is chained


def test_operators_of_equal_parallelism_are_one_vertex(env):
    numbers(env).map(plus_one).filter(bool).sink_to(DiscardingSink())
    job = graph(env)
    assert names(job) == ["Source: Numbers -> Map -> Filter -> Sink: DiscardingSink"]
    assert [op.link for op in job.vertices[0].operators] == [None, ChainLink(0), ChainLink(1), ChainLink(2)]
    assert job.edges == ()
    assert job.vertices[0].is_source


def test_different_parallelism_is_rebalanced(env):
    numbers(env).map(plus_one).set_parallelism(3).sink_to(DiscardingSink()).set_parallelism(3)
    job = graph(env)
    assert names(job) == ["Source: Numbers", "Map -> Sink: DiscardingSink"]
    assert [edge.partition.kind for edge in job.edges] == [PartitionKind.REBALANCE]


@pytest.mark.parametrize("method", ["rebalance", "rescale", "shuffle", "broadcast", "global_"])
def test_explicit_partitioning_ends_a_chain(env, method):
    getattr(numbers(env), method)().map(plus_one).print()
    job = graph(env)
    assert len(job.vertices) == 2
    assert job.edges[0].partition.kind.value == method.rstrip("_")


def test_explicit_forward_is_chained(env):
    numbers(env).forward().map(plus_one).print()
    assert len(graph(env).vertices) == 1


def test_forward_between_unequal_parallelism_names_both(env):
    numbers(env).forward().map(plus_one).name("Plus").set_parallelism(3).print()
    with pytest.raises(JobGraphError, match=r"'Source: Numbers' \(parallelism 2\) to 'Plus' \(parallelism 3\)"):
        graph(env)


def test_the_partitioning_nearest_to_the_consumer_counts(env):
    numbers(env).rebalance().shuffle().map(plus_one).print()
    assert graph(env).edges[0].partition.kind is PartitionKind.SHUFFLE


def test_start_new_chain_and_disable_chaining(env):
    stream = numbers(env).map(plus_one).name("A").map(plus_one).name("B").start_new_chain()
    stream.map(plus_one).name("C").map(plus_one).name("D").disable_chaining().map(plus_one).name("E").print()
    assert names(graph(env)) == ["Source: Numbers -> A", "B -> C", "D", "E -> Sink: Print to Std. Out"]


def test_chaining_can_be_disabled_for_all(env):
    numbers(env).map(plus_one).print()
    env.disable_operator_chaining()
    assert not env.is_chaining_enabled()
    job = graph(env)
    assert len(job.vertices) == 3
    assert {edge.partition.kind for edge in job.edges} == {PartitionKind.FORWARD}


def test_different_max_parallelism_is_not_chained(env):
    numbers(env).map(plus_one).set_max_parallelism(64).print()
    assert len(graph(env).vertices) == 3


def test_slot_sharing_groups_end_chains_and_are_inherited(env):
    group = SlotSharingGroup.builder("heavy").set_cpu_cores(1).set_task_heap_memory_mb(1).build()
    numbers(env).map(plus_one).name("A").slot_sharing_group(group).map(plus_one).name("B").print()
    job = graph(env)
    assert names(job) == ["Source: Numbers", "A -> B -> Sink: Print to Std. Out"]
    assert [vertex.slot_sharing_group for vertex in job.vertices] == ["default", "heavy"]
    assert job.num_slots == 4


def test_inputs_of_different_groups_give_the_default_group(env):
    one = numbers(env, "One").slot_sharing_group("a")
    two = numbers(env, "Two").slot_sharing_group("b")
    one.union(two).map(plus_one).print()
    assert graph(env).vertices[-1].slot_sharing_group == "default"


def test_a_union_is_several_edges_into_one_head(env):
    stream = numbers(env, "One")
    stream.union(numbers(env, "Two"), stream).map(plus_one).print()
    job = graph(env)
    assert names(job) == ["Source: One", "Source: Two", "Map -> Sink: Print to Std. Out"]
    assert [edge.source for edge in job.edges] == [0, 1, 0]
    assert {edge.target_input for edge in job.edges} == {0}
    assert len({edge.key for edge in job.edges}) == 3
    assert job.edges[2].key == job.edges[0].key + "#2"


def test_a_partitioning_behind_a_union_holds_for_all_inputs(env):
    numbers(env, "One").union(numbers(env, "Two")).rebalance().map(plus_one).print()
    assert [edge.partition.kind for edge in graph(env).edges] == [PartitionKind.REBALANCE] * 2


def test_several_consumers_and_side_outputs_are_a_tree(env):
    tag = OutputTag("late")
    main = numbers(env).process(Identity())
    main.map(plus_one).print("main")
    main.get_side_output(tag).filter(bool).print("late")
    job = graph(env)
    assert names(job) == [
        "Source: Numbers -> Process -> (Map -> Sink: Print to Std. Out, Filter -> Sink: Print to Std. Out)"
    ]
    links = {op.name: op.link for op in job.vertices[0].operators}
    assert links["Map"] == ChainLink(1)
    assert links["Filter"] == ChainLink(1, "late")


def test_a_side_output_can_be_an_edge(env):
    numbers(env).process(Identity()).get_side_output(OutputTag("late")).rebalance().map(plus_one).print()
    edge = graph(env).edges[0]
    assert (edge.source_operator, edge.side_output) == (1, "late")
    assert "/late->" in edge.key


def test_a_keyed_operator_is_a_head_with_its_selector(env):
    selector = plus_one
    numbers(env).key_by(selector).process(KeyedIdentity()).print()
    job = graph(env)
    assert names(job) == ["Source: Numbers", "Keyed Process -> Sink: Print to Std. Out"]
    head, sink = job.vertices[1].operators
    assert isinstance(head.spec, KeyedProcessSpec)
    assert head.key_selectors == (selector,)
    assert sink.key_selectors == ()
    assert job.edges[0].partition.kind is PartitionKind.HASH
    assert job.edges[0].partition.key_selector is selector


def test_two_inputs_make_a_head(env):
    one, two = numbers(env, "One"), numbers(env, "Two")
    one.connect(two).map(Both()).print()
    job = graph(env)
    assert names(job) == ["Source: One", "Source: Two", "Co-Map -> Sink: Print to Std. Out"]
    assert [(edge.source, edge.target_input, edge.partition.kind) for edge in job.edges] == [
        (0, 0, PartitionKind.FORWARD),
        (1, 1, PartitionKind.FORWARD),
    ]


def test_a_stream_connected_with_itself_has_two_edges(env):
    stream = numbers(env)
    stream.connect(stream).map(Both()).print()
    assert [edge.target_input for edge in graph(env).edges] == [0, 1]


def test_connected_keyed_streams_have_two_selectors(env):
    connected = numbers(env, "One").connect(numbers(env, "Two")).key_by(plus_one, abs)
    connected.map(Both()).print()
    head = graph(env).vertices[2].operators[0]
    assert head.key_selectors == (plus_one, abs)
    assert head.spec.keyed


def test_vertices_are_in_topological_order(env):
    source = numbers(env)
    keyed = source.key_by(plus_one).process(KeyedIdentity())
    source.map(plus_one).name("Late").connect(keyed.rebalance().map(plus_one)).map(Both()).print()
    job = graph(env)
    assert all(edge.source < edge.target for edge in job.edges)
    assert [vertex.vertex_id for vertex in job.vertices] == list(range(len(job.vertices)))
    assert [edge.edge_id for edge in job.edges] == list(range(len(job.edges)))


# ---------------------------------------------------------------- settings


def test_buffer_timeouts(env):
    env.set_buffer_timeout(7)
    numbers(env).map(plus_one).set_buffer_timeout(-1).rebalance().map(plus_one).set_buffer_timeout(
        0
    ).rebalance().print()
    assert [vertex.buffer_timeout_ms for vertex in graph(env).vertices] == [-1, 0, 7]


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (128, 256), (200, 512), (21_846, 32_768), (32_768, 32_768)],
)
def test_default_max_parallelism(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


def test_parallelism_over_the_maximum_is_an_error(env):
    numbers(env).map(plus_one).name("Plus").set_parallelism(9).set_max_parallelism(8).print()
    with pytest.raises(JobGraphError, match="'Plus': parallelism 9 is greater than its max parallelism 8"):
        graph(env)


def test_an_environment_maximum_holds_for_all(env):
    env.set_max_parallelism(16)
    numbers(env).print()
    assert [vertex.max_parallelism for vertex in graph(env).vertices] == [16]


def test_collections_and_forced_operators_are_not_parallel(env):
    env.from_collection([1]).map(plus_one).force_non_parallel().print()
    job = graph(env)
    assert [vertex.parallelism for vertex in job.vertices] == [1, 1, 2]  # not one chain: the max parallelism differs
    assert [vertex.max_parallelism for vertex in job.vertices] == [128, 1, 128]


# ---------------------------------------------------------------- programs that cannot run


def test_an_empty_graph_says_what_to_do(env):
    with pytest.raises(JobGraphError, match="no operators"):
        graph(env)


def test_a_graph_without_a_sink_says_what_to_do(env):
    numbers(env).map(plus_one)
    with pytest.raises(JobGraphError, match=r"add a sink|Add a sink, e\.g\. stream\.print\(\)"):
        graph(env)


def test_types_are_declared_only_where_the_user_did(env):
    from tidegate.common import Types

    numbers(env).map(plus_one, Types.INT()).filter(bool).print()
    types = [op.output_type for op in graph(env).vertices[0].operators]
    assert types == [None, Types.INT(), None, None]
