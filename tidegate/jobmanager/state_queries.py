"""Looks at the working state of a running job: from any thread to the JobManager's, to a slot, and back.

What clients ask never piles up before the job. A slot is asked one thing at a time: what comes meanwhile waits here,
bounded in number, and goes in one message. What a slot puts off, since the rest of its message took long, goes with the
next one. After an answer that took the slot t ms it is left alone for 20 t, so that
looking takes at most a twentieth of its time, whatever is asked and however often.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import StateNotReadableError
from tidegate.common.ids import SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.job_master import JobMaster
from tidegate.protocol.instructions import Instruction, StateReadDone
from tidegate.protocol.messages import StateLookup, StateProblem, StateResult

MAX_OPEN = 1_000
"""Lookups that wait for an answer; more are refused."""

_PER_MESSAGE = 64
_REST_FACTOR = 20.0

Event = Callable[[float], list[Instruction]]


@dataclass
class _Open:
    """One lookup that waits for its answer."""

    slot: SlotIndex
    lookup: StateLookup
    answer: CompletableFuture[StateResult] = field(default_factory=CompletableFuture)
    given_up: bool = False  # nobody waits any more


class StateQueries:
    """`ask` from any thread; `done`, `status_changed`, `on_tick` and `job_over` by the JobManager's thread. `post`
    hands an event to that thread."""

    patience_s = 5.0

    def __init__(self, master: JobMaster, post: Callable[[Event], None]) -> None:
        self._master = master
        self._post = post
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._open = 0  # lookups that somebody waits for, at most MAX_OPEN
        self._waiting: dict[SlotIndex, deque[_Open]] = {}  # not sent yet; no empty ones
        self._under_way: dict[int, list[_Open]] = {}  # by request id: sent, and not answered
        self._asked: dict[SlotIndex, int] = {}  # the request that a slot has; its values are the keys of _under_way
        self._rests_until: dict[SlotIndex, float] = {}  # slots that were asked something costly
        self._posted = False  # an event that sends is on its way
        self._over = ""  # why nobody can be asked any more

    def ask(self, lookups: Sequence[tuple[SlotIndex, StateLookup]], timeout_s: float) -> list[StateResult]:
        """The answers, in order. Raises StateNotReadableError when they do not come."""
        asked = [_Open(slot, lookup) for slot, lookup in lookups]
        with self._lock:
            if self._over:
                raise StateNotReadableError(self._over)
            if self._open + len(asked) > MAX_OPEN:
                raise StateNotReadableError(
                    f"{self._open} questions about the job's state are open, of {MAX_OPEN} at most: try again"
                )
            self._open += len(asked)
            for one in asked:
                self._waiting.setdefault(one.slot, deque()).append(one)
            posts, self._posted = not self._posted, True
        try:
            if posts:
                self._post(self._send)
            end = time.monotonic() + timeout_s
            return [one.answer.result(max(0.0, end - time.monotonic())) for one in asked]
        except TimeoutError:
            raise StateNotReadableError(
                f"the job has not answered within {timeout_s:g} s: it is busy with a record, or its worker hangs"
            ) from None
        finally:
            self._forget(asked)

    def _forget(self, asked: list[_Open]) -> None:
        with self._lock:
            self._open -= len(asked)
            for one in asked:
                one.given_up = True
                waiting = self._waiting.get(one.slot)
                if not one.answer.done() and waiting is not None and one in waiting:
                    waiting.remove(one)
                    if not waiting:
                        del self._waiting[one.slot]

    # ------------------------------------------------------------ on the JobManager's thread
    def _send(self, now_ms: float) -> list[Instruction]:
        with self._lock:
            self._posted = False
        return self.on_tick(now_ms)

    def next_deadline(self) -> float | None:
        """When `on_tick` has something to send."""
        if not self._waiting:  # nearly always; no lock for that
            return None
        with self._lock:
            free = [slot for slot in self._waiting if slot not in self._asked]
            return min((self._rests_until.get(slot, 0.0) for slot in free), default=None)

    def on_tick(self, now_ms: float) -> list[Instruction]:
        """Ask the slots that are free."""
        instructions: list[Instruction] = []
        for request, slot, lookups in self._take_due(now_ms):
            instructions += self._master.on_read_state(request, slot, lookups, now_ms)
        return instructions

    def _take_due(self, now_ms: float) -> list[tuple[int, SlotIndex, tuple[StateLookup, ...]]]:
        due = []
        with self._lock:
            for slot, waiting in list(self._waiting.items()):
                if slot in self._asked or self._rests_until.get(slot, 0.0) > now_ms:
                    continue
                request = next(self._ids)
                taken = [waiting.popleft() for _ in range(min(_PER_MESSAGE, len(waiting)))]
                if not waiting:
                    del self._waiting[slot]
                self._asked[slot] = request
                self._under_way[request] = taken
                due.append((request, slot, tuple(one.lookup for one in taken)))
        return due

    def done(self, instruction: StateReadDone, now_ms: float) -> None:
        with self._lock:
            asked = self._under_way.pop(instruction.request_id, [])
            for one in asked:
                self._asked.pop(one.slot, None)
                self._rests_until[one.slot] = now_ms + instruction.took_ms * _REST_FACTOR
        if instruction.results is None:
            self._fail(asked, f"the job does not run now: it is {self._master.status.name}")
            return
        put_off = []
        for one, result in zip(asked, instruction.results, strict=False):
            if result.problem is StateProblem.PUT_OFF:
                put_off.append(one)
            else:
                one.answer.complete(result)
        self._ask_again(put_off)

    def _ask_again(self, put_off: list[_Open]) -> None:
        """Before all that came later."""
        with self._lock:
            for one in reversed(put_off):
                if not one.given_up:
                    self._waiting.setdefault(one.slot, deque()).appendleft(one)

    def status_changed(self, status: JobStatus) -> None:
        """Slots of an attempt that is over answer nothing more."""
        if status is not JobStatus.RUNNING:
            self._fail(self._take_all(), f"the job does not run now: it is {status.name}")

    def job_over(self, status: str) -> None:
        with self._lock:
            self._over = f"the job is over ({status}): read its last checkpoint or a savepoint as a table"
        self._fail(self._take_all(), self._over)

    def _take_all(self) -> list[_Open]:
        with self._lock:
            left = [one for asked in [*self._waiting.values(), *self._under_way.values()] for one in asked]
            self._waiting.clear()
            self._under_way.clear()
            self._asked.clear()
            self._rests_until.clear()
        return left

    def _fail(self, asked: list[_Open], why: str) -> None:
        for one in asked:
            one.answer.complete_exceptionally(StateNotReadableError(why))

    def check_invariants(self) -> None:
        with self._lock:
            assert set(self._asked.values()) == set(self._under_way)
            assert all(self._waiting.values())
