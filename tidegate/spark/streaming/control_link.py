"""A slot's connection to the JobManager, on a thread of its own.

It sends heartbeats while the mailbox thread runs user code, and it ends the process when the mailbox thread does not
leave in time: a slot never outlives its job or its driver. Whatever goes wrong here fails the attempt with its cause:
a thread that died silently would look like a driver, or a worker, that does not answer.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.common.metric_values import MetricReport
from tidegate.network.zmq_transport import JobKeys
from tidegate.protocol.codec import OtherVersionError, ProtocolError, decode_from_master, encode
from tidegate.protocol.messages import (
    Deploy,
    FailureInfo,
    Leave,
    MasterHeartbeat,
    MasterToSlot,
    Message,
    SlotFinished,
    SlotHeartbeat,
    SlotWarning,
    StateReport,
    TaskFailed,
)
from tidegate.spark.streaming.printing import PRINTED
from tidegate.spark.streaming.waker import Waker
from tidegate.storage.leases.keeper import steady_ms
from tidegate.taskmanager.clock import Clock

log = logging.getLogger("tidegate.worker")

_ORPHAN_GRACE_MS = 1_000.0  # without a driver nobody waits for user code that does not return


class ControlLink(threading.Thread):
    """`deliver` is called on this thread for every message, `printed` when the driver has written so many bytes of what
    was sent to be printed; `send` and `send_printed` may be called from any thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        keys: JobKeys,
        *,
        incarnation: str,
        attempt: AttemptNumber,
        slot: SlotIndex,
        heartbeat_interval_ms: float,
        heartbeat_timeout_ms: float,
        leave_grace_ms: float,
        clock: Clock,
        deliver: Callable[[MasterToSlot], None],
        printed: Callable[[bytes], None] = lambda count: None,
        metrics: Callable[[], tuple[MetricReport, ...]],
        accumulators: Callable[[], bytes] = bytes,
        lease_ms: float | None = None,
        states: Callable[[], tuple[StateReport, ...]] = tuple,
        hanging: Callable[[], list[str]] = list,
    ) -> None:
        """`lease_ms`: with high availability, how long the driver leads at most without saying so again. Until it has
        said for the first time how long it really does, at the latest with the deployment, that is a guess."""
        super().__init__(name="tidegate-control", daemon=True)
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, incarnation.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        keys.secure_client(self._socket)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        self._socket.connect(address)
        self._attempt = attempt
        self._slot = slot
        self._interval = heartbeat_interval_ms
        self._timeout = heartbeat_timeout_ms
        self._leave_grace_ms = leave_grace_ms  # 0: user code that does not return is waited for
        self._clock = clock
        self._deliver = deliver
        self._printed = printed
        self._metrics = metrics
        self._accumulators = accumulators
        self._states = states
        self._hanging = hanging  # what is worth a warning
        self._reported: tuple[StateReport, ...] = ()  # sent again only when they are others
        self._outgoing: deque[Message | bytes] = deque()  # bytes: text that is to be printed
        self._waker = Waker()
        self._stopping = False
        self._led_until = math.inf if lease_ms is None else steady_ms() + lease_ms  # by the clock of leases
        self._led_until_said = False  # by the driver
        self._silenced = False  # metrics were left out, and it was said
        self.main_left = threading.Event()  # set by the mailbox thread when it has left its loop

    def send(self, message: Message) -> None:
        self._outgoing.append(message)
        self._waker.wake()

    def send_printed(self, payload: bytes) -> None:
        self._outgoing.append(payload)
        self._waker.wake()

    def stop(self) -> None:
        """After the mailbox thread has left. What was sent before is flushed."""
        self._stopping = True
        self._waker.wake()
        self.join(timeout=5)

    def run(self) -> None:
        try:
            self._talk()
        except BaseException as error:
            log.exception("slot %d: the control thread failed", self._slot)
            reason = f"its control thread failed: {type(error).__name__}: {error}"
            with contextlib.suppress(Exception):
                self._outgoing.clear()  # what cannot be sent may be among it
                self._report(reason, traceback.format_exc())
            self._lost(reason)
        finally:
            with contextlib.suppress(Exception):
                self._flush()
            self._socket.disable_monitor()
            self._socket.close(linger=200)
            self._waker.close()

    def _talk(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        heard = self._clock.now_ms()
        next_heartbeat = heard + self._interval
        while not self._stopping:
            now = self._clock.now_ms()
            if now >= next_heartbeat:
                self.send(self._heartbeat())
                for text in self._hanging():
                    self.send(SlotWarning(attempt=self._attempt, slot=self._slot, text=text))
                next_heartbeat = now + self._interval
            self._flush()
            wait_ms = min(next_heartbeat - now, self._led_until - steady_ms())
            events = dict(poller.poll(max(0, math.ceil(wait_ms))))
            if self._waker.fileno() in events:
                self._waker.clear()
            if steady_ms() >= self._led_until:
                # Also when something has come: this process may have been frozen, or its machine have slept, for longer
                # than the driver led.
                self._lost("its driver may not lead the job any more: nothing was heard of its lease in time")
                break
            if self._socket in events:
                heard = self._clock.now_ms()
                self._receive()
            if self._monitor in events:
                self._lost("the connection to the driver was lost")
                break
            if self._clock.now_ms() - heard > self._timeout:
                self._lost(f"the driver has not answered for {self._timeout / 1000:.0f} s")
                break

    def _heartbeat(self) -> SlotHeartbeat:
        states = self._states()
        news, self._reported = () if states is self._reported else states, states
        return SlotHeartbeat(
            attempt=self._attempt,
            slot=self._slot,
            metrics=self._metrics(),
            accumulators=self._accumulators(),
            states=news,
            sent_ms=steady_ms() if self._led_until < math.inf else 0.0,
        )

    def _receive(self) -> None:
        while True:
            try:
                first, *rest = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if rest and first == PRINTED:
                self._printed(rest[0])
                continue
            try:
                message = decode_from_master(first)
            except ProtocolError as error:
                self._report(f"from the driver: {error}", permanent=isinstance(error, OtherVersionError))
                continue
            if isinstance(message, MasterHeartbeat | Deploy) and message.valid_ms is not None and message.heard_ms > 0:
                until = message.heard_ms + message.valid_ms
                self._led_until = max(self._led_until, until) if self._led_until_said else until
                self._led_until_said = True
                if steady_ms() >= self._led_until:
                    return  # nothing is done that it asks for: `_talk` leaves
            self._deliver(message)
            if isinstance(message, Leave) and self._leave_grace_ms > 0:
                self._watch_the_leaving(self._leave_grace_ms)

    def _flush(self) -> None:
        while self._outgoing:
            message = self._outgoing.popleft()
            if isinstance(message, bytes):
                self._socket.send_multipart((PRINTED, message))
            else:
                self._socket.send(self._encoded(message))

    def _encoded(self, message: Message) -> bytes:
        """A message that cannot be said is a failure of the attempt, but for metrics, whose values are the user's:
        they are left out. The rest of a heartbeat is still needed: without its time the lease would run out."""
        try:
            return encode(message)
        except Exception as error:
            what = f"{type(message).__name__} cannot be sent to the driver: {type(error).__name__}: {error}"
        if isinstance(message, SlotHeartbeat | SlotFinished) and message.metrics:
            if not self._silenced:
                self._silenced = True
                log.warning("slot %d: metrics are left out of what it tells the driver: %s", self._slot, what)
            return self._encoded(msgspec.structs.replace(message, metrics=()))
        return encode(self._failed(what))

    def _report(self, what: str, story: str = "", permanent: bool = False) -> None:
        """Tell the JobManager, at once, that the attempt cannot go on."""
        self._outgoing.append(self._failed(what, story, permanent))
        self._flush()

    def _failed(self, what: str, story: str = "", permanent: bool = False) -> TaskFailed:
        failure = FailureInfo(summary=f"slot {self._slot}: {what}", traceback=story, permanent=permanent)
        return TaskFailed(attempt=self._attempt, slot=self._slot, failure=failure)

    def _lost(self, reason: str) -> None:
        self._deliver(Leave(attempt=self._attempt, reason=reason))
        self._watch_the_leaving(_ORPHAN_GRACE_MS)

    def _watch_the_leaving(self, grace_ms: float) -> None:
        """Called once the mailbox thread was told to leave: if user code holds it, the process ends."""

        def kill_unless_left() -> None:
            if not self.main_left.wait(grace_ms / 1000):
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill_unless_left, name="tidegate-leave", daemon=True).start()
