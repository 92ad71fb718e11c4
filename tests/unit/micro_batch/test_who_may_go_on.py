"""Which program may go on in a checkpoint location, and with which state: a changed one, one with another job id, one
that names a savepoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.micro_batch.test_ends import wait_for_more
from tests.unit.micro_batch.test_jobs import RECORDS, Count, World, job_watermarks
from tests.unit.micro_batch.test_jobs import world as world
from tidegate.common import Encoder, JobStatus, Types
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, FileSink

ONE, TWO = "1" * 32, "2" * 32
Change = Callable[[StreamExecutionEnvironment], Any]


def stopped(world: World, **settings: Any) -> str:
    """Runs the endless job for a while, in `world.location`. Returns the savepoint that it was stopped with."""
    seen = len(world.output()) if (world.folder / "out").exists() else 0
    client = world.counting(records=None, rate=20_000, **settings)
    wait_for_more(world, seen)
    savepoint: str = client.stop_with_savepoint(False, str(world.folder / "savepoints")).result(60)
    assert client.get_job_execution_result().result(60) is not None
    return savepoint


def job_file(world: World) -> Any:
    return json.loads((world.location / "tidegate" / "job.json").read_text())


# ---------------------------------------------------------------- savepoints


def test_a_savepoint_is_not_passed_over_for_what_the_location_has(world: World) -> None:
    """It has what another job, of any mode, has done since then: the location's state would do all of it again."""
    first = stopped(world)
    here, world.location = world.location, world.folder / "elsewhere"
    second = stopped(world, execution_state__recovery_path=first)
    lines, world.location = world.output(), here
    with pytest.raises(ConfigurationError, match=r"began with nothing, and has come .* name a new location .* unset"):
        world.counting(records=None, rate=20_000, execution_state__recovery_path=second)
    assert world.output() == lines
    world.location = world.folder / "a new one"
    stopped(world, execution_state__recovery_path=second)
    lines = world.output()
    assert len(lines) == len(set(lines))


def test_the_same_start_goes_on_from_the_batches_of_the_location(world: World) -> None:
    """As a supervisor starts a program again: with the savepoint that it began with, wherever that lies now. And
    without it."""
    first = stopped(world)
    world.location = world.folder / "elsewhere"
    stopped(world, execution_state__recovery_path=first)
    moved = world.folder / "moved"
    shutil.move(first, moved)
    assert job_file(world)["beginning"]["path"].endswith(Path(first).name)
    stopped(world, execution_state__recovery_path=moved)
    stopped(world)
    lines = world.output()
    assert len(lines) == len(set(lines))


def test_another_savepoint_is_not_passed_over_either(world: World) -> None:
    first = stopped(world)
    here, world.location = world.location, world.folder / "elsewhere"
    second = stopped(world, execution_state__recovery_path=first)
    with pytest.raises(ConfigurationError, match=rf"began with \S*{Path(first).name}, and has come to batch"):
        world.counting(records=None, execution_state__recovery_path=second)
    world.location = here
    with pytest.raises(ConfigurationError, match="began with nothing"):
        world.counting(records=None, execution_state__recovery_path=first)  # also where it was taken


def test_where_no_batch_is_done_yet_the_job_begins_as_it_is_told(world: World) -> None:
    first = stopped(world)
    world.location = world.folder / "elsewhere"

    def broken(step: str, batch: int) -> None:
        raise RuntimeError("no batch comes to its end")

    world.hook = broken
    world.counting(records=None, restart__strategy_type="none").get_job_execution_result().exception(60)
    assert job_file(world)["beginning"]["snapshot"] == ""
    world.hook = lambda step, batch: None
    stopped(world, execution_state__recovery_path=first)
    assert job_file(world)["beginning"]["snapshot"] != ""
    lines = world.output()
    assert len(lines) == len(set(lines))


def test_a_location_of_a_version_that_has_not_noted_its_beginning(world: World) -> None:
    """Nobody knows whether the savepoint is the one that it began with."""
    first = stopped(world)
    path = world.location / "tidegate" / "job.json"
    older = job_file(world)
    del older["beginning"], older["key_groups"]
    path.write_text(json.dumps(older))
    with pytest.raises(ConfigurationError, match="an older version of Tidegate has not noted"):
        world.counting(records=None, execution_state__recovery_path=first)
    stopped(world)
    lines = world.output()
    assert len(lines) == len(set(lines))


# ---------------------------------------------------------------- ids and names


def test_another_job_of_the_same_shape_is_refused_by_its_id(world: World) -> None:
    world.counting(pipeline_job__id=ONE).get_job_execution_result().result(60)
    with pytest.raises(ConfigurationError, match=rf"of job 'counting' \({ONE}\), and this one is {TWO}.*name another"):
        world.counting(pipeline_job__id=TWO)
    for settings in ({}, {"pipeline_job__id": ONE}, {"pipeline_job__id": ONE.upper()}):
        client = world.counting(**settings)
        client.get_job_execution_result().result(60)
        assert str(client.get_job_id()) == ONE
    assert len(world.output()) == RECORDS


