"""Records as columns: what a column cannot hold is an error with the record, never another value."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.formats.arrow_columns import RecordMismatchError
from tidegate.formats.arrow_rows import ColumnsOfRecords


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int64()),
        (Decimal("1.5"), pa.int64()),
        (True, pa.int64()),
        ("text", pa.binary()),
        (datetime.datetime(2024, 1, 2, 3), pa.date32()),
        (5, pa.date32()),
        (5, pa.timestamp("us")),
        ([1, 1.5], pa.list_(pa.int64())),
    ],
)
def test_what_arrow_would_change_without_a_word_is_refused(value: Any, kind: pa.DataType) -> None:
    columns = ColumnsOfRecords(pa.schema([("column", kind)]))
    with pytest.raises(RecordMismatchError, match=r"column 'column' of type .* cannot hold .*, in the record \("):
        columns.batch([(None,), (value,)])


def test_what_is_the_same_value_is_taken() -> None:
    schema = pa.schema([("n", pa.int32()), ("d", pa.float64()), ("b", pa.binary()), ("day", pa.date32())])
    day = datetime.date(2024, 1, 2)
    batch = ColumnsOfRecords(schema).batch([(2.0, 1, bytearray(b"x"), day), (Decimal(2), 0.5, memoryview(b"y"), None)])
    assert [tuple(row.values()) for row in batch.to_pylist()] == [(2, 1.0, b"x", day), (2, 0.5, b"y", None)]
