"""A file source driven by hand as `SourceOperator` drives it, with restarts wherever a test wants one."""

from __future__ import annotations

import pickle
import random
import time
from typing import Any

from tidegate.datastream.connectors.base import Source, SourceContext, SplitReader
from tidegate.datastream.connectors.file_system import BulkFormat, FileEnumeratorProvider, FileFormat, FileSource


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> float:
        return self.ms


def context(clock: Clock | None = None) -> SourceContext:
    return SourceContext("files", 0, 1, clock or Clock())


def source_of(file_format: FileFormat, *paths: object, split_bytes: int | None = None) -> FileSource:
    make = (
        FileSource.for_bulk_file_format if isinstance(file_format, BulkFormat) else FileSource.for_record_stream_format
    )
    return make(file_format, *map(str, paths)).set_file_enumerator(FileEnumeratorProvider(split_bytes)).build()  # type: ignore[arg-type]


def drain(reader: SplitReader[Any], batch: int = 7) -> list[Any]:
    """To the end of a bounded split."""
    out: list[Any] = []
    deadline = time.monotonic() + 30
    while (values := reader.poll(batch)) is not None:
        assert len(values) <= batch
        out += values
        if not values and reader.wake_at_ms() is None:
            time.sleep(0.002)  # a helper thread is at work
        assert time.monotonic() < deadline
    reader.close()
    return out


def read_all(source: Source[Any], parallelism: int = 1, batch: int = 1000) -> list[Any]:
    source = pickle.loads(pickle.dumps(source))
    return [
        value
        for split in source.create_splits(parallelism)
        for value in drain(source.create_reader(split, None, context()), batch)
    ]


def read_with_restarts(source: Source[Any], seed: int, parallelism: int = 1, batch: int = 5) -> list[Any]:
    """As `read_all`, but now and then everything is thrown away except the offset of a while ago."""
    chance = random.Random(seed)
    out: list[Any] = []
    for split in source.create_splits(parallelism):
        saved: tuple[bytes, int] = (pickle.dumps(None), 0)
        mine: list[Any] = []
        reader = source.create_reader(split, None, context())
        crashes = 0
        while True:
            values = reader.poll(chance.randint(1, batch))
            if values is None and (crashes or chance.random() < 0.5):
                break
            mine += values or []
            if values is not None and chance.random() < 0.3:
                saved = (pickle.dumps(reader.offset()), len(mine))
            if values is None or (crashes < 30 and chance.random() < 0.1):
                crashes += 1
                reader.close()
                source = pickle.loads(pickle.dumps(source))
                reader = source.create_reader(split, pickle.loads(saved[0]), context())
                mine = mine[: saved[1]]
        reader.close()
        out += mine
    return out


def replay_everywhere(source: Source[Any], parallelism: int = 1, batch: int = 1) -> None:
    """From the offset after every batch, reading gives exactly the rest."""
    for split in source.create_splits(parallelism):
        offsets: list[tuple[bytes, int]] = []
        whole: list[Any] = []
        reader = source.create_reader(split, None, context())
        offsets.append((pickle.dumps(reader.offset()), 0))
        while (values := reader.poll(batch)) is not None:
            whole += values
            offsets.append((pickle.dumps(reader.offset()), len(whole)))
        reader.close()
        for offset, count in offsets:
            again = source.create_reader(split, pickle.loads(offset), context())
            assert drain(again) == whole[count:], f"from offset {pickle.loads(offset)}"
