"""A worker process of the simulation: hosts the real `SlotRuntime`, as `tidegate.spark.streaming.worker` does."""

from __future__ import annotations

import dataclasses
import math
import pickle
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.durations import any_ms
from tests.simulation.functions import KeyedStates, SubtaskCount
from tests.simulation.outside_world import BrokenPromise, InjectedFault, SimulatedCrash
from tests.simulation.pools import Life, Link
from tidegate.common.errors import SnapshotDamagedError, StorageUnavailableError
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.network.serialization import ROWS, ROWS_WITH_TIMESTAMPS
from tidegate.network.transport import ConnectionLostError
from tidegate.network.wire import CREDIT, Frame
from tidegate.protocol.codec import ProtocolError, decode_from_master, encode
from tidegate.protocol.messages import Deploy, FailureInfo, Finish, Leave, MasterToSlot, Message, Register, TaskFailed
from tidegate.storage.handles import SlotRestore
from tidegate.taskmanager.failure import OperatorFailure, describe
from tidegate.taskmanager.operators.sink import CommitFailedError, SinkOperator
from tidegate.taskmanager.slot import SlotRuntime
from tidegate.taskmanager.time_limit import TimeLimit
from tidegate.testing.coroutines import run_to_end

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Done = Callable[[Any, BaseException | None], None]
LOST = object()
"""In a data link: the connection broke here."""


class RandomTimeLimit(TimeLimit):
    """The time of a piece of work is up behind any record, and it may be at all of them. It draws from numbers of its
    own, so that the rest of a schedule is not another one."""

    def __init__(self, seed: str) -> None:
        self._between = 0.0
        self.patience: int | None = None  # None: that of the product
        super().__init__()
        self._rng = random.Random(seed)
        self._rate = self._rng.choice((0.0, 0.0, 0.05, 0.3))
        self.watched = True

    def often(self) -> None:
        """Between two operators too, and at every one; snapshots wait for few pieces of work."""
        self._rate = self._rng.choice((0.0, 0.05, 0.3, 0.9, 0.9))
        self._between = self._rate
        self.patience = self._rng.choice((0, 0, 1, 3))

    @property
    def expired(self) -> bool:  # type: ignore[override]
        self._expired = self._expired or (self._between > 0 and self._rng.random() < self._between)
        return self._expired

    @expired.setter
    def expired(self, value: bool) -> None:
        self._expired = value

    def take(self, values: list[Any]) -> tuple[list[Any], Iterator[Any]]:
        if self._rng.random() < self._rate:
            self.expired = True
            values = values[: self._rng.randint(1, len(values))]
        return super().take(values)


