"""The host of a leader: the lease on a thread of its own, the record on another."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable

from tidegate.common import run_end
from tidegate.common.errors import ConfigurationError
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.leadership.job_record import JobRecord, UnusableRecordError, decode, encode, why_not
from tidegate.jobmanager.leadership.record_claim import (
    Barred,
    Change,
    Deposed,
    JobOver,
    Leading,
    PutRecord,
    ReadRecord,
    RecordAnswer,
    RecordClaim,
    RecordFound,
    RecordInstruction,
    RecordRefused,
    RecordUnanswered,
    RecordUnusable,
    RecordWritten,
)
from tidegate.protocol.instructions import Recording
from tidegate.storage.leases.cells import Cell
from tidegate.storage.leases.failing import Failing
from tidegate.storage.leases.keeper import LeaseKeeper, LeaseLostError, Waited, steady_ms
from tidegate.storage.leases.lease import LeaseTimes

log = logging.getLogger("tidegate.jobmanager")

_PATIENCE_S = 10.0  # with a store that is slow to answer, on top of the time that a lease takes to run out
RECORD_PATIENCE_S = 60.0  # with a record that cannot be written while the lease is renewed
_GLANCE_S = 0.25  # how often a program that waits looks whether it was interrupted
_STILL_WAITING_S = 300.0
_MEANWHILE_S = 40.0  # Spark ends Python workers that had nothing to do for a minute


class JobHasEndedError(ConfigurationError):
    """The job of this cluster id has come to its end under an earlier leader."""

    def __init__(self, why: str, record: JobRecord) -> None:
        super().__init__(why)
        self.record = record


def lease_times(lease_ms: float) -> LeaseTimes:
    return LeaseTimes(lease_ms=lease_ms, renew_ms=lease_ms / 5, look_ms=min(500.0, lease_ms / 5))


class Leadership:
    """`campaign` first: it returns when this program leads. Then `leads` and `valid_ms` at any time, from any thread,
    `put` for what has to be in the record, and `close` at the end, once, also when `campaign` has raised."""

    def __init__(self, lease: Cell, record: Cell, lease_ms: float, candidate: JobRecord) -> None:
        """`candidate`: job id (of a new job), name and graph of this program."""
        self._lease_ms = lease_ms
        self._times = lease_times(lease_ms)
        self._lease_cell = lease
        self._cell = record
        self._candidate = candidate
        self._begin_anew()
        self._claimed: JobRecord | None = None  # as it was when this program began to lead
        self._end_recorded = False
        self._changed = threading.Condition()  # guards the four below
        self._inbox: deque[tuple[int, Change]] = deque()
        self._closing = False
        self._put_at_ms: dict[int, float] = {}  # of changes that are not settled, oldest first
        self._gave_up = False  # the record could not be written for too long
        self._unanswered = Failing()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[Recording], None]] = {}  # the record's thread only, but for new ones
        self._thread = threading.Thread(target=self._run, name="tidegate-record", daemon=True)

    def _begin_anew(self) -> None:
        """A lease that is over stays over, and so does a claim."""
        self._keeper = LeaseKeeper(self._lease_cell, self._times)
        self._claim = RecordClaim(uuid.uuid4().hex, self._candidate, self._cell.where)

    # ------------------------------------------------------------ seen from outside
    @property
    def record(self) -> JobRecord:
        """As it was when this program began to lead: what the job goes on from."""
        assert self._claimed is not None
        return self._claimed

    @property
    def where(self) -> str:
        """Of the record: the same for all drivers of a job, and for no other job."""
        return self._cell.where

    @property
    def occupied(self) -> bool:
        """Whether the job runs under it, or has ended under it: not when it only does not lead any more."""
        return self._end_recorded or self.leads()

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def lease_ms(self) -> float:
        return self._lease_ms

    def leads(self) -> bool:
        """Whether this program may act as the leader at this moment. Not when the record could not be written for
        RECORD_PATIENCE_S, be it that the store refuses, or that it hangs: no checkpoint would be complete any more, and
        another driver may have better luck."""
        return self._keeper.held() and isinstance(self._claim.state, Leading) and not self._has_given_up()

    def _has_given_up(self) -> bool:
        with self._changed:
            oldest = next(iter(self._put_at_ms.values()), None)
            if oldest is not None and steady_ms() - oldest >= RECORD_PATIENCE_S * 1000.0:
                self._gave_up = True
            return self._gave_up

    def valid_ms(self) -> float:
        """How long it leads at least, by the clock of this machine."""
        return self._keeper.valid_ms()

    def check(self) -> None:
        """LeaseLostError unless it leads at this moment."""
        if not self.leads():
            raise LeaseLostError(f"nothing more is written or deleted: {self.why_not()}")

    def why_not(self) -> str:
        """Why it does not lead any more."""
        why = "another driver has claimed the job" if isinstance(self._claim.state, Deposed) else ""
        if not why and self._has_given_up():
            why = f"the record of the job in {self._cell.where} could not be written for {RECORD_PATIENCE_S:.0f} s"
        why = why or f"its lease in {self._keeper.where} is not valid any more: {self._keeper.why_not()}"
        return (
            f"this driver (epoch {self.epoch}) does not lead the job any more, since {why}. It has stopped; the job "
            "goes on under another driver, or when this program is started again"
        )

    # ------------------------------------------------------------ becoming the leader
    def campaign(self, standby: bool, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Returns when this program leads. `standby`: however long that takes, and `meanwhile` is called every now and
        then. Raises ConfigurationError when another
        driver is alive (not `standby`), or the record is not for this program; JobHasEndedError when the job has
        ended."""
        self._look_first()
        while True:
            self._keeper.start()
            if self._wait_for_the_lease(standby, meanwhile) and self._claim_the_record(standby):
                break
            # It was had, and lost before it was of any use: another driver was faster, or the store was slow.
            log.warning("job %s: the lease in %s was lost again; standing by", self._candidate.name, self._keeper.where)
            self._keeper.release()
            self._begin_anew()
        self._thread.start()
        log.info("job %s: this driver leads, epoch %d", self._candidate.name, self.epoch)

    def _look_first(self) -> None:
        """A program that could never lead says so at once, and not when it is needed."""
        answer = self._carry_out(ReadRecord())
        if isinstance(answer, RecordUnusable):
            raise UnusableRecordError(answer.why)
        if isinstance(answer, RecordFound) and answer.record is not None:
            why = why_not(answer.record, self._candidate, self._cell.where)
            if why is not None:
                raise UnusableRecordError(why)

    def _wait_for_the_lease(self, standby: bool, meanwhile: Callable[[], object]) -> bool:
        """False: a standby has had it in the meantime, and lost it."""
        lease_s = self._times.lease_ms * (1 + self._times.drift) / 1000.0
        began, told, idle_since = time.monotonic(), 0.0, time.monotonic()
        while True:
            outcome = self._keeper.wait(_GLANCE_S, heed_rival=not standby)
            if outcome is Waited.HELD:
                return True
            if outcome is Waited.OVER and standby:
                return False
            rival = self._keeper.rival
            who = f"process {rival.pid} on {rival.host}" if rival is not None else "another driver"
            if outcome is not Waited.TIMEOUT:
                raise ConfigurationError(
                    f"the job of {self._cell.where} is led by {who}, which is alive: stop it first, or run this "
                    "program as its standby (tidegate run --standby)"
                )
            waited = time.monotonic() - began
            if standby and time.monotonic() - idle_since > _MEANWHILE_S:
                meanwhile()
                idle_since = time.monotonic()
            if not standby and waited > lease_s + _PATIENCE_S:
                trouble = self._keeper.trouble
                why = "the store does not answer, or others try the same" if trouble is None else trouble
                raise ConfigurationError(
                    f"{self._keeper.where}: no lease was to be had within {waited:.0f} s: {why}; see that it can be "
                    "read and written, and try again"
                )
            if rival is not None and (not told or waited - told > _STILL_WAITING_S):
                told = waited
                what = "standing by" if standby else f"waiting up to {lease_s:.0f} s to see if it is alive"
                log.warning("job %s: %s leads; %s", self._candidate.name, who, what)

    def _claim_the_record(self, standby: bool) -> bool:
        """False: the lease of a standby was lost before the record was claimed."""
        self._go_on(self._claim.start())
        while True:
            state = self._claim.state
            match state:
                case Leading(record, _):
                    self._claimed = record
                    return True
                case Barred(why, None):
                    raise UnusableRecordError(why)
                case Barred(why, record):
                    assert record is not None
                    raise JobHasEndedError(why, record)
                case Deposed() if standby:
                    return False
                case Deposed():
                    raise ConfigurationError(
                        f"the lease in {self._keeper.where} was lost before the record could be written: the store is "
                        "slow, or another driver has taken it; try again"
                    )
                case _:
                    time.sleep(max(0.0, (self._claim.next_deadline() or 0.0) - steady_ms()) / 1000.0)
                    self._go_on(self._claim.on_tick(steady_ms(), self._keeper.held()))

    # ------------------------------------------------------------ leading
    def put(self, change: Change, done: Callable[[Recording], None]) -> None:
        """`done` is called on another thread, with DEPOSED when it cannot be known whether it was written. What is put
        after `close` is forgotten."""
        with self._changed:
            number = next(self._numbers)
            self._waiting[number] = done
            self._put_at_ms[number] = steady_ms()
            self._inbox.append((number, change))
            self._changed.notify_all()

    def put_end(self, status: JobStatus, reason: str) -> Recording:
        """Blocks until the end of the job is in the record; DEPOSED when that cannot be done while it leads."""
        answered = threading.Event()
        outcome = Recording.DEPOSED

        def done(result: Recording) -> None:
            nonlocal outcome
            outcome = result
            answered.set()

        self.put(JobOver(status, reason), done)
        while not answered.wait(_GLANCE_S):
            if not self._keeper.held() or self._has_given_up():
                break
        self._end_recorded = outcome is Recording.WRITTEN
        if self._end_recorded:
            run_end.has_ended(self.where, status)
        return outcome

    def close(self) -> None:
        """Gives the lease back, so that another driver need not wait for it. Never raises."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._keeper.release()
        for cell in (self._lease_cell, self._cell):
            cell.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closing:
                    return
                deadline = self._claim.next_deadline()
                if not self._inbox and (deadline is None or steady_ms() < deadline):
                    wait_s = None if deadline is None else max(0.0, deadline - steady_ms()) / 1000.0
                    self._changed.wait(wait_s)
                    continue
                wanted = self._inbox.popleft() if self._inbox else None
            if wanted is not None:
                self._go_on(self._claim.change(*wanted))
            else:
                self._go_on(self._claim.on_tick(steady_ms(), self._keeper.held()))

    def _go_on(self, instruction: RecordInstruction | None) -> None:
        while instruction is not None:
            answer = self._carry_out(instruction)
            instruction = self._claim.on_answer(answer, steady_ms(), self._keeper.held())
        settled, self._claim.settled = self._claim.settled, []
        with self._changed:
            for number, _ in settled:
                self._put_at_ms.pop(number, None)
        for number, outcome in settled:
            self._waiting.pop(number)(outcome)

    def _carry_out(self, instruction: RecordInstruction) -> RecordAnswer:
        try:
            answer = self._asked(instruction)
        except UnusableRecordError as error:
            answer = RecordUnusable(str(error))
        except Exception as error:
            if self._unanswered.again():
                log.warning("the record of the job in %s: %s: %s", self._cell.where, type(error).__name__, error)
            return RecordUnanswered()
        if isinstance(answer, RecordWritten):
            self._unanswered = Failing()
        return answer

    def _asked(self, instruction: RecordInstruction) -> RecordAnswer:
        if isinstance(instruction, PutRecord):
            version = self._cell.put(encode(instruction.record), instruction.expected)
            return RecordRefused() if version is None else RecordWritten(version)
        content = self._cell.read()
        if content is None:
            return RecordFound(None, None)
        return RecordFound(decode(content.data, self._cell.where), content.version)
