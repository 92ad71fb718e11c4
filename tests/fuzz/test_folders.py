"""Files that lie in a folder for long, or with the user: a staging folder, Spark's offset log, what a run under chaos
leaves, the history. Each is what was written, or an error that names the file and says what to do, or passed over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.effort import fuzzed
from tests.fuzz.inputs import any_bytes, fitting, refusal
from tests.unit.web.web_kit import sample_view
from tidegate.chaos.recording import Total, recorded, totals
from tidegate.chaos.segment import (
    DamagedRunError,
    Segment,
    SegmentResult,
    faults_of,
    read_result,
    read_segment,
    result_file,
)
from tidegate.common.errors import ConfigurationError
from tidegate.jobmanager.job_view import JobView
from tidegate.spark.dataframes.landing import LandedFile
from tidegate.spark.dataframes.staged_batches import LaneProgress, QueryFailure, StagedBatches
from tidegate.spark.micro_batch.exchange import TICK
from tidegate.spark.micro_batch.plan import Tick
from tidegate.spark.micro_batch.ticks import (
    CONTROL_OPTION,
    PLACES_OPTION,
    Control,
    DamagedOrderError,
    TickSource,
    read_tick,
)
from tidegate.storage.location import StorageLocation
from tidegate.web import documents
from tidegate.web.history import History

ORDER = msgspec.json.encode(Tick(batch=7, time_ms=1))
SEGMENT = msgspec.json.encode(Segment(folder="f", kinds=("kill",), limits={"a": {"b": 3}}))
RESULT = msgspec.json.encode(SegmentResult(job_id="x", operators=(), notes=()))
FAULT = b'{"kind": "kill", "at_ms": 1.5, "slot": 0}\n'
RECORDS = msgspec.msgpack.encode([(b"digest", b"key", "text")])
VIEW = msgspec.structs.replace(sample_view(), job_id="b" * 32, ended_ms=1000.0).to_json()
SUMMARY = msgspec.json.encode(documents.summary(JobView.from_json(VIEW), 0.0))
TOTAL = msgspec.msgpack.encode((3, 2**63))
COUNTS = st.one_of(st.integers(-1, 3), st.just(2**63))


def as_json(values: st.SearchStrategy[object]) -> st.SearchStrategy[bytes]:
    return values.map(msgspec.json.encode)


def staging(
    name: str, originals: list[bytes], values: st.SearchStrategy[object]
) -> st.SearchStrategy[tuple[str, bytes]]:
    return st.tuples(st.just(name), st.one_of(any_bytes(originals), as_json(values)))


IDENTITY = st.fixed_dictionaries({"id": st.text(max_size=3), "lanes": COUNTS, "version": COUNTS})
MANIFEST = st.fixed_dictionaries({"batch": COUNTS, "files": st.lists(st.tuples(COUNTS, st.text(max_size=3), COUNTS))})
PROGRESS = st.fixed_dictionaries({"read": COUNTS, "done": COUNTS})
FAILURE = st.fixed_dictionaries({"attempt": COUNTS, "message": st.text(max_size=3)})


@fuzzed
@given(
    st.one_of(
        staging("staging.json", [b'{"id": "x", "lanes": 2, "version": 1}'], IDENTITY),
        staging(f"batches/{1:020d}.json", [b'{"batch": 1, "files": [[0, "data/1/part-0.parquet", 5]]}'], MANIFEST),
        staging("progress/lane-0.json", [b'{"read": 4, "done": 2}'], PROGRESS),
        staging("failure.json", [b'{"attempt": 1, "message": "gone"}'], FAILURE),
    )
)
def test_a_damaged_staging_file_is_named_with_what_to_do(file: tuple[str, bytes]) -> None:
    name, content = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        staged = StagedBatches(StorageLocation.parse(folder))
        readers: dict[str, Callable[[], object]] = {
            "staging.json": lambda: staged.open_id(1),
            f"batches/{1:020d}.json": lambda: staged.read_manifest(1),
            "progress/lane-0.json": lambda: staged.read_progress(2),
            "failure.json": staged.read_failure,
        }
        found, error = refusal(readers[name], ConfigurationError)
    match found:
        case None:
            assert folder in str(error)
        case (str(), int(lanes)):
            assert lanes >= 1
        case [LaneProgress(read=read, done=done), LaneProgress(read=0, done=0)]:
            assert min(read, done) >= 0
        case QueryFailure():
            pass
        case files:
            assert isinstance(files, tuple)
            assert all(isinstance(file, LandedFile) and min(file.partition, file.rows) >= 0 for file in files)


@fuzzed
@given(st.lists(st.text("abé.-07 json", max_size=25), max_size=3))
def test_foreign_files_among_the_landed_batches_are_passed_over(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        staged = StagedBatches(StorageLocation.parse(folder))
        staged.write_manifest(3, (LandedFile(0, "data/3/part-0.parquet", 1),))
        for name in names:
            (Path(folder) / "batches" / f"x{name}").write_bytes(b"?")
        assert staged.landed() == [3]


@fuzzed
@given(st.one_of(any_bytes([ORDER]), as_json(fitting(Tick))))
def test_an_order_of_the_offset_log_is_one_or_an_error(data: bytes) -> None:
    order, error = refusal(lambda: read_tick(TICK + data), DamagedOrderError)
    assert isinstance(order, Tick) or "offset log" in str(error)


@fuzzed
@given(any_bytes([b'{"batch": 4, "savepoint": "", "permissions": "", "drain": false, "splits": {}, "looks": []}']))
def test_what_a_driver_allows_is_an_offset_or_an_error(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder) / "control.json"
        Control(str(control)).allow(4)
        control.write_bytes(data)
        reader: Any = TickSource({CONTROL_OPTION: str(control), PLACES_OPTION: "[0]"}).streamReader(None)
        offset, error = refusal(lambda: reader.latestOffset({"batch": -1}), DamagedOrderError)
    assert isinstance(offset, dict) or str(control) in str(error)


@fuzzed
@given(
    st.one_of(any_bytes([SEGMENT, RESULT]), as_json(fitting(Segment)), as_json(fitting(SegmentResult))),
    any_bytes([FAULT, FAULT * 3]),
    any_bytes([RECORDS]),
    any_bytes([TOTAL]),
)
def test_what_a_run_under_chaos_has_left_is_read_or_the_file_is_named(
    segment: bytes, faults: bytes, records: bytes, total: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in {
            "segment-0.json": segment,
            result_file(folder, 0).name: segment,
            "faults.jsonl": faults,
            "sinks/a/1.records": records,
            "totals/a-0000": total,
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        readers: list[tuple[str, Callable[[], object], type]] = [
            ("segment-0.json", lambda: read_segment(f"{folder}/segment-0.json"), Segment),
            ("result-0.json", lambda: read_result(folder, 0), SegmentResult),
            ("faults.jsonl", lambda: list(faults_of(folder)), list),
            ("1.records", lambda: list(recorded(folder, "a")), list),
            ("a-0000", lambda: totals(folder)["a"], Total),
        ]
        for name, read, kind in readers:
            found, error = refusal(read, DamagedRunError)
            assert isinstance(found, kind) if error is None else name in str(error)


@fuzzed
@given(any_bytes([SUMMARY]), any_bytes([VIEW]))
def test_a_damaged_file_of_the_history_hides_no_other_job(summary: bytes, view: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(folder)
        for job, files in {"a": (summary, view), "b": (SUMMARY, VIEW)}.items():
            for suffix, content in zip(("summary", "json"), files, strict=True):
                (Path(folder) / f"{1000:013d}-{job * 32}.{suffix}").write_bytes(content)
        listed = {summary["job_id"] for summary in history.summaries({}).values()}
        assert "b" * 32 in listed
        assert listed <= {"a" * 32, "b" * 32}
        history.view("a" * 32)
