"""One subtask of a file sink, driven by hand as `SinkOperator` drives it, with crashes wherever a test wants one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from tidegate.common.serialization import Encoder
from tidegate.datastream.connectors.base import SinkContext
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy

JOB = "a" * 32


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> float:
        return self.ms


def lines_sink(
    path: str | Path, policy: RollingPolicy | None = None, assigner: BucketAssigner | None = None
) -> FileSink:
    builder = FileSink.for_row_format(str(path), Encoder.simple_string_encoder())
    builder.with_bucket_assigner(assigner or BucketAssigner.base_path_bucket_assigner())
    if policy is not None:
        builder.with_rolling_policy(policy)
    return builder.build()


class Subtask:
    """An attempt of one subtask. `checkpoint()` gives what the checkpoint holds; a crash is to use it no more."""

    def __init__(
        self,
        sink: FileSink,
        restored: bytes | None = None,
        attempt: int = 0,
        subtask: int = 0,
        parallelism: int = 1,
        job_id: str = JOB,
        clock: Clock | None = None,
    ) -> None:
        self.sink = pickle.loads(pickle.dumps(sink))
        self.clock = clock or Clock()
        committables, states = pickle.loads(restored) if restored is not None else ([], [])
        context = SinkContext(
            job_id,
            "out",
            subtask,
            parallelism,
            attempt,
            self.clock,
            restored_state=states,
            restored_checkpoint_id=None if restored is None else 1,
            operator_id="f00d",
            restored_committables=committables,
        )
        self.committer = self.sink.create_committer()
        self.writer = self.sink.create_writer(context)
        self.waiting: list[Any] = list(committables)

    def write(self, *values: Any) -> Subtask:
        self.writer.write_batch(list(values), None)
        return self

    def checkpoint(self, end_of_input: bool = False) -> bytes:
        self.writer.flush(end_of_input)
        self.waiting += self.writer.prepare_commit()
        return pickle.dumps((self.waiting, self.writer.snapshot_state(1)))

    def complete(self) -> None:
        """The checkpoint is complete, the notification has come."""
        assert self.committer.commit(self.waiting) == []
        self.waiting = []

    def finish(self) -> None:
        self.checkpoint(end_of_input=True)
        self.complete()
        self.writer.close()


def visible(path: str | Path) -> dict[str, str]:
    """What a reader sees that leaves out names with a leading '.' or '_': relative path -> content."""
    found = {}
    for folder, folders, names in os.walk(path):
        folders[:] = [f for f in folders if f[0] not in "._"]
        for name in names:
            if name[0] not in "._":
                full = Path(folder) / name
                found[str(full.relative_to(path))] = full.read_text()
    return found


def lines(path: str | Path) -> list[str]:
    return sorted(line for content in visible(path).values() for line in content.splitlines())


def hidden(path: str | Path) -> list[str]:
    return sorted(
        str((Path(folder) / name).relative_to(path))
        for folder, _, names in os.walk(path)
        for name in names
        if str((Path(folder) / name).relative_to(path)) not in visible(path)
    )
