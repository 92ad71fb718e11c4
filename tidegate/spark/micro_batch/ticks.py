"""The source of the streaming query: no records, only the order for each batch. Where the job's own sources stand is in
their state, in Spark's state store, so that it moves with the batch and with nothing else.

Spark asks a process of its own (`latestOffset`), which looks into a file on the driver's machine: there is a new offset
when the job allows a next batch. The order is in the offset, and so in Spark's offset log: a batch that is run again
gets the same one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidegate.common.decoding import from_json
from tidegate.common.errors import TidegateError
from tidegate.spark.micro_batch.exchange import TICK
from tidegate.spark.micro_batch.looks import Look
from tidegate.spark.micro_batch.plan import SplitOrder, Tick

ROW_SCHEMA = "place int, payload binary"
FORMAT = "tidegate-ticks"
CONTROL_OPTION, PLACES_OPTION = "control", "places"

_BATCH, _ORDER = "batch", "order"


class Control:
    """The driver's side of the file. `allow` is called from one thread."""

    def __init__(self, path: str) -> None:
        self._path = path

    def allow(
        self,
        batch: int,
        savepoint: str = "",
        permissions: str = "",
        drain: bool = False,
        splits: dict[str, SplitOrder] | None = None,
        looks: Sequence[Look] = (),
    ) -> None:
        """Let the batch with this number begin, when all before it are done."""
        order = {_BATCH: batch, "savepoint": savepoint, "permissions": permissions, "drain": drain}
        order["splits"] = msgspec.to_builtins(splits or {})
        order["looks"] = msgspec.to_builtins(list(looks))
        temporary = f"{self._path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(order, file)
        os.replace(temporary, self._path)


class _TickReader(DataSourceStreamReader):
    def __init__(self, control: str, places: list[int]) -> None:
        self._control = control
        self._places = places
        self._latest: dict[str, Any] = {_BATCH: -1}  # that Spark has, as far as this reader was told

    def initialOffset(self) -> dict[str, Any]:
        return {_BATCH: -1}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Spark 4.1 passes no arguments. It takes an offset that is not the one it has for a new batch."""
        start = self._latest if start is None else start
        with open(self._control, "rb") as file:
            order = from_json(file.read(), dict[str, Any], self._damaged)
        allowed = order.pop(_BATCH, None)
        if not isinstance(allowed, int):
            raise self._damaged("it names no batch")
        if allowed <= start[_BATCH]:
            return start
        order |= {"batch": allowed, "time_ms": int(time.time() * 1000)}
        return {_BATCH: allowed, _ORDER: json.dumps(order)}

    def _damaged(self, why: str) -> DamagedOrderError:
        return DamagedOrderError(f"{self._control} is damaged ({why}): start the job again, which makes a new one")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._latest = end
        return [InputPartition(end[_ORDER])] if end[_BATCH] > start[_BATCH] else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        payload = TICK + partition.value.encode()
        return ((place, payload) for place in self._places)


class TickSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ROW_SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _TickReader(self.options[CONTROL_OPTION], json.loads(self.options[PLACES_OPTION]))


def read_tick(payload: bytes) -> Tick:
    """Raises DamagedOrderError: what comes here went through Spark's offset log, which lies with the user."""

    def damaged(why: str) -> DamagedOrderError:
        return DamagedOrderError(
            f"the order for a batch that Spark has in the offset log of its checkpoint location is damaged ({why}): "
            "restore the location, or start the job from a savepoint in a new one"
        )

    return from_json(payload[1:], Tick, damaged)


class DamagedOrderError(TidegateError):
    """What tells of a batch is not what was written; the text says where, and what to do."""
