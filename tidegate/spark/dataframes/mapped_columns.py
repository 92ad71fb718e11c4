"""`DataFrame.mapInArrow` for columns of any name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    Batches = Iterator[pa.RecordBatch]


def map_in_arrow(df: DataFrame, function: Callable[[Batches], Batches], schema: Any) -> DataFrame:
    """Spark looks its columns up by name, and takes a dot or a backtick in one for syntax: so the columns travel under
    numbers, and `function` sees them under their names again."""
    numbered = df.toDF(*[f"c{i}" for i in range(len(df.columns))])
    return numbered.mapInArrow(_Renamed(function, df.columns), schema)


class _Renamed:
    """In a Spark task."""

    def __init__(self, function: Callable[[Batches], Batches], names: list[str]) -> None:
        self._function = function
        self._names = names

    def __call__(self, batches: Batches) -> Batches:
        import pyarrow as pa

        names = self._names
        return self._function(pa.RecordBatch.from_arrays(batch.columns, names=names) for batch in batches)