class AsyncWork:
    """Work for a helper thread: run at one moment, reported to the slot at a later one."""

    def __init__(
        self, slot: SimSlot, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        self.slot = slot
        self.work = work
        self.done = done
        self.outcome: tuple[Any, BaseException | None] | None = None  # set when it has been run
        self.slowness = 0.0


class SimTransport:
    """Implements `network.transport.DataTransport`, as far as the runtime uses it."""

    def __init__(self, slot: SimSlot) -> None:
        self._slot = slot

    def send(self, to: SlotIndex, frame: Frame) -> None:
        self._slot.sim.network_send(self._slot, to, frame.detached())

    def receive(self) -> list[Frame]:
        raise AssertionError("the simulator hands frames in")


class SimSlot:
    """Implements `taskmanager.slot_host.SlotHost`."""

    def __init__(self, sim: Simulation, attempt: AttemptNumber, slot: SlotIndex, suffix: str = "") -> None:
        self.sim = sim
        self.attempt = attempt
        self.slot = slot
        self._run = sim.run_number  # of the driver that started it
        run = f"r{sim.run_number}" if sim.run_number else ""
        self.incarnation = f"{run}a{attempt}s{slot}{suffix}"
        self.clock = sim.new_clock()
        self.transport = SimTransport(self)
        self.life = Life.STARTING
        self.failed = False
        self.frozen = False
        self.cut_up = self.cut_down = False  # a partition: nothing gets through to the driver, or from it
        self.runtime: SlotRuntime | None = None
        self.deadline: float | None = None  # of the runtime, when it had nothing to do; in true time, as the next one
        self.next_heartbeat = 0.0
        self.up = Link(f"{self.incarnation}->JM", sim.control, self._to_master, sim.draw_slowness())
        self.down = Link(f"JM->{self.incarnation}", sim.control, self._from_master, sim.draw_slowness())
        self.data: dict[SlotIndex, Link] = {}  # outgoing
        self.incoming: list[Link] = []  # data links that end here
        self.slowness = sim.draw_slowness()
        self._dumped = False
        self.stuck = False  # a helper thread of it hangs in user code, for ever
        self.hanging = False  # it was told to leave, and does not, because of that
        self._hanging: list[MasterToSlot] | None = None  # what has come since the restore began to hang

    def __repr__(self) -> str:
        return self.incarnation

    # ------------------------------------------------------------ life
    def start(self) -> None:
        if self.life is not Life.STARTING:
            return
        self.life = Life.ALIVE
        self.next_heartbeat = self.sim.clock.now_ms() + self.sim.job_settings.heartbeat_interval_ms
        self.send_to_master(
            Register(
                attempt=self.attempt,
                slot=self.slot,
                data_address=f"sim://{self.incarnation}",
                host="simulated",
                pid=int(self.slot),
                incarnation=self.incarnation,
            )
        )

    @property
    def working(self) -> bool:
        return self.life is Life.ALIVE and self.runtime is not None and not self.failed and not self.hanging

    @property
    def restoring(self) -> bool:
        """It hangs in a read of its restore."""
        return self._hanging is not None

    def wake(self) -> None:
        if self.working and not self.frozen:
            self.sim.ready.add(self)

    def receive_or_wait(self) -> None:
        """Frames wait in the socket until the slot is deployed; a frozen process takes nothing at all."""
        self.down.freeze(self.frozen or self.cut_down)
        self.up.freeze(self.cut_up)
        for link in self.incoming:
            link.freeze(self.frozen or self.runtime is None)

    def step(self) -> None:
        if self.working:
            self.guard(self._step)

    def _step(self) -> None:
        assert self.runtime is not None
        if not self.runtime.step():
            deadline = self.runtime.next_deadline()
            self.deadline = None if deadline is None else self.clock.true_ms(deadline)
            if deadline is None or deadline > self.clock.now_ms():
                self.sim.ready.discard(self)

    def guard(self, do: Callable[[], None]) -> None:
        """Run something of the slot; what it raises ends the attempt here, as in the real host."""
        if self.hanging:
            return
        try:
            self.inside(do)
        except SimulatedCrash as crash:
            self.sim.crash(self, str(crash))
        except Exception as error:
            self._fail(error)

    def helper_hangs(self, why: str) -> None:
        """For ever, while all else goes on: what is to be committed after it waits. Nobody can tell that from a slow
        target: the user cancels, or kills the process, unless the attempt ends for another reason before."""
        self.stuck = True
        self.sim.trace(f"a helper of {self} hangs {why}")
        kill = partial(self.sim.crash, self, f"a helper hangs {why}")
        self.sim.after(any_ms(self.sim.rng, 1.0, 3000.0), kill if self.sim.rng.random() < 0.7 else self._cancel)

    def _leave(self) -> None:
        sim = self.sim
        if self._hanging is not None:
            sim.crash(self, "it does not leave, since the storage hangs")
        elif self.stuck and self.runtime is not None and not self.hanging and sim.rng.random() < 0.5:
            sim.trace(f"{self} does not leave before its helper comes back: Spark has to kill it")
            self.runtime.close()
            self.hanging = True
            sim.ready.discard(self)
        elif not self.hanging:
            sim.leave(self)

    def _cancel(self) -> None:
        if self.life is Life.ALIVE:
            self.sim.faults.cancel()

    def inside(self, do: Callable[[], Any]) -> Any:
        """What `do` does is done by this process."""
        sim = self.sim
        before = sim.in_worker, sim.world.acting_run
        sim.in_worker, sim.world.acting_run = True, self._run
        try:
            return do()
        finally:
            sim.in_worker, sim.world.acting_run = before

    def _fail(self, error: Exception) -> None:
        cause = error.cause if isinstance(error, OperatorFailure) else error
        damaged = isinstance(cause, SnapshotDamagedError) and self.sim.fall_backs.names_damage(str(cause))
        garbled = self.sim.faults.storage.garbled and "bytes came from offset" in str(cause)
        away = isinstance(cause, StorageUnavailableError) and ("the test says so" in str(cause) or garbled)
        if not damaged and not away and not isinstance(cause, (InjectedFault, CommitFailedError, ConnectionLostError)):
            raise BrokenPromise(f"slot {self} failed by itself: {error!r}") from error
        if self.failed:
            return
        self.failed = True
        self.sim.ready.discard(self)
        self.sim.trace(f"{self} fails: {error}")
        failure = describe(error)
        if isinstance(error, ConnectionLostError):
            failure = msgspec.structs.replace(failure, consequence=True)
        self.send_to_master(TaskFailed(attempt=self.attempt, slot=self.slot, failure=failure))

    # ------------------------------------------------------------ messages
    def _to_master(self, payload: bytes) -> None:
        self.sim.faults.messages.deliver(partial(self.sim.master_receive, self.incarnation), payload)

    def _from_master(self, payload: bytes) -> None:
        self.sim.faults.messages.deliver(self._on_message, payload)

    def _on_message(self, payload: bytes) -> None:
        if self.life is not Life.ALIVE or self.frozen:
            return
        try:
            message: MasterToSlot = decode_from_master(payload)
        except ProtocolError as error:
            failure = FailureInfo(summary=f"slot {self.slot}: from the driver: {error}")
            self.send_to_master(TaskFailed(attempt=self.attempt, slot=self.slot, failure=failure))
            return
        if self.sim.lines is not None:
            self.sim.trace(f"{self} <- {_short(message)}")
        if isinstance(message, Leave):
            self._leave()
        elif self.hanging:
            pass
        elif self._hanging is not None:
            self._hanging.append(message)
        elif isinstance(message, Deploy) and message.restore and self.runtime is None and self.sim.restore_hangs():
            self._hang(message)
        else:
            self._take(message)

    def _take(self, message: MasterToSlot) -> None:
        if not self.failed:
            self.guard(lambda: self._handle(message))
            self.wake()

    def _hang(self, message: Deploy) -> None:
        """The first read from the storage does not return for long, or never, while heartbeats go on."""
        sim, self._hanging = self.sim, [message]
        if sim.rng.random() < sim.stuck_restores and sim.job_settings.restore_timeout_ms < math.inf:
            sim.trace(f"a read of {self} never returns")
            sim.struck["a read of a restore never returns"] += 1
        else:
            sim.trace(f"a read of {self} hangs")
            sim.struck["a read of a restore hangs"] += 1
            sim.after(any_ms(sim.rng, 1.0, 10_000.0), self._read_returns)

    def _read_returns(self) -> None:
        if self.frozen:
            self.sim.after(1.0, self._read_returns)
        elif self.life is Life.ALIVE and self._hanging is not None:
            waiting, self._hanging = self._hanging, None
            self.sim.went_on_at = self.sim.steps
            for message in waiting:
                self._take(message)

    def _handle(self, message: MasterToSlot) -> None:
        if isinstance(message, Deploy):
            if self.runtime is not None:
                return  # a repetition
            plan = dataclasses.replace(pickle.loads(message.plan), storage=self.sim.worker_storage)
            restore = msgspec.msgpack.decode(message.restore, type=SlotRestore) if message.restore else None
            limit = RandomTimeLimit(f"{self.incarnation}/{self.sim.scenario.seed}")
            if self.sim.scenario.job.often_cut:
                limit.often()
            self.runtime = SlotRuntime(self.slot, message.attempt, plan, self, limit)
            if self.sim.databases is not None:
                self.sim.databases.add(self.runtime)
            self.receive_or_wait()
            self.runtime.deploy(restore)
            if limit.patience is not None:
                for task in self.runtime.tasks:
                    task.chain.patience = limit.patience
        elif self.runtime is not None:
            if isinstance(message, Finish) and not self._dumped:
                self._dumped = True
                self._dump_state(self.runtime)
            self.runtime.on_message(message)

    def _dump_state(self, runtime: SlotRuntime) -> None:
        for task in runtime.tasks:
            for operator in task.chain.operators:
                function = getattr(operator, "function", None)
                if isinstance(function, KeyedStates):
                    state = function.dump(operator.context.keyed)
                    self.sim.world.state[function.operator, task.subtask] = state
                elif isinstance(function, SubtaskCount):
                    self.sim.world.counted[function.operator, task.subtask] = function.dump()

    def on_frame(self, frame: Any) -> None:
        if not self.working:
            return
        if frame is LOST:
            self.guard(self._connection_lost)
            return
        runtime = self.runtime
        assert runtime is not None
        self.guard(lambda: runtime.on_frame(frame))
        self.wake()

    def connection_lost(self) -> None:
        if self.working:
            self.guard(self._connection_lost)

    def _connection_lost(self) -> None:
        raise ConnectionLostError(f"slot {self.slot}: a connection to a peer was lost")

    # ------------------------------------------------------------ SlotHost
    def send_to_master(self, message: Message) -> None:
        self.up.push(encode(message))

    def run_async(self, work: Callable[[], Any], done: Done) -> None:
        commits = isinstance(getattr(done, "__self__", None), SinkOperator)
        self.sim.add_async(AsyncWork(self, work, done), of_storage=not commits)

    def run_coroutine(self, call: Callable[[], Awaitable[Any]], done: Done) -> Callable[[], None]:
        """Finished at a moment that the scheduler picks, in any order."""
        self.sim.add_async(AsyncWork(self, lambda: run_to_end(call), done), of_storage=False)
        return lambda: None

    def post(self, mail: Callable[[], None]) -> None:
        self.sim.add_async(AsyncWork(self, lambda: None, lambda result, error: mail()), of_storage=False)

    def operator_made(self, operator: Any) -> None:
        """Faults come from the fault plan of the simulation."""

    def trace(self, text: str) -> None:
        self.sim.trace(f"{self} {text}")


def check_credits(gang: list[SimSlot]) -> None:
    """Between two slots: what the sender has, what is under way, what the receiver holds and owes add up, always."""
    under_way: Counter[Any] = Counter()
    for slot in gang:
        for link in slot.data.values():
            if link.dead:
                return  # a broken connection has lost some
            for frame in link.queue:
                if frame.kind == CREDIT:
                    under_way[frame.address] += frame.amount
                elif frame.kind in (ROWS, ROWS_WITH_TIMESTAMPS):
                    under_way[frame.address] += frame.cost
    for slot in gang:
        assert slot.runtime is not None
        for address, target in slot.runtime.channels.remote.items():
            receiver = gang[target].runtime
            assert receiver is not None
            into = receiver.channels.inputs[address][1]
            credit = slot.runtime.channels.outputs[address].credits
            total = credit + under_way.get(address, 0) + into.held + into.owed
            if total != into.capacity:
                raise BrokenPromise(
                    f"channel {address}: {credit} credits at the sender, {under_way[address]} under way, {into.held} "
                    f"batches held and {into.owed} owed by the receiver, but the capacity is {into.capacity}"
                )


def _short(message: Any) -> str:
    text = repr(message)
    return f"{type(message).__name__}" if len(text) > 200 else text
