"""Jobs that are cancelled or fail: what counts is committed, what does not is undone, and a successor finds what it
needs. And where the checkpoint location of a job lies, which decides what that is."""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.micro_batch.query_stand_in import KilledError
from tests.unit.micro_batch.test_jobs import EXPECTED, RECORDS, Count, World, job_watermarks, world
from tidegate.common import JobStatus, Types
from tidegate.common.errors import ConfigurationError, JobCancelledError, JobExecutionError
from tidegate.contracts.connectors import Committer, Sink, SinkContext, SinkWriter
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.spark.micro_batch import job as job_module
from tidegate.spark.micro_batch import location as location_module

__all__ = ["world"]

NOWHERE: dict[str, Any] = {"tidegate_micro__batch_checkpoint__location": ""}


# ---------------------------------------------------------------- where the location lies


@pytest.mark.parametrize("directory", ["s3://bucket/checkpoints", "hdfs://name:8020/checkpoints"])
def test_a_folder_for_checkpoints_that_is_no_file_system_is_refused(world: World, directory: str) -> None:
    """A temporary location in its place would forget at the end what was to be kept."""
    world.master = "local[2]"
    with pytest.raises(ConfigurationError, match=rf"checkpointing\.dir: {directory} .*micro-batch\.checkpoint-loc"):
        world.counting(execution_checkpointing_dir=directory, **NOWHERE)
    world.counting(execution_checkpointing_dir=directory).get_job_execution_result().result(60)  # one was named


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_temporary_location_is_told_and_goes_with_the_job(
    world: World, master: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.master = master
    world.counting(**NOWHERE).get_job_execution_result().result(60)
    (folder,) = re.findall(r"what it keeps is in (\S+) and goes with the job; started again it begins", caplog.text)
    assert not Path(folder).exists()
    assert world.output() == EXPECTED


def test_a_temporary_location_is_refused_on_a_cluster(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match=r"is not set, .* Spark runs on spark://far:7077, and its executors"):
        world.counting(**NOWHERE)
    (folder,) = re.findall(r"what it keeps is in (\S+)", caplog.text)
    assert not Path(folder).exists()


def test_a_location_that_executors_do_not_share_ends_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything counts. What the driver writes for an operator is there, and of what its tasks write nothing."""
    monkeypatch.setattr(location_module, "_SHOWN_S", 0.0)

    def hook(step: str, batch: int) -> None:
        if step == "report":
            (world.location / "state" / "0" / "0").mkdir(parents=True, exist_ok=True)  # and not that of partition 1

    world.hook = hook
    with pytest.raises(JobExecutionError, match=r"their state \(state/0/1\) is not in .*at the same path"):
        world.counting().get_job_execution_result().result(60)
    assert world.queries == 1
    assert not list((world.location / "commits").iterdir())


# ---------------------------------------------------------------- what is left


class Shelf(Sink[str, str]):
    """What a writer has prepared lies in one folder, and what is committed in another. `log`: a file with what the
    driver has asked for besides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("prepared", "committed"):
            (folder / name).mkdir(parents=True)

    def create_writer(self, context: SinkContext) -> SinkWriter[str, str]:
        return _ShelfWriter(self.folder)

    def create_committer(self) -> Committer[str]:
        return _ShelfCommitter(self.folder)

    def discard_uncommitted(self, job_id: str) -> None:
        self._note("uncommitted")
        for file in (self.folder / "prepared").iterdir():
            file.unlink()

    def discard_leftovers(self, job_id: str) -> None:
        self._note("leftovers")

    def _note(self, what: str) -> None:
        with open(self.folder / "asked", "a", encoding="utf-8") as file:
            print(what, file=file)

    # ------------------------------------------------------------ for the tests
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().split() if path.exists() else []

    def prepared(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "prepared").iterdir())

    def committed(self) -> list[str]:
        return sorted(line for path in (self.folder / "committed").iterdir() for line in path.read_text().split())


