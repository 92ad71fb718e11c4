"""High availability without Spark: real JobManagers and slots on real sockets and files, one after the other and beside
each other in one process."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.spark.recovery_kit import assert_exact, counted, expected_lines, file_sink, visible_lines
from tests.unit.spark.job_on_threads import start_job, until
from tests.unit.spark.thread_gang import ThreadGang
from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import run_end
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, JobCancelledError, JobSuspendedError, StateNotReadableError
from tidegate.common.job_status import JobStatus
from tidegate.datastream.connectors import DiscardingSink
from tidegate.graph.driver_sides import starting_job
from tidegate.jobmanager import running_jobs
from tidegate.jobmanager.leadership import led_here
from tidegate.jobmanager.leadership.ended_job import EndedJobClient
from tidegate.jobmanager.leadership.job_record import JobRecord, decode, encode
from tidegate.jobmanager.leadership.leadership import JobHasEndedError
from tidegate.jobmanager.leadership.settings import HighAvailability
from tidegate.jobmanager.preparation import prepare_job
from tidegate.jobmanager.runtime import Submission
from tidegate.protocol.codec import encode as to_bytes
from tidegate.protocol.instructions import Recording
from tidegate.protocol.messages import Deploy
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.streaming import control_link, job_manager
from tidegate.spark.streaming.job_manager import JobManager
from tidegate.spark.streaming.runtime import StreamingRuntime
from tidegate.storage.job_directory import VIEW
from tidegate.storage.leases.cells import FileCell
from tidegate.storage.location import StorageLocation
from tidegate.testing.in_process_job import graph_of
from tidegate.web.history import History

RECORDS = 4_000


class Jobs:
    """Drivers of one job, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = str(folder / "checkpoints")
        self.managers: list[JobManager] = []
        (folder / "ha").mkdir()

    def lead(self, per_second: float | None = None, standby: bool = False, padding: int = 0, **more: Any) -> JobManager:
        """Returns when it leads and its job runs."""
        env = environment(
            {
                "execution.checkpointing.interval": "100 ms",
                "execution.checkpointing.dir": self.checkpoints,
                "rest.enabled": "false",
                "high-availability.type": "filesystem",
                "high-availability.storageDir": str(self.folder / "ha"),
                "high-availability.cluster-id": "job",
                "tidegate.high-availability.lease-duration": "3 s",
                "heartbeat.interval": "300 ms",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": 20,
                "restart-strategy.fixed-delay.delay": 0,
            }
            | more
        )
        results = counted(env, RECORDS, per_second, padding=padding)
        results.sink_to(file_sink(self.folder / "out", True)).name("out").uid("out")
        graph, configuration = graph_of(env), Configuration(env._configuration)
        available = HighAvailability.from_configuration(configuration)
        assert available is not None
        leadership = available.leadership(graph)
        try:
            leadership.campaign(standby)
            graph = dataclasses.replace(graph, job_id=leadership.record.job_id)
            job = prepare_job(graph, configuration, leadership=leadership)
        except BaseException:
            leadership.close()
            raise
        manager = JobManager(
            session=SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]")),  # type: ignore[arg-type]
            job=job,
            bundle=CodeBundle.collect([]),
        )
        self.managers.append(manager)
        manager.start()
        return manager

    def record(self) -> JobRecord:
        content = self.cell().read()
        assert content is not None
        return decode(content.data, "the record")

    def newest(self) -> int:
        pointer = self.record().checkpoint
        return 0 if pointer is None else pointer.checkpoint_id

    def cell(self) -> FileCell:
        return FileCell(StorageLocation.parse(str(self.folder / "ha" / "job")), "job")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setattr(job_manager, "SparkGang", ThreadGang)
    monkeypatch.setattr(control_link.os, "kill", lambda pid, number: None)
    made = Jobs(tmp_path)
    yield made
    for manager in made.managers:
        manager.cancel()
    for manager in made.managers:
        manager.join(30)


def completed(manager: JobManager) -> int:
    return sum(c.status.name == "COMPLETED" for c in manager.client.checkpoint_history())


