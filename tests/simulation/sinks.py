"""The sinks of the simulated jobs. What they write lies in the `OutsideWorld`."""

from __future__ import annotations

from typing import Any

from tests.simulation.functions import Record
from tests.simulation.outside_world import current
from tidegate.datastream.connectors.base import Committer, Sink, SinkContext, SinkWriter
from tidegate.datastream.functions import SinkFunction


class TransactionalSink(Sink[Record, str]):
    def __init__(self, name: str) -> None:
        self.name = name

    def create_writer(self, context: SinkContext) -> TransactionalWriter:
        return TransactionalWriter(self.name, context)

    def create_committer(self) -> TransactionCommitter:
        return TransactionCommitter()


class TransactionalWriter(SinkWriter[Record, str]):
    def __init__(self, name: str, context: SinkContext) -> None:
        self._name = name
        self._subtask = context.subtask
        self._attempt = context.attempt
        self._rows: list[Record] = []
        self._staged: list[str] = []  # since the last prepare_commit
        self._prepared: list[str] = []  # since the last snapshot_state
        # How often the input was over, in this and in restored attempts. After a rescale, of its own operator or of one
        # before it, tasks that had come to their end may do so again; and the end that a drain makes is not the real
        # one.
        self._ends = sum(
            ends
            for epoch, run, ends in context.restored_state
            if epoch == current().epoch and run not in current().drained_runs
        )

    def write_batch(self, values: list[Record], timestamps: list[int] | None) -> None:
        self._rows.extend(values)
        for _ in values:
            current().on_record()

    def flush(self, end_of_input: bool) -> None:
        if end_of_input:
            self._ends += 1
            # At least once, a barrier may be behind an end that was sent after it: those before come to it again.
            if self._ends > 1 and current().exactly_once:
                current().break_promise(
                    f"{self._name} ({self._subtask}) is told {self._ends} times that its input is over"
                )
        if self._rows:
            self._staged.append(current().stage(self._name, self._subtask, self._attempt, self._rows))
            self._rows = []

    def prepare_commit(self) -> list[str]:
        prepared, self._staged = self._staged, []
        self._prepared += prepared
        return prepared

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        for name in self._prepared:
            current().transactions[name].checkpoint = checkpoint_id
        self._prepared = []
        return [(current().epoch, current().run_number, self._ends)]


class TransactionCommitter(Committer[str]):
    def commit(self, committables: list[str]) -> list[str]:
        left: list[str] = []
        for name in committables:
            if left and current().rng.random() < 0.5:
                left.append(name)
                continue
            try:
                current().commit(name)
            except Exception:
                if current().rng.random() < 0.5:
                    raise
                left.append(name)
        return left


class PlainSink(Sink[Record, None]):
    """Writes at once: at least once is the best it can do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_writer(self, context: SinkContext) -> PlainWriter:
        return PlainWriter(self.name, context.subtask)


class PlainWriter(SinkWriter[Record, None]):
    def __init__(self, name: str, subtask: int) -> None:
        self._name = name
        self._subtask = subtask

    def write_batch(self, values: list[Record], timestamps: list[int] | None) -> None:
        for _ in values:
            current().on_record()
        current().write(self._name, self._subtask, values)


class PlainSinkFunction(SinkFunction):
    def __init__(self, name: str) -> None:
        self._name = name

    def invoke(self, value: Record, context: Any) -> None:
        current().on_record()
        current().write(self._name, 0, [value])
