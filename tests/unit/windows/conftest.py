"""The state backends that windows are tested on."""

from __future__ import annotations

from typing import Any

import pytest

BACKENDS: dict[str, dict[str, Any]] = {
    "heap": {"state.backend.type": "hashmap"},
    "rocksdb": {"state.backend.type": "rocksdb"},
}


@pytest.fixture(params=BACKENDS, scope="session")
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Configuration of a job with the backend."""
    return BACKENDS[request.param]
