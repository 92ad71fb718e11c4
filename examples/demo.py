"""Exactly-once, shown: a stateful job loses a worker to SIGKILL in the middle and its output is still exact.

Run it:  make demo      (or: python examples/demo.py)

Three workers count words. Every word and its count so far go to a file sink, so each line of the output, for example
"river 1207", must be there exactly once: a line too few is a lost record, a line too many a doubled one. The job takes
a checkpoint twice a second. When some are complete, one worker is killed. The job recovers by itself, and in the end
the finished files are compared with what an undisturbed run would have written.

Ends with exit code 0 when nothing was lost and nothing doubled, otherwise 1.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.common import Encoder, JobStatus, RestartStrategies, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, DataGeneratorSource, FileSink
from tidegate.datastream.state import ValueStateDescriptor

RECORDS = 60_000
PER_SECOND = 8_000
WORKERS = 3
WORDS = ("river", "gate", "tide", "harbour", "current", "delta", "estuary", "lock", "mooring", "pier", "quay")


def word(i: int) -> str:
    """Record number i of the source, the same every time: that is what makes it replayable."""
    return WORDS[(i * 7919) % 104729 % len(WORDS)]


class CountWords(KeyedProcessFunction):
    """The count of each word is keyed state. `processed` is not state, on purpose: a file that counts every call, those
    of lost attempts too, so that the demo can tell how many records were processed again."""

    def __init__(self, progress: str) -> None:
        self.progress = progress

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        name = f"{runtime_context.get_attempt_number()}-{runtime_context.get_index_of_this_subtask()}"
        self.file = os.open(os.path.join(self.progress, name), os.O_RDWR | os.O_CREAT)
        self.processed = 0

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.processed += 1
        os.pwrite(self.file, struct.pack("<q", self.processed), 0)
        yield f"{value} {count}"

    def close(self) -> None:
        os.close(self.file)


def build(folder: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS)
    env.enable_checkpointing(500)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder / "checkpoints"))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    sink = (
        FileSink.for_row_format(str(folder / "output"), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .build()
    )
    (
        env.from_source(DataGeneratorSource(word, RECORDS, PER_SECOND), WatermarkStrategy.no_watermarks(), "Words")
        .key_by(lambda value: value)
        .process(CountWords(str(folder / "progress")), Types.STRING())
        .name("Count")
        .uid("count")
        .sink_to(sink)
        .name("Files")
        .uid("files")
    )
    return env


class Story:
    """Prints what happens to the job, each thing once, with the seconds since the job was submitted."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.began = time.time()
        self.killed_at: float | None = None
        self.downtime_ms: float | None = None
        self._told: set[object] = set()

    def say(self, text: str) -> None:
        print(f"{time.time() - self.began:6.1f} s  {text}", flush=True)

    def _news(self, thing: object) -> bool:
        new = thing not in self._told
        self._told.add(thing)
        return new

    def go_on(self) -> None:
        client = self.client
        for change in client.status_history():
            if change.status is JobStatus.FAILING and self._news(change):
                self.say(f"attempt {change.attempt} failed, the other workers leave ...")
            if change.status is JobStatus.RESTARTING and self._news(change):
                cause = next((f.failure.summary for f in client.failures() if f.attempt == change.attempt), "unknown")
                self.say(f"... because {cause}; a new gang is started")
        for restore in client.restores():
            if self._news(restore):
                self.say(f"checkpoint {restore.checkpoint_id} restored: counts, source positions, files to commit")
        for change in client.status_history():
            if change.status is JobStatus.RUNNING and self._news(change):
                self.say(f"running, attempt {change.attempt}, workers with pid {self._pids()}")
                if self.killed_at is not None and self.downtime_ms is None:
                    self.downtime_ms = change.at_ms - self.killed_at * 1000
                    self.say(f"downtime from the kill until records flow again: {self.downtime_ms:.0f} ms")
        for record in client.checkpoint_history():
            if record.ended_ms is not None and self._news(("checkpoint", record.checkpoint_id)):
                outcome = "complete" if record.reason is None else f"failed ({record.reason.text})"
                size = f"{record.state_bytes / 1024:.1f} KiB"
                self.say(f"checkpoint {record.checkpoint_id} {outcome}: {record.duration_ms:.0f} ms, {size} written")

    def _pids(self) -> str:
        return ", ".join(str(worker.pid) for worker in self.client.workers())

    def kill_one(self) -> None:
        victim = self.client.workers()[1]
        self.killed_at = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        self.say(f">>> worker pid {victim.pid} (slot {victim.slot}) killed with SIGKILL <<<")


def completed(client: Any) -> list[float]:
    """When the checkpoints so far were complete, in ms."""
    return [r.ended_ms for r in client.checkpoint_history() if r.ended_ms is not None and r.reason is None]


def expected_lines() -> Counter[str]:
    counts: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for i in range(RECORDS):
        value = word(i)
        counts[value] += 1
        lines[f"{value} {counts[value]}"] += 1
    return lines


def finished_lines(folder: Path) -> tuple[Counter[str], int]:
    """Of the finished files: those whose names do not begin with '.' or '_'."""
    files = [path for path in folder.iterdir() if path.name[0] not in "._"]
    lines: Counter[str] = Counter()
    for path in files:
        lines.update(path.read_text().splitlines())
    return lines, len(files)


def calls(folder: Path) -> int:
    return sum(struct.unpack("<q", data)[0] for path in folder.iterdir() if len(data := path.read_bytes()) == 8)


@contextlib.contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """The JVM that starts inside inherits it: Spark's own messages do not end up between ours."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(path, "wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def run(folder: Path) -> bool:
    (folder / "progress").mkdir()
    print(f"{RECORDS} words, {PER_SECOND} a second, {WORKERS} workers, a checkpoint every 500 ms. Starting Spark ...")
    with stderr_into(folder / "spark.log"):
        client: Any = build(folder).execute_async("Demo")
    story = Story(client)
    result = client.get_job_execution_result()
    while not result.done():
        story.go_on()
        done = completed(client)
        # Not right after a checkpoint: then there would be hardly anything to replay.
        if story.killed_at is None and len(done) >= 5 and time.time() * 1000 > max(done) + 300:
            story.kill_one()
        time.sleep(0.02)
    story.go_on()
    result.result()  # raises when the job failed
    story.say("the job is finished; comparing the files with what had to be written")
    expected = expected_lines()
    found, files = finished_lines(folder / "output")
    lost, doubled = sum((expected - found).values()), sum((found - expected).values())
    print()
    print(f"  records               {RECORDS}")
    print(f"  processed again       {calls(folder / 'progress') - RECORDS}  (after the restore, since the checkpoint)")
    print(f"  downtime              {story.downtime_ms or 0:.0f} ms")
    print(f"  lines in {files:3} files    {sum(found.values())}")
    print(f"  lost                  {lost}")
    print(f"  doubled               {doubled}")
    exact = lost == doubled == 0 and story.downtime_ms is not None
    print(f"\n{'EXACT: every record counted once, in spite of the kill.' if exact else 'NOT EXACT'}")
    return exact


def main() -> int:
    logging.getLogger("tidegate").setLevel(logging.ERROR)  # the demo tells the story itself
    folder = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    try:
        return 0 if run(folder) else 1
    except Exception as error:
        print(f"\nThe demo failed: {error}")
        log = folder / "spark.log"
        if log.exists():
            print("\n".join(["The last lines of Spark's log:", *log.read_text(errors="replace").splitlines()[-15:]]))
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
