"""What was damaged, and what follows from it: which checkpoints may be refused, and which records may come again.

A job that falls back to an older checkpoint repeats what was read since. What its transactional sinks have committed
since then is taken out of the target here, as a user would, so that the rest of the oracle holds as ever; of results
that a client has collected it is known which they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.fake_storage import FakeFiles, FakeStorage
from tests.simulation.outside_world import Ident
from tests.simulation.verify import check
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.storage.cleanup import checkpoint_files
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import METADATA_NAME, metadata_file

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

_FALLS_BACK = re.compile(r"checkpoint (\d+) is damaged .*; falling back to checkpoint (\d+):", re.DOTALL)
_NOTHING_LEFT = re.compile(r"checkpoint (\d+) is damaged and there is no other one")


class FallBacks:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._written: dict[tuple[str, CheckpointId], CheckpointMetadata] = {}  # (root, checkpoint)
        self._given: list[RestorePoint] = []  # that this driver was started with
        self._refused: set[CheckpointId] = set()  # by it
        self._results: dict[str, list[tuple[int, Ident]]] = {}  # sink -> (newest checkpoint by then, record)
        self.excused: dict[str, Counter[Ident]] = {}  # sink of a client -> records that may have come again
        self.times = 0

    # ------------------------------------------------------------ what is known
    def on_new_driver(self, initial: RestorePoint | None, older: Sequence[RestorePoint] = ()) -> None:
        """`older`: those of earlier leaders behind it."""
        self._given = [] if initial is None else [initial, *older]
        self._refused.clear()

    def on_writing(self, metadata: CheckpointMetadata) -> None:
        self._written[self._sim.storage.root, metadata.checkpoint_id] = metadata

    def on_results(self, sink: str, rows: list[Any]) -> None:
        coordinator = self._sim.coordinator
        completed = () if coordinator is None else coordinator.store.checkpoints
        newest = max((checkpoint.checkpoint_id for checkpoint in completed), default=0)
        self._results.setdefault(sink, []).extend((newest, row[0]) for row in rows)

    def written(self, n: CheckpointId, storage: FakeStorage | None = None) -> CheckpointMetadata:
        """The metadata of a checkpoint in the directory of this driver, or in another, as it was before any damage."""
        return self._written[(storage or self._sim.storage).root, n]

    def on_orphans_left(self) -> None:
        """The storage could not be looked through for what belongs to no checkpoint."""
        sim = self._sim
        assert sim.coordinator is not None
        needed = [checkpoint_files(checkpoint.metadata) for checkpoint in sim.coordinator.store.checkpoints]
        files = sim.storage.fake_files
        files.undeleted |= files.content.keys() - set().union(*needed)

    # ------------------------------------------------------------ damage
    def names_damage(self, message: str) -> bool:
        """Whether an error is about a file that was damaged."""
        storage = self._sim.storage
        folders = storage.all_folders() if isinstance(storage, FakeStorage) else []
        return any(path in message for files in folders for path in files.damaged)

    def check_damaged(self, n: CheckpointId, storage: FakeStorage | None = None) -> None:
        """Somebody takes the metadata of a checkpoint for damaged."""
        files = (storage or self._sim.storage).fake_files
        check(metadata_file(n) in files.damaged, f"nobody has damaged the metadata of checkpoint {n}")

    def _is_damaged(self, n: CheckpointId) -> bool:
        storage = self._sim.storage
        if not isinstance(storage, FakeStorage):
            return False
        given = next((point for point in self._given if point.checkpoint_id == n), None)
        if given is not None:
            metadata, files = given.metadata, storage.folder(given.root)
            own = METADATA_NAME if metadata.self_contained else metadata_file(n)
        else:
            metadata, files, own = self.written(n), storage.fake_files, metadata_file(n)
        return bool((checkpoint_files(metadata) | {own}) & files.damaged.keys())

    # ------------------------------------------------------------ falling back
    def on_log(self, text: str) -> None:
        """Of the JobMaster."""
        if "falling back" not in text:
            return
        found = _FALLS_BACK.search(text)
        assert found is not None, text
        refused, to = CheckpointId(int(found[1])), int(found[2])
        check(self._is_damaged(refused), f"nobody has damaged it, but {text}")
        self._refused.add(refused)
        assert self._sim.coordinator is not None
        kept = {checkpoint.checkpoint_id for checkpoint in self._sim.coordinator.store.checkpoints}
        nearest = max(kept - self._refused, default=0)
        check(to >= nearest, f"checkpoint {nearest} is nearer, but {text}")
        self._to(to)

    def nothing_left(self, reason: str) -> bool:
        """A job may fail for this."""
        found = _NOTHING_LEFT.search(reason)
        return found is not None and self._is_damaged(CheckpointId(int(found[1])))

    def on_start(self, n: int) -> None:
        """The job is started from checkpoint n (0: from nothing): perhaps for want of newer ones whose metadata is
        whole."""
        sim = self._sim
        files: FakeFiles | None = getattr(sim.storage, "fake_files", None)
        damaged = {} if files is None else files.damaged
        if any(m > n and metadata_file(CheckpointId(m)) in damaged for m in sim.world.completed):
            sim.trace(f"the user has to fall back to checkpoint {n}")
            self._to(n)

    def leader_falls_back(self, n: int) -> None:
        """The metadata of what the record names first is damaged."""
        self._sim.struck["a leader falls back to what its record names"] += 1
        self._sim.trace(f"the next leader has to fall back to checkpoint {n}")
        self._to(n)

    def _to(self, n: int) -> None:
        sim = self._sim
        self.times += 1
        sim.world.rewind(n)
        # A checkpoint also holds results of those before it that were complete without the sink's having heard of it.
        at_once = 1 if sim.coordinator is None else sim.coordinator.settings.max_concurrent
        since = ([0] * (at_once + 1) + sorted(m for m in sim.world.completed if m <= n))[-1 - at_once]
        for sink, results in self._results.items():
            self.excused[sink] = Counter(ident for newest, ident in results if newest >= since)
