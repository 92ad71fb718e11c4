"""Whether rows can be appended to a Delta table as it is: its columns, its partitions, and what it asks of writers.

The sink adds Parquet files to the table, and `deltalake` looks at neither their columns nor their values. A table may
ask for more: other names in the files than in the table, values that are computed or checked. Rows that were added
without that would be read as nulls or be wrong, with no error anywhere. So such a table is refused. Spark may change a
table while a job writes to it: the check is made for every commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa


# Of a writer that only appends. What else the first line asks of one is in the columns and settings, checked below.
_APPENDABLE = {
    *("checkConstraints", "columnMapping", "generatedColumns", "invariants"),
    *("appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint"),
}
_COMPUTED = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
}


def check_fit(location: StorageLocation, table: Any, schema: pa.Schema, partitions: tuple[str, ...] | None) -> None:
    """ConfigurationError when rows of this schema cannot be appended. `partitions`: None when any will do."""
    problems = _column_problems(table, schema)
    if problems:
        raise ConfigurationError(f"DeltaSink: the rows do not fit the table {location}: {'; '.join(problems)}")
    there = partition_columns(table)
    if partitions is not None and there != partitions:
        raise ConfigurationError(
            f"DeltaSink: the table {location} is partitioned by {list(there)}, not by {list(partitions)}"
        )
    demands = list(_demands(table))
    if demands:
        raise ConfigurationError(
            f"DeltaSink: the table {location} asks more of a writer than appending rows: {'; '.join(demands)}. Drop "
            "that from the table, or write to a table without it and copy the rows with Spark"
        )


def partition_columns(table: Any) -> tuple[str, ...]:
    return tuple(table.metadata().partition_columns)


def _column_problems(table: Any, schema: pa.Schema) -> list[str]:
    import pyarrow as pa

    there = pa.schema(table.schema().to_arrow())
    problems = []
    for field in schema:
        index = there.get_field_index(field.name)
        if index < 0:
            problems.append(f"column '{field.name}' is not in the table")
        elif there.field(index).type != field.type:
            problems.append(f"column '{field.name}' is {there.field(index).type} in the table, not {field.type}")
    missing = [f"'{f.name}'" for f in there if not f.nullable and schema.get_field_index(f.name) < 0]
    if missing:
        problems.append(f"column {', '.join(missing)} of the table must not be null and is not written")
    return problems


def _demands(table: Any) -> Iterator[str]:
    settings = table.metadata().configuration
    mode = settings.get("delta.columnMapping.mode", "none")
    if mode != "none":
        yield f"its files have other column names than the table (delta.columnMapping.mode = {mode})"
    for name, value in settings.items():
        if name.startswith("delta.constraints."):
            yield f"the constraint {name.removeprefix('delta.constraints.')} (CHECK {value})"
    for field in _fields(json.loads(table.schema().to_json())):
        for key, what in _COMPUTED.items():
            if key in field["metadata"]:
                yield f"column '{field['name']}' {what}"
    others = sorted(set(table.protocol().writer_features or ()) - _APPENDABLE)
    if others:
        yield f"the table feature{'s' if len(others) > 1 else ''} {', '.join(others)}"


def _fields(kind: Any) -> Iterator[dict[str, Any]]:
    """All fields of a type in Delta's JSON, nested ones too."""
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            yield field
            yield from _fields(field["type"])
        for part in ("elementType", "keyType", "valueType"):
            yield from _fields(kind.get(part))
