"""Which table is wanted: the options of `tidegate-state`, checked, and what they open."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.common.errors import ConfigurationError
from tidegate.snapshots.catalog import StateListing, list_states
from tidegate.snapshots.splits import Split
from tidegate.snapshots.state_table import StateTable, open_state

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "tidegate-state"
LISTING = (
    "operator string, uid string, operator_id string, state string, kind string, type string, per_namespace boolean, "
    "time_to_live boolean, entries long, bytes long, backend string, parallelism int, max_parallelism int"
)

_ROWS, _BYTES = 131_072, 8 << 20  # of a batch that goes to Spark
_OPTIONS = ("path", "job", "operator", "state", "numPartitions", "ttl", "asOf")
_STORAGE_OPTIONS = ("endpoint_override", "region", "scheme", "anonymous", "access_key", "secret_key", "session_token")


class StateRequest:
    """ConfigurationError for options that are unknown or do not go together."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        known = {option.lower() for option in (*_OPTIONS, *_STORAGE_OPTIONS)}
        unknown = [option for option in options if option.lower() not in known]
        if unknown:
            raise ConfigurationError(f"{FORMAT}: unknown option {', '.join(unknown)}; known are {', '.join(_OPTIONS)}")
        if ("operator" in options) != ("state" in options):
            raise ConfigurationError(
                f"{FORMAT}: the options operator and state go together; without both the states are listed"
            )

    @property
    def lists(self) -> bool:
        """Whether the states are asked for, and not the content of one."""
        return "operator" not in self._options

    def states(self) -> list[StateListing]:
        return list_states(self._path, self._storage)

    def listing(self, names: list[str]) -> list[tuple[object, ...]]:
        """The rows of the list of states."""
        unknown = [name for name in names if name not in StateListing._fields]
        if unknown:
            raise ConfigurationError(
                f"{FORMAT}: the list of states has no column {', '.join(unknown)}; it has "
                f"{', '.join(StateListing._fields)}. For the content of a state set the options operator and state"
            )
        return [tuple(getattr(state, name) for name in names) for state in self.states()]

    def table(self, types: pa.Schema | None) -> StateTable:
        """The state that is asked for; `types`: these columns, instead of finding out."""
        return open_state(
            self._path,
            self._options["operator"],
            self._options["state"],
            pieces=self._number("numPartitions"),
            ttl=self._options.get("ttl"),
            as_of=self._number("asOf"),
            options=self._storage,
            types=types,
        )

    def schema(self) -> StructType:
        """The columns of the state that is asked for."""
        found: StructType = from_arrow_schema(self.table(None).schema, prefer_timestamp_ntz=True)
        return found

    @property
    def _path(self) -> str:
        path, job = self._options.get("path"), self._options.get("job")
        if path and job:
            raise ConfigurationError(f"{FORMAT}: a path or the option job says what is read, not both")
        if job:
            from tidegate.spark.state_tables.running_job import checkpoints_of

            return checkpoints_of(job, self._storage)
        if not path:
            raise ConfigurationError(
                f'{FORMAT}: there is no path; give that of a snapshot to load("..."), or a running job with the option '
                "job"
            )
        return str(path)

    @property
    def _storage(self) -> dict[str, str]:
        return {name: self._options[name] for name in _STORAGE_OPTIONS if name in self._options}

    def _number(self, name: str) -> int | None:
        value = self._options.get(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = -1
        if number < (1 if name == "numPartitions" else 0):
            raise ConfigurationError(f"{FORMAT}: the option {name} has to be a positive number, got '{value}'")
        return number


def spark_arrow_schema(schema: StructType) -> pa.Schema:
    """What this Spark takes for such columns, to the letter: newer ones compare even the names of inner fields."""
    zoned = "timezone" in inspect.signature(to_arrow_schema).parameters  # before Spark 4.1 it is always UTC
    return to_arrow_schema(schema, timezone="UTC") if zoned else to_arrow_schema(schema)


def batches_of(table: StateTable, split: Split, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A piece of a state, for Spark."""
    import pyarrow as pa

    for batch in _larger(table.batches(split)):
        # The same columns, but for what Spark calls the inner fields, and whether they may be null.
        columns = [batch.column(field.name).cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def slim(table: StateTable) -> StateTable:
    """Without its pieces: those travel each to its own task, not all of them to all tasks."""
    return StateTable(table.reader, [], table.layout)


def _larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fewer batches, within bounds: each has a fixed cost on Spark's side."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(b.num_rows for b in waiting) >= _ROWS or sum(b.nbytes for b in waiting) >= _BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
