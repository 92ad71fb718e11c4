"""What goes wrong with the checkpoint storage.

*Trouble* passes: an operation fails once, or for a time (the storage is away, or full), or has its effect and says that
it failed, or a read brings other bytes than the file has, or the process dies in the middle. It has to be survived:
checkpoints fail, attempts fail, nothing older is restored, and nothing shows in the output.

*Damage* stays: a file that was written is lost, cut short, has rotten, or holds what belongs elsewhere. It has to be
noticed when the file is read: the job falls back to an older checkpoint, or fails and says why. Only then may records
that were delivered since that checkpoint come again (`fall_backs.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.durations import any_ms
from tests.simulation.fake_storage import FakeFiles, Mishap
from tests.simulation.outside_world import SimulatedCrash
from tidegate.storage.cleanup import checkpoint_files
from tidegate.storage.job_directory import METADATA_NAME, metadata_file

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from tests.simulation.simulation import Simulation

_WRITING = frozenset({"create", "write", "commit"})
_READING = frozenset({"read", "list"})
_DELETING = frozenset({"delete", "discard"})
_ALL = _WRITING | _READING | _DELETING


class StorageFaults:
    """Drawn once. `begin` makes them strike."""

    trouble_share = 0.5  # of the runs have single operations that fail
    rates = (0.02, 0.05, 0.2)  # of them
    garble_share = 0.1  # of the runs have reads that bring other bytes
    metadata_share = 0.2  # of the damaged files
    kinds = ("lost", "torn", "rotten", "swapped")  # of damage

    def __init__(self, sim: Simulation, scenario: Scenario) -> None:
        self._sim = sim
        self._rng = rng = scenario.rng
        self.failed: dict[str, int] = dict.fromkeys(sorted(_ALL), 0)  # operation -> how often it failed
        self.garbled = 0  # reads that brought other bytes
        self.damaged: set[str] = set()  # kinds of damage that was done
        self._left = 0  # how many single operations still fail
        self._rate = 0.0
        self._operations = _WRITING
        self._crash_rate = 0.0
        self._outages: list[tuple[float, float, frozenset[str]]] = []  # (from, until, operations that fail)
        self._garble_rate = 0.0
        self._garbled_paths: set[str] = set()  # whose latest read was garbled
        if rng.random() < self.trouble_share:
            self._left = rng.randint(1, 6)
            self._rate = rng.choice(self.rates)
            self._operations = rng.choice((_WRITING, _WRITING, _READING, _DELETING, _ALL))
            self._crash_rate = rng.choice((0.0, 0.0, 0.3))
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            began = sim.clock.now_ms() + any_ms(rng, 0.5, 60.0)
            operations = rng.choice((_ALL, _WRITING, _READING, _DELETING))
            self._outages.append((began, began + any_ms(rng, 0.3, 1000.0), operations))
        if rng.random() < self.garble_share:
            self._garble_rate = rng.choice((0.02, 0.3))

    def begin(self, files: FakeFiles) -> None:
        files.mishap = self._mishap
        if self._sim.scenario.harsher:
            files.garble = self._garble
            files.leaves_torn = True

    def _mishap(self, operation: str, path: str) -> Mishap:
        sim, rng = self._sim, self._rng
        if sim.calm:
            return Mishap.NONE
        now = sim.clock.now_ms()
        if any(operation in operations and began <= now < ended for began, ended, operations in self._outages):
            return self._fails(operation, Mishap.REFUSED)
        if self._left > 0 and operation in self._operations and rng.random() < self._rate:
            self._left -= 1
            if sim.in_worker and rng.random() < self._crash_rate:
                raise SimulatedCrash(f"in the middle of a {operation} in the storage")
            return self._fails(operation, rng.choice((Mishap.REFUSED, Mishap.UNANSWERED)))
        spared = path.endswith(METADATA_NAME) and not sim.scenario.harsher
        if operation == "read" and self._garble_rate and not spared:
            if path not in self._garbled_paths and rng.random() < self._garble_rate:
                self._garbled_paths.add(path)
                self.garbled += 1
                sim.struck["a read brings other bytes"] += 1
                sim.trace(f"a read of {path} is garbled")
                return Mishap.GARBLED
            self._garbled_paths.discard(path)
        return Mishap.NONE

    def _garble(self, whole: bytes, part: slice, other_files: list[bytes]) -> bytes:
        """What a read brings instead: less, a byte that is another, or what belongs elsewhere."""
        rng = self._rng
        data, others = whole[part], [other[part] for other in other_files]
        kind = rng.choice(("short", "changed", "elsewhere"))
        self._sim.trace(f"what it brings: {kind}")
        if kind == "changed" and data:
            place = rng.randrange(len(data))
            return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        if kind == "elsewhere" and others:
            return rng.choice(others)
        return data[: rng.randrange(len(data))] if data else data

    def _fails(self, operation: str, how: Mishap) -> Mishap:
        self.failed[operation] += 1
        self._sim.struck[f"the storage fails to {operation}"] += 1
        self._sim.trace(f"the storage fails to {operation}: {how.name}")
        return how

    # ------------------------------------------------------------ damage
    def damage(self) -> bool:
        """Of a file that a completed checkpoint needs. False when there is none yet."""
        sim, rng = self._sim, self._rng
        completed = [c.metadata for c in sim.coordinator.store.checkpoints] if sim.coordinator is not None else []
        retained = [(metadata, sim.storage) for metadata in completed] or ([] if sim.led is None else sim.led.named())
        if not retained:
            return False
        hit, storage = retained[-1] if rng.random() < 0.7 else rng.choice(retained)
        files: FakeFiles = storage.fake_files
        # A file that was torn before its first byte has nothing left to damage.
        paths = sorted(path for path in checkpoint_files(hit) & files.content.keys() if files.content[path])
        own = metadata_file(hit.checkpoint_id)
        spared = sim.led is not None and not sim.led.can_spare(hit.checkpoint_id)
        if (not paths or rng.random() < self.metadata_share) and files.content.get(own) and not spared:
            paths = [own]
        if not paths:
            return False
        path = rng.choice(paths)
        kind = rng.choice(self.kinds)
        data = files.content[path]
        # The record of a job with high availability always names one whose metadata is whole.
        named = [] if sim.led is None else [metadata_file(metadata.checkpoint_id) for metadata, _ in sim.led.named()]
        others = sorted(
            other
            for other, content in files.content.items()
            if content != data and other.endswith(METADATA_NAME) == path.endswith(METADATA_NAME) and other not in named
        )
        if kind == "swapped" and not others:
            kind = "rotten"
        if kind == "lost":
            del files.content[path]
        elif kind == "torn":
            files.content[path] = data[: rng.randrange(len(data))]
        elif kind == "rotten":
            place = rng.randrange(len(data))
            files.content[path] = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        else:
            other = rng.choice(others)
            files.content[path], files.content[other] = files.content[other], data
            files.damaged[other] = kind
        files.damaged[path] = kind
        self.damaged.add(kind)
        sim.struck[f"a file of a checkpoint is {kind}"] += 1
        sim.trace(f"{path} is damaged: {kind}")
        return True
