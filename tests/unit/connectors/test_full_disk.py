"""A file sink on a real disk that is full: a small one in memory, which takes the right to mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.common import Configuration, JobStatus, WatermarkStrategy
from tidegate.common.serialization import Encoder
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink
from tidegate.testing import InProcessJob

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

SIZE = 8 << 20
RECORDS = 60_000  # of 100 bytes: most of the disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tidegate-test", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no mount here: {error}")
    if mounted.returncode:
        pytest.skip(f"may not mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def line(n: int) -> str:
    return f"{n:099d}"


def lines(folder: Path) -> list[str]:
    parts = [p for p in folder.rglob("*") if p.is_file() and not any(name[0] in "._" for name in p.parts[-2:])]
    return [text for part in parts for text in part.read_text().split()]


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_disk_that_was_full_gets_every_record_once_when_there_is_room(disk: Path, with_checkpoint: bool) -> None:
    """Attempts on the full disk free what the one before has written, so it is as full as others have made it."""
    filler = disk / "of-somebody-else"
    filler.write_bytes(b"x" * (5 << 20))
    settings = {
        "execution.checkpointing.interval": "1 h",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "100",
        "restart-strategy.fixed-delay.delay": "1 s",
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
    env.set_parallelism(1)
    source = DataGeneratorSource(line, count=RECORDS, records_per_second=20_000)
    sink = FileSink.for_row_format(str(disk / "out"), Encoder.simple_string_encoder())
    sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").sink_to(sink.build())
    with InProcessJob(env) as job:
        if with_checkpoint:
            job.advance(500).checkpoint()
        for _ in range(600):
            job.advance(100)
            if job.restarts >= 3:
                break
        assert job.restarts >= 3, "the disk was full"
        assert "No space left on device" in str(job.failure)
        assert job.ended is None
        filler.unlink()
        assert job.run_to_end() is JobStatus.FINISHED
    assert sorted(lines(disk / "out")) == [line(n) for n in range(RECORDS)]
    assert not [p for p in (disk / "out").rglob(".*") if p.is_file()], "nothing hidden is left"
