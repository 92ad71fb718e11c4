"""The Delta sink without a job: what is visible when, commits that are repeated, bad input."""

from __future__ import annotations

import datetime
import pickle
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidegate.common import Row, Types
from tidegate.common.errors import ConfigurationError
from tidegate.datastream.connectors import DeltaSink
from tidegate.datastream.connectors.base import SinkContext
from tidegate.datastream.connectors.delta import _IDS, Lot
from tidegate.datastream.formats.arrow_rows import RecordMismatchError

NUMBERS = Types.ROW_NAMED(["n"], [Types.LONG()])


def writer_of(sink: DeltaSink, subtask: int = 0, attempt: int = 0) -> Any:
    return sink.create_writer(SinkContext("job", "sink", subtask, 2, attempt, None, operator_id="op"))


def lots_of(writer: Any, *lots: list[int]) -> list[Lot]:
    found: list[Lot] = []
    for numbers in lots:
        writer.write_batch([Row(n=n) for n in numbers], None)
        writer.flush(False)
        found += writer.prepare_commit()
    return found


def numbers_in(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["n"].to_pylist())


def test_rows_are_visible_after_the_commit_and_a_repeated_commit_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = DeltaSink(str(path), NUMBERS)
    writer, committer = writer_of(sink), sink.create_committer()
    lots = lots_of(writer, [1, 2], [], [3])
    assert len(lots) == 2
    assert numbers_in(path) == []
    assert committer.commit(lots[:1]) == []
    assert numbers_in(path) == [1, 2]
    # After a crash: all that the checkpoint holds, with what was committed before it.
    restored = pickle.loads(pickle.dumps((sink, lots)))
    for _ in range(2):
        assert restored[0].create_committer().commit(restored[1]) == []
        assert numbers_in(path) == [1, 2, 3]
    assert DeltaTable(str(path)).version() == 2
    DeltaTable(str(path)).optimize.compact()  # the files of the lots are gone from the table, their rows are not
    sink.create_committer().commit(lots)
    assert numbers_in(path) == [1, 2, 3]
    # A new attempt replays with a writer of its own, whose lots are never taken for those of the first.
    again = lots_of(writer_of(sink, attempt=1), [4], [5])
    committer.commit(again)
    assert numbers_in(path) == [1, 2, 3, 4, 5]


def test_lots_that_are_committed_out_of_order_by_several_subtasks_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = DeltaSink(str(path), NUMBERS)
    writer = writer_of(sink)
    lots = lots_of(writer, *[[n] for n in range(_IDS)])
    assert not writer.available  # more would share an id with the first
    threads = [
        threading.Thread(target=pickle.loads(pickle.dumps(sink)).create_committer().commit, args=([lot],))
        for lot in reversed(lots)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers_in(path) == list(range(_IDS))
    sink.create_committer().commit(lots)
    assert writer.available
    assert numbers_in(path) == list(range(_IDS))
    sink.create_committer().commit(lots_of(writer, [100]))  # the first id again, with the next version
    assert numbers_in(path) == [*range(_IDS), 100]


def test_every_type_and_partitions(tmp_path: Path) -> None:
    kinds = {
        "part": Types.STRING(),
        "day": Types.SQL_DATE(),
        "flag": Types.BOOLEAN(),
        "byte": Types.BYTE(),
        "real": Types.FLOAT(),
        "exact": Types.BIG_DEC(),
        "raw": Types.PRIMITIVE_ARRAY(Types.BYTE()),
        "at": Types.SQL_TIMESTAMP(),
        "tags": Types.LIST(Types.STRING()),
        "counts": Types.MAP(Types.STRING(), Types.LONG()),
        "inner": Types.ROW_NAMED(["x", "when"], [Types.INT(), Types.SQL_TIMESTAMP()]),
    }
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, 10)
    day = datetime.date(2024, 5, 6)
    rows = [
        Row(part=part, day=day, flag=True, byte=-1, real=0.5, exact=Decimal("1.5"), raw=b"\0", at=moment)
        for part in ("a/b", "a/b", None)
    ]
    full = [{**row.as_dict(), "tags": ["t", None], "counts": {"k": 1}, "inner": Row(x=1, when=moment)} for row in rows]
    sink = DeltaSink(str(tmp_path), Types.ROW_NAMED(list(kinds), list(kinds.values())), partition_by=["part", "day"])
    writer = writer_of(sink)
    writer.write_batch(full, None)
    sink.create_committer().commit(writer.prepare_commit())
    table = DeltaTable(str(tmp_path))
    assert len(table.file_uris()) == 2
    utc = moment.replace(tzinfo=datetime.UTC)
    found = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: str(row["part"]))
    expected = {**full[0], "at": utc, "counts": [("k", 1)], "inner": {"x": 1, "when": utc}}
    assert found == [{**expected, "part": None}, expected, expected]
    # The table's own partitions are found again.
    again = DeltaSink(str(tmp_path), Types.ROW_NAMED(list(kinds), list(kinds.values())), create=False)
    writer = writer_of(again)
    writer.write_batch(full, None)
    again.create_committer().commit(writer.prepare_commit())
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 6


