"""The Delta sink without a job: what is visible when, commits that are repeated, bad input."""

from __future__ import annotations

import datetime
import json
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
from tidegate.connectors.delta.sink import _IDS, Lot
from tidegate.datastream.connectors import DeltaSink
from tidegate.datastream.connectors.base import SinkContext
from tidegate.formats.arrow_columns import RecordMismatchError

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
    # A zone other than UTC is no matter of the table: moments are moments.
    zoned = DeltaSink(str(tmp_path / "zoned"), pa.schema([("at", pa.timestamp("us", "Europe/Berlin"))]))
    writer = writer_of(zoned)
    writer.write_batch([(utc.astimezone(datetime.timezone(datetime.timedelta(hours=5))),), (moment,)], None)
    zoned.create_committer().commit(writer.prepare_commit())
    assert DeltaTable(str(tmp_path / "zoned")).to_pyarrow_table()["at"].to_pylist() == [utc, utc]


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


def table_of(
    path: Path, features: list[str] | int, configuration: dict[str, str], *metadata: dict[str, Any], kind: str = "long"
) -> str:
    """As another writer makes it: `features` of the table, or the old number that stands for them."""
    mapping = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
    is_mapped = "delta.columnMapping.mode" in configuration
    fields = [{"name": "n", "type": kind, "nullable": True, "metadata": mapping if is_mapped else {}}]
    fields += [{"name": f"c{i}", "type": "long", "nullable": True, "metadata": m} for i, m in enumerate(metadata)]
    version = 1 + max((int(f.stem) for f in path.glob("_delta_log/*.json")), default=-1)
    old = isinstance(features, int)
    protocol = {"minReaderVersion": 1, "minWriterVersion": features if old else 7}
    readers = [f for f in features if f in ("columnMapping", "deletionVectors")] if isinstance(features, list) else []
    if readers:
        protocol |= {"minReaderVersion": 3, "readerFeatures": readers}
    elif features == 5:
        protocol["minReaderVersion"] = 2
    actions: list[dict[str, Any]] = [
        {"protocol": protocol if old else protocol | {"writerFeatures": features}},
        {
            "metaData": {
                "id": "t",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": configuration,
                "createdTime": 1,
            }
        },
    ]
    (path / "_delta_log").mkdir(parents=True, exist_ok=True)
    (path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return str(path)


def test_a_table_that_asks_more_of_a_writer_than_appending_is_refused(tmp_path: Path) -> None:
    """Rows that are added without it are read as nulls, or break what the table promises, with no error anywhere."""
    mapped = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    refused: dict[str, tuple[Any, ...]] = {
        r"other column names than the table .*mode = name": (["columnMapping"], mapped),
        r"columnMapping.mode = id": (5, {"delta.columnMapping.mode": "id"}),
        r"the constraint small \(CHECK n < 10\)": (3, {"delta.constraints.small": "n < 10"}),
        r"column 'c0' is generated": (["generatedColumns"], {}, {"delta.generationExpression": "n * 2"}),
        r"column 'c1' is an identity": (6, {}, {}, {"delta.identity.start": 1, "delta.identity.step": 1}),
        r"column 'c0' has an invariant": (2, {}, {"delta.invariants": '{"expression":{"expression":"c0 > 1"}}'}),
        r"the table features domainMetadata, rowTracking\. Drop": (["rowTracking", "domainMetadata", "appendOnly"], {}),
    }
    for i, (message, given) in enumerate(refused.items()):
        with pytest.raises(ConfigurationError, match=message):
            DeltaSink(table_of(tmp_path / str(i), *given), NUMBERS)
    harmless = ["appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "generatedColumns", "invariants"]
    path = tmp_path / "harmless"
    sink = DeltaSink(table_of(path, harmless, {"delta.enableDeletionVectors": "true"}), NUMBERS)
    first, second = lots_of(writer_of(sink), [1], [2])
    sink.create_committer().commit([first])
    assert DeltaTable(str(path)).version() == 1
    # Changed while the job runs: what was written before must not be added to what the table is now.
    table_of(path, harmless, {"delta.constraints.small": "n < 10"})
    with pytest.raises(ConfigurationError, match=r"the constraint small"):
        sink.create_committer().commit([second])
    table_of(path, harmless, {}, kind="string")
    with pytest.raises(ConfigurationError, match="column 'n' is string in the table, not int64"):
        sink.create_committer().commit([second])
    table_of(path, harmless, {}, {})  # one more column is no matter
    for _ in range(2):
        sink.create_committer().commit([first, second])
    assert DeltaTable(str(path)).version() == 5


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is no Delta table.*create=False"):
        DeltaSink(str(tmp_path / "none"), NUMBERS, create=False)
    assert not (tmp_path / "none").exists()
    DeltaTable.create(str(tmp_path / "t"), pa.schema([pa.field("n", pa.string()), pa.field("m", pa.int64(), False)]))
    with pytest.raises(ConfigurationError, match=r"column 'n' is string in the table, not int64; column 'm'.*null"):
        DeltaSink(str(tmp_path / "t"), NUMBERS)
    with pytest.raises(ConfigurationError, match="column 'k' is not in the table"):
        DeltaSink(str(tmp_path / "t"), pa.schema([("k", pa.int64()), ("m", pa.int64())]))
    with pytest.raises(ConfigurationError, match="column 't' of Delta cannot have the type TIME"):
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
