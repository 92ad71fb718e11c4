"""Real components that tests start: where one cannot be had its tests are left out, and on CI that is a failure."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.connectors.cache import UnavailableError

REQUIRED = "TIDEGATE_REQUIRE_COMPONENTS"


def missing(why: str) -> NoReturn:
    """On CI every component has to be there: a test that is left out in silence proves nothing."""
    if os.environ.get(REQUIRED):
        pytest.fail(why)
    pytest.skip(why, allow_module_level=True)


@contextlib.contextmanager
def provided() -> Iterator[None]:
    """Around what starts components."""
    try:
        yield
    except UnavailableError as error:
        missing(str(error))


def needs_module(name: str) -> None:
    """Before a test module, or a fixture, imports it."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing(f"{name} cannot be imported ({error}): pip install {name}")
