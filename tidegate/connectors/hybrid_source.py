"""HybridSource: several sources one after the other, for example files with the past and then a topic with the present.

The splits of all sources are made when the job is submitted and dealt out over *lanes*, one per subtask. A lane reads
its splits of the first source to their end, then those of the second, and so on; lanes do not wait for each other. A
lane is what the checkpoint knows as a split: its offset is the index of the source and the offsets of the inner splits.
Watermarks are made per lane. Splits of the last source that turn up while the job runs are lanes of their own, which
begin when the lanes of their subtask have come to that source.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError, of_type
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import (
    Boundedness,
    Discovery,
    Source,
    SourceContext,
    SourceSplit,
    SplitEnumerator,
    SplitReader,
)


@dataclass(frozen=True)
class HybridSplit(SourceSplit):
    stages: tuple[tuple[SourceSplit, ...], ...]  # by source: its splits in this lane

    @property
    def names(self) -> tuple[str, ...]:
        """Of what can turn up later: the last source's."""
        return tuple(name for split in self.stages[-1] for name in split.names)

    @staticmethod
    def late(split: SourceSplit, sources: int) -> HybridSplit:
        return HybridSplit(f"late {split.split_id}", (*((),) * (sources - 1), (split,)))

    @property
    def is_late(self) -> bool:
        return self.split_id.startswith("late ")


class HybridSource(Source[Any]):
    """Make one with `HybridSource.builder(first).add_source(next).build()`. All sources but the last are bounded."""

    def __init__(self, sources: Sequence[Source[Any]]) -> None:
        for position, source in enumerate(sources[:-1], 1):
            if source.boundedness is not Boundedness.BOUNDED:
                raise ConfigurationError(
                    f"HybridSource: source {position} of {len(sources)} ({type(source).__name__}) has no end, so what "
                    "comes behind it would never be read; only the last source may be unbounded"
                )
        self._sources = tuple(sources)
        self._lanes: weakref.WeakKeyDictionary[SourceContext, list[_HybridReader]] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {"_sources": self._sources}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_sources"])  # type: ignore[misc]

    @staticmethod
    def builder(first_source: Source[Any]) -> HybridSourceBuilder:
        return HybridSourceBuilder(first_source)

    @property
    def inner_sources(self) -> tuple[Source[Any], ...]:
        return self._sources

    @property
    def gives_timestamps(self) -> bool:  # type: ignore[override]
        return any(source.gives_timestamps for source in self._sources)

    @property
    def boundedness(self) -> Boundedness:
        return self._sources[-1].boundedness

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        stages = [list(source.create_splits(parallelism)) for source in self._sources]
        return [
            HybridSplit(f"lane {lane}", tuple(tuple(splits[lane::parallelism]) for splits in stages))
            for lane in range(parallelism)
        ]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        lanes = self._lanes.setdefault(context, [])
        reader = _HybridReader(self._sources, of_type(HybridSplit, split), offset or (0, {}), context, lanes)
        if not reader.is_late:
            lanes.append(reader)
        return reader

    @property
    def discovery_interval_ms(self) -> float | None:
        return self._sources[-1].discovery_interval_ms

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return _LateSplits(self._sources[-1].create_enumerator(parallelism), len(self._sources))

    def restored_splits(self, split: SourceSplit, offset: Any, done: bool) -> list[tuple[SourceSplit, Any, bool]]:
        """What the last source makes of its splits."""
        lane, last = of_type(HybridSplit, split), len(self._sources) - 1
        at_start: tuple[int, dict[str, tuple[bool, Any]]] = (0, {})
        stage, offsets = offset or at_start
        there: list[SourceSplit] = []
        moved: dict[str, tuple[bool, Any]] = {} if stage == last else offsets
        known: list[SourceSplit] = []
        for inner in lane.stages[last]:
            over, at = offsets.get(inner.split_id, (False, None)) if stage == last else (False, None)
            for new, new_offset, is_done in self._sources[last].restored_splits(inner, at, over):
                if is_done:
                    known.append(new)
                else:
                    there.append(new)
                    if stage == last:
                        moved[new.split_id] = (False, new_offset)
        entry = HybridSplit(lane.split_id, (*lane.stages[:last], tuple(there)))
        entries: list[tuple[SourceSplit, Any, bool]] = [(HybridSplit.late(s, last + 1), None, True) for s in known]
        return [*entries, (entry, (stage, moved), done)]

    def get_produced_type(self) -> Any:
        return self._sources[0].get_produced_type()


