"""An unbounded source made to end: after so many records of each split, or after a time, which is then measured.

What is read is what was there at the start: splits that an enumerator would find later have no limit, and a run in
which they turned up sooner would read more than another. A split that has fewer records than its share ends once it has
given none for a while; the counts of that run are those that the next ones read, so they do not depend on the while.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader

_LOOK_MS = 200.0
QUIET_S = 10.0  # a split that has given nothing for so long has nothing more to give: see `--records`


class LimitedSource(Source[Any]):
    """`limits`: records of each split, for those that it names. Otherwise what was read is left in `<folder>/splits`,
    for the next runs: `records`: at most so many of all splits together, dealt out evenly; `seconds`: of reading."""

    def __init__(
        self,
        source: Source[Any],
        operator_id: str,
        folder: str,
        *,
        limits: Mapping[str, int] | None = None,
        records: int | None = None,
        seconds: float | None = None,
    ) -> None:
        self._source = source
        self.inner_sources = (source,)  # what it has to do on the driver is done
        self.gives_timestamps = source.gives_timestamps
        self.reads_in_turn = source.reads_in_turn
        self._operator_id = operator_id
        self._folder = folder
        self._limits = dict(limits or {})
        self._records = records
        self._seconds = seconds

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        splits = [*self._source.create_splits(parallelism)]
        if self._source.discovery_interval_ms is not None:
            splits += self._found_at_the_start(splits, parallelism)
        if self._records is not None:
            share, more = divmod(self._records, max(1, len(splits)))
            self._limits = {split.split_id: share + (i < more) for i, split in enumerate(splits)}
        return splits

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        inner, count = (None, 0) if offset is None else offset
        reader = self._source.create_reader(split, inner, context)
        limit = None if self._seconds is not None else self._limits.get(split.split_id, 0)
        until = None if self._seconds is None else time.monotonic() + self._seconds
        name = f"{self._operator_id}-{split.split_id}".replace("/", "_")
        note = os.path.join(self._folder, "splits", name) if until is not None or self._records is not None else None
        quiet_s = None if self._records is None else QUIET_S
        return _LimitedReader(reader, count, limit, until, quiet_s, split.split_id, self._operator_id, note, context)

    def _found_at_the_start(self, splits: Sequence[SourceSplit], parallelism: int) -> Sequence[SourceSplit]:
        enumerator = self._source.create_enumerator(parallelism)
        try:
            return enumerator.discover({name for split in splits for name in split.names}).splits
        finally:
            enumerator.close()

    def get_produced_type(self) -> Any:
        return self._source.get_produced_type()


class _LimitedReader(SplitReader[Any]):
    def __init__(
        self,
        reader: SplitReader[Any],
        count: int,
        limit: int | None,
        until: float | None,
        quiet_s: float | None,
        split_id: str,
        operator_id: str,
        note: str | None,
        context: SourceContext,
    ) -> None:
        self._reader, self._count, self._limit, self._until = reader, count, limit, until
        self._quiet_s = quiet_s
        self._quiet_since: float | None = None  # the first poll that was empty after the last that was not
        self._said = (split_id, operator_id, note)
        self._clock = context.clock

    def poll(self, max_records: int) -> Any:
        if self._limit is not None:
            max_records = min(max_records, self._limit - self._count)
        if max_records <= 0 or (self._until is not None and time.monotonic() >= self._until):
            return self._end()
        polled = self._reader.poll(max_records)
        if polled is None or (not len(polled) and self._is_quiet()):
            return self._end()
        if len(polled):
            self._quiet_since = None
        self._count += len(polled)
        return polled

    def _is_quiet(self) -> bool:
        """For long enough. Not while there is no telling whether something is there to read."""
        if self._quiet_s is None or self._reader.settling:
            return False
        now = float(self._clock.now_ms())
        if self._quiet_since is None:
            self._quiet_since = now
        return now - self._quiet_since >= self._quiet_s * 1000

    def _end(self) -> None:
        split_id, operator_id, note = self._said
        if note is not None:
            os.makedirs(os.path.dirname(note), exist_ok=True)
            Path(note).write_text(json.dumps([operator_id, split_id, self._count]))

    def offset(self) -> Any:
        return self._reader.offset(), self._count

    def wake_at_ms(self) -> float | None:
        wake = self._reader.wake_at_ms()
        if wake is None or (self._until is None and self._quiet_s is None):
            return wake
        return min(wake, float(self._clock.now_ms()) + _LOOK_MS)  # it may be over before the source has anything

    @property
    def settling(self) -> bool:
        return self._reader.settling

    def pending_records(self) -> int | None:
        return self._reader.pending_records()

    @property
    def idle(self) -> bool:
        return self._reader.idle

    def notify_checkpoint_complete(self, checkpoint_id: int, offset: Any) -> None:
        self._reader.notify_checkpoint_complete(checkpoint_id, offset[0])

    def close(self) -> None:
        self._reader.close()


def measured_limits(folder: str) -> dict[str, dict[str, int]]:
    """What a run with `seconds` or `records` has read: operator id -> split id -> records."""
    found: dict[str, dict[str, int]] = {}
    directory = Path(folder) / "splits"
    for file in directory.iterdir() if directory.exists() else ():
        operator_id, split_id, count = json.loads(file.read_text())
        found.setdefault(operator_id, {})[split_id] = count
    return found