def test_a_leader_that_cannot_renew_its_lease_stops_and_the_standby_goes_on(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(str(tmp_path / "history"))
    given = {"tidegate.history.dir": history.directory}
    first = jobs.lead(per_second=200.0, **given)
    until(lambda: completed(first) >= 2, "checkpoints of the first")
    second: list[JobManager] = []
    waiting = threading.Thread(target=lambda: second.append(jobs.lead(standby=True, **given)))
    waiting.start()
    _cut_off(first)
    with pytest.raises(JobSuspendedError, match=r"\(epoch 1\) does not lead the job any more"):
        first.client.get_job_execution_result().result(60)
    assert first.client.view().status.name == "SUSPENDED"
    left = {path.name for path in (tmp_path / "checkpoints").glob("*-e1/*")}
    first.join(30)
    assert not list((tmp_path / "checkpoints").rglob(VIEW)), "the last view of a job is that of the leader that ends it"
    assert not history.job_ids()
    waiting.join(60)
    second[0].client.get_job_execution_result().result(60)
    assert [restore.checkpoint_id for restore in second[0].client.restores()]
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)
    record = jobs.record()
    assert (record.status, record.epoch) == ("FINISHED", 2)
    assert left, "the checkpoints of a leader that only stops are kept"
    second[0].join(30)
    assert [one["status"] for one in history.summaries({}).values()] == ["FINISHED"]
    with pytest.raises(JobHasEndedError):
        jobs.lead()


def test_a_leader_finds_the_checkpoints_of_the_one_before_on_an_object_store(
    jobs: Jobs, tmp_path: Path, s3_server: tuple[str, Any]
) -> None:
    """The way to the store is part of the path: `s3://bucket/folder?endpoint_override=...`."""
    endpoint, _ = s3_server
    jobs.checkpoints = f"s3://bucket/{tmp_path.name}?endpoint_override={endpoint}"
    first = jobs.lead(per_second=200.0)
    until(lambda: completed(first) >= 2, "checkpoints of the first")
    _cut_off(first)
    with pytest.raises(JobSuspendedError):
        first.client.get_job_execution_result().result(60)
    second = jobs.lead(standby=True)
    second.client.get_job_execution_result().result(60)
    assert [restore.checkpoint_id for restore in second.client.restores()]
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)


_FILES_OF_THEIR_OWN: dict[str, Any] = {  # of every checkpoint the state of a single key has one
    "padding": 30_000,
    "execution.checkpointing.num-retained": 3,
    "execution.checkpointing.incremental": False,
}


