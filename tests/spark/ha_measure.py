"""How long a takeover takes: from SIGKILL of the leading driver to the first record in the standby's workers.

python -m tests.spark.ha_measure [ROUNDS] [--zookeeper] [--only same|other]     prints what happened when, per round
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.connectors.zookeeper import zookeeper
from tests.spark.ha_kit import Driver, first_records, settings
from tests.spark.recovery_kit import until

RECORDS, PER_SECOND = 10_000_000, 1_000.0


def measure(folder: Path, configuration: dict[str, Any], other_machine: bool) -> float:
    drivers = [Driver(folder, RECORDS, PER_SECOND, configuration, other_machine=other_machine)]
    try:
        drivers[0].until_completed(3)
        drivers.append(Driver(folder, RECORDS, PER_SECOND, configuration, standby=True, other_machine=other_machine))
        drivers[1].until_standing_by()
        time.sleep(3)  # calm after the start
        killed = time.time()
        drivers[0].process.kill()
        later: float = until(
            lambda: next((t for t in first_records(folder) if t > killed), None), "a record of the standby", 60
        )
        for line in drivers[1].output.splitlines():
            at, _, what = line.partition(" ")
            if at.count(".") == 1 and at.replace(".", "").isdigit() and float(at) > killed:
                print(f"  {float(at) - killed:6.2f} {what[:140]}")
        print(f"  {later - killed:6.2f} the first record")
        return later - killed
    finally:
        for driver in drivers:
            driver.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--zookeeper", action="store_true", help="the lease is in ZooKeeper, not in files")
    parser.add_argument("--only", choices=("same", "other"), help="drivers that see each other's processes, or do not")
    arguments = parser.parse_args()
    for other_machine in (False, True):
        if arguments.only == ("same" if other_machine else "other"):
            continue
        found = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
                folder = Path(name)
                configuration = settings(folder)
                if arguments.zookeeper:
                    server = stack.enter_context(zookeeper(folder / "zookeeper"))
                    configuration["high-availability.type"] = "zookeeper"
                    configuration["high-availability.zookeeper.quorum"] = server.quorum
                found.append(measure(folder, configuration, other_machine))
                print(f"{'as of another machine' if other_machine else 'same machine'}: {found[-1]:.2f} s", flush=True)
        worst = f"worst {max(found):.2f} s of {len(found)}"
        print(f"  median {statistics.median(found):.2f} s, {worst}", flush=True)


if __name__ == "__main__":
    main()
