"""What chaos puts into the workers and the storage of a job: slowed sources, and the faults of each attempt."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tidegate.chaos.attributes import watch_attributes
from tidegate.chaos.commit_faults import fail_commits
from tidegate.chaos.draws import WorkerFault, worker_faults
from tidegate.chaos.segment import Segment, note_fault
from tidegate.chaos.storage_faults import WAYS, BadTime, ChaosStorage, FaultyWorkerStorage
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.contracts.batches import RecordBatch
from tidegate.graph.operator_specs import SinkSpec
from tidegate.storage.checkpoint_storage import CheckpointStorage
from tidegate.storage.worker_storage import WorkerStorage
from tidegate.taskmanager.instrument import Instrument
from tidegate.taskmanager.operators.base import FunctionOperator, Operator
from tidegate.taskmanager.operators.source import SourceOperator

_LEAST_TOKENS = 1.0


class InjectedFault(Exception):
    """Raised by `tidegate chaos` in the place of a failure of the operator."""


class ChaosInstrument(Instrument):
    """`heartbeat_timeout_s` is the job's, `targets` the ids of the operators in which exceptions may be raised, `clock`
    one in seconds that does not jump."""

    _of_this_worker: ClassVar[ChaosInstrument | None] = None  # the latest: Spark uses a process again

    def __init__(
        self,
        segment: Segment,
        slots: int,
        heartbeat_timeout_s: float,
        targets: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._segment = segment
        self._slots = slots
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._targets = targets
        self._clock = clock
        self._slot = SlotIndex(-1)
        self._attempt = AttemptNumber(-1)
        self._faults: list[WorkerFault] = []  # of this worker in this attempt
        self._began = 0.0
        self._ports: set[int] = set()  # of all data sockets of the attempt

    # ------------------------------------------------------------ on the driver
    def storage(self, storage: CheckpointStorage) -> CheckpointStorage:
        bad_time = None
        segment = self._segment
        draw = random.Random(f"{segment.seed}/{segment.number}/storage")
        if "storage" in segment.kinds and segment.faults_left > 0 and draw.random() < 0.5:
            begins = self._clock() + 5.0 + draw.expovariate(1 / segment.every_s)
            way = draw.choice(WAYS)
            bad_time = BadTime(
                begins,
                begins + draw.uniform(0.5, 2.0),
                way,
                lambda: note_fault(segment.folder, "storage", where="driver", detail=f"metadata: storage {way}"),
                clock=self._clock,
            )
        kept: Any = ChaosStorage(storage, bad_time)
        return kept  # type: ignore[no-any-return]

    # ------------------------------------------------------------ in a worker
    def slot_started(self, slot: SlotIndex, attempt: AttemptNumber, addresses: Sequence[str]) -> None:
        self._slot, self._attempt = slot, attempt
        self._ports = {int(port) for _, _, port in (a.rpartition(":") for a in addresses) if port.isdigit()}
        self._began = self._clock()
        self._faults = [f for f in worker_faults(self._segment, attempt, self._slots) if f.slot == slot]
        ChaosInstrument._of_this_worker = self
        for fault in self._faults:
            if fault.kind in ("kill", "freeze", "cut"):
                timer = threading.Timer(fault.after_s, self._strike, (fault,))
                timer.daemon = True
                timer.start()

    def worker_storage(self, storage: WorkerStorage) -> WorkerStorage:
        for fault in self._faults:
            if fault.kind == "storage":
                faulty: Any = FaultyWorkerStorage(storage, self._bad_storage(fault))
                storage = faulty
        return storage

    def _bad_storage(self, fault: WorkerFault) -> BadTime:
        """Half of them begin with the attempt, if it has state to read: otherwise they would hardly ever meet that."""
        way = WAYS[int(fault.choice * len(WAYS))]
        bad_time = self._bad_time(fault, way, f"storage {way}")
        restores = self._attempt > 0 or self._segment.number > 0
        if restores and way != "is full" and int(fault.choice * len(WAYS) * 2) % 2:
            bad_time.begins, bad_time.ends = self._began, self._began + fault.length
        return bad_time

    def operator_made(self, operator: Operator) -> None:
        rate = self._segment.rates.get(operator.node.operator_id)
        if rate is not None and isinstance(operator, SourceOperator):
            slow_down(operator, rate, self._clock)
        if isinstance(operator, FunctionOperator) and not self._segment.kinds:
            watch_attributes(operator, self._segment.folder)
        spec = operator.node.spec
        for fault in self._faults:
            if fault.kind == "commit" and isinstance(spec, SinkSpec):
                fail_commits(spec.sink, self._bad_time(fault, "fails", "commits fail"))
            elif fault.kind == "exception" and operator.node.operator_id == self._target(fault):
                self._raise_in(operator, fault)

    def _target(self, fault: WorkerFault) -> str | None:
        return self._targets[int(fault.choice * len(self._targets))] if self._targets else None

    # ------------------------------------------------------------ faults
    def _strike(self, fault: WorkerFault) -> None:
        """Unless the attempt is over, and its worker has gone on to the next one."""
        if ChaosInstrument._of_this_worker is self:
            {"kill": self._kill, "freeze": self._freeze, "cut": self._cut}[fault.kind](fault)

    def _kill(self, fault: WorkerFault) -> None:
        self._note(fault, f"SIGKILL of the worker of slot {self._slot}")
        os.kill(os.getpid(), signal.SIGKILL)

    def _freeze(self, fault: WorkerFault) -> None:
        seconds = fault.length * self._heartbeat_timeout_s
        self._note(fault, f"SIGSTOP of the worker of slot {self._slot} for {seconds:.1f} s")
        subprocess.Popen(  # a stopped process cannot wake itself
            ["/bin/sh", "-c", f"sleep {seconds:.2f}; kill -CONT {os.getpid()} 2>/dev/null"], start_new_session=True
        )
        os.kill(os.getpid(), signal.SIGSTOP)

    def _cut(self, fault: WorkerFault) -> None:
        cut = cut_connections(self._ports)
        if cut:
            self._note(fault, f"{cut} connections of slot {self._slot} were cut")

    def _raise_in(self, operator: Operator, fault: WorkerFault) -> None:
        """Before a record in the middle of the first batch after the moment; in a source between two batches."""
        due = self._began + fault.after_s

        def error() -> InjectedFault:
            self._note(fault, f"an exception in '{operator.name}', subtask {operator.context.subtask}")
            return InjectedFault(f"'{operator.name}' fails here because tidegate chaos wants it to")

        def failing(process: Callable[[RecordBatch], None]) -> Callable[[RecordBatch], None]:
            def watched(batch: RecordBatch) -> None:
                if self._clock() < due:
                    process(batch)
                    return
                before = int(fault.choice * 7919) % max(1, len(batch))
                if before:
                    process(batch.slice(0, before))
                raise error()

            return watched

        if isinstance(operator, SourceOperator):
            poll = operator.poll

            def watched_poll(max_records: int, now_ms: float) -> int:
                if self._clock() >= due:
                    raise error()
                return poll(max_records, now_ms)

            operator.poll = watched_poll  # type: ignore[method-assign]
        else:
            operator.process = failing(operator.process)  # type: ignore[method-assign, assignment]
            operator.process_second = failing(operator.process_second)  # type: ignore[method-assign, assignment]

    def _bad_time(self, fault: WorkerFault, way: str, detail: str) -> BadTime:
        begins = self._began + fault.after_s
        return BadTime(begins, begins + fault.length, way, lambda: self._note(fault, detail), clock=self._clock)

    def _note(self, fault: WorkerFault, detail: str) -> None:
        note_fault(self._segment.folder, fault.kind, where=f"slot {self._slot}", attempt=self._attempt, detail=detail)


def slow_down(source: SourceOperator, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
    """At most `rate` records a second from now on, in small batches."""
    poll = source.poll
    state = {"tokens": _LEAST_TOKENS, "at": clock()}

    def slowed(max_records: int, now_ms: float) -> int:
        now = clock()
        tokens = min(state["tokens"] + (now - state["at"]) * rate, max(_LEAST_TOKENS, rate / 5))
        state["at"] = now
        if tokens < _LEAST_TOKENS:
            state["tokens"] = tokens
            source.wake_at_ms = now_ms + max(1.0, 1000.0 * (_LEAST_TOKENS - tokens) / rate)
            return 0
        count = poll(min(max_records, int(tokens)), now_ms)
        state["tokens"] = tokens - count
        return count

    source.poll = slowed  # type: ignore[method-assign]


def cut_connections(ports: set[int]) -> int:
    """Shut down every established TCP connection of this process that begins or ends at one of these ports: returns how
    many. The sockets stay with their owners, which find them dead, as after a failure of the network. Linux only."""
    cut = 0
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # no socket, or closed by now
            continue
        with duplicate, contextlib.suppress(OSError):
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6) or duplicate.type != socket.SOCK_STREAM:
                continue
            if duplicate.getpeername()[1] in ports or duplicate.getsockname()[1] in ports:
                duplicate.shutdown(socket.SHUT_RDWR)
                cut += 1
    return cut
