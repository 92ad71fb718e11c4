"""`python -m benchmarks [--quick] [name ...]`"""

from __future__ import annotations

import argparse
import importlib

from benchmarks.report import Figure, print_table

ALL = (
    "throughput",
    "in_slot",
    "time_cut",
    "copies",
    "large_records",
    "latency",
    "memory",
    "checkpoints",
    "recovery",
    "backpressure",
    "state_snapshots",
    "rocksdb",
    "savepoints",
    "state_tables",
    "windows",
    "batch",
    "micro_batch",
    "connectors",
    "kafka_pipeline",
    "control_plane",
    "live_state",
    "seeing",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", choices=[[], *ALL], help="which ones; all when none is named")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: about two minutes in all")
    arguments = parser.parse_args()
    for name in arguments.names or ALL:
        print(f"\n{name}")
        figures: list[Figure] = importlib.import_module(f"benchmarks.{name}").run(arguments.quick)
        print_table(figures)


if __name__ == "__main__":
    main()
