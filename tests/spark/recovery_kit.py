"""A job whose output tells exactly what was lost and what was doubled, and the ways to hurt it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tidegate.common import Encoder, RestartStrategies, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, DataGeneratorSource, FileSink, RollingPolicy
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.fault_tolerance.barriers.statistics import CheckpointRecord, CheckpointStatus

KEYS = 50


def key_of(i: int) -> str:
    return f"k{i % KEYS}"


class CountPerKey(KeyedProcessFunction):
    """Emits "key count" for every record: each line must be there exactly once."""

    def __init__(self, padding: int = 0) -> None:
        self.padding = padding  # bytes; small state is kept inside the metadata file, without files of its own

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        count = (self.count.value() or (0, b""))[0] + 1
        self.count.update((count, os.urandom(self.padding)))
        yield f"{value} {count}"


class FailOnce(MapFunction):
    """Raises when its subtask 0 has seen `after` records, in the first attempt only (or in all of them)."""

    def __init__(self, after: int, every_attempt: bool = False) -> None:
        self.after = after
        self.every_attempt = every_attempt

    def open(self, runtime_context: RuntimeContext) -> None:
        first = runtime_context.get_attempt_number() == 0 or self.every_attempt
        self.left = self.after if first and runtime_context.get_index_of_this_subtask() == 0 else -1

    def map(self, value: Any) -> Any:
        if self.left == 0:
            raise RuntimeError("planned failure")
        self.left -= 1
        return value


class SlowInTheFirstAttempt(MapFunction):
    """Holds the first attempt open, so that on any machine there is time to hurt it, and no later one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def open(self, runtime_context: RuntimeContext) -> None:
        self.pause = self.seconds if runtime_context.get_attempt_number() == 0 else 0.0

    def map(self, value: Any) -> Any:
        if self.pause:
            time.sleep(self.pause)
        return value


def file_sink(out: Path, roll_on_checkpoint: bool = False) -> FileSink:
    policy = (
        RollingPolicy.on_checkpoint_rolling_policy() if roll_on_checkpoint else RollingPolicy.default_rolling_policy()
    )
    builder = FileSink.for_row_format(str(out), Encoder.simple_string_encoder()).with_rolling_policy(policy)
    return builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()


def counted(env: StreamExecutionEnvironment, records: int | None, per_second: float | None, **nodes: Any) -> Any:
    """Source, keyed count; uids set. `before` is a map function between the two."""
    source = DataGeneratorSource(key_of, records, per_second)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    if "before" in nodes:
        stream = stream.map(nodes["before"], Types.STRING()).name("before").uid("before")
    counting = CountPerKey(nodes.get("padding", 0))
    return stream.key_by(lambda key: key).process(counting, Types.STRING()).name("count").uid("count")


def with_checkpoints(
    env: StreamExecutionEnvironment, directory: Path | None, interval_ms: int = 150, restarts: int = 50
) -> StreamExecutionEnvironment:
    env.enable_checkpointing(interval_ms)
    if directory is not None:
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(directory))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(restarts, 0))
    return env


# ---------------------------------------------------------------- what came out


def expected_lines(records: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for i in range(records):
        key = key_of(i)
        counts[key] += 1
        lines[f"{key} {counts[key]}"] += 1
    return lines


def visible_lines(out: Path) -> Counter[str]:
    lines: Counter[str] = Counter()
    for path in out.iterdir():
        if path.name[0] not in "._":
            lines.update(path.read_text().splitlines())
    return lines


def assert_exact(found: Counter[str], records: int) -> None:
    expected = expected_lines(records)
    lost, doubled = sum((expected - found).values()), sum((found - expected).values())
    assert (lost, doubled) == (0, 0), f"lost {lost}, doubled {doubled} of {records}"


def highest_counts(lines: Counter[str]) -> dict[str, int]:
    """key -> the highest count that was emitted for it: what the state has counted."""
    highest: dict[str, int] = {}
    for line in lines:
        key, count = line.split()
        highest[key] = max(highest.get(key, 0), int(count))
    return highest


# ---------------------------------------------------------------- watching and hurting


def until(condition: Callable[[], Any], what: str, timeout_s: float = 240.0) -> Any:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def completed(client: Any, attempt: int | None = None) -> list[CheckpointRecord]:
    records = client.checkpoint_history()
    return [r for r in records if r.status is CheckpointStatus.COMPLETED and attempt in (None, r.attempt)]


def failed(client: Any) -> list[CheckpointRecord]:
    return [r for r in client.checkpoint_history() if r.status is CheckpointStatus.FAILED]


def latest_checkpoint(directory: Path) -> Path:
    """Of the only job below a checkpoint directory."""
    found = [p.parent for p in directory.glob("*/chk-*/_metadata")]
    return max(found, key=lambda p: int(p.name.removeprefix("chk-")))


def state_file(checkpoint: Path) -> Path:
    """A file of keyed state that this checkpoint has written."""
    return next(iter(sorted((checkpoint.parent / "shared").glob(f"c{checkpoint.name.removeprefix('chk-')}-*"))))


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def kill(pid: int, number: int) -> None:
    """A process that has ended by itself meanwhile is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
