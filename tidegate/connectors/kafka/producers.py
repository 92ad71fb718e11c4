"""Producers of a writer that is exactly once: a new one for each transaction, made ahead of time on a helper thread.

Ids come from a small pool per subtask: `<prefix>-<subtask>-<number>`. An id is used again when its transaction has been
committed, the one that was free for longest first, and never before two other transactions have come between: so the
checkpoint that a recovery starts from rarely holds a transaction whose id has served again (and when it does, see
`transactions.Fate`). Every use begins with `init_transactions`, which fences whoever held the id before: a writer of an
attempt that is not quite dead cannot add to what this one writes. A writer in a micro-batch hands its pool on (`memo`).

The same call aborts what is open under the id. So a writer that is closed must not be about to make it: the worker
lives on, the next attempt takes the same ids, and what this attempt's thread does late would abort what the next one
has written, even what a checkpoint holds. `close` waits for it (`Fencing`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tidegate.connectors.kafka.outage import BrokerWait
from tidegate.connectors.kafka.settings import KafkaError, refused

OF_A_SUBTASK = "[0-9]+-[0-9]+"  # pattern of what follows "<prefix>-": subtask and number
_REST = 2  # other ids that are used before one is used again
_INIT_SECONDS = 5.0  # of one try; after it the library goes on when it is asked again
_INIT_STEP_SECONDS = 0.25  # of the call within a try: so long does a writer that is closed wait for it
_CLOSE_SECONDS = 5.0
_CONNECT_SECONDS = 0.03  # a local broker is there sooner; for others it is a try
_log = logging.getLogger(__name__)


class Fencing:
    """What a writer does to the transactions of others, on its threads: it ends when the writer is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._doing = threading.Lock()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around each deed that another attempt could suffer from, one at a time. Raises once the writer is closed."""
        with self._doing:
            if self.closed.is_set():
                raise WriterClosedError("KafkaSink: this writer was closed meanwhile")
            yield

    def close(self) -> None:
        """Nothing is done any more when this returns."""
        self.closed.set()
        if self._doing.acquire(timeout=_CLOSE_SECONDS):
            self._doing.release()
        else:
            _log.warning("KafkaSink: a writer was closed while it was beginning a transaction, which took too long")


class WriterClosedError(KafkaError):
    """Of a thread that has gone on after the end of its writer; nobody waits for what it makes."""


class CommittedTransactions:
    """Ids whose transactions were committed in this process: a committer tells the writer beside it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: list[str] = []

    def add(self, transactional_id: str) -> None:
        with self._lock:
            self._ids.append(transactional_id)

    def has(self, transactional_id: str) -> bool:
        """Until it is taken."""
        with self._lock:
            return transactional_id in self._ids

    def take(self, mine: set[str]) -> list[str]:
        """Those of the writer that asks, once."""
        with self._lock:
            taken = [name for name in self._ids if name in mine]
            self._ids = [name for name in self._ids if name not in mine]
            return taken


class TransactionalIds:
    """The pool. Not thread-safe: of the mailbox. `memo`: of the pool of the micro-batch before, which this one goes on
    with."""

    def __init__(
        self, prefix: str, subtask: int, taken: Iterable[str], memo: tuple[int, tuple[str, ...]] | None = None
    ) -> None:
        self._stem = f"{prefix}-{subtask}-"
        self._taken = set(taken)  # of transactions of the checkpoint that the job started from
        made, resting = memo or (0, ())
        self._resting = deque(resting)
        self._made = made

    def next(self) -> str:
        if len(self._resting) > _REST:
            return self._resting.popleft()
        while True:
            name = f"{self._stem}{self._made}"
            self._made += 1
            if name not in self._taken:
                return name

    def give_back(self, name: str) -> None:
        self._resting.append(name)

    def memo(self, unused: Iterable[str], used: Iterable[str]) -> tuple[int, tuple[str, ...]]:
        """`unused`: ids that were taken and had no transaction. `used`: whose transactions are committed when the memo
        is read."""
        return self._made, (*unused, *self._resting, *used)


class PreparedProducer:
    """A producer inside a transaction that nothing was written to yet."""

    def __init__(self, transactional_id: str, producer: Any, errors: list[Any]) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.errors = errors  # of records that the broker has refused for good