def test_an_id_that_is_chosen_later_is_refused_too(world: World) -> None:
    """The sinks have prepared under the id that was drawn."""
    world.counting().get_job_execution_result().result(60)
    drawn = job_file(world)["job_id"]
    with pytest.raises(ConfigurationError, match=r"set pipeline\.job-id to its id or unset it"):
        world.counting(pipeline_job__id=TWO)
    world.counting(pipeline_job__id=drawn).get_job_execution_result().result(60)


def test_another_name_is_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It may be of a day, or of another job with the same operators."""
    for name in ("Monday", "Tuesday", "Tuesday"):
        run(world, lambda env: None, name)
    told = [record.getMessage() for record in caplog.records if "where it was called" in record.getMessage()]
    assert len(told) == 1
    assert "'Tuesday' goes on" in told[0]
    assert "called 'Monday'. If that is another job" in told[0]


# ---------------------------------------------------------------- changed programs


def build(env: StreamExecutionEnvironment, folder: Path, exchange: str = "key_by", extra: bool = False) -> None:
    source = DataGeneratorSource(lambda i: i, count=RECORDS)
    numbers = env.from_source(source, job_watermarks(), "Numbers").uid("numbers")
    spread = numbers.rebalance() if exchange == "rebalance" else numbers.shuffle()
    same = spread.map(lambda n: n).uid("same")
    if extra:
        same = same.map(lambda n: n).uid("extra")
    counted = same.key_by(lambda n: n % 10).process(Count(), Types.STRING()).uid("count")
    sink = FileSink.for_row_format(str(folder / "out"), Encoder.simple_string_encoder()).build()
    counted.sink_to(sink).uid("sink")


def run(world: World, change: Change, name: str = "counting", settings: Any = None, **shape: Any) -> None:
    env = world.environment(**(settings or {}))
    change(env)
    build(env, world.folder, **({"exchange": "rebalance"} | shape))
    client: Any = env.execute_async(name)
    client.get_job_execution_result().result(60)
    assert client.view().status is JobStatus.FINISHED


REFUSED: dict[str, tuple[Change, dict[str, Any], str]] = {
    "a higher parallelism": (
        lambda env: env.set_parallelism(3),
        {},
        "parallelism 2, .* there, .*parallelism 3, .* here",
    ),
    "a lower parallelism": (
        lambda env: env.set_parallelism(1),
        {},
        "parallelism 2, .* there, .*parallelism 1, .* here",
    ),
    "max parallelism": (lambda env: env.set_max_parallelism(64), {}, "max parallelism 128 there, .* 64 here"),
    "an edge": (lambda env: None, {"exchange": "shuffle"}, "the edges between the operators: .* there, .* here"),
    "an operator more": (lambda env: None, {"extra": True}, r"only here: operator 'Map'.*the edges"),
    "no chains": (lambda env: env.disable_operator_chaining(), {}, r"place \d\.\d, .* there, place \d\.\d, .* here"),
    "buckets": (lambda env: None, {"settings": {"tidegate_micro__batch_buckets": 300}}, "buckets: 128 there, 300 here"),
}
ACCEPTED: dict[str, dict[str, str]] = {
    "batches": {"tidegate_micro__batch_max__records": "50", "tidegate_micro__batch_max__bytes": "1 mb"},
    "trigger": {"tidegate_micro__batch_trigger": "AVAILABLE_NOW", "tidegate_micro__batch_interval": "5 ms"},
    "restarts": {"restart__strategy_type": "none"},
    "max parallelism as it was chosen": {"pipeline_max__parallelism": "128"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_changed_program_is_refused_and_told_what_has_changed(world: World, what: str) -> None:
    change, shape, message = REFUSED[what]
    run(world, lambda env: None)
    before = (world.location / "tidegate" / "job.json").read_text()
    with pytest.raises(
        ConfigurationError, match=rf"(?s)older version of this one .*{message}.*goes on from a savepoint"
    ):
        run(world, change, **shape)
    assert (world.location / "tidegate" / "job.json").read_text() == before
    run(world, lambda env: None)  # the location is free, and as it was
    assert len(world.output()) == RECORDS


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_does_not_concern_the_state_may_change(world: World, what: str) -> None:
    run(world, lambda env: None)
    run(world, lambda env: None, settings=ACCEPTED[what])
    assert len(world.output()) == RECORDS


def test_key_groups_of_a_savepoint_are_those_of_the_location(world: World) -> None:
    """Also when the job is started again without naming the savepoint."""
    env_settings = {"pipeline_max__parallelism": "64"}
    savepoint = stopped(world, **env_settings)
    world.location = world.folder / "elsewhere"
    stopped(world, execution_state__recovery_path=savepoint)
    stopped(world)
    lines = world.output()
    assert len(lines) == len(set(lines))
    with pytest.raises(ConfigurationError, match=r"max parallelism 64 there, .*max parallelism 128 here"):
        world.counting(records=None, pipeline_max__parallelism=128)
