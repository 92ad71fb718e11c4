"""Every test of this folder holds for each keyed state backend: what a backend promises does not depend on its kind."""

from __future__ import annotations

import pytest

from tests.unit.state.backends import KINDS, Backends, settle
from tests.unit.state.memory_sink import MemorySink


@pytest.fixture(params=KINDS)
def backends(request, tmp_path):
    made = Backends(request.param, str(tmp_path / "local"))
    yield made
    made.dispose()
    assert not list((tmp_path / "local").glob("*"))


@pytest.fixture(params=["fresh", "settled"])
def settled(request):
    """A function to call between a write and a read: with the second parameter the read then comes from below."""
    return settle if request.param == "settled" else lambda backend: None


@pytest.fixture
def sink():
    return MemorySink()
