"""A storage that hangs: the job can still be cancelled, the program ends, and the log says what it waits for."""

from __future__ import annotations

import logging
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.programs import running
from tests.spark.recovery_kit import completed, counted, until, with_checkpoints
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.storage.filesystem import FileSystemStorage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]


def hang(patch: pytest.MonkeyPatch, method: str) -> threading.Event:
    """From now on, until it is let go."""
    let_go = threading.Event()
    real = getattr(FileSystemStorage, method)

    def hanging(self: FileSystemStorage, *arguments: Any) -> Any:
        let_go.wait(280)
        return real(self, *arguments)

    patch.setattr(FileSystemStorage, method, hanging)
    return let_go


@pytest.mark.parametrize("method", ["write_metadata", "delete"])
def test_a_job_whose_storage_hangs_can_be_cancelled(
    make_env: MakeEnv,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    caplog.set_level(logging.WARNING)
    env = with_checkpoints(make_env(1), tmp_path / "chk")
    counted(env, 1_000_000, 1000.0).add_sink(lambda _: None)
    client = env.execute_async("hanging")
    until(lambda: completed(client), "a checkpoint")
    let_go = hang(monkeypatch, method)
    try:
        until(lambda: "has not returned for" in caplog.text, "a warning", 120)
        assert str(tmp_path / "chk") in caplog.text
        if method == "delete":
            before = len(completed(client))
            until(lambda: len(completed(client)) > before + 2, "more checkpoints")
        client.cancel()
        until(lambda: client.get_job_execution_result().done(), "the end", 120)
    finally:
        let_go.set()


def test_a_program_ends_although_its_storage_hangs(tmp_path: Path) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(
        textwrap.dedent(f"""
            import json, time
            from tidegate.common import Configuration, WatermarkStrategy
            from tidegate.datastream import StreamExecutionEnvironment
            from tidegate.datastream.connectors import DataGeneratorSource
            from tidegate.storage.filesystem import FileSystemStorage

            FileSystemStorage.write_metadata = lambda self, metadata: time.sleep(1000)
            config = Configuration.from_dict({{
                "spark.master": "local[1]",
                "execution.checkpointing.interval": 100,
                "execution.checkpointing.dir": {str(tmp_path / "chk")!r},
            }})
            env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(1)
            source = DataGeneratorSource(lambda i: i, records_per_second=1000)
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "Endless")
            stream.add_sink(lambda n: None)
            client = env.execute_async("hanging")
            time.sleep(3)
            print("REPORT " + json.dumps(True), flush=True)
        """)
    )
    with running(script, tmp_path) as program:
        program.wait_for_report()
        assert program.process.wait(240) == 0
