"""The line of progress on a real terminal: `tidegate run` of a program with STREAMING and BATCH jobs, without the line
and, where the program wants it all the same, with it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import threading
from pathlib import Path

import pytest

from tests.spark.programs import environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
    import sys, time
    from tidegate.common import Configuration, WatermarkStrategy
    from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource, DiscardingSink

    def slow(i):
        time.sleep(0.002)
        return i

    def jobs(prefix, **settings):
        configured = Configuration.from_dict({key.replace("_", "."): value for key, value in settings.items()})
        env = StreamExecutionEnvironment.get_execution_environment(configured)
        env.set_parallelism(1).enable_checkpointing(200)
        source = DataGeneratorSource(lambda i: i, 2_000, records_per_second=800.0)
        env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").sink_to(DiscardingSink())
        env.execute(f"{prefix} stream")

        env = StreamExecutionEnvironment.get_execution_environment(configured)
        env.set_parallelism(1).set_runtime_mode(RuntimeExecutionMode.BATCH)
        slowly = env.from_collection(list(range(800))).map(slow)
        slowly.key_by(lambda i: i % 3).reduce(max).sink_to(DiscardingSink())
        env.execute(f"{prefix} batch")

    jobs("a silent")  # as `tidegate run` was told
    print("-- now with a line", file=sys.stderr, flush=True)
    jobs("a shown", tidegate_progress_enabled="true")
"""
COLUMNS = 60  # less than what is taken where the standard output is none


class Terminal:
    """The standard error of a process; what was written there is `text` when it has ended."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        variables = {key: value for key, value in environment(folder).items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave
        )
        os.close(slave)
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._master, 65_536):
                self._parts.append(part)
        except OSError:  # Linux: nobody has it open any more
            pass

    def text(self) -> str:
        try:
            code = self.process.wait(240)
        finally:
            self.process.kill()
        self._reader.join(30)
        os.close(self._master)
        written = b"".join(self._parts).decode()
        assert code == 0, written
        return written


def test_both_modes_draw_a_line_that_ends_with_what_was_done_and_none_when_it_is_turned_off(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    run = [sys.executable, "-m", "tidegate.cli", "run", "--no-progress", str(script)]
    nothing, marked, text = Terminal(run, tmp_path).text().partition("-- now with a line")
    assert marked
    assert "FINISHED" not in nothing
    assert "\x1b[K" not in nothing
    lines = [line for line in text.split("\r\x1b[K") if "%" in line]
    streaming = [line for line in lines if "records" in line]
    assert streaming, text
    assert re.match(r"\[=*>? *\] \d+% · [\d,]+ records · [\d,]+/s", streaming[-1])
    # Spark may count a task that runs only with its next event, so which stage of the batch job runs need not show.
    assert any("stages done" in line or "tasks of '" in line for line in lines), text
    assert max(len(line.splitlines()[0]) for line in lines) == COLUMNS - 1  # what does not fit is cut
    assert re.search(r"\r\x1b\[Ka shown stream is FINISHED: 2,000 records in [\d.]+ s · \d+ checkpoints?\r?\n", text)
    assert re.search(r"\r\x1b\[Ka shown batch is FINISHED: [\d.]+ s", text)