class ProducerFactory:
    """Makes them, one ahead, after `start` was done. A broker that is away is waited for, for so many seconds: on a
    thread, so that the task goes on meanwhile, takes part in checkpoints, and leaves when it is told to."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        servers: str,
        ids: TransactionalIds,
        start: Callable[[], None],
        wait_seconds: float,
        wake: Callable[[], None] | None = None,
        fencing: Fencing | None = None,
    ) -> None:
        """`wake` is called on a thread when one is `ready`. `fencing`: the writer's, when `start` has part in it."""
        self._settings = dict(settings)
        self._servers = servers
        self._ids = ids
        self._wait_seconds = wait_seconds
        self._fencing = fencing or Fencing()
        self._wake = wake
        # Two: the next one is made while the one before is let go, which takes a moment too.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tidegate-kafka-producers")
        self._start: Future[None] = self._threads.submit(start)
        self._next: Future[PreparedProducer] | None = None
        self._next_id = ""

    def check_started(self, wait: bool) -> None:
        """Raises what the start has raised, if it is over, or when it is."""
        if wait or self._start.done():
            self._start.result()

    def prepare(self) -> None:
        """Begin with the next one unless that was done."""
        if self._next is None:
            self._next_id = self._ids.next()
            self._next = self._threads.submit(self._make, self._next_id)
            self._next.add_done_callback(self._made)

    def _made(self, made: Future[PreparedProducer]) -> None:
        if self._wake is not None and not self._fencing.closed.is_set():
            self._wake()

    @property
    def ready(self) -> bool:
        """`take` does not wait, but may raise."""
        return self._next is not None and self._next.done()

    @property
    def unused_ids(self) -> list[str]:
        """That of the producer that nobody has taken yet, if there is one."""
        return [] if self._next is None else [self._next_id]

    def take(self) -> PreparedProducer:
        """Waits for it when it is not ready."""
        self.prepare()
        future, self._next = self._next, None
        assert future is not None
        return future.result()

    def drop(self, producer: Any) -> None:
        """Let go of a producer whose records are all with the broker. The library closes its connections when the last
        reference goes, which takes a moment; `close()` would abort the transaction."""
        self._threads.submit(lambda held: None, producer)

    def _make(self, transactional_id: str) -> PreparedProducer:
        from confluent_kafka import KafkaError as Code
        from confluent_kafka import KafkaException, Producer

        self._start.result()  # one that was refused must not fence the owner of the prefix
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None and len(errors) < 10:
                errors.append((error, message.topic(), message.partition()))

        settings = {**self._settings, "transactional.id": transactional_id, "on_delivery": delivered}
        try:
            producer = Producer(settings)
            # Asked for its id before it is connected, the library looks for the coordinator, finds none, and waits half
            # a second before it tries again.
            producer.poll(_CONNECT_SECONDS)
            with self._fencing.step():
                # Let go of before the step is over: the library asks for the id until its producer is gone.
                holder = [producer]
                del producer
                self._init(holder, f"beginning transaction {transactional_id}")
            producer = holder.pop()
            producer.begin_transaction()
        except KafkaException as error:
            if error.args[0].code() == Code.INVALID_TRANSACTION_TIMEOUT:
                raise KafkaError(
                    f"KafkaSink: transaction.timeout.ms = {settings['transaction.timeout.ms']} is above the broker's "
                    "maximum (transaction.max.timeout.ms, 15 minutes unless it was changed); lower the first or raise "
                    "the second"
                ) from None
            raise refused("KafkaSink", f"beginning transaction {transactional_id}", self._servers, error) from None
        return PreparedProducer(transactional_id, producer, errors)

    def _init(self, holder: list[Any], doing: str) -> None:
        """`holder` holds the producer alone, and is empty when this writer was closed meanwhile."""
        from confluent_kafka import KafkaError as Code
        from confluent_kafka import KafkaException

        closed = self._fencing.closed
        wait = BrokerWait("KafkaSink", self._servers, self._wait_seconds, closed)
        tried = time.monotonic()
        while True:
            try:
                holder[0].init_transactions(_INIT_STEP_SECONDS)
            except KafkaException as error:
                cause = error.args[0]
                in_a_try = cause.code() == Code._TIMED_OUT and time.monotonic() < tried + _INIT_SECONDS
                if in_a_try and not closed.is_set():
                    continue
                if not cause.retriable() or not wait.goes_on(doing, cause.str()):
                    if not closed.is_set():
                        raise
                    holder.clear()
                    raise WriterClosedError("KafkaSink: this writer was closed meanwhile") from None
                tried = time.monotonic()
                continue
            wait.over()
            return

    def close(self) -> None:
        self._fencing.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
