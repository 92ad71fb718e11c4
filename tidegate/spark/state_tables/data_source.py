"""The PySpark data source `tidegate-state`.

    spark.read.format("tidegate-state").option("operator", uid).option("state", name).load(path)

Without the two options it lists the states; with the option `job` it reads the last checkpoint of a running job. Spark
makes the objects here in Python processes of its own, first to ask for the schema and the partitions, then to read
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.common.errors import ConfigurationError
from tidegate.snapshots.catalog import StateListing, list_states
from tidegate.snapshots.splits import Split
from tidegate.snapshots.state_table import StateTable, open_state

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "tidegate-state"

_LISTING = (
    "operator string, uid string, operator_id string, state string, kind string, type string, per_namespace boolean, "
    "time_to_live boolean, entries long, bytes long, backend string, parallelism int, max_parallelism int"
)
_ROWS, _BYTES = 131_072, 8 << 20  # of a batch that goes to Spark
_OPTIONS = ("path", "job", "operator", "state", "numPartitions", "ttl", "asOf")
_STORAGE_OPTIONS = ("endpoint_override", "region", "scheme", "anonymous", "access_key", "secret_key", "session_token")


class StateDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        self._check_options()
        if self._lists:
            list_states(self._path, self._storage)  # a wrong path is an error of load(), not of what comes later
            return _LISTING
        return from_arrow_schema(self._open(None).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options()
        if self._lists:
            return ListingReader(list_states(self._path, self._storage), schema)
        wanted = to_arrow_schema(schema, timezone="UTC")
        return StateReader(self._open(wanted), wanted)

    def _open(self, types: pa.Schema | None) -> StateTable:
        return open_state(
            self._path,
            self.options["operator"],
            self.options["state"],
            pieces=self._number("numPartitions"),
            ttl=self.options.get("ttl"),
            as_of=self._number("asOf"),
            options=self._storage,
            types=types,
        )

    @property
    def _path(self) -> str:
        path, job = self.options.get("path"), self.options.get("job")
        if path and job:
            raise ConfigurationError(f"{FORMAT}: a path or the option job says what is read, not both")
        if job:
            from tidegate.spark.state_tables.running_job import checkpoints_of

            return checkpoints_of(job)
        if not path:
            raise ConfigurationError(
                f'{FORMAT}: there is no path; give that of a snapshot to load("..."), or a running job with the option '
                "job"
            )
        return str(path)

    @property
    def _lists(self) -> bool:
        return "operator" not in self.options

    @property
    def _storage(self) -> dict[str, str]:
        return {name: self.options[name] for name in _STORAGE_OPTIONS if name in self.options}

    def _number(self, name: str) -> int | None:
        value = self.options.get(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = -1
        if number < (1 if name == "numPartitions" else 0):
            raise ConfigurationError(f"{FORMAT}: the option {name} has to be a positive number, got '{value}'")
        return number

    def _check_options(self) -> None:
        known = {option.lower() for option in (*_OPTIONS, *_STORAGE_OPTIONS)}
        unknown = [option for option in self.options if option.lower() not in known]
        if unknown:
            raise ConfigurationError(f"{FORMAT}: unknown option {', '.join(unknown)}; known are {', '.join(_OPTIONS)}")
        if ("operator" in self.options) != ("state" in self.options):
            raise ConfigurationError(
                f"{FORMAT}: the options operator and state go together; without both the states are listed"
            )


class ListingReader(DataSourceReader):
    def __init__(self, states: list[StateListing], schema: StructType) -> None:
        names = schema.fieldNames()
        unknown = [name for name in names if name not in StateListing._fields]
        if unknown:
            raise ConfigurationError(
                f"{FORMAT}: the list of states has no column {', '.join(unknown)}; it has "
                f"{', '.join(StateListing._fields)}. For the content of a state set the options operator and state"
            )
        self._rows = [tuple(getattr(state, name) for name in names) for state in states]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


class StateReader(DataSourceReader):
    def __init__(self, table: StateTable, schema: pa.Schema) -> None:
        self._table = table
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(split) for split in self._table.splits] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        split: Split | None = partition.value
        for batch in _larger(self._table.batches(split)) if split is not None else ():
            # The same columns, but for what Spark calls the inner fields, and whether they may be null.
            columns = [batch.column(field.name).cast(field.type) for field in self._schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def __reduce__(self) -> tuple[Any, ...]:
        # The pieces travel with the partitions, each to its own task: not all of them to all tasks.
        slim = StateTable(self._table.reader, [], self._table.layout)
        return StateReader, (slim, self._schema)


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
