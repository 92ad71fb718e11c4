"""The worker's side of a Structured Streaming source: lanes that read the landed batches in order.

A batch's files are dealt out over *lanes* by the number of the Spark partition, so what Spark keeps in one partition
stays in order. A lane is a split; its offset is the batch, the file of it and the row. All lanes of a subtask share a
thread that looks for new batches and reports their progress, so that the mailbox never waits for a listing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import TidegateError
from tidegate.common.types import Row
from tidegate.contracts.connectors import SourceContext, SourceSplit, SplitReader
from tidegate.spark.dataframes.landed_rows import LandedRows
from tidegate.spark.dataframes.landing import LandedFile
from tidegate.spark.dataframes.staged_batches import BatchGoneError, LaneProgress, QueryFailure, StagedBatches

if TYPE_CHECKING:
    from tidegate.formats.columnar import ColumnarReader

_LOOK_S, _REMOTE_LOOK_S = 0.03, 0.5
_REPORT_LOOKS = 10  # progress of reading is reported every so many looks; of checkpoints at once
_AHEAD = 64  # manifests in memory
_TRIES = 5  # looks in a row that may fail
_IDLE_MS = 2000.0  # a lane without a file for so long is left out of the watermark
_JOIN_S = 5.0

Offset = tuple[int, int, int]


@dataclass(frozen=True)
class LaneSplit(SourceSplit):
    lane: int
    lanes: int
    folder: str  # for messages: the folder itself comes from the source
    staging_id: str


class BatchWatch:
    """Looks into the folder, for the lanes of one subtask. `join` and `leave` once per lane; the thread ends with the
    last one."""

    def __init__(self, staged: StagedBatches) -> None:
        self._staged = staged
        self._lock = threading.Lock()
        self._progress: dict[int, LaneProgress] = {}
        self._reported: dict[int, LaneProgress] = {}
        self._manifests: dict[int, tuple[LandedFile, ...]] = {}
        self._lowest: int | None = None  # of the batches that are there
        self._looked = False
        self._failure: QueryFailure | None = None
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._hurry = threading.Event()  # there is something to report
        self._thread = threading.Thread(target=self._run, name="tidegate-batch-watch", daemon=True)

    # ------------------------------------------------------------ mailbox thread

    def join(self, lane: int, batch: int) -> None:
        with self._lock:
            self._progress[lane] = LaneProgress(batch, batch)
            if len(self._progress) == 1:
                self._thread.start()

    def leave(self, lane: int) -> None:
        with self._lock:
            self._progress.pop(lane, None)
            last = not self._progress
        if last:
            self._ended.set()
            self._hurry.set()
            self._thread.join(_JOIN_S)

    def manifest(self, batch: int) -> tuple[LandedFile, ...] | None:
        """None: not landed yet. BatchGoneError when it was deleted."""
        with self._lock:
            found = self._manifests.get(batch)
            if found is not None or not self._looked:
                return found
            if self._error is not None:
                raise self._error
            if self._lowest is not None and batch < self._lowest:
                raise BatchGoneError(
                    f"batch {batch} of the staging folder {self._staged.folder} was deleted: a later checkpoint had "
                    "read it. Start the job from its latest checkpoint; to begin anew, name an empty staging folder"
                )
            return None

    def failure_during(self, attempt: int) -> QueryFailure | None:
        with self._lock:
            failure = self._failure
        return failure if failure is not None and failure.attempt == attempt else None

    def reading(self, lane: int, batch: int) -> None:
        with self._lock:
            self._progress[lane] = LaneProgress(batch, self._progress[lane].done)

    def done(self, lane: int, batch: int) -> None:
        with self._lock:
            self._progress[lane] = LaneProgress(self._progress[lane].read, batch)
        self._hurry.set()

    # ------------------------------------------------------------ its own thread

    def _run(self) -> None:
        pause = _REMOTE_LOOK_S if self._staged.remote else _LOOK_S
        looks = failed = 0
        while not self._ended.is_set():
            try:
                self._look()
                hurry = self._hurry.is_set()
                self._hurry.clear()
                if hurry or looks % _REPORT_LOOKS == 0:
                    self._report()
                failed = 0
            except Exception as error:
                failed += 1
                if failed >= _TRIES:
                    with self._lock:
                        self._error, self._looked = error, True
                    return
            looks += 1
            self._hurry.wait(pause)

    def _look(self) -> None:
        failure = self._staged.read_failure()  # before the batches: what landed before it is read before it is told
        landed = self._staged.landed()
        with self._lock:
            needed = min((p.read for p in self._progress.values()), default=0)
            known = set(self._manifests)
        wanted = [batch for batch in landed if batch >= needed][:_AHEAD]
        fresh = {batch: self._staged.read_manifest(batch) for batch in wanted if batch not in known}
        with self._lock:
            kept = {batch: files for batch, files in self._manifests.items() if batch >= needed}
            self._manifests = kept | fresh
            self._lowest = landed[0] if landed else None
            self._failure = failure
            self._looked = True

    def _report(self) -> None:
        with self._lock:
            changed = {lane: p for lane, p in self._progress.items() if self._reported.get(lane) != p}
        for lane, progress in changed.items():
            self._staged.write_progress(lane, progress)
            self._reported[lane] = progress


class LaneReader(SplitReader[Row]):
    def __init__(
        self, split: LaneSplit, offset: Offset | None, watch: BatchWatch, rows: LandedRows, context: SourceContext
    ) -> None:
        self._lane, self._lanes = split.lane, split.lanes
        self._batch, self._file, self._row = offset or (0, 0, 0)
        self._watch = watch
        self._rows = rows
        self._clock = context.clock
        self._attempt: int = context.runtime_context.get_attempt_number()
        self._open: ColumnarReader | None = None
        self._data_ms = float("-inf")  # when the last file was opened
        watch.join(self._lane, self._batch)

    def poll(self, max_records: int) -> list[Row]:
        while True:
            if self._open is not None:
                rows = self._open.read(max_records)
                if rows is not None:
                    self._row += len(rows)
                    return rows
                self._close_file()
                self._file, self._row = self._file + 1, 0
            files = self._watch.manifest(self._batch)
            if files is None:
                self._check_query()
                return []
            mine = _of_lane(files, self._lane, self._lanes)
            if self._file < len(mine):
                self._open = self._rows.open(mine[self._file], self._row)
                self._data_ms = self._clock.now_ms()
            else:
                self._batch, self._file = self._batch + 1, 0
                self._watch.reading(self._lane, self._batch)

    def _check_query(self) -> None:
        failure = self._watch.failure_during(self._attempt)
        if failure is not None and self._watch.manifest(self._batch) is None:  # still: both may just have turned up
            raise TidegateError(f"the Spark query that feeds this source failed: {failure.message}")

    def offset(self) -> Offset:
        return self._batch, self._file, self._row

    def wake_at_ms(self) -> float:
        return float(self._clock.now_ms() + _LOOK_S * 1000)

    @property
    def idle(self) -> bool:
        return self._open is None and bool(self._clock.now_ms() - self._data_ms > _IDLE_MS)

    def notify_checkpoint_complete(self, checkpoint_id: int, offset: Any) -> None:
        self._watch.done(self._lane, offset[0])

    def _close_file(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def close(self) -> None:
        self._close_file()
        self._watch.leave(self._lane)


def _of_lane(files: Iterable[LandedFile], lane: int, lanes: int) -> list[LandedFile]:
    return [file for file in files if file.partition % lanes == lane]
