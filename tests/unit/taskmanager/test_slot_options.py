"""What the options do that reach the slots: from the key in the configuration to the effect."""

from __future__ import annotations

from typing import Any

import pytest
from small_jobs import KEYS, MemorySink, counting, environment, ticks

from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import CounterValue, GaugeValue
from tidegate.datastream import MapFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.network.serialization import ROWS
from tidegate.protocol.messages import AckCheckpoint, SlotFinished
from tidegate.storage.handles import FileRange, InlineBytes, KeyedSnapshot
from tidegate.taskmanager import commit_retries
from tidegate.testing.in_process_job import InProcessJob


def to_another_slot(keys: dict[str, Any], **source: Any) -> InProcessJob:
    """A source in slot 0, every record of which goes to slot 1 (and 0)."""
    env = environment(keys, parallelism=2)
    ticks(env, **source).rebalance().map(lambda i: i).sink_to(CollectSink())
    return InProcessJob(env)


def batches(job: InProcessJob) -> list[int]:
    """Records in each batch that went from slot to slot."""
    return [frame.amount for frame in job.data_frames() if frame.kind == ROWS]


# ---------------------------------------------------------------- network


@pytest.mark.parametrize("size", [10, 100])
def test_a_batch_is_sent_when_it_has_as_many_records_as_set(size: int) -> None:
    with to_another_slot({"tidegate.network.batch-size": size}, count=2_000, burst=2_000) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert sum(batches(job)) == 1_000
        assert all(size <= records < 2 * size for records in batches(job)[:-1])


@pytest.mark.parametrize("credits", [1, 3])
def test_credits_bound_what_is_under_way_to_a_slow_task(credits: int) -> None:
    keys = {"tidegate.network.credits-per-channel": credits, "tidegate.network.batch-size": 10}
    with to_another_slot(keys, count=2_000, burst=2_000) as job:
        job.step()
        job.slots[1].held = True
        job.run()
        assert len(batches(job)) == credits
        job.slots[1].held = False
        assert job.run_to_end() is JobStatus.FINISHED
        assert sorted(job.results) == list(range(2_000))


def test_max_batch_bytes_makes_the_batches_of_large_records_smaller() -> None:
    def largest_payload(limit: str) -> int:
        keys = {"tidegate.network.max-batch-bytes": limit, "tidegate.network.batch-size": 200}
        env = environment(keys, parallelism=2)
        words = ticks(env, count=4_000, burst=4_000).map(lambda i: str(i).zfill(1_000))
        words.rebalance().map(len).sink_to(CollectSink())
        with InProcessJob(env) as job:
            job.run_to_end()
            assert job.results == [1_000] * 4_000
            payloads = [len(frame.payload) for frame in job.data_frames() if frame.kind == ROWS]
            return max(payloads)

    assert largest_payload("10 kb") <= 2 * 10 * 1024
    assert largest_payload("1 mb") > 100_000


def test_large_records_do_not_pile_up_before_a_slow_task() -> None:
    """From the first slice on: when the sizes are known from what was sent, it is too late."""
    env = environment({"tidegate.network.max-batch-bytes": "10 kb"}, parallelism=2)
    large = ticks(env, count=400, burst=400).map(lambda i: bytes(50_000)).set_parallelism(1)
    large.rebalance().map(len).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.step()
        job.slots[1].held = True
        job.run()
        runtime = job.slots[0].runtime
        assert runtime is not None
        assert 0 < runtime.tasks[0].records_in <= 20
        job.slots[1].held = False
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.results == [50_000] * 400


@pytest.mark.parametrize(
    ("keys", "not_yet_ms", "then_ms"),
    [
        ({}, 99, 1),
        ({"execution.buffer-timeout.interval": "30 ms"}, 29, 1),
        ({"execution.buffer-timeout": "30"}, 29, 1),
        ({"execution.buffer-timeout.interval": "0"}, None, 0),
        ({"execution.buffer-timeout.interval": "-1"}, 60_000, None),
        ({"execution.buffer-timeout.enabled": "false"}, 60_000, None),
    ],
)
def test_buffer_timeout_says_how_long_a_record_waits_for_a_full_batch(
    keys: dict[str, str], not_yet_ms: int | None, then_ms: int | None
) -> None:
    with to_another_slot(keys, burst=2, every_ms=10**9) as job:
        job.run()
        if not_yet_ms is not None:
            job.advance(not_yet_ms)
            assert batches(job) == []
        if then_ms is not None:
            job.advance(then_ms)
            assert batches(job) == [1]


# ---------------------------------------------------------------- functions


class Parameter(MapFunction):  # type: ignore[misc]
    def open(self, runtime_context: Any) -> None:
        self._found = [runtime_context.get_job_parameter(key, "unset") for key in ("colour", "size")]

    def map(self, value: int) -> list[str]:
        return self._found


