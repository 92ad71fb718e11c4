"""A stand-in for Spark's streaming query, for tests of the driver's side: it asks the real source of ticks for offsets,
runs the real subtasks, calls `foreachBatch`, and writes offsets and commits to the checkpoint location as Spark does.
State is kept beside them, by batch."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.micro_batch.engine import Engine, KilledError
from tidegate.spark.batch.worker import told
from tidegate.spark.micro_batch.plan import MicroBatchPlan
from tidegate.spark.micro_batch.ticks import TICK, _TickReader, read_tick
from tidegate.taskmanager.failure import describe
from tidegate.taskmanager.operators.base import attributed

Hook = Callable[[str, int], None]
"""Called at each step of a batch with its name and the batch; what it raises ends the query."""


class SkippedError(Exception):
    """Raised by a hook: the query goes on with whatever is the next batch now."""


class Rows:
    def __init__(self, payloads: list[bytes]) -> None:
        self._payloads = payloads

    def collect(self) -> list[Any]:
        return [SimpleNamespace(payload=bytearray(payload)) for payload in self._payloads]


class QueryStandIn:
    runId = "run"

    def __init__(
        self,
        plan: MicroBatchPlan,
        attempt: int,
        location: str,
        control: str,
        on_batch: Any,
        hook: Hook,
        left_over: dict[int, list[bytes]] | None = None,
    ) -> None:
        self._engine = Engine.of_plan(plan)
        self._engine.killed = attempt
        self._location = Path(location)
        self._source = _TickReader(control, [])
        self._on_batch = on_batch
        self._hook = hook
        self._left_over = {} if left_over is None else left_over
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ Spark's interface
    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        return self._error

    def stop(self) -> None:
        self._stopped.set()

    def wait_for_stop(self) -> None:
        """For a hook: it comes from the job, which waits for the hook then."""
        self._stopped.wait(60)

    def awaitTermination(self, timeout: float) -> None:
        self._thread.join(timeout)

    # ------------------------------------------------------------ batches
    def _run(self) -> None:
        try:
            for folder in ("offsets", "commits", "state"):
                (self._location / folder).mkdir(exist_ok=True)
            while not self._stopped.is_set():
                with contextlib.suppress(SkippedError):
                    self._next()
        except BaseException as error:
            self._error = error

    def _next(self) -> None:
        batch = len(list((self._location / "commits").iterdir()))
        offset = self._location / "offsets" / str(batch)
        if not offset.exists():
            start = {"batch": batch - 1}
            found = self._source.latestOffset(start)
            if found == start:
                self._stopped.wait(0.002)
                return
            offset.write_text(json.dumps(found))
        end = json.loads(offset.read_text())
        tick = read_tick(TICK + end["order"].encode())
        state = self._location / "state" / str(batch)
        memories = pickle.loads(state.read_bytes()) if state.exists() else self._engine.memories
        self._hook("run", batch)
        try:
            payloads = self._engine.run_tasks(tick, memories)
        except Exception as error:  # as Spark's operator tells it
            raise told(describe(attributed(error))) from None
        self._left_over.setdefault(batch, []).append(pickle.dumps(memories))
        self._hook("report", batch)
        self._on_batch(Rows(payloads), batch)
        self._hook("commit", batch)
        state.with_name(str(batch + 1)).write_bytes(pickle.dumps(memories))
        written = self._location / "commit.new"
        written.write_text("{}")
        written.rename(self._location / "commits" / str(batch))
        self._hook("committed", batch)


__all__ = ["KilledError", "QueryStandIn", "SkippedError"]
