"""A worker of an in-process job: hosts a real `SlotRuntime` without a process, a socket or a thread."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import cloudpickle
import msgspec

from tidegate.common.errors import InternalError
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.network.transport import ConnectionLostError
from tidegate.network.wire import Frame
from tidegate.protocol.codec import decode_from_slot, encode
from tidegate.protocol.messages import Deploy, Leave, MasterToSlot, Message, SlotHeartbeat, TaskFailed
from tidegate.storage.handles import SlotRestore
from tidegate.taskmanager.deployment import SlotPlan
from tidegate.taskmanager.failure import describe, describe_lost_connection
from tidegate.taskmanager.instrument import Instrument
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.slot import SlotRuntime
from tidegate.testing.clock import ManualClock
from tidegate.testing.coroutines import Coroutines
from tidegate.testing.fault_plan import FaultPlan


class SlotsOfJob(Protocol):
    """What a slot knows of its job."""

    clock: ManualClock
    faults: FaultPlan
    slots: list[InProcessSlot]
    frames: list[Frame]
    traces: list[str]
    to_master: deque[Message]

    def failed(self, error: Exception) -> None: ...


class InProcessSlot:
    """Implements `taskmanager.slot_host.SlotHost` and its transport."""

    def __init__(self, job: SlotsOfJob, attempt: AttemptNumber, slot: SlotIndex) -> None:
        self.clock = job.clock
        self.runtime: SlotRuntime | None = None
        self.attempt = attempt
        self.slot = slot
        self.incarnation = f"{attempt}/{slot}"
        self.working = True  # neither failed nor left
        self.left = False  # told to leave, and did; or killed
        self.muted = False  # hears and says nothing: as if the process was frozen
        self.held = False  # processes nothing: as if user code did not return
        self.frozen_until = -math.inf  # on the job's clock: processes nothing, says nothing, and hears it all later
        self.lost: ConnectionLostError | None = None  # what the transport raises from now on
        self.coroutines = Coroutines()
        self._job = job
        self._instrument = Instrument()  # the job's own, if it has one
        self._mail: deque[MasterToSlot] = deque()  # that came while it was held
        self._inbox: deque[Frame] = deque()
        self._async: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self._late: list[tuple[float, Callable[[], None]]] = []  # (when, mail): of what takes its time

    # ------------------------------------------------------------ SlotHost
    @property
    def transport(self) -> InProcessSlot:
        return self

    def send(self, to: SlotIndex, frame: Frame) -> None:
        if self.lost is not None:
            raise self.lost
        frame = frame.detached()
        self._job.frames.append(frame)
        self._job.slots[to]._inbox.append(frame)

    def receive(self) -> list[Frame]:
        if self.lost is not None:
            raise self.lost
        found = list(self._inbox)
        self._inbox.clear()
        return found

    def send_to_master(self, message: Message) -> None:
        if not self.muted and not self.frozen:
            self._job.to_master.append(decode_from_slot(encode(message)))

    def run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._async.append((work, done))

    def run_coroutine(
        self, call: Callable[[], Awaitable[Any]], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        return self.coroutines.start(call, done, self.clock.now)

    def heartbeat(self) -> SlotHeartbeat:
        if self.runtime is None:
            return SlotHeartbeat(attempt=self.attempt, slot=self.slot)
        runtime = self.runtime
        return SlotHeartbeat(
            attempt=self.attempt,
            slot=self.slot,
            metrics=runtime.metrics,
            accumulators=runtime.report.accumulators,
            states=runtime.state_reads.reports,
        )

    def post(self, mail: Callable[[], None]) -> None:
        self._async.append((lambda: None, lambda result, error: mail()))

    def operator_made(self, operator: Operator) -> None:
        self._instrument.operator_made(operator)
        self._job.faults.watch(operator)

    def trace(self, text: str) -> None:
        self._job.traces.append(text)

    # ------------------------------------------------------------ driven by the job
    @property
    def frozen(self) -> bool:
        return self.clock.now < self.frozen_until

    def cut(self, peer: SlotIndex) -> None:
        """The connection to a peer is lost, with all that is under way to this slot."""
        self._inbox.clear()
        self.lost = ConnectionLostError(f"the connection to slot {peer} was lost (cut by the fault plan)")

    def on_message(self, message: MasterToSlot) -> None:
        if self.muted or self.left:
            return
        if self.held or self.frozen:
            self._mail.append(message)
        elif isinstance(message, Leave):
            self.leave()
        elif not self.working:
            return
        elif isinstance(message, Deploy):
            if self.runtime is None:  # otherwise it is a repetition
                self._guarded(lambda: self._deploy(message))
        elif self.runtime is not None:
            self._guarded(lambda: self._runtime().on_message(message))

    def leave(self) -> None:
        self.working, self.left = False, True
        if self.runtime is not None:
            self.runtime.close()

    def next_deadline(self) -> float | None:
        """When it has something to do even if nothing arrives."""
        if not self.working or self.held:
            return None
        if self.frozen:
            return self.frozen_until
        times = [self.coroutines.next_deadline(), *(when for when, _ in self._late)]
        if self.runtime is not None:
            times.append(self.runtime.next_deadline())
        return min((time for time in times if time is not None), default=None)

    def step(self) -> bool:
        if not self.working or self.runtime is None or self.held or self.frozen:
            return False
        while self._mail:
            self.on_message(self._mail.popleft())
        return self._guarded(self._round) if self.working else True

    def _round(self) -> bool:
        worked = False
        while self._async:
            work, done = self._async.popleft()
            result, error = None, None
            try:
                result = work()
            except Exception as failure:
                error = failure
            self._heard_of(lambda done=done, result=result, error=error: done(result, error))  # type: ignore[misc]
            worked = True
        worked = self._hear_late() or worked
        worked = self.coroutines.run(self.clock.now) or worked
        for frame in self.receive():
            self._runtime().on_frame(frame)
            worked = True
        worked = self._runtime().step() or worked
        self._runtime().check_invariants()
        return worked

    def _heard_of(self, mail: Callable[[], None]) -> None:
        until = self._job.faults.bad_times.take_delay()
        if until is None:
            mail()
        else:
            self._late.append((until, mail))

    def _hear_late(self) -> bool:
        due = [mail for when, mail in self._late if when <= self.clock.now]
        self._late = [one for one in self._late if one[0] > self.clock.now]
        for mail in due:
            mail()
        return bool(due)

    def _deploy(self, message: Deploy) -> None:
        plan: SlotPlan = cloudpickle.loads(message.plan)  # every slot has objects of its own
        addresses = msgspec.msgpack.decode(message.addresses, type=list[str])
        plan = plan.instrumented(self.slot, message.attempt, addresses)
        self._instrument = plan.instrument or self._instrument
        plan = self._job.faults.bad_times.disturbed(plan)
        restore = msgspec.msgpack.decode(message.restore, type=SlotRestore) if message.restore else None
        self.runtime = SlotRuntime(self.slot, message.attempt, plan, self)
        self.runtime.deploy(restore)

    def _runtime(self) -> SlotRuntime:
        if self.runtime is None:
            raise InternalError(f"slot {self.slot} is not deployed")
        return self.runtime

    def _guarded(self, call: Callable[[], Any]) -> bool:
        try:
            return bool(call())
        except ConnectionLostError as error:
            self.working = False
            lost = describe_lost_connection(self.slot, error)
            self.send_to_master(TaskFailed(attempt=self.attempt, slot=self.slot, failure=lost))
            return True
        except Exception as error:
            self.working = False
            self._job.failed(error)
            self.send_to_master(TaskFailed(attempt=self.attempt, slot=self.slot, failure=describe(error)))
            return True
