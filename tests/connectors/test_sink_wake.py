"""A writer that takes no records for a moment, and says when it does again: the slot does not wait to look itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.connectors.on_processes import environment, run_job
from tidegate.common import WatermarkStrategy
from tidegate.contracts.connectors import Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream.connectors.base import Sink, SinkContext, SinkWriter

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("on_processes")]
_RECORDS = 500


class OneByOne(SplitReader[int]):
    def __init__(self, offset: int) -> None:
        self._next = offset

    def poll(self, max_records: int) -> list[int] | None:
        if self._next == _RECORDS:
            return None
        self._next += 1
        return [self._next]

    def offset(self) -> int:
        return self._next


class Numbers(Source[int]):
    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("numbers")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> OneByOne:
        return OneByOne(offset or 0)


class Hesitant(SinkWriter[int, Any]):
    """After each record it takes none until a thread has said so."""

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._available = True

    @property
    def available(self) -> bool:
        return self._available

    def write_batch(self, values: list[int], timestamps: list[int] | None) -> None:
        self._available = False
        threading.Timer(0.002, self._go_on).start()

    def _go_on(self) -> None:
        self._available = True
        assert self._context.wake is not None
        self._context.wake()


class HesitantSink(Sink[int, Any]):
    def create_writer(self, context: SinkContext) -> Hesitant:
        return Hesitant(context)


def test_a_slot_is_woken_by_its_writer() -> None:
    """By itself it would look about once a second, so this job would take minutes."""
    env = environment(1)
    env.from_source(Numbers(), WatermarkStrategy.no_watermarks(), "numbers").sink_to(HesitantSink())
    run_job(env, 100)