def test_a_table_in_an_object_store(s3_server: tuple[str, Any]) -> None:
    endpoint, _ = s3_server
    sink = DeltaSink(f"s3://bucket/delta?endpoint_override={endpoint}", NUMBERS)
    lots = [lot for subtask in (0, 1) for lot in lots_of(writer_of(sink, subtask), [subtask])]
    threads = [threading.Thread(target=sink.create_committer().commit, args=([lot],)) for lot in lots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.create_committer().commit(lots)
    table = DeltaTable("s3://bucket/delta", storage_options=sink._options)
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [0, 1]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is no Delta table.*create=False"):
        DeltaSink(str(tmp_path / "none"), NUMBERS, create=False)
    assert not (tmp_path / "none").exists()
    DeltaTable.create(str(tmp_path / "t"), pa.schema([pa.field("n", pa.string()), pa.field("m", pa.int64(), False)]))
    with pytest.raises(ConfigurationError, match=r"column 'n' is string in the table, not int64; column 'm'.*null"):
        DeltaSink(str(tmp_path / "t"), NUMBERS)
    with pytest.raises(ConfigurationError, match="column 'k' is not in the table"):
        DeltaSink(str(tmp_path / "t"), pa.schema([("k", pa.int64()), ("m", pa.int64())]))
    with pytest.raises(ConfigurationError, match="column 't' has the type time64"):
        DeltaSink(str(tmp_path / "x"), Types.ROW_NAMED(["t"], [Types.SQL_TIME()]))
    with pytest.raises(ConfigurationError, match="no such column"):
        DeltaSink(str(tmp_path / "x"), NUMBERS, partition_by=["p"])
    with pytest.raises(ConfigurationError, match=r"partitioned by \[\], not by \['n'\]"):
        DeltaSink(str(tmp_path / "t"), pa.schema([("n", pa.string()), ("m", pa.int64())]), partition_by=["n"])
    with pytest.raises(TypeError, match="row_type"):
        DeltaSink(str(tmp_path / "x"), Types.LONG())
    strict = writer_of(DeltaSink(str(tmp_path / "t"), pa.schema([("n", pa.string()), ("m", pa.int64())])))
    strict.write_batch([("a", None)], None)
    with pytest.raises(RecordMismatchError, match=r"column 'm' must not be null.*\('a', None\)"):
        strict.prepare_commit()
    writer = writer_of(DeltaSink(str(tmp_path / "x"), NUMBERS))
    writer.write_batch([Row(n=1), Row(n="two")], None)
    with pytest.raises(RecordMismatchError, match=r"column 'n' of type int64 cannot hold 'two'.*Row\(n='two'\)"):
        writer.prepare_commit()
