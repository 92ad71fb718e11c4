"""The host of a slot: runs `SlotRuntime` inside a Spark barrier task, on real sockets, threads and time.

Threads: this one (the mailbox: everything that touches state), one for the control connection (heartbeats go on while
user code is slow), one that ends slices of work whose time is up, a few helpers for snapshots and commits, and
ZeroMQ's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from tidegate.common.file_limits import raise_file_limit
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.connectors.print_sink import own_streams, print_to
from tidegate.network.transport import ConnectionLostError
from tidegate.network.zmq_transport import JobKeys, ZmqTransport, authenticate, new_context
from tidegate.protocol.messages import Deploy, Leave, MasterToSlot, Message, Register, TaskFailed
from tidegate.spark.code_bundle import CodeBundle, install
from tidegate.spark.event_loop import EventLoop
from tidegate.spark.garbage import rare_collections
from tidegate.spark.shipped_plan import PlanNotLoadedError, load_plan
from tidegate.spark.streaming.control_link import ControlLink
from tidegate.spark.streaming.printing import WorkerPrinter
from tidegate.spark.streaming.time_keeper import TimeKeeper
from tidegate.spark.streaming.waker import Waker
from tidegate.spark.worker_files import enter_archives, local_paths, own_working_directory
from tidegate.spark.worker_logs import WorkerLogs, worker_logging
from tidegate.storage.calls import overdue
from tidegate.storage.leases.keeper import steady_ms
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.instrument import Instrument
from tidegate.taskmanager.operators.base import Operator

_HELPERS = 4
_MAX_IDLE_WAIT_MS = 1000.0
_CONNECTION_CHECK_MS = 50.0


@dataclass(frozen=True)
class SlotLaunch:
    """What travels inside the Spark closure: enough to reach the JobManager, and to be let in."""

    control_address: str
    keys: JobKeys
    attempt: AttemptNumber
    heartbeat_interval_ms: float
    heartbeat_timeout_ms: float
    leave_grace_ms: float  # 0: a task that does not leave is waited for
    bundle: CodeBundle
    epoch: int = 0  # with high availability: of the driver that this attempt belongs to
    lease_ms: float | None = None  # likewise: how long it leads at most without saying so again
    prints_on_driver: bool = False  # what print sinks write goes to the program, not to this process's output
    logs: WorkerLogs | None = None


def run_partition(launch: SlotLaunch, partition: Iterable[int]) -> Iterator[int]:
    """The body of a barrier task."""
    for index in partition:
        with rare_collections():
            SlotWorker(launch, SlotIndex(index)).run()
        yield index


class SlotWorker:
    """Implements `taskmanager.slot_host.SlotHost`. `run` returns when the JobManager says Leave (or is gone)."""

    def __init__(self, launch: SlotLaunch, slot: SlotIndex) -> None:
        self._launch = launch
        self._slot = slot
        self.clock = SystemClock()
        self._mail: deque[Callable[[], None]] = deque()
        self._waker = Waker()
        self._event_loop = EventLoop()
        self._leaving: str | None = None
        self._runtime: Any = None
        self._instrument = Instrument()  # the job's own, if it has one
        self._time_keeper: TimeKeeper | None = None
        self._failed = False
        self._next_connection_check = 0.0

    def run(self) -> None:
        launch = self._launch
        raise_file_limit()
        context = new_context()
        authenticator = authenticate(context, launch.keys)
        self.transport = ZmqTransport(context, launch.keys, _own_address(launch.control_address), launch.attempt)
        self.transport.poller.register(self._waker.fileno(), zmq.POLLIN)
        self._helpers = ThreadPoolExecutor(_HELPERS, thread_name_prefix="tidegate-helper")
        incarnation = uuid.uuid4().hex
        self._control = ControlLink(
            context,
            launch.control_address,
            launch.keys,
            incarnation=incarnation,
            attempt=launch.attempt,
            slot=self._slot,
            heartbeat_interval_ms=launch.heartbeat_interval_ms,
            heartbeat_timeout_ms=launch.heartbeat_timeout_ms,
            leave_grace_ms=launch.leave_grace_ms,
            clock=self.clock,
            deliver=self._deliver,
            printed=lambda count: self._printer.written(count),
            metrics=lambda: self._runtime.metrics if self._runtime is not None else (),
            accumulators=lambda: self._runtime.report.accumulators if self._runtime is not None else b"",
            lease_ms=launch.lease_ms,
            hanging=overdue,
            states=lambda: self._runtime.state_reads.reports if self._runtime is not None else (),
        )
        self._printer = WorkerPrinter(self._control.send_printed)
        if launch.prints_on_driver:
            print_to(self._printer.write)
        self._control.start()
        self.send_to_master(
            Register(
                attempt=launch.attempt,
                slot=self._slot,
                data_address=self.transport.address,
                host=socket.gethostname(),
                pid=os.getpid(),
                incarnation=incarnation,
                sent_ms=0.0 if launch.lease_ms is None else steady_ms(),
            )
        )
        send = self._printer.log if launch.logs is not None and launch.logs.to_driver else None
        try:
            with worker_logging(launch.logs, launch.attempt, send), own_working_directory():
                try:
                    self._loop()
                finally:
                    if self._runtime is not None:
                        self._runtime.close()
        finally:
            if self._time_keeper is not None:
                self._time_keeper.stop()
            self._control.main_left.set()
            print_to(own_streams)
            self._event_loop.stop()
            self._helpers.shutdown(wait=False, cancel_futures=True)
            self._control.stop()
            self.transport.close()
            authenticator.stop()
            self._waker.close()
            context.destroy(linger=0)
            sys.stdout.flush()

    # ------------------------------------------------------------ the mailbox
    def _loop(self) -> None:
        transport = self.transport
        while self._leaving is None:
            try:
                worked = self._round()
            except BaseException as error:  # whatever user code raises ends the attempt, not the process
                self._fail(error)
                worked = False
            if worked or self._leaving is not None:
                continue
            for ready, _ in transport.poller.poll(math.ceil(self._wait_ms())):
                if ready == self._waker.fileno():
                    self._waker.clear()
                elif transport.is_monitor(ready):
                    self._next_connection_check = 0.0
            if self._time_keeper is not None:
                self._time_keeper.wake()

    def _round(self) -> bool:
        """Everything that is there to do, once. True when there may be more at once."""
        worked = False
        while self._mail:
            self._mail.popleft()()
            worked = True
        if self._leaving is not None or self._runtime is None or self._failed:
            return worked
        now = self.clock.now_ms()
        if now >= self._next_connection_check:  # not in every round: it costs a system call per peer
            self._next_connection_check = now + _CONNECTION_CHECK_MS
            self.transport.check_connections()
        for frame in self.transport.receive():
            self._runtime.on_frame(frame)
            worked = True
        return self._runtime.step() or worked

    def _wait_ms(self) -> float:
        if self._runtime is None or self._failed:
            return _MAX_IDLE_WAIT_MS
        deadline: float | None = self._runtime.next_deadline()
        if deadline is None:
            return _MAX_IDLE_WAIT_MS
        return max(0.0, min(_MAX_IDLE_WAIT_MS, deadline - self.clock.now_ms()))

    def post(self, mail: Callable[[], None]) -> None:
        """From any thread."""
        self._mail.append(mail)
        self._waker.wake()

    def _deliver(self, message: MasterToSlot) -> None:
        """On the control thread."""
        if isinstance(message, Leave):
            self._printer.close()  # the mailbox thread may be waiting there
        self.post(lambda: self._on_message(message))

    def _on_message(self, message: MasterToSlot) -> None:
        if isinstance(message, Leave):
            self._leaving = message.reason
        elif self._failed:
            return
        elif isinstance(message, Deploy):
            if self._runtime is None:  # otherwise it is a repetition
                self._deploy(message)
        elif self._runtime is not None:
            self._runtime.on_message(message)

    def _deploy(self, deploy: Deploy) -> None:
        install(self._launch.bundle)
        try:
            plan = load_plan(deploy.plan, f"slot {self._slot}")
        except PlanNotLoadedError as error:
            self._failed = True
            self.send_to_master(TaskFailed(attempt=deploy.attempt, slot=self._slot, failure=error.failure))
            return
        enter_archives(plan.settings.cached_files)
        settings = dataclasses.replace(plan.settings, cached_files=local_paths(plan.settings.cached_files))
        plan = dataclasses.replace(plan, settings=settings)
        addresses = msgspec.msgpack.decode(deploy.addresses, type=list[str])
        plan = plan.instrumented(self._slot, deploy.attempt, addresses)
        self._instrument = plan.instrument or self._instrument
        from tidegate.storage.handles import SlotRestore
        from tidegate.taskmanager.slot import SlotRuntime

        self.transport.connect(addresses, self._slot)
        restore = msgspec.msgpack.decode(deploy.restore, type=SlotRestore) if deploy.restore else None
        self._runtime = SlotRuntime(self._slot, deploy.attempt, plan, self, spent_ms=lambda: time.thread_time() * 1000)
        self._time_keeper = TimeKeeper(self._runtime.limit, self.clock)
        self._time_keeper.start()
        self._runtime.deploy(restore)

    def _fail(self, error: BaseException) -> None:
        """Report the failure and wait to be told to leave; nothing more is processed."""
        if self._failed:
            return
        self._failed = True
        from tidegate.taskmanager.failure import describe, describe_lost_connection
        from tidegate.taskmanager.operators.base import attributed

        if isinstance(error, ConnectionLostError):
            failure = describe_lost_connection(self._slot, error)
        else:
            failure = describe(attributed(error))
        self.send_to_master(TaskFailed(attempt=self._launch.attempt, slot=self._slot, failure=failure))

    # ------------------------------------------------------------ SlotHost
    def send_to_master(self, message: Message) -> None:
        self._control.send(message)

    def run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def job() -> None:
            try:
                result, error = work(), None
            except BaseException as failure:
                result, error = None, failure
            self.post(lambda: done(result, error))

        with contextlib.suppress(RuntimeError):  # shutting down
            self._helpers.submit(job)

    def run_coroutine(
        self, call: Callable[[], Awaitable[Any]], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        return self._event_loop.run(call, lambda result, error: self.post(lambda: done(result, error)))

    def operator_made(self, operator: Operator) -> None:
        self._instrument.operator_made(operator)

    def trace(self, text: str) -> None:
        sys.stdout.write(f"[checkpoint trace] {text}\n")  # one write: lines of several workers must not mix
        sys.stdout.flush()


def _own_address(control_address: str) -> str:
    """The address of this machine on the network that leads to the JobManager."""
    host, _, port = control_address.removeprefix("tcp://").rpartition(":")
    if host in ("127.0.0.1", "localhost"):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])
