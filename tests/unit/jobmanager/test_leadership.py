"""Leaders with real threads, time and files. The protocol is tested in tests/simulation/test_leaders.py."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jobmanager_kit import chain_of
from jobmanager_kit import graph as numbered_graph

from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, JobCancelledError, JobExecutionError
from tidegate.common.ids import CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.job_view import settings_of
from tidegate.jobmanager.leadership import leadership as leadership_module
from tidegate.jobmanager.leadership import settings
from tidegate.jobmanager.leadership.ended_job import EndedJobClient
from tidegate.jobmanager.leadership.fence import without_effect
from tidegate.jobmanager.leadership.job_record import (
    RECORD_VERSION,
    GraphOutline,
    JobRecord,
    OperatorOutline,
    SnapshotPointer,
    encode,
)
from tidegate.jobmanager.leadership.leadership import JobHasEndedError, Leadership
from tidegate.jobmanager.leadership.record_claim import (
    MAX_OLDER,
    CheckpointCompleted,
    PutRecord,
    RecordClaim,
    RecordFound,
    RecordInstruction,
    RecordRefused,
    SavepointCompleted,
    applied,
)
from tidegate.jobmanager.leadership.settings import HighAvailability
from tidegate.protocol.instructions import CancelGang, DeleteOrphans, Recording, Send, SubmitGang
from tidegate.protocol.messages import Leave, MasterHeartbeat
from tidegate.storage.leases.cells import FileCell, S3Cell
from tidegate.storage.leases.keeper import LeaseKeeper, LeaseLostError, Waited
from tidegate.storage.leases.lease import LeaseRecord
from tidegate.storage.location import StorageLocation

LEASE_MS = 3000


def configuration(folder: Path, **more: Any) -> Configuration:
    values = {
        "high-availability.type": "filesystem",
        "high-availability.storageDir": str(folder),
        "high-availability.cluster-id": "job",
        "tidegate.high-availability.lease-duration": LEASE_MS,
        "heartbeat.interval": 500,
    }
    return Configuration.from_dict(values | more)


def graph(**arguments: int) -> JobGraph:
    return dataclasses.replace(numbered_graph(**arguments), job_id="0" * 32)


def leadership(folder: Path, job: Any = None, **more: Any) -> Leadership:
    available = HighAvailability.from_configuration(configuration(folder, **more))
    assert available is not None
    return available.leadership(job or graph())


def leader(folder: Path, job: Any = None, standby: bool = False) -> Leadership:
    found = leadership(folder, job)
    try:
        found.campaign(standby)
    except BaseException:
        found.close()
        raise
    return found


def pointer(number: int, epoch: int = 1) -> SnapshotPointer:
    return SnapshotPointer(checkpoint_id=CheckpointId(number), path=f"/c/chk-{number}", epoch=epoch)


def put(found: Leadership, change: Any) -> Recording:
    answers: list[Recording] = []
    answered = threading.Event()
    found.put(change, lambda outcome: (answers.append(outcome), answered.set()))  # type: ignore[func-returns-value]
    assert answered.wait(10)
    return answers[0]


# ---------------------------------------------------------------- leading


def test_a_store_that_refuses_every_write_of_the_record_is_asked_again_after_a_pause() -> None:
    claim = RecordClaim("me", JobRecord(job_id="0", name="job", graph=GraphOutline(operators=(), edges=())), "there")
    asked = 0
    instruction: RecordInstruction | None = claim.start()
    for now in range(2000):
        instruction = instruction or claim.on_tick(now, True)
        while instruction is not None and asked < 10_000:
            asked += 1
            refused = isinstance(instruction, PutRecord)
            instruction = claim.on_answer(RecordRefused() if refused else RecordFound(None, None), now, True)
    assert 10 <= asked <= 2 * 2000 / claim.retry_ms + 4


def test_a_second_driver_goes_on_with_what_the_first_has_recorded(tmp_path: Path) -> None:
    first = leader(tmp_path)
    assert (first.leads(), first.epoch, first.record.checkpoint) == (True, 1, None)
    assert put(first, CheckpointCompleted(pointer(4))) is Recording.WRITTEN
    assert put(first, CheckpointCompleted(pointer(3))) is Recording.SUPERSEDED
    assert put(first, SavepointCompleted(pointer(5), stop=True)) is Recording.WRITTEN
    first.close()
    assert not first.leads()
    second = leader(tmp_path)
    assert second.epoch == 2
    assert second.record.job_id == first.record.job_id
    assert (second.record.checkpoint, second.record.savepoint, second.record.stopped) == (pointer(4), pointer(5), True)
    second.close()


def test_the_record_names_what_is_retained_behind_the_newest_checkpoint(tmp_path: Path) -> None:
    """Of the leaders before as well, as long as that is retained."""
    first = leader(tmp_path)
    for n in (1, 2, 3, 4):
        assert put(first, CheckpointCompleted(pointer(n), num_retained=3)) is Recording.WRITTEN
    assert put(first, CheckpointCompleted(pointer(2), num_retained=3)) is Recording.SUPERSEDED
    first.close()
    second = leader(tmp_path)
    assert (second.record.checkpoint, second.record.older) == (pointer(4), (pointer(3), pointer(2)))
    assert put(second, CheckpointCompleted(pointer(5, 2), num_retained=3)) is Recording.WRITTEN
    second.close()
    third = leader(tmp_path)
    assert (third.record.checkpoint, third.record.older) == (pointer(5, 2), (pointer(4), pointer(3)))
    assert put(third, CheckpointCompleted(pointer(6, 3), num_retained=1)) is Recording.WRITTEN
    third.close()
    fourth = leader(tmp_path)
    assert (fourth.record.checkpoint, fourth.record.older) == (pointer(6, 3), ())
    fourth.close()


def test_the_record_names_no_checkpoint_that_was_refused_and_keeps_its_place_for_one_that_can_be_read() -> None:
    record = JobRecord(job_id="0" * 32, name="job", graph=GraphOutline(operators=(), edges=()))
    for n in (1, 2, 3):
        record = applied(record, CheckpointCompleted(pointer(n), num_retained=3)) or record
    found = applied(record, CheckpointCompleted(pointer(4), num_retained=3, refused=(CheckpointId(3),)))
    assert found is not None
    assert (found.checkpoint, found.older) == (pointer(4), (pointer(2), pointer(1)))


def test_a_record_has_room_for_some_older_checkpoints_only() -> None:
    record = JobRecord(job_id="0" * 32, name="job", graph=GraphOutline(operators=(), edges=()))
    for n in range(1, 100):
        found = applied(record, CheckpointCompleted(pointer(n), num_retained=1_000))
        assert found is not None
        record = found
    assert [older.checkpoint_id for older in record.older] == list(range(98, 98 - MAX_OLDER, -1))


def test_a_savepoint_that_is_recorded_after_a_stop_does_not_revoke_it(tmp_path: Path) -> None:
    """It was still being written when the stop was recorded: the next leader has to end the job all the same."""
    first = leader(tmp_path)
    assert put(first, CheckpointCompleted(pointer(4))) is Recording.WRITTEN
    assert put(first, SavepointCompleted(pointer(3))) is Recording.WRITTEN
    assert put(first, SavepointCompleted(pointer(6), stop=True)) is Recording.WRITTEN
    assert put(first, SavepointCompleted(pointer(5))) is Recording.SUPERSEDED
    first.close()
    second = leader(tmp_path)
    assert (second.record.savepoint, second.record.stopped) == (pointer(6), True)
    second.close()


def test_a_standby_waits_for_the_leader_and_then_leads(tmp_path: Path) -> None:
    first = leader(tmp_path)
    found: list[Leadership] = []
    waiting = threading.Thread(target=lambda: found.append(leader(tmp_path, standby=True)))
    waiting.start()
    waiting.join(1)
    assert not found
    first.close()
    waiting.join(10)
    assert (found[0].leads(), found[0].epoch) == (True, 2)
    found[0].close()


def test_a_driver_that_is_no_standby_is_refused_beside_a_living_one(tmp_path: Path) -> None:
    first = leader(tmp_path)
    with pytest.raises(ConfigurationError, match=r"is led by process \d+ on .*, which is alive: stop it first, or run"):
        leader(tmp_path)
    first.close()


class Stalling(FileCell):
    """A store whose answers can be held up."""

    gate = threading.Event()
    held_up = False  # a write was

    def read(self) -> Any:
        self.gate.wait()
        return super().read()

    def put(self, data: bytes, expected: str | None) -> str | None:
        self.held_up = self.held_up or not self.gate.is_set()
        self.gate.wait()
        return super().put(data, expected)


def test_a_leader_whose_store_does_not_answer_leads_while_its_lease_is_valid(tmp_path: Path) -> None:
    folder = StorageLocation.parse(str(tmp_path))
    Stalling.gate.set()
    candidate = JobRecord(job_id="j", name="j", graph=GraphOutline.of(graph()))
    first = Leadership(Stalling(folder, "lease"), Stalling(folder, "job"), LEASE_MS, candidate)
    first.campaign(False)
    Stalling.gate.clear()
    answers: list[Recording] = []
    assert first.leads()
    assert 0 < first.valid_ms() <= LEASE_MS
    first.put(CheckpointCompleted(pointer(1)), answers.append)
    deadline = time.monotonic() + 10
    while first.leads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not first.leads()
    assert first.valid_ms() == 0
    assert "could not be renewed in time" in first.why_not()
    with pytest.raises(LeaseLostError, match="nothing more is written or deleted"):
        first.check()
    assert first.put_end(JobStatus.FINISHED, "") is Recording.DEPOSED
    Stalling.gate.set()
    first.close()


class Unwritable(FileCell):
    """Can be read, and not be written any more: refused, or never answered."""

    def __init__(self, folder: StorageLocation, hangs: bool) -> None:
        super().__init__(folder, "job")
        self.hangs = hangs
        self.broken = False
        self.let_go = threading.Event()

    def put(self, data: bytes, expected: str | None) -> str | None:
        if self.broken and self.hangs:
            self.let_go.wait(60)
        if self.broken:
            raise PermissionError("the rights were taken away")
        return super().put(data, expected)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_leader_that_cannot_write_its_record_steps_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    """Its lease is renewed meanwhile: without that it would run for ever, and complete no checkpoint."""
    monkeypatch.setattr(leadership_module, "RECORD_PATIENCE_S", 1.0)
    folder = StorageLocation.parse(str(tmp_path))
    candidate = JobRecord(job_id="j", name="j", graph=GraphOutline.of(graph()))
    record = Unwritable(folder, hangs)
    found = Leadership(FileCell(folder, "lease"), record, 60_000, candidate)
    found.campaign(False)
    assert put(found, CheckpointCompleted(pointer(1))) is Recording.WRITTEN
    record.broken = True
    found.put(CheckpointCompleted(pointer(2)), lambda outcome: None)
    assert found.leads()
    deadline = time.monotonic() + 20
    while found.leads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not found.leads()
    assert found.valid_ms() > 0  # of the lease
    assert "could not be written" in found.why_not()
    assert len([text for text in caplog.messages if "rights were taken away" in text]) == (0 if hangs else 1)
    assert found.put_end(JobStatus.FINISHED, "") is Recording.DEPOSED
    record.broken = False
    record.let_go.set()
    assert not found.leads()  # for good
    found.close()


def test_a_deposed_leader_can_record_nothing(tmp_path: Path) -> None:
    first = leader(tmp_path)
    cell = FileCell(StorageLocation.parse(str(tmp_path / "job")), "job")
    content = cell.read()
    assert content is not None
    theirs = msgspec.structs.replace(first.record, epoch=2, owner="another", beat=1)
    assert cell.put(encode(theirs), content.version) is not None
    assert put(first, CheckpointCompleted(pointer(1))) is Recording.DEPOSED
    assert not first.leads()
    assert "another driver has claimed the job" in first.why_not()
    first.close()
    assert cell.read().data == encode(theirs)  # type: ignore[union-attr]


def test_what_a_deposed_driver_may_still_do() -> None:
    leave = Send(0, Leave(attempt=0, reason="r"), "i")  # type: ignore[arg-type]
    assert without_effect(leave)
    assert without_effect(CancelGang(0))  # type: ignore[arg-type]
    beat = Send(0, MasterHeartbeat(attempt=0), "i")  # type: ignore[arg-type]
    assert not any(map(without_effect, (beat, DeleteOrphans(), SubmitGang(0, 1))))  # type: ignore[arg-type]


def test_a_store_that_is_back_before_the_lease_has_run_out_has_cost_nothing(tmp_path: Path) -> None:
    folder = StorageLocation.parse(str(tmp_path))
    gate = Stalling.gate
    gate.set()
    candidate = JobRecord(job_id="j", name="j", graph=GraphOutline.of(graph()))
    stalling = Stalling(folder, "lease")
    first = Leadership(stalling, Stalling(folder, "job"), 15_000, candidate)  # renewed every 3 s
    first.campaign(False)
    gate.clear()
    answers: list[Recording] = []
    first.put(CheckpointCompleted(pointer(1)), answers.append)
    deadline = time.monotonic() + 60
    while not stalling.held_up:
        assert time.monotonic() < deadline
        assert first.leads()
        time.sleep(0.01)
    assert not answers
    left = first.valid_ms()
    gate.set()
    while not answers or first.valid_ms() <= left:
        assert time.monotonic() < deadline
        assert first.leads()
        time.sleep(0.01)
    assert answers == [Recording.WRITTEN]
    assert (first.epoch, first._keeper.epoch) == (1, 1)
    first.close()


class Robbed(FileCell):
    """A record before whose claim somebody else takes the lease, and gives it back."""

    robbed: Leadership | None = None
    reads = 0

    def read(self) -> Any:
        self.reads += 1
        if self.reads == 2 and self.robbed is not None:  # the first one is the look before the campaign
            lease = self.robbed._lease_cell
            keeper = self.robbed._keeper
            theirs = LeaseRecord(owner="thief", epoch=7, beat=1, lease_ms=LEASE_MS, released=True)
            while lease.put(msgspec.json.encode(theirs), lease.read().version) is None:  # type: ignore[union-attr]
                pass
            deadline = time.monotonic() + 60
            while not keeper.lost():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        return super().read()


@pytest.mark.parametrize("standby", [True, False])
def test_a_standby_that_has_the_lease_and_loses_it_at_once_stands_by_again(tmp_path: Path, standby: bool) -> None:
    folder = StorageLocation.parse(str(tmp_path))
    candidate = JobRecord(job_id="j", name="j", graph=GraphOutline.of(graph()))
    record = Robbed(folder, "job")
    found = record.robbed = Leadership(FileCell(folder, "lease"), record, LEASE_MS, candidate)
    if standby:
        found.campaign(True)
        assert found.leads()
        assert found._keeper.epoch == 8
    else:
        with pytest.raises(ConfigurationError, match="was lost before the record could be written"):
            found.campaign(False)
    found.close()


def test_a_standby_whose_lease_came_and_went_while_it_waited_stands_by_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [Waited.OVER]
    wait = LeaseKeeper.wait
    monkeypatch.setattr(LeaseKeeper, "wait", lambda *a, **k: outcomes.pop() if outcomes else wait(*a, **k))
    found = leader(tmp_path, standby=True)
    assert found.leads()
    found.close()


# ---------------------------------------------------------------- jobs that have ended


@pytest.mark.parametrize(
    ("status", "raises"),
    [(JobStatus.FINISHED, None), (JobStatus.CANCELED, JobCancelledError), (JobStatus.FAILED, JobExecutionError)],
)
def test_a_job_that_has_ended_is_not_started_again(tmp_path: Path, status: JobStatus, raises: Any) -> None:
    first = leader(tmp_path)
    assert first.put_end(status, "it was like this") is Recording.WRITTEN
    first.close()
    with pytest.raises(JobHasEndedError, match=f"has ended as {status.name}, and is not started again") as caught:
        leader(tmp_path, standby=True)
    client = EndedJobClient(caught.value.record, str(caught.value), graph(), Configuration())
    assert client.get_job_status().result() is status
    assert str(client.get_job_id()) == first.record.job_id
    if raises is None:
        assert client.get_job_execution_result().result().get_job_id() == client.get_job_id()
    else:
        with pytest.raises(raises, match="it was like this" if status is JobStatus.FAILED else "was cancelled"):
            client.get_job_execution_result().result()


# ---------------------------------------------------------------- what is refused


def test_two_jobs_under_one_cluster_id(tmp_path: Path) -> None:
    leader(tmp_path).close()
    other = dataclasses.replace(graph(), name="another")
    with pytest.raises(
        ConfigurationError, match=r"belongs to the job 'test job'.* and this is the job 'another': give each"
    ):
        leader(tmp_path, other)


def test_a_standby_with_another_graph_hears_at_once_what_differs(tmp_path: Path) -> None:
    first = leader(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"another graph .*operator 'source' has parallelism 1, not 2"
    ) as caught:
        leader(tmp_path, graph(sources=1), standby=True)
    assert "under another high-availability.cluster-id" in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"operator 'another' is new; operator 'count' is missing"):
        leader(tmp_path, chain_of("another"), standby=True)
    first.close()


def test_operators_that_are_connected_in_another_way_are_named() -> None:
    operators = tuple(OperatorOutline(operator_id=i, name=f"operator {i}", parallelism=1) for i in "abc")
    one = GraphOutline(operators=operators, edges=("a->b:0", "b->c:0"))
    other = GraphOutline(operators=operators, edges=("a->b:0", "a/late->c:1"))
    assert one.differences(one) == []
    assert one.differences(other) == [
        "the connection from 'operator a', side output 'late' to 'operator c', input 1, is new",
        "the connection from 'operator b' to 'operator c', input 0, is missing",
    ]


def test_a_record_of_a_newer_version(tmp_path: Path) -> None:
    first = leader(tmp_path)
    first.close()
    cell = FileCell(StorageLocation.parse(str(tmp_path / "job")), "job")
    newer = msgspec.json.encode({"version": RECORD_VERSION + 1, "something": "else"})
    assert cell.put(newer, cell.read().version) is not None  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match=rf"has version {RECORD_VERSION + 1}, this Tidegate reads up to"):
        leader(tmp_path)
    assert cell.put(b"garbage", cell.read().version) is not None  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="is not the record of a job"):
        leader(tmp_path)


def test_a_folder_that_is_missing_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"high-availability.storageDir: there is no folder .*missing; make it"
    ):
        leadership(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match=r"high-availability.storageDir: .* cannot be written to"):
        leadership(Path("/proc"))


@pytest.mark.parametrize("scheme", ["gs", "abfs", "hdfs"])
def test_a_store_without_conditional_writes_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(settings, "open_files", lambda location: pytest.fail("it was opened"))
    with pytest.raises(ConfigurationError, match=rf"storageDir: {scheme}:.* no lease can be kept here, since"):
        leadership(tmp_path, **{"high-availability.storageDir": f"{scheme}://bucket/ha"})


def test_a_request_that_hangs_is_given_up_while_there_is_time_to_ask_again(s3_server: Any) -> None:
    endpoint, _ = s3_server
    found = leadership(Path(), **{"high-availability.storageDir": f"s3://bucket/ha?endpoint_override={endpoint}"})
    for cell in (found._lease_cell, found._cell):
        assert isinstance(cell, S3Cell)
        config = cell._client.meta.config
        assert (config.connect_timeout, config.read_timeout) == (LEASE_MS / 4000, LEASE_MS / 4000)
    found.close()


ZOOKEEPER = {"high-availability.type": "zookeeper", "high-availability.zookeeper.quorum": "localhost:1"}
ACL = "high-availability.zookeeper.client.acl"
USER, PASSWORD = (f"tidegate.high-availability.zookeeper.{name}" for name in ("username", "password"))


def test_the_password_of_zookeeper_is_a_secret(tmp_path: Path) -> None:
    given = configuration(tmp_path, **ZOOKEEPER, **{ACL: "creator", USER: "me", PASSWORD: "opensesame"})
    found = HighAvailability.from_configuration(given)
    assert found is not None
    assert (found.creator_only, found.user, found.password) == (True, "me", "opensesame")
    assert "opensesame" not in f"{found} {given} {settings_of(given)}"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (ZOOKEEPER | {ACL: "creator"}, "client.acl: creator needs both"),
        (ZOOKEEPER | {USER: "me"}, "belong together"),
        (ZOOKEEPER | {USER: "me:too", PASSWORD: "x"}, "a name has no ':' in it"),
        ({"high-availability.cluster-id": ""}, "high-availability.cluster-id is '': high availability needs one"),
        ({"high-availability.cluster-id": "a/b"}, "of letters, digits"),
        ({"high-availability.storageDir": ""}, "is filesystem, but high-availability.storageDir is not set"),
        ({"high-availability.type": "zookeeper"}, "is zookeeper, but high-availability.zookeeper.quorum is not set"),
        ({"heartbeat.interval": 1500}, "heartbeat.interval must be less than half of"),
        ({"execution.checkpointing.interval": 100}, "checkpoints are kept in the driver's memory and would be gone"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        HighAvailability.from_configuration(configuration(tmp_path, **more))


def test_a_standby_of_nothing() -> None:
    with pytest.raises(ConfigurationError, match=r"needs high availability: set high-availability.type"):
        HighAvailability.from_configuration(Configuration.from_dict({"tidegate.high-availability.standby": True}))


def test_it_is_off_by_default() -> None:
    assert HighAvailability.from_configuration(Configuration()) is None
