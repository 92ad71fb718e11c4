"""The seam between a task and its model of fault tolerance, shown with models that the project does not have (yet): one
that holds results back until a log is durable, one that recognises what it has seen, and one that protects nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_jobs import environment, ticks

from tidegate.common.errors import InternalError
from tidegate.common.ids import AttemptNumber, ChannelAddress, CheckpointId, EdgeId, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.datastream.connectors import CollectSink
from tidegate.fault_tolerance.none.task import Unprotected
from tidegate.fault_tolerance.task_side import TaskModel, TaskPort, TaskSide
from tidegate.network.channels import InputChannel
from tidegate.network.elements import Watermark
from tidegate.network.withholding import WithholdingChannel
from tidegate.protocol.messages import NotifyCheckpointComplete, TaskEndOfData
from tidegate.taskmanager import slot_builder
from tidegate.testing.in_process_job import InProcessJob

RECORDS = 40


def job() -> Any:
    env = environment({}, 2)
    ticks(env, count=RECORDS, burst=10).rebalance().map(lambda i: i * 2).sink_to(CollectSink("out")).set_parallelism(1)
    return env


def use(monkeypatch: pytest.MonkeyPatch, model: TaskModel) -> None:
    monkeypatch.setattr(slot_builder, "pick_model", lambda plan, trace: model)


class Logging(TaskSide):
    """Each piece of work is one entry of a log; its results are sent when the entry is durable."""

    follows_records = True
    MAX_WAITING = 2

    def __init__(self, port: TaskPort, log: Callable[[Callable[[], None]], None]) -> None:
        self._port = port
        self._log = log
        self._noted: dict[Any, int] = {}  # elements of each channel that are in the log
        self._waiting = 0  # entries that are not durable

    def results_made(self) -> None:
        entry = {}
        for channel in self._port.out_channels:
            assert isinstance(channel, WithholdingChannel)
            channel.flush()
            noted = self._noted.get(channel, 0)
            if len(channel.made) > noted:
                entry[channel] = len(channel.made) - noted
                self._noted[channel] = len(channel.made)
        if entry:
            self._waiting += 1
            self.paused = self._waiting >= self.MAX_WAITING
            self._log(lambda: self._durable(entry))

    def _durable(self, entry: dict[WithholdingChannel, int]) -> None:
        for channel, count in entry.items():
            channel.release(count)
            self._noted[channel] -= count
        self._waiting -= 1
        self.paused = self._waiting >= self.MAX_WAITING

    @property
    def may_end(self) -> bool:
        return not self._waiting


def test_results_wait_until_their_log_is_durable_and_so_does_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Callable[[], None]] = []
    use(monkeypatch, TaskModel(lambda port: Logging(port, written.append), WithholdingChannel))
    with InProcessJob(job()) as running:
        running.advance(1000)
        assert running.results == []
        assert 0 < len(written) <= Logging.MAX_WAITING  # only the source has anything to say, and it is held back
        assert running.frames == []
        for _ in range(10 * RECORDS):
            durable, written[:] = list(written), []
            for done in durable:
                done()
            running.advance(10)
            if running.ended is not None:
                break
        assert running.ended is not None
        assert running.ended.status is JobStatus.FINISHED
        assert sorted(running.results) == [i * 2 for i in range(RECORDS)]


def test_a_channel_sends_only_what_was_released() -> None:
    channel = WithholdingChannel(ChannelAddress(EdgeId(0), SubtaskIndex(0), SubtaskIndex(0)), 4, 10)
    first, second = RecordBatch([1], None), RecordBatch([2], None)
    channel._push(first)
    channel.add_control(Watermark(5))
    channel.add_control(Watermark(6))
    channel._push(second)
    assert list(channel.take_sendable()) == []
    channel.release(2)
    assert list(channel.take_sendable()) == [(first, 1), (Watermark(5), 0)]
    channel.check_invariants()
    channel.release(2)
    assert list(channel.take_sendable()) == [(Watermark(6), 0), (second, 1)]


class Deduplicating(TaskSide):
    """Drops every batch but those of the first channel."""

    follows_records = True

    def batch_enters(self, channel: InputChannel, batch: Batch) -> bool:
        return channel.index == 0


def test_a_batch_that_the_model_has_seen_is_dropped_and_its_credit_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, TaskModel(lambda port: Deduplicating()))
    with InProcessJob(job()) as running:
        assert running.run_to_end() is JobStatus.FINISHED
        # The sink reads two map subtasks and takes what the first sends.
        assert 0 < len(running.results) < RECORDS


class Deciding(TaskSide):
    def __init__(self) -> None:
        self.deadline: float | None = None
        self.ticks = 0

    def tick(self, now_ms: float) -> None:
        if self.deadline is not None and now_ms >= self.deadline:
            self.paused, self.deadline = False, None
            self.ticks += 1

    def next_deadline(self) -> float | None:
        return self.deadline


def test_a_paused_task_does_nothing_until_the_models_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Deciding] = []

    def make(port: TaskPort) -> TaskSide:
        made.append(Deciding())
        made[-1].paused, made[-1].deadline = True, port.now_ms() + 500
        return made[-1]

    use(monkeypatch, TaskModel(make))
    with InProcessJob(job()) as running:
        running.advance(499)
        assert running.results == []
        running.advance(RECORDS * 10 + 100)
        assert all(side.ticks == 1 for side in made)
        assert sorted(running.results) == [i * 2 for i in range(RECORDS)]


class NotYet(TaskSide):
    """Waits for something at the end, as for acknowledgements."""

    acknowledged = False

    @property
    def may_end(self) -> bool:
        return NotYet.acknowledged


def test_the_end_of_data_waits_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, TaskModel(lambda port: NotYet()))
    with InProcessJob(job()) as running:
        running.advance(RECORDS * 10 + 100)
        assert sorted(running.results) == [i * 2 for i in range(RECORDS)]
        assert running.heard(TaskEndOfData) == []
        monkeypatch.setattr(NotYet, "acknowledged", True)
        assert running.run_to_end() is JobStatus.FINISHED


def test_an_unprotected_task_refuses_what_belongs_to_a_model() -> None:
    message = NotifyCheckpointComplete(attempt=AttemptNumber(0), checkpoint_id=CheckpointId(1))
    with pytest.raises(InternalError, match="no fault tolerance"):
        Unprotected().on_message(message, 0.0)