def test_global_job_parameters_are_seen_by_functions() -> None:
    env = environment({"pipeline.global-job-parameters": "colour:red"})
    ticks(env, count=1).map(Parameter()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        assert job.results == [["red", "unset"]]


# ---------------------------------------------------------------- snapshots


def keyed_snapshots(job: InProcessJob) -> list[KeyedSnapshot]:
    """Of the counting operator, by checkpoint."""
    acks = job.heard(AckCheckpoint)
    return [o.keyed for ack in acks for o in ack.snapshot.operators if o.keyed is not None]


def checkpointed(tmp_path: Any, **keys: Any) -> dict[str, Any]:
    config = {"execution.checkpointing.interval": "100 ms", "execution.checkpointing.dir": str(tmp_path)}
    return {**config, **{key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}}


@pytest.mark.parametrize(
    ("keys", "chains"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"tidegate.checkpoint.max-increments": 2}, [1, 2, 3, 1, 2, 3]),
        ({"tidegate.checkpoint.max-increments": 0}, [1, 1, 1, 1, 1, 1]),
        ({"execution.checkpointing.incremental": "false"}, [1, 1, 1, 1, 1, 1]),
        ({"state.backend.incremental": "false"}, [1, 1, 1, 1, 1, 1]),
        ({"execution.checkpointing.storage": "jobmanager"}, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_incremental_and_max_increments_decide_what_a_checkpoint_stores(
    tmp_path: Any, keys: dict[str, Any], chains: list[int]
) -> None:
    with InProcessJob(counting({**checkpointed(tmp_path), **keys})) as job:
        job.advance(650)
        snapshots = keyed_snapshots(job)
        assert [len(s.increments) for s in snapshots] == chains
        for snapshot in snapshots:
            written = sum(chunk.entries for chunk in snapshot.increments[-1].chunks)
            assert written == (KEYS if len(snapshot.increments) == 1 else 1)


@pytest.mark.parametrize("storage", ["filesystem", "jobmanager"])
def test_compressed_snapshots_are_smaller_and_are_read_whatever_the_setting(tmp_path: Any, storage: str) -> None:
    sizes = {}
    for compress in (False, True):
        keys = {
            **checkpointed(tmp_path / str(compress)),
            "execution.checkpointing.storage": storage,
            "execution.checkpointing.snapshot-compression": compress,
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        }
        with InProcessJob(counting(keys)) as job:
            job.advance(150)
            handles = [c.handle for s in keyed_snapshots(job) for i in s.increments for c in i.chunks]
            assert [h.codec for h in handles] == ["zlib" if compress else ""]
            sizes[compress] = sum(h.length if isinstance(h, FileRange) else len(h.data) for h in handles)
            path = tmp_path / str(compress) / job.graph.job_id / "chk-1"
            job.cancel()
        resumed = {**checkpointed(tmp_path / "resumed"), "execution.state-recovery.path": str(path)}
        with InProcessJob(counting(resumed, count=KEYS + 11)) as job:
            job.run_to_end()
            assert job.results[-1] == (0, 12)
    assert sizes[True] < sizes[False] * 0.7


def test_large_compressed_state_goes_to_files_and_comes_back(tmp_path: Any) -> None:
    keys = {
        **checkpointed(tmp_path, execution__checkpointing__snapshot_compression="true"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "0",
    }
    env = environment(keys)
    seen = ticks(env, burst=2_000).key_by(lambda i: i % 7 if i >= 2_000 else f"{i:060}" * 3)
    seen.reduce(lambda a, b: b).map(FailOnce()).sink_to(CollectSink())
    FailOnce.failed = False
    with InProcessJob(env) as job:
        job.advance(1_000)
        chunks = [c.handle for s in keyed_snapshots(job) for i in s.increments for c in i.chunks]
        assert any(isinstance(h, FileRange) and h.codec == "zlib" for h in chunks)
        assert not all(isinstance(h, InlineBytes) for h in chunks)
        assert job.master.attempt == 1
        assert job.master.restored_checkpoint is not None
        assert job.completed


class FailOnce(MapFunction):  # type: ignore[misc]
    failed = False

    def map(self, value: int) -> int:
        if value == 2_030 and not FailOnce.failed:
            FailOnce.failed = True
            raise ValueError("once")
        return value


def test_trace_prints_every_barrier_and_snapshot(tmp_path: Any) -> None:
    for trace in (False, True):
        keys = {**checkpointed(tmp_path), "tidegate.checkpoint.trace": trace}
        with InProcessJob(counting(keys, parallelism=2)) as job:
            job.advance(150)
            assert bool(job.traces) == trace
            text = "\n".join(job.traces)
            for expected in ("barrier 1 arrived on channel 0", "barrier 1 reached on channel 0", "snapshot 1 (aligned"):
                assert (expected in text) == trace


# ---------------------------------------------------------------- sinks


@pytest.mark.parametrize(("retries", "backoff"), [(2, 100), (3, 7)])
def test_a_failed_commit_is_retried_with_growing_pauses(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, retries: int, backoff: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(commit_retries.time, "sleep", pauses.append)
    keys = {"tidegate.sink.commit-retries": retries, "tidegate.sink.commit-backoff": f"{backoff} ms"}
    for failures in (retries, retries + 1):
        pauses.clear()
        env = environment({**checkpointed(tmp_path), **keys, "restart-strategy.type": "none"})
        ticks(env, count=5).sink_to(MemorySink(failures))
        with InProcessJob(env) as job:
            status = job.run_to_end()
            if failures > retries:
                assert status is JobStatus.FAILED
                assert f"could not be committed in {retries + 1} tries" in job.failure
            else:
                assert status is JobStatus.FINISHED
                assert sorted(MemorySink.committed) == [0, 1, 2, 3, 4]
                metrics = {m.name: m.value for m in job.heard(SlotFinished)[0].metrics}
                assert metrics["retriedCommittables"] == CounterValue(5 * retries)
                assert metrics["pendingCommittables"] == GaugeValue(0.0)
            warnings = [line for line in job.logged.splitlines() if "could not be committed in try" in line]
            assert len(warnings) == retries
            assert f"(subtask 0): 5 committables could not be committed in try 1 of {retries + 1}" in warnings[0]
        assert pauses == [backoff * 2**n / 1000 for n in range(retries)]
