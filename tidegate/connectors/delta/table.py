"""The few things that are asked of a Delta table, through `deltalake`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.connectors.delta.checks import check_fit
from tidegate.connectors.delta.data_files import DataFile
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa


_S3_OPTIONS = {
    "endpoint_override": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


def table_options(location: StorageLocation, given: Mapping[str, str] | None) -> dict[str, str]:
    """`deltalake`'s storage options for a location; the given ones go before those that the location says."""
    found: dict[str, str] = {}
    if location.scheme == "s3":
        options = dict(location.options)
        found = {_S3_OPTIONS[name]: value for name, value in options.items() if name in _S3_OPTIONS}
        endpoint = options.get("endpoint_override")
        if endpoint is not None:
            if "://" not in endpoint:
                endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
            found["AWS_ENDPOINT_URL"] = endpoint
            if endpoint.startswith("http://"):
                found["AWS_ALLOW_HTTP"] = "true"
        found["aws_conditional_put"] = "etag"  # two commits of one version: one of them has to fail
    return found | dict(given or {})


def _uri(location: StorageLocation) -> str:
    return location.local_path if location.is_local else location.uri


def _open(location: StorageLocation, options: Mapping[str, str]) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(_uri(location), storage_options=dict(options) or None)


def check_table(
    location: StorageLocation,
    schema: pa.Schema,
    partitions: tuple[str, ...] | None,
    options: Mapping[str, str],
    create: bool,
) -> Any | None:
    """The table, None when there is none yet and `create` is set. ConfigurationError when rows cannot be appended."""
    from deltalake.exceptions import TableNotFoundError

    try:
        table = _open(location, options)
    except TableNotFoundError:
        if create:
            return None
        raise ConfigurationError(
            f"DeltaSink: {location} is no Delta table; make it before, or leave create=False out"
        ) from None
    except Exception as error:
        raise ConfigurationError(f"DeltaSink: the table {location} cannot be read: {error}") from error
    check_fit(location, table, schema, partitions)
    return table


def with_nullability(schema: pa.Schema, table: Any) -> pa.Schema:
    """A column that must not be null in the table must not be null in a record."""
    import pyarrow as pa

    there = pa.schema(table.schema().to_arrow())
    return pa.schema([field.with_nullable(field.nullable and there.field(field.name).nullable) for field in schema])


def create_table(
    location: StorageLocation, schema: pa.Schema, partitions: tuple[str, ...], options: Mapping[str, str]
) -> None:
    """One that is there already is left as it is. Several attempts of a task may do this at once."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if location.is_local:
        os.makedirs(location.local_path, exist_ok=True)
    for last_try in (False, False, True):
        try:
            DeltaTable.create(
                _uri(location),
                schema,
                mode="ignore",
                partition_by=list(partitions) or None,
                storage_options=dict(options) or None,
            )
            return
        except (DeltaError, OSError) as error:  # another subtask made it this moment
            with contextlib.suppress(DeltaError):
                _open(location, options)
                return
            if last_try:
                raise TidegateError(f"the Delta table {location} cannot be made: {error}") from error
            time.sleep(0.1)


def versions(
    location: StorageLocation, options: Mapping[str, str], app_ids: Iterable[str]
) -> tuple[Any, dict[str, int]]:
    """The table as of now, and the highest version of each application id in it; -1 for none."""
    table = _open(location, options)
    found = {app_id: table.transaction_version(app_id) for app_id in app_ids}
    return table, {app_id: -1 if version is None else int(version) for app_id, version in found.items()}


def append(table: Any, partitions: tuple[str, ...], files: list[DataFile], transactions: dict[str, int]) -> None:
    """One entry in the log. CommitFailedError when another entry carries one of the transactions, or after too many
    conflicts with other writers."""
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction

    now = int(time.time() * 1000)
    actions = [AddAction(f.path, f.size, dict(f.partition_values), now, True, f.stats) for f in files]
    properties = CommitProperties(
        app_transactions=[Transaction(app_id, version, now) for app_id, version in transactions.items()]
    )
    table.create_write_transaction(
        actions, "append", table.schema(), partition_by=list(partitions) or None, commit_properties=properties
    )
