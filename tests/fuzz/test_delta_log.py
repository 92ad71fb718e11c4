"""The log of a Delta table, which others write too: whatever is in it, the sink's check of the table and what a commit
asks of it answer or raise an error that can be caught. (A panic of `deltalake`'s Rust code is none: it would pass by
every `except Exception`, and end the worker's thread.)"""

from __future__ import annotations

import copy
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from tests.fuzz.effort import fuzzed  # noqa: E402
from tests.fuzz.inputs import any_bytes, refusal  # noqa: E402
from tidegate.common.errors import ConfigurationError  # noqa: E402
from tidegate.connectors.delta.data_files import DataFile  # noqa: E402
from tidegate.connectors.delta.table import append, check_table, create_table, versions  # noqa: E402
from tidegate.storage.location import StorageLocation  # noqa: E402

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64())])
APPS = ("app-1", "app-2")
_ODD = st.sampled_from([None, True, -1, 0, 2**31, 2**63, 1e308, "", "x", "-1", "\x00", [], {}, [[]], {"a": 1}])


@functools.cache
def logs() -> dict[str, bytes]:
    """File name -> content, of a partitioned table with one commit of the sink."""
    with tempfile.TemporaryDirectory() as folder:
        location = StorageLocation.parse(folder)
        create_table(location, SCHEMA, ("day",), {})
        table, _ = versions(location, {}, APPS)
        append(table, ("day",), [DataFile("day=1/a.parquet", 10, (("day", "1"),), '{"numRecords": 1}')], {"app-1": 3})
        return {path.name: path.read_bytes() for path in (Path(folder) / "_delta_log").glob("*.json")}


@st.composite
def odd_lines(draw: st.DrawFn, original: bytes) -> bytes:
    """JSON still, with something else in a place or two."""
    lines = [json.loads(line) for line in original.decode().splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, draw(st.sampled_from(lines)))
    return "\n".join(json.dumps(line) for line in lines).encode()


def _change(draw: st.DrawFn, value: Any) -> None:
    while value:
        key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else list(range(len(value)))))
        inside = value[key]
        if isinstance(inside, dict | list) and inside and draw(st.booleans()):
            value = inside
        elif isinstance(value, dict) and draw(st.integers(0, 3)) == 0:
            del value[key]
            return
        else:
            value[key] = copy.deepcopy(draw(_ODD))
            return


@fuzzed
@given(st.data())
def test_whatever_is_in_the_log_is_an_answer_or_an_error(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(logs())))
    changed = data.draw(st.one_of(any_bytes([logs()[name]]), odd_lines(logs()[name])))
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "_delta_log").mkdir()
        for each, content in logs().items():
            (folder / "_delta_log" / each).write_bytes(changed if each == name else content)
        location = StorageLocation.parse(str(folder))
        table, error = refusal(
            lambda: check_table(location, SCHEMA, ("day",), {}, data.draw(st.booleans())), ConfigurationError
        )
        if error is not None:
            assert str(error).startswith("DeltaSink: ")
        if table is None:
            return
        found, _ = refusal(lambda: versions(location, {}, APPS), Exception)
        if found is not None:
            assert all(isinstance(version, int) for version in found[1].values())
    finally:
        shutil.rmtree(folder)


def test_the_log_as_it_was_written_says_what_was_committed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "_delta_log").mkdir()
        for name, content in logs().items():
            (Path(folder) / "_delta_log" / name).write_bytes(content)
        location = StorageLocation.parse(folder)
        assert check_table(location, SCHEMA, ("day",), {}, False) is not None
        assert versions(location, {}, APPS)[1] == {"app-1": 3, "app-2": -1}
