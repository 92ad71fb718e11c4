"""The small files beside a job: its lease, its record under high availability, what the command line finds it by. Each
is what was written, or none, and said so; never a crash of whoever looks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.effort import fuzzed
from tests.fuzz.inputs import any_bytes, fitting, refusal
from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import OperatorId
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.leadership.job_record import JobRecord, UnusableRecordError, decode, encode
from tidegate.spark.micro_batch.location import CheckpointLocation, LocationError
from tidegate.spark.micro_batch.prepared import Prepared
from tidegate.spark.micro_batch.report import TakenSplits
from tidegate.storage.leases.answers import Stored, stored
from tidegate.storage.leases.lease import LeaseRecord
from tidegate.web import registry

LEASE = msgspec.json.encode(LeaseRecord(owner="me", epoch=3, beat=7, lease_ms=5000.0, host="h", pid=1))


RECORD = b'{"version":1,"job_id":"x","name":"n","graph":{"operators":[],"edges":[]},"status":"RUNNING","epoch":3}'

LOCATION = b'{"format":1,"job_id":"old","job_name":"n","program":{},"latest":-1}'

PREPARED = Prepared([(OperatorId("sink"), b"pickled")], [TakenSplits(OperatorId("source"), ("a",), 1, False)], 3)


def as_json(kind: type) -> st.SearchStrategy[bytes]:
    return fitting(kind).map(msgspec.json.encode)


@fuzzed
@given(st.one_of(any_bytes([LEASE]), as_json(LeaseRecord)))
def test_a_lease_is_one_or_unreadable(data: bytes) -> None:
    found = stored(data, "v1")
    assert isinstance(found, Stored)
    if found.record is not None:
        assert msgspec.json.decode(msgspec.json.encode(found.record), type=LeaseRecord) == found.record


@fuzzed
@given(st.one_of(any_bytes([RECORD]), as_json(JobRecord)))
def test_the_record_of_a_job_is_one_that_is_known_or_an_error(data: bytes) -> None:
    record, error = refusal(lambda: decode(data, "the store"), UnusableRecordError)
    if record is None:
        assert "the store" in str(error)
    else:
        assert record.status in JobStatus.__members__
        assert decode(encode(record), "again") == record


@fuzzed
@given(st.lists(st.one_of(any_bytes([b'{"pid": 1}']), as_json(registry.JobRecord)), max_size=3))
def test_whoever_looks_for_running_jobs_passes_over_what_is_none(files: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as state, mock.patch.dict(os.environ, {"XDG_STATE_HOME": state}):
        folder = Path(state) / "tidegate" / "jobs"
        folder.mkdir(parents=True)
        for number, content in enumerate(files):
            (folder / f"{number}.json").write_bytes(content)
        assert all(isinstance(job, registry.JobRecord) for job in registry.running_jobs())


@fuzzed
@given(any_bytes([LOCATION]))
def test_the_location_of_a_micro_batch_job_is_one_or_an_error(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tidegate").mkdir()
        (Path(folder) / "tidegate" / "job.json").write_bytes(data)
        location = CheckpointLocation(folder)
        job_id, error = refusal(lambda: location.open("new", "n", {}, 0.0), ConfigurationError, LocationError)
        location.close()
        assert error is None or folder in str(error)
        assert job_id is None or isinstance(job_id, str)


@fuzzed
@given(any_bytes([PREPARED.encode()]).filter(lambda data: not data.startswith(b"\x80")))
def test_what_the_sinks_have_prepared_is_what_was_written_or_an_error_that_names_the_file(data: bytes) -> None:
    """With a checksum: nothing else is unpickled."""
    with tempfile.TemporaryDirectory() as folder:
        for path in ("tidegate/commits", "commits"):
            (Path(folder) / path).mkdir(parents=True)
        (Path(folder) / "commits" / "5").touch()
        (Path(folder) / "tidegate" / "commits" / "5").write_bytes(data)
        found, error = refusal(lambda: list(CheckpointLocation(folder).to_commit()), LocationError)
        assert error is None or f"{folder}/tidegate/commits/5 is damaged" in str(error)
        assert found is None or found == [(5, PREPARED)]
