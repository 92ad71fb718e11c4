"""The host of a lease: a thread of its own that renews it, whatever else the process is waiting for."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import socket
import threading
import time
import uuid

from tidegate.common.errors import SnapshotError
from tidegate.storage.leases.answers import answer
from tidegate.storage.leases.cells import Cell
from tidegate.storage.leases.failing import Failing
from tidegate.storage.leases.lease import (
    Answer,
    Instruction,
    Lease,
    LeaseRecord,
    LeaseTimes,
    Over,
    Unanswered,
    Written,
)

log = logging.getLogger("tidegate.storage")


class LeaseLostError(SnapshotError):
    """What was about to be written was not: this process does not own the job's directory any more, or cannot be sure
    to."""


class DirectoryTakenError(LeaseLostError):
    """Likewise, and it never will again: another run has taken the directory."""


class Waited(enum.Enum):
    """What became of the wish to have a lease."""

    HELD = "it is ours"
    RIVAL_IS_ALIVE = "another owner was seen to renew it"
    TIMEOUT = "nobody knows yet"
    OVER = "it was released meanwhile"


def steady_ms() -> float:
    """A clock for leases: it never jumps, and goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) * 1000.0


class LeaseKeeper:
    """`start`, then `wait`; `held` and `check` at any time and from any thread; `release` at the end, once."""

    def __init__(self, store: Cell, times: LeaseTimes | None = None) -> None:
        about: dict[str, str | int] = {"host": socket.gethostname(), "pid": os.getpid(), "machine": this_machine()}
        self._lease = Lease(uuid.uuid4().hex, times or LeaseTimes(), about)
        self._store = store
        self._changed = threading.Condition()  # guards the lease; told after every event
        self._stopping = False
        self._failing = Failing()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="tidegate-lease", daemon=True)

    @property
    def where(self) -> str:
        return self._store.where

    @property
    def epoch(self) -> int:
        with self._changed:
            return self._lease.epoch

    @property
    def rival(self) -> LeaseRecord | None:
        with self._changed:
            return self._lease.rival

    def start(self) -> None:
        self._thread.start()

    def held(self) -> bool:
        with self._changed:
            return self._lease.held(steady_ms())

    def lost(self) -> bool:
        """For good: another owner has it."""
        with self._changed:
            return isinstance(self._lease.state, Over) and not self._stopping

    @property
    def trouble(self) -> str | None:
        """What the store has last said instead of an answer. None: nothing since the lease was last written."""
        with self._changed:
            return self._trouble

    def why_not(self) -> str:
        """Of a lease that was held and is not any more."""
        why = "another run has taken it" if self.lost() else "it could not be renewed in time"
        return why if self.trouble is None else f"{why} (the store: {self.trouble})"

    def check(self) -> None:
        """LeaseLostError unless the lease is held at this moment; DirectoryTakenError when it never will be again."""
        if not self.held():
            kind = DirectoryTakenError if self.lost() else LeaseLostError
            raise kind(f"nothing is written below {self._store.where}, whose lease is not ours: {self.why_not()}")

    def valid_ms(self) -> float:
        """How long it is held from now on if it is not renewed; 0: it is not held."""
        with self._changed:
            return self._lease.valid_ms(steady_ms())

    def wait(self, timeout_s: float, *, heed_rival: bool = True) -> Waited:
        """Until it is held, or (`heed_rival`) somebody else is known to be alive."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._lease.held(steady_ms()):
                    return Waited.HELD
                if heed_rival and self._lease.rival_changed:
                    return Waited.RIVAL_IS_ALIVE
                if isinstance(self._lease.state, Over):
                    return Waited.OVER
                left = end - time.monotonic()
                if left <= 0:
                    return Waited.TIMEOUT
                self._changed.wait(left)

    def release(self, within_s: float = 5.0) -> None:
        """Never raises, and waits no longer than that for a store that hangs."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(within_s)

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    last = self._lease.release(steady_ms())
                    break
                instruction = self._lease.on_tick(steady_ms())
                if instruction is None:
                    if isinstance(self._lease.state, Over):
                        return
                    deadline = self._lease.next_deadline()
                    assert deadline is not None  # nothing is unanswered here
                    self._changed.wait(max(0.0, deadline - steady_ms()) / 1000.0)
                    continue
            self._carry_out(instruction)
        if last is not None:
            answer(self._store, last)

    def _carry_out(self, instruction: Instruction | None) -> None:
        while instruction is not None:
            result = answer(self._store, instruction)
            with self._changed:
                self._note_trouble(result)
                instruction = self._lease.on_answer(result, steady_ms())
                rival = self._lease.rival
                if instruction is None and rival is not None and _is_dead(rival):
                    self._lease.rival_is_dead()
                self._changed.notify_all()
                if self._stopping:
                    # What the lease would ask next is not asked: its end is, which needs no other answer.
                    return

    def _note_trouble(self, result: Answer) -> None:
        if isinstance(result, Written):
            self._failing, self._trouble = Failing(), None
        elif isinstance(result, Unanswered):
            self._trouble = result.why
            if self._failing.again():
                log.warning("the lease in %s cannot be read or written: %s", self._store.where, result.why)


def this_machine() -> str:
    """The same for two processes only if they see each other's process ids: the boot, and the namespace of ids. Empty
    when that cannot be told."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    return ""


def _is_dead(rival: LeaseRecord) -> bool:
    """Whether the process is known to be gone; that of another machine never is. Machines that were cloned while they
    ran share their boot, so they have to have the same name as well."""
    if not rival.machine or (rival.machine, rival.host) != (this_machine(), socket.gethostname()):
        return False
    try:
        os.kill(rival.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _is_zombie(rival.pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and its parent has not asked how. One thread that is left would still be alive."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b") ")[2][:1]
        return state == b"Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        return False
