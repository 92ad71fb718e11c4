"""Live and committed state of a real job on Spark, over the client, REST and the command line, while its workers are
killed; and its last checkpoint as a DataFrame."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.recovery_kit import completed, counted, kill, until, with_checkpoints
from tidegate.cli import state as state_command
from tidegate.common.errors import ConfigurationError, StateNotReadableError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DiscardingSink

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]


class Reader(threading.Thread):
    """Reads all keys again and again until it is told to stop. What goes back is a problem."""

    def __init__(self, handle: Any, keys: list[str], level: str) -> None:
        super().__init__(daemon=True)
        self.handle, self.keys, self.level = handle, keys, level
        self.over = False
        self.rounds = 0
        self.refused = 0
        self.problems: list[str] = []

    def run(self) -> None:
        before: dict[str, tuple[int, int]] = {}
        while not self.over:
            try:
                answers = self.handle.get_many(self.keys, level=self.level, timeout=120)
            except StateNotReadableError:
                self.refused += 1
                time.sleep(0.05)
                continue
            except BaseException as error:
                self.problems.append(repr(error))
                return
            self.rounds += 1
            time.sleep(0.02)
            for one in answers:
                # Live state may go back with the next attempt, and never within one; committed state never.
                place = one.attempt if self.level == "live" else 0
                now = (place, one.value[0] if one.found else 0)
                if now < before.get(one.key, (0, 0)):
                    self.problems.append(f"{one.key} was {before[one.key]} and is {now}")
                before[one.key] = now


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_reads_of_a_job_whose_workers_are_killed(
    make_env: MakeEnv, spark: Any, tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = make_env(2, {"state.backend.type": backend, "pipeline.name": f"live {backend}"})
    with_checkpoints(env, tmp_path / "checkpoints", interval_ms=200)
    counted(env, None, 2000.0).sink_to(DiscardingSink())
    client: Any = env.execute_async(f"live {backend}")
    try:
        until(lambda: completed(client), "a checkpoint")
        handle = client.get_state("count", "count")
        keys = sorted(one.key for one in handle.scan(1000))
        assert len(keys) == 50
        readers = [Reader(handle, keys, level) for level in ("live", "committed")]
        for reader in readers:
            reader.start()
        rng = random.Random(5)
        for number in (1, 2):
            kill(rng.choice(until(client.workers, "workers")).pid, signal.SIGKILL)
            until(lambda number=number: client.attempt() >= number, "a restart")
            until(lambda number=number: completed(client, number), "a checkpoint of the attempt after it")
        rounds = [reader.rounds for reader in readers]
        until(lambda: all(r.rounds > n for r, n in zip(readers, rounds, strict=True)), "more answers")
        for reader in readers:
            reader.over = True
            reader.join(60)
            assert reader.problems == []
        assert handle.get(keys[0]).attempt == 2

        exact = backend == "hashmap"
        until(lambda: any(view.entries == 50 or not view.exact for view in client.view().states), "all heartbeats")
        (view,) = [view for view in client.view().states if view.state == "count"]
        assert (view.kind, view.key_types, view.exact) == ("value", ("str",), exact)

        arguments = {"job": client.get_job_id().__str__(), "window": "", "limit": 5}
        asked = _Arguments(**arguments, operator="count", state="count", key=[keys[0]], committed=True)
        answer = state_command.state(asked)
        assert answer["answers"][0]["found"]
        state_command.print_state(answer)
        assert keys[0] in capsys.readouterr().out

        table = spark.read.format("tidegate-state").options(job=f"live {backend}", operator="count", state="count")
        assert {row["key"] for row in table.load().collect()} == set(keys)
        with pytest.raises(Exception, match="no job of this user is running here under 'nobody'"):
            spark.read.format("tidegate-state").option("job", "nobody").load().collect()
    finally:
        client.cancel().result()
    with pytest.raises(StateNotReadableError, match="the job is over"):
        handle.get(keys[0])


class _Arguments:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def test_a_job_in_memory_has_no_checkpoint_that_spark_could_read(make_env: MakeEnv) -> None:
    from tidegate.spark.state_tables.running_job import checkpoints_of

    env = with_checkpoints(make_env(1), None)
    counted(env, None, 100.0).sink_to(DiscardingSink())
    client: Any = env.execute_async("in memory")
    try:
        until(lambda: completed(client), "a checkpoint")
        with pytest.raises(ConfigurationError, match=r"memory of its driver: set execution\.checkpointing\.dir"):
            checkpoints_of("in memory", {})
    finally:
        client.cancel().result()
