"""A sink to Delta tables, exactly once.

Writers write Parquet files into the table's folder, where nobody sees them; a file becomes part of the table when it
is named in the table's log. At a barrier the files of a subtask become one committable, a *lot*, and when the
checkpoint is complete the lot is appended with one entry in the log. That entry carries an application transaction: an
id and a version, which the table remembers. A commit that is repeated after a crash finds its version there and does
nothing.

The id belongs to one writer (a subtask of one attempt, in all its micro-batches), never to the job as a whole. With the
checkpoint's number as the version and an id of the job, a job that is started from an older savepoint would meet its
own numbers again, and new lots would be taken for old ones: lost. Of one writer `_IDS` ids are used in turn, and a
writer whose `_IDS` lots wait for their commit takes no more records: so lots that are dealt to different subtasks by a
rescaling, and are committed out of order, never share an id.

Files that no checkpoint ever covered stay unseen in the folder until somebody vacuums the table.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.typeinfo import RowTypeInfo
from tidegate.connectors.delta.checks import check_fit, partition_columns
from tidegate.connectors.delta.data_files import DataFile, DeltaFiles, column_problems, delta_schema
from tidegate.connectors.delta.table import (
    append,
    check_table,
    create_table,
    table_options,
    versions,
    with_nullability,
)
from tidegate.contracts.connectors import Committer, Sink, SinkContext, SinkWriter
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa


_IDS = 16  # application ids per writer
_TRIES = 30  # of one commit against other writers of the table, before it counts as failed


@dataclass(frozen=True)
class Lot:
    """What one writer has written between two barriers."""

    writer: str
    number: int  # of the lots of this writer, from 0
    files: tuple[DataFile, ...]

    @property
    def app_id(self) -> str:
        return f"{self.writer}-{self.number % _IDS}"

    @property
    def version(self) -> int:
        return self.number // _IDS


class CommittedLots:
    """How many lots of each writer are committed. Of one process: a committer tells the writer beside it."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, lots: list[Lot]) -> None:
        for lot in lots:
            self._counts[lot.writer] = self._counts.get(lot.writer, 0) + 1

    def count(self, writer: str) -> int:
        return self._counts.get(writer, 0)


class DeltaSink(Sink[Any, Lot]):
    """Appends rows to a Delta table. Needs the package `deltalake` (`pip install tidegate[delta]`).

    `row_type`: `Types.ROW_NAMED(...)` or a `pyarrow.Schema`; timestamps are instants (UTC). `create`: make the table
    when there is none. `partition_by`: columns, for a table that is made. `storage_options` are those of `deltalake`;
    for S3 they are derived from the path's options and the environment, as with checkpoint storage.

    Rows are visible when their checkpoint is complete. Without checkpoints all become visible when the job ends well.
    """

    def __init__(
        self,
        table_path: str,
        row_type: RowTypeInfo | Any,
        *,
        create: bool = True,
        partition_by: list[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        _check_installed()
        if not isinstance(table_path, str) or not table_path.strip():
            raise ConfigurationError(f"DeltaSink: table_path has to be a path or a URI, got {table_path!r}")
        self._location = StorageLocation.parse(table_path)
        self._schema: pa.Schema = delta_schema(row_type)
        self._options = table_options(self._location, storage_options)
        self._create = create
        wanted = None if partition_by is None else tuple(partition_by)
        existing = check_table(self._location, self._schema, wanted, self._options, create)
        if existing is not None:
            self._schema = with_nullability(self._schema, existing)
        self._partitions = (wanted or ()) if existing is None else partition_columns(existing)
        self._committed = CommittedLots()
        problems = column_problems(self._schema, self._partitions)
        if problems:
            raise ConfigurationError(f"DeltaSink: {problems}")

    def create_writer(self, context: SinkContext) -> DeltaWriter:
        # One subtask makes it: of two that do so at once, the second may add a version that says the same again.
        if self._create and context.subtask == 0:
            create_table(self._location, self._schema, self._partitions, self._options)
        elif self._location.is_local:
            os.makedirs(self._location.local_path, exist_ok=True)
        return DeltaWriter(DeltaFiles(self._location, self._schema, self._partitions), context, self._committed)

    def create_committer(self) -> DeltaCommitter:
        return DeltaCommitter(self._location, self._schema, self._partitions, self._options, self._committed)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_committed": CommittedLots()}

    def __repr__(self) -> str:
        return f"DeltaSink({self._location})"


class DeltaWriter(SinkWriter[Any, Lot]):
    def __init__(self, files: DeltaFiles, context: SinkContext, committed: CommittedLots) -> None:
        self._files = files
        self._committed = committed
        # An id of its own for each writer: see the head of this module.
        made = f"tidegate-{context.operator_id}-{context.subtask}-{uuid.uuid4().hex}"
        self._id: str
        self._lots: int
        self._id, self._lots = context.memo or (made, 0)
        self._before = self._lots  # of micro-batches before, which are committed

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._files.add(values)

    def prepare_commit(self) -> list[Lot]:
        files = self._files.finish()
        if not files:
            return []
        self._lots += 1
        return [Lot(self._id, self._lots - 1, tuple(files))]

    @property
    def available(self) -> bool:
        return self._lots - self._before - self._committed.count(self._id) < _IDS

    def memo(self) -> tuple[str, int]:
        """The log of the table keeps every id for ever: one of each batch would be too many."""
        return self._id, self._lots

    def close(self) -> None:
        self._files.abandon()


class DeltaCommitter(Committer[Lot]):
    """All lots that are given at once are appended in one entry of the log."""

    def __init__(
        self,
        location: StorageLocation,
        schema: pa.Schema,
        partitions: tuple[str, ...],
        options: dict[str, str],
        committed: CommittedLots,
    ) -> None:
        self._location = location
        self._schema = schema
        self._partitions = partitions
        self._options = options
        self._committed = committed

    def commit(self, committables: list[Lot]) -> list[Lot]:
        self._commit(committables)
        self._committed.add(committables)
        return []

    def _commit(self, lots: list[Lot]) -> None:
        from deltalake.exceptions import CommitFailedError

        for attempt in range(_TRIES):
            table, done = versions(self._location, self._options, {lot.app_id for lot in lots})
            new = [lot for lot in lots if lot.version > done[lot.app_id]]
            if not new:
                return
            check_fit(self._location, table, self._schema, self._partitions)
            newest = {lot.app_id: lot.version for lot in sorted(new, key=lambda lot: lot.version)}
            files = [file for lot in new for file in lot.files]
            try:
                append(table, self._partitions, files, newest)
                return
            except CommitFailedError:  # somebody else was faster: look again, it may have been ourselves
                if attempt == _TRIES - 1:
                    raise
                time.sleep(min(0.01 * 2**attempt, 1.0))


def _check_installed() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "DeltaSink: the package deltalake is not installed; install it with: pip install tidegate[delta]"
        ) from error
