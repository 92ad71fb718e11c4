"""How large the states in one database are: RocksDB knows how many records it has, a sample says whose they are."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.state.figures import StateFigures, size_by_sample
from tidegate.state.rocksdb.tables import RocksTable

_GROUPS = 4  # key groups that are looked at
_RECORDS = 200  # of one state in one key group that are counted


def database_figures(tables: Collection[RocksTable]) -> dict[str, StateFigures]:
    """By state name. All tables are of the same database."""
    if not tables:
        return {}
    records, size = next(iter(tables)).database.estimates()
    counts = {table.info.name: table.sampled_records(_GROUPS, _RECORDS) for table in tables}
    sampled = sum(counts.values())
    found = {}
    for table in tables:
        share = counts[table.info.name] / sampled if sampled else 1 / len(tables)
        waiting = len(table.delta)
        found[table.info.name] = StateFigures(
            entries=round(records * share) + waiting,
            exact=False,
            bytes=round(size * share) + size_by_sample(table.delta.items(), waiting),
        )
    return found
