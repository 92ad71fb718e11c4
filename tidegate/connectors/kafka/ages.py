"""How long the transactions of a writer have been open, watched while nothing else happens: when checkpoints do not
come, nobody asks for a commit, and the broker aborts what is open at its timeout."""

from __future__ import annotations

import logging
import threading
from typing import Any

from tidegate.connectors.kafka.producers import CommittedTransactions

_LOOKS = 12  # in the time of a timeout
_log = logging.getLogger(__name__)


class TransactionAges:
    """The writer's mailbox says what it `opened` and what it has `ended` without a commit; the committer beside it what
    is committed. A thread, from the first transaction to `close`, warns when the oldest one is open for a third of the
    timeout, and again at two thirds; anew when that one is gone."""

    def __init__(self, timeout_ms: int, clock: Any, committed: CommittedTransactions) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._committed = committed
        self._lock = threading.Lock()
        self._opened: dict[str, float] = {}  # by id, in the order of their beginnings
        self._said: tuple[str, int] = ("", 0)  # of which one, and at which third
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def opened(self, transactional_id: str, at_ms: float) -> None:
        with self._lock:
            self._opened.pop(transactional_id, None)  # an id that serves again comes last
            self._opened[transactional_id] = at_ms
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="tidegate-kafka-ages", daemon=True)
            self._thread.start()

    def ended(self, transactional_id: str) -> None:
        with self._lock:
            self._opened.pop(transactional_id, None)

    def _watch(self) -> None:
        while not self._closed.wait(self._timeout_ms / 1000 / _LOOKS):
            self.look()

    def look(self) -> None:
        with self._lock:
            waiting = {name: at for name, at in self._opened.items() if not self._committed.has(name)}
        if not waiting:
            return
        name, at_ms = next(iter(waiting.items()))
        age_ms = self._clock.now_ms() - at_ms
        third = min(2, int(3 * age_ms / self._timeout_ms))
        if third == 0 or self._said == (name, third):
            return
        self._said = (name, third)
        _log.warning(
            "KafkaSink: transaction %s is open for %.0f s, and the broker aborts it after %.0f s "
            "(transaction.timeout.ms): what it holds would have to be written again, or be lost if its checkpoint is "
            "complete by then. Do checkpoints complete? Let them be closer together, or raise the timeout (and the "
            "broker's transaction.max.timeout.ms)",
            name,
            age_ms / 1000,
            self._timeout_ms / 1000,
        )

    def close(self) -> None:
        self._closed.set()


def warn_of_interval(interval_ms: float | None, timeout_ms: int) -> None:
    """Before a job starts; None: it has no checkpoints."""
    if interval_ms is None:
        _log.warning(
            "KafkaSink: with DeliveryGuarantee.EXACTLY_ONCE and no checkpoints, nothing is visible to readers of "
            "committed records before the job ends, and the broker aborts a transaction after %.0f s "
            "(transaction.timeout.ms): enable_checkpointing, or AT_LEAST_ONCE",
            timeout_ms / 1000,
        )
    elif interval_ms >= timeout_ms / 3:
        _log.warning(
            "KafkaSink: checkpoints are %.0f s apart, and the broker aborts a transaction, which lasts from one to the "
            "next, after %.0f s (transaction.timeout.ms): %s. Let checkpoints be closer together, or raise the timeout "
            "(and the broker's transaction.max.timeout.ms) to at least three times the interval",
            interval_ms / 1000,
            timeout_ms / 1000,
            "no checkpoint but one by hand can complete"
            if interval_ms >= timeout_ms
            else "little is left for a checkpoint that is late, or a job that has to come back",
        )