class _ShelfWriter(SinkWriter[str, str]):
    def __init__(self, folder: Path) -> None:
        self.folder, self.values = folder, list[str]()

    def write_batch(self, values: list[str], timestamps: list[int] | None) -> None:
        self.values += values

    def prepare_commit(self) -> list[str]:
        values, self.values = self.values, []
        name = uuid.uuid4().hex
        if values:
            (self.folder / "prepared" / name).write_text("\n".join(values))
        return [name] if values else []


class _ShelfCommitter(Committer[str]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def commit(self, committables: list[str]) -> list[str]:
        if (self.folder / "locked").exists():
            raise OSError("the shelf is locked")
        for name in committables:
            if not (self.folder / "committed" / name).exists():
                (self.folder / "prepared" / name).rename(self.folder / "committed" / name)
        return []


def shelving(world: World, shelf: Shelf, records: int | None = None, **settings: Any) -> Any:
    """The client of a job that counts into it, without end unless `records` says otherwise."""
    env = world.environment(**{"tidegate_sink_commit__retries": 0, **settings})
    source = DataGeneratorSource(lambda i: i, count=records)
    numbers = env.from_source(source, job_watermarks(), "Numbers").uid("numbers")
    counted = numbers.key_by(lambda n: n % 10).process(Count(), Types.STRING()).uid("count")
    counted.sink_to(shelf).uid("sink")
    return env.execute_async("shelving")


def cancel_when_it_runs(world: World, where: str, number: int, start: Callable[[], Any]) -> Any:
    """The client of a job that was cancelled in that step of that batch. The query goes on with it when the job has
    told it to stop."""
    started: list[Any] = []
    there = threading.Event()

    def hook(step: str, batch: int) -> None:
        if (step, batch) == (where, number):
            there.wait(60)
            started[0].cancel()
            world.query.wait_for_stop()

    world.hook = hook
    started.append(start())
    there.set()
    assert started[0].get_job_execution_result().exception(60) is not None
    assert started[0].view().status is JobStatus.CANCELED
    return started[0]


def run_until_cancelled(world: World, shelf: Shelf, where: str, number: int, **settings: Any) -> None:
    cancel_when_it_runs(world, where, number, lambda: shelving(world, shelf, **settings))


def lines(records: int) -> list[str]:
    return sorted(f"{n % 10},{n // 10 + 1}" for n in range(records))


PER_BATCH = 30

PLACES = pytest.mark.parametrize("settings", [NOWHERE, {}], ids=["temporary", "lasting"])


@PLACES
def test_what_spark_has_committed_is_committed_when_a_job_is_cancelled(
    world: World, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """With a temporary location nobody else could do it."""
    world.master = "local[2]"
    shelf = Shelf(tmp_path / "shelf")
    run_until_cancelled(world, shelf, "commit", 2, **settings)
    assert shelf.committed() == lines(3 * PER_BATCH)
    assert shelf.prepared() == []


@PLACES
def test_what_a_cancelled_batch_has_prepared_is_undone(world: World, tmp_path: Path, settings: dict[str, Any]) -> None:
    """And a job that goes on in the location misses nothing."""
    world.master = "local[2]"
    shelf = Shelf(tmp_path / "shelf")
    run_until_cancelled(world, shelf, "report", 2, **settings)
    assert shelf.prepared() == []
    assert shelf.committed() == lines(2 * PER_BATCH)
    assert shelf.asked() == (["uncommitted", "leftovers"] if settings else ["uncommitted"])
    if settings is NOWHERE:
        return
    world.hook = lambda step, batch: None
    client = shelving(world, shelf)
    while len(shelf.committed()) < RECORDS:
        assert not client.get_job_execution_result().done()
    client.cancel().result(60)
    assert shelf.committed() == lines(len(shelf.committed()))


@PLACES
def test_a_job_that_has_failed_leaves_nothing_prepared(world: World, tmp_path: Path, settings: dict[str, Any]) -> None:
    world.master = "local[2]"

    def hook(step: str, batch: int) -> None:
        if (step, batch) in (("report", 2), ("committed", 1)):
            raise KilledError("a Python worker process exited unexpectedly")

    world.hook = hook
    shelf = Shelf(tmp_path / "shelf")
    client = shelving(world, shelf, **{"restart-strategy.type": "none"}, **settings)
    assert "exited unexpectedly" in str(client.get_job_execution_result().exception(60))
    assert shelf.prepared() == []
    assert shelf.committed() == lines(2 * PER_BATCH)


def test_a_job_that_finishes_has_nothing_to_undo(world: World, tmp_path: Path) -> None:
    world.master = "local[2]"
    shelf = Shelf(tmp_path / "shelf")
    shelving(world, shelf, RECORDS, **NOWHERE).get_job_execution_result().result(60)
    assert shelf.committed() == EXPECTED
    assert shelf.asked() == []


def test_what_a_savepoint_may_speak_of_stays(world: World, tmp_path: Path) -> None:
    world.master = "local[2]"
    shelf = Shelf(tmp_path / "shelf")
    client = shelving(world, shelf, **NOWHERE)
    client.trigger_savepoint(str(tmp_path / "savepoints")).result(60)
    client.cancel().result(60)
    assert shelf.asked() == ["uncommitted"]


def test_before_its_first_batch_a_job_undoes_nothing(world: World, tmp_path: Path) -> None:
    """What is prepared may be what the snapshot speaks of that it starts from."""
    world.master = "local[2]"
    first = Shelf(tmp_path / "first")
    client = shelving(world, first)
    savepoint = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(60)
    shelf = Shelf(tmp_path / "shelf")
    run_until_cancelled(world, shelf, "run", 0, execution_state__recovery_path=savepoint, **NOWHERE)
    assert shelf.asked() == []


def test_a_temporary_location_stays_while_something_has_to_be_committed(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says how: with it as the location of the next run."""
    world.master = "local[2]"
    shelf = Shelf(tmp_path / "shelf")

    def hook(step: str, batch: int) -> None:
        if (step, batch) == ("commit", 2):
            (shelf.folder / "locked").touch()

    world.hook = hook
    client = shelving(world, shelf, **{"restart-strategy.type": "none"}, **NOWHERE)
    assert "the shelf is locked" in str(client.get_job_execution_result().exception(60))
    assert shelf.asked() == []
    (told,) = [r for r in caplog.records if r.levelno == logging.WARNING and "at its end" in r.getMessage()]
    (folder,) = re.findall(r"checkpoint-location: (\S+)$", told.getMessage())
    assert shelf.committed() == lines(2 * PER_BATCH)
    (shelf.folder / "locked").unlink()
    world.hook = lambda step, batch: None
    world.location = Path(folder)
    client = shelving(world, shelf)
    while len(shelf.committed()) < RECORDS:
        assert not client.get_job_execution_result().done()
    client.cancel().result(60)
    assert shelf.committed() == lines(len(shelf.committed()))


@pytest.mark.parametrize(
    ("holder", "name", "told"),
    [
        (job_module, "undo_the_rest", "undo what does not count"),
        (job_module.SplitSearch, "close", "end the search for splits"),
        (job_module.CheckpointLocation, "close", "give back its checkpoint location"),
        (job_module.SavepointRequests, "job_over", "tell whoever waits for a savepoint"),
        (job_module.BatchLooks, "status_changed", "publish its end"),
        (job_module.ClientPort, "close", "keep its history and close its page"),
    ],
)
def test_whatever_fails_at_the_end_the_client_learns_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, holder: Any, name: str, told: str
) -> None:
    def failing(*args: Any, **__: Any) -> None:
        if args[-1] is not JobStatus.RUNNING:
            raise RuntimeError("not this one")

    monkeypatch.setattr(holder, name, failing)
    client = world.counting(records=None)
    client.cancel().result(60)
    assert isinstance(client.get_job_execution_result().exception(60), JobCancelledError)
    (record,) = [r for r in caplog.records if told in r.getMessage()]
    assert record.exc_info is not None
