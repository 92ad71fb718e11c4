"""CachedDataStream: stored by one job, read by those built after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.job_status import JobStatus
from tidegate.datastream import ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.data_stream import CachedDataStream
from tidegate.testing.in_process_job import InProcessJob

COMPUTED: list[int] = []


class Client:
    """Stands in for the client of a job that ran in the harness."""

    def __init__(self) -> None:
        self.future: CompletableFuture[Any] = CompletableFuture()

    def get_job_execution_result(self) -> CompletableFuture[Any]:
        return self.future


def run(env: StreamExecutionEnvironment) -> list[Any]:
    """What `execute` does, in this process."""
    storing = [(cache, cache._new_run()) for cache in env._caches if cache._needs_run(env._operators)]
    env._operators += [sink for _, sink in storing]
    client: Any = Client()
    for cache, sink in storing:
        cache._run_started(sink, client)
    with InProcessJob(env) as job:
        status = job.run_to_end()
    if status is JobStatus.FINISHED:
        client.future.complete(None)
    else:
        client.future.complete_exceptionally(RuntimeError(job.failure))
    env._operators.clear()
    return job.results


def slowly(value: int) -> int:
    COMPUTED.append(value)
    return value * 2


def cached(keys: dict[str, Any] | None = None, parallelism: int = 1) -> tuple[StreamExecutionEnvironment, Any]:
    COMPUTED.clear()
    env = environment(keys, parallelism)
    return env, env.from_collection(list(range(50))).rebalance().map(slowly, Types.INT()).cache()


def collect(env: StreamExecutionEnvironment, stream: Any) -> list[Any]:
    stream.sink_to(CollectSink())
    return sorted(run(env))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_later_job_reads_what_the_first_one_stored(parallelism: int) -> None:
    env, stream = cached(parallelism=parallelism)
    assert isinstance(stream, CachedDataStream)
    assert collect(env, stream.map(lambda v: v + 1)) == [v * 2 + 1 for v in range(50)]
    assert sorted(COMPUTED) == list(range(50))
    assert collect(env, stream.map(lambda v: v - 1)) == [v * 2 - 1 for v in range(50)]
    assert collect(env, stream.key_by(lambda v: v % 2).sum(0))[-1] == sum(range(0, 100, 2))
    assert len(COMPUTED) == 50
    assert stream.get_type() == Types.INT()
    env.close()


def test_after_invalidate_it_is_computed_and_stored_again() -> None:
    env, stream = cached()
    collect(env, stream.map(str))
    folder = Path(str(env._cache_folder))
    assert list(folder.iterdir())
    stream.invalidate()
    assert not list(folder.iterdir())
    collect(env, stream.map(str))
    assert len(COMPUTED) == 100
    collect(env, stream.map(str))
    assert len(COMPUTED) == 100
    env.close()


def test_a_job_that_fails_stores_nothing() -> None:
    env, stream = cached()
    collect(env, stream.map(lambda v: 1 // (v - 40)))
    assert collect(env, stream.map(lambda v: v)) == [v * 2 for v in range(50)]
    assert len(COMPUTED) > 50
    env.close()


def test_close_deletes_the_files() -> None:
    env, stream = cached()
    collect(env, stream.map(str))
    folder = Path(str(env._cache_folder))
    assert folder.exists()
    env.close()
    assert not folder.exists()


def test_the_folder_can_be_chosen(tmp_path: Path) -> None:
    env, stream = cached({"tidegate.cache.dir": tmp_path.as_uri()})
    collect(env, stream.map(str))
    assert [p.name.startswith("tidegate-cache-") for p in tmp_path.iterdir()] == [True]
    env.close()
    assert not list(tmp_path.iterdir())


class Stamps(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp()


def test_timestamps_are_kept() -> None:
    env = environment()
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda v, _: v * 100)
    stream = env.from_collection([1, 2, 3]).assign_timestamps_and_watermarks(strategy).cache()
    first = collect(env, stream.process(Stamps()))
    assert first == collect(env, stream.process(Stamps())) == [(1, 100), (2, 200), (3, 300)]
    env.close()


def test_what_is_not_computed_is_not_stored() -> None:
    env = environment()
    stream = env.from_collection([1]).cache()
    env._operators.clear()
    env.from_collection([2]).sink_to(CollectSink())
    assert not stream._needs_run(env._operators)
