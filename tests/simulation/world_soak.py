"""The worlds of leases and leaders, seed after seed, with a table: `python -m tests.simulation.soak --worlds N`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.leader_world import LeaderWorld, run_leader_world
from tests.simulation.lease_world import BrokenLease, World, run_lease_world

_REPORT_EVERY_S = 10.0


@dataclass
class WorldTally:
    """What one kind of world has come to."""

    worlds: int = 0
    epochs: int = 0  # owners of a lease, leaders of a job
    deeds: int = 0  # done under a lease, checkpoints committed
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, world: World, epochs: int, deeds: int) -> None:
        self.epochs += epochs
        self.deeds += deeds
        self.faults += world.struck


def _lease(seed: int, tally: WorldTally) -> None:
    world = run_lease_world(World(seed))
    tally.add(world, len({epoch for _, _, epoch in world.log}), len(world.log))


def _leader(seed: int, tally: WorldTally) -> None:
    world = run_leader_world(LeaderWorld(seed))
    tally.add(world, len(world.epochs), len(world.target.chain) - 1)


_KINDS = {"leases": _lease, "leaders": _leader}


def soak_worlds(first_seed: int, count: int) -> int:
    """`count` worlds, of the kinds in turn, with seeds from `first_seed` on; the exit code. Ctrl-C ends it early."""
    tallies = {kind: WorldTally() for kind in _KINDS}
    reported = time.monotonic()
    try:
        for number in range(count):
            seed, kind = first_seed + number // len(_KINDS), list(_KINDS)[number % len(_KINDS)]
            tallies[kind].worlds += 1
            try:
                _KINDS[kind](seed, tallies[kind])
            except (BrokenLease, AssertionError) as failure:
                tallies[kind].failures.append(f"world of {kind}, seed {seed}: {failure}")
                print(f"FAILED: {tallies[kind].failures[-1]}", flush=True)
            if time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                print(f"{number + 1:,} worlds, {_failures(tallies)} failures", flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    print(_table(tallies), flush=True)
    return 1 if _failures(tallies) else 0


def _failures(tallies: dict[str, WorldTally]) -> int:
    return sum(len(tally.failures) for tally in tallies.values())


def _table(tallies: dict[str, WorldTally]) -> str:
    rows: list[tuple[str, list[int]]] = [
        ("worlds", [tally.worlds for tally in tallies.values()]),
        ("epochs", [tally.epochs for tally in tallies.values()]),
        ("writes under the lease, checkpoints committed", [tally.deeds for tally in tallies.values()]),
    ]
    for fault in sorted({fault for tally in tallies.values() for fault in tally.faults}):
        rows.append((fault, [tally.faults[fault] for tally in tallies.values()]))
    rows.append(("failures", [len(tally.failures) for tally in tallies.values()]))
    lines = ["", f"{'':<48}" + "".join(f"{kind:>12}" for kind in tallies)]
    return "\n".join(lines + [f"{name:<48}" + "".join(f"{n:>12,}" for n in figures) for name, figures in rows])