class HybridSourceBuilder:
    def __init__(self, first_source: Source[Any]) -> None:
        self._sources = [_checked("HybridSource.builder", first_source)]

    def add_source(self, source: Source[Any]) -> HybridSourceBuilder:
        self._sources.append(_checked("HybridSourceBuilder.add_source", source))
        return self

    def build(self) -> HybridSource:
        return HybridSource(self._sources)


class _LateSplits(SplitEnumerator):
    def __init__(self, last: SplitEnumerator, sources: int) -> None:
        self._last = last
        self._sources = sources

    def discover(self, known: AbstractSet[str]) -> Discovery:
        found = self._last.discover(known)
        return Discovery([HybridSplit.late(split, self._sources) for split in found.splits], found.complete)

    def close(self) -> None:
        self._last.close()


class _HybridReader(SplitReader[Any]):
    """Reads all inner splits of the current stage in turn, then those of the next stage. `lanes`: those that one of a
    late split waits for."""

    def __init__(
        self,
        sources: tuple[Source[Any], ...],
        split: HybridSplit,
        offset: tuple[int, dict[str, Any]],
        context: Any,
        lanes: list[_HybridReader],
    ) -> None:
        self.is_late = split.is_late
        self._lanes = lanes
        self._sources = sources
        self._split = split
        self._context = context
        self._stage, done = offset
        self._offsets: dict[str, Any] = {}  # of inner splits of this stage that are finished: split id -> last offset
        self._readers: list[tuple[SourceSplit, SplitReader[Any]]] = []
        self._turn = 0
        if self._stage < len(sources):
            self._open(done)

    def _open(self, offsets: dict[str, Any]) -> None:
        source = self._sources[self._stage]
        for inner in self._split.stages[self._stage]:
            finished, offset = offsets.get(inner.split_id, (False, None))
            if finished:
                self._offsets[inner.split_id] = offset
            else:
                self._readers.append((inner, source.create_reader(inner, offset, self._context)))

    @property
    def at_last(self) -> bool:
        return self._stage >= len(self._sources) - 1

    @property
    def _too_early(self) -> bool:
        return self.is_late and not all(lane.at_last for lane in self._lanes)

    def poll(self, max_records: int) -> RecordBatch | list[Any] | None:
        if self._too_early:
            return []
        while self._stage < len(self._sources):
            for _ in range(len(self._readers)):
                self._turn %= len(self._readers)
                inner, reader = self._readers[self._turn]
                polled = reader.poll(max_records)
                if polled is None:
                    self._offsets[inner.split_id] = reader.offset()
                    del self._readers[self._turn]
                    reader.close()
                    continue
                self._turn += 1
                if len(polled):
                    return polled
            if self._readers:
                return []
            self._stage += 1
            self._offsets = {}
            if self._stage < len(self._sources):
                self._open({})
        return None

    def offset(self) -> tuple[int, dict[str, tuple[bool, Any]]]:
        offsets = {split_id: (True, offset) for split_id, offset in self._offsets.items()}
        offsets.update({inner.split_id: (False, reader.offset()) for inner, reader in self._readers})
        return self._stage, offsets

    def wake_at_ms(self) -> float | None:
        if self._too_early:
            return None
        times = [reader.wake_at_ms() for _, reader in self._readers]
        known = [t for t in times if t is not None]
        return min(known) if known and len(known) == len(times) else None

    @property
    def idle(self) -> bool:
        return self._too_early or (bool(self._readers) and all(reader.idle for _, reader in self._readers))

    def notify_checkpoint_complete(self, checkpoint_id: int, offset: Any) -> None:
        stage, offsets = offset
        if stage == self._stage:
            for inner, reader in self._readers:
                if inner.split_id in offsets:
                    reader.notify_checkpoint_complete(checkpoint_id, offsets[inner.split_id][1])

    def close(self) -> None:
        readers, self._readers = self._readers, []
        for _, reader in readers:
            reader.close()


def _checked(method: str, source: Any) -> Source[Any]:
    if not isinstance(source, Source):
        raise TypeError(f"{method}: takes a Source (tidegate.contracts.connectors), got {source!r}")
    return source
