"""The state backends that windows are tested on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fast_folder import fastest_folder

BACKENDS: dict[str, dict[str, Any]] = {
    "heap": {"state.backend.type": "hashmap"},
    "rocksdb": {"state.backend.type": "rocksdb"},
}


@pytest.fixture(params=BACKENDS, scope="session")
def backend(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Configuration of a job with the backend, whose local files lie where it is quick to write them."""
    with tempfile.TemporaryDirectory(prefix="tidegate-windows-", dir=fastest_folder()) as folder:
        local = {"state.backend.rocksdb.localdir": folder} if request.param == "rocksdb" else {}
        yield BACKENDS[request.param] | local