def _led_until_the_newest_is_damaged(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> tuple[int, int, Path]:
    """The checkpoint, the one before it, and the folder of the first."""
    first = jobs.lead(per_second=200.0, **_FILES_OF_THEIR_OWN)
    until(lambda: completed(first) >= 1 and visible_lines(jobs.folder / "out"), "results of the first")
    seen = jobs.newest()
    until(lambda: jobs.newest() >= seen + 3, "checkpoints of the first")
    monkeypatch.setattr(running_jobs, "_started", {first: 0})
    running_jobs._leave_at_exit()
    with pytest.raises(JobSuspendedError):
        first.client.get_job_execution_result().result(60)
    record = jobs.record()
    assert record.checkpoint is not None
    newest, folder = record.checkpoint.checkpoint_id, Path(record.checkpoint.path)
    before = record.older[0].checkpoint_id
    assert len(record.older) == 2
    assert newest > before
    (path,) = [folder / "_metadata"] if damaged == "metadata" else folder.parent.glob(f"shared/c{newest}-*")
    path.write_bytes(b"rotten")
    return newest, before, folder


@pytest.mark.parametrize("damaged", ["metadata", "state"])
def test_a_leader_falls_back_to_an_older_checkpoint_of_the_one_before_when_the_newest_is_damaged(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    newest, before, folder = _led_until_the_newest_is_damaged(jobs, monkeypatch, damaged)
    second = jobs.lead(**_FILES_OF_THEIR_OWN)
    second.client.get_job_execution_result().result(60)
    assert f"checkpoint {newest} is damaged" in caplog.text
    assert f"falling back to checkpoint {before}: what was read since" in caplog.text
    assert before in [restore.checkpoint_id for restore in second.client.restores()]
    assert not expected_lines(RECORDS) - visible_lines(jobs.folder / "out"), "lost"
    second.join(30)
    left = {path.name for path in folder.parent.glob("chk-*")}
    assert left == ({folder.name} if damaged == "metadata" else set()), "all is deleted whose metadata can be read"
    assert (jobs.record().status, jobs.record().epoch) == ("FINISHED", 2)


@pytest.mark.parametrize("damaged", ["metadata", "state"])
def test_a_leader_that_falls_back_shows_no_committed_state_that_is_older_than_what_the_one_before_may_have_shown(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    newest, before, _ = _led_until_the_newest_is_damaged(jobs, monkeypatch, damaged)
    second = jobs.lead(per_second=200.0, **_FILES_OF_THEIR_OWN | {"execution.checkpointing.interval": "1 h"})
    client = second.client
    until(
        lambda: client.view().status is JobStatus.RUNNING and before in [r.checkpoint_id for r in client.restores()],
        "the fall-back",
    )
    with pytest.raises(StateNotReadableError, match=f"went back to checkpoint {before}, since checkpoint {newest}"):
        client.get_state("count", "count").scan(5, level="committed")
    client.cancel().result(60)


def _cut_off(manager: JobManager) -> None:
    """Its store answers nothing more: neither the lease nor the record."""
    leadership = manager._leadership
    assert leadership is not None

    def fails(*_: Any) -> Any:
        raise OSError("cut off")

    for cell in (leadership._lease_cell, leadership._cell):
        cell.read = cell.put = fails  # type: ignore[method-assign]


def test_workers_learn_with_their_deployment_how_long_their_driver_leads(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(job_manager, "encode", lambda message: (sent.append(message), to_bytes(message))[1])
    manager = jobs.lead(per_second=500.0)
    until(lambda: completed(manager) >= 1, "a checkpoint")
    deployments = [message for message in sent if isinstance(message, Deploy)]
    assert deployments
    for message in deployments:
        assert message.valid_ms is not None
        assert 0 < message.valid_ms <= 3000
        assert message.heard_ms > 0


def test_the_record_names_a_checkpoint_before_anybody_hears_of_it(jobs: Jobs) -> None:
    manager = jobs.lead(per_second=500.0)
    until(lambda: completed(manager) >= 3, "checkpoints")
    newest = max(c.checkpoint_id for c in manager.client.checkpoint_history() if c.status.name == "COMPLETED")
    record = jobs.record()
    assert record.checkpoint is not None
    assert record.checkpoint.checkpoint_id >= newest
    assert record.checkpoint.path.endswith(f"-e1/chk-{record.checkpoint.checkpoint_id}")
    manager.client.cancel()
    manager.join(30)
    assert jobs.record().status == "CANCELED"


def test_a_job_that_was_stopped_at_a_savepoint_is_only_finished_by_the_next_leader(jobs: Jobs, tmp_path: Path) -> None:
    first = jobs.lead(per_second=200.0)
    until(lambda: completed(first) >= 1, "a checkpoint")
    path = first.client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(60)
    first.join(30)
    record = jobs.record()
    assert record.savepoint is not None
    assert record.savepoint.path == path
    assert (record.status, record.stopped) == ("FINISHED", True)
    lines = visible_lines(tmp_path / "out")
    # As if the driver had died right after the savepoint was recorded.
    cell = jobs.cell()
    content = cell.read()
    assert content is not None
    assert cell.put(encode(msgspec.structs.replace(record, status="RUNNING")), content.version)
    second = jobs.lead()
    second.client.get_job_execution_result().result(60)
    assert visible_lines(tmp_path / "out") == lines
    assert (jobs.record().status, jobs.record().epoch) == ("FINISHED", 2)


def test_a_record_is_readable_by_people(jobs: Jobs, tmp_path: Path) -> None:
    manager = jobs.lead(per_second=500.0)
    until(lambda: completed(manager) >= 1, "a checkpoint")
    (newest,) = sorted((tmp_path / "ha" / "job").glob("job-*"), key=lambda p: int(p.name[4:]))[-1:]
    shown = json.loads(newest.read_text())
    assert shown["name"]
    assert {"job_id", "epoch", "status", "checkpoint", "graph"} <= shown.keys()


def test_a_driver_that_does_not_lead_does_nothing_that_has_an_effect(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = jobs.lead(per_second=200.0)
    until(lambda: completed(manager) >= 1, "a checkpoint")
    assert manager._leadership is not None
    monkeypatch.setattr(manager._leadership, "leads", lambda: False)
    done: list[str] = []
    for name in ("delete_orphans", "delete_state", "record_snapshot", "submit_gang", "write_metadata"):
        monkeypatch.setattr(manager, name, lambda instruction: done.append(type(instruction).__name__))
    manager._waker.wake()
    with pytest.raises(JobSuspendedError):
        manager.client.get_job_execution_result().result(60)
    assert done == []


def test_a_program_that_ends_gives_its_lease_back_and_the_job_goes_on_elsewhere(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception after `execute_async`, or `sys.exit` in a handler of SIGTERM: that is no wish to cancel the job."""
    first = jobs.lead(per_second=200.0)
    until(lambda: completed(first) >= 2, "checkpoints of the first")
    monkeypatch.setattr(running_jobs, "_started", {first: 0})
    running_jobs._leave_at_exit()
    with pytest.raises(JobSuspendedError, match="its program has ended, and has given its lease back"):
        first.client.get_job_execution_result().result(60)
    assert (jobs.record().status, jobs.record().epoch) == ("RUNNING", 1)
    lease = FileCell(StorageLocation.parse(str(tmp_path / "ha" / "job")), "lease").read()
    assert lease is not None
    assert json.loads(lease.data)["released"]
    second = jobs.lead()
    second.client.get_job_execution_result().result(60)
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)


def test_a_job_without_high_availability_is_cancelled_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment({"rest.enabled": "false"})
    counted(env, None, 200.0).sink_to(DiscardingSink())
    manager = start_job(env, monkeypatch)
    monkeypatch.setattr(running_jobs, "_started", {manager: 0})
    running_jobs._leave_at_exit()
    with pytest.raises(JobCancelledError):
        manager.client.get_job_execution_result().result(60)


@pytest.fixture
def lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """What `execute` does up to the point at which the job would run: returns who leads, or the client of a job that
    has ended."""
    monkeypatch.setattr(led_here, "_led", {})
    runtime = StreamingRuntime()
    monkeypatch.setattr(runtime, "_run", lambda submission, starting, leadership=None: leadership)
    env = environment(
        {
            "high-availability.type": "filesystem",
            "high-availability.storageDir": str(tmp_path),
            "high-availability.cluster-id": "job",
            "tidegate.high-availability.lease-duration": "3 s",
            "heartbeat.interval": "300 ms",
        }
    )
    counted(env, 10, None).sink_to(DiscardingSink())
    submission = Submission(graph_of(env), Configuration(env._configuration))
    available = HighAvailability.from_configuration(submission.configuration)
    assert available is not None

    def start() -> Any:
        with starting_job(submission.graph) as starting:
            return runtime._lead(available, submission, starting)

    return start


def test_a_second_job_of_one_program_under_one_cluster_id_is_refused(lead: Callable[[], Any]) -> None:
    """And not passed over in silence, as what has been done already."""
    first = lead()
    with pytest.raises(ConfigurationError, match=r"executes a second job, .* first one, .* runs: a cluster id belongs"):
        lead()
    assert first.put_end(JobStatus.FINISHED, "") is Recording.WRITTEN
    first.close()
    with pytest.raises(ConfigurationError, match=r"executes a second job, .* first one, .* has ended: .* Give each"):
        lead()


def test_a_program_may_try_again_to_lead_a_job_that_it_lost(lead: Callable[[], Any]) -> None:
    lead().close()
    second = lead()
    assert (second.leads(), second.epoch) == (True, 2)
    assert second.put_end(JobStatus.FINISHED, "") is Recording.WRITTEN
    second.close()
    led_here._led.clear()  # another program
    assert isinstance(lead(), EndedJobClient)


def test_who_started_the_program_is_told_when_its_job_has_ended_for_good(
    lead: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the program that has led it, and by each one that is started after that."""
    told = tmp_path / "told"
    monkeypatch.setenv(run_end.VARIABLE, str(told))
    monkeypatch.setattr(run_end, "_jobs", {})
    first = lead()
    assert run_end.end_told(told) is None
    assert first.put_end(JobStatus.FAILED, "it was like this") is Recording.WRITTEN
    first.close()
    assert run_end.end_told(told) == "FAILED"
    told.unlink()
    led_here._led.clear()  # another program
    run_end._jobs.clear()
    assert isinstance(lead(), EndedJobClient)
    assert run_end.end_told(told) == "FAILED"
