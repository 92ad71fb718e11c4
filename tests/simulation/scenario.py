"""Everything about a run that is drawn before it starts: the job, its settings, how the schedule leans, the faults."""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass
from typing import Any

from tests.simulation.durations import any_ms, draw_checkpoints, draw_job_settings, draw_restart
from tests.simulation.fake_storage import FakeStorage
from tests.simulation.random_job import JobBuilder, RandomJob
from tidegate.common.restart_strategy import RestartStrategyConfiguration
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.network.elements import Alignment
from tidegate.state.factory import HASHMAP, ROCKSDB
from tidegate.storage.memory import JobManagerStorage
from tidegate.taskmanager.deployment import RuntimeSettings


class Mode(enum.Enum):
    NONE = "none"  # without checkpoints
    ALIGNED = "aligned"
    CONCURRENT = "concurrent"  # aligned, several checkpoints at once
    UNALIGNED = "unaligned"
    TIMEOUT = "timeout"  # aligned, unaligned after a while
    AT_LEAST_ONCE = "at-least-once"


class Variation(enum.Enum):
    PLAIN = "plain"
    ROCKSDB = "rocksdb"  # keyed state in real databases, below a temporary folder
    RESCALE = "rescale"  # stopped or killed, and resumed at another parallelism (`restarts.py`), on either backend
    GROWING = "growing"  # as RESCALE, with sources whose splits turn up while the job runs
    LED = "led"  # high availability: drivers are killed, and the next one goes on from what the job's record says
    CHAINED = "chained"  # as RESCALE, with long chains and records that wait inside them (`chained_jobs.py`)
    TIME = "time"  # watermarks, timers and windows (`time_jobs.py`), on either backend


RESCALED = (Variation.RESCALE, Variation.GROWING, Variation.CHAINED)
IN_ROCKSDB = {Variation.ROCKSDB: 1.0, Variation.RESCALE: 0.3, Variation.TIME: 0.04}  # share of the jobs
_ALIGNMENT = {
    Mode.ALIGNED: Alignment.ALIGNED,
    Mode.CONCURRENT: Alignment.ALIGNED,
    Mode.UNALIGNED: Alignment.UNALIGNED,
    Mode.TIMEOUT: Alignment.ALIGNED_WITH_TIMEOUT,
    Mode.AT_LEAST_ONCE: Alignment.AT_LEAST_ONCE,
}


@dataclass(frozen=True)
class Weights:
    """How often each kind of thing happens, relative to the others that could."""

    frames: float
    control: float
    steps: float
    async_work: float
    helper: float  # of the JobManager
    events: float  # of Spark, of clients, lost connections
    clock: float


@dataclass
class Scenario:
    seed: int
    mode: Mode
    faulty: bool
    harsher: bool  # has faults that the others do not, for which more random numbers are drawn
    rng: random.Random
    job: RandomJob
    runtime: RuntimeSettings
    checkpoints: CheckpointSettings | None
    job_settings: JobSettings
    storage: Any  # FakeStorage, JobManagerStorage or None
    weights: Weights
    tick_ms: float
    link_slowness: float
    async_slowness: float
    restart: RestartStrategyConfiguration
    hang_rate: float  # share of the work for helpers and storage threads that hangs for a while
    restore_hang_rate: float  # share of the slots whose reads hang while they are restored
    clock_skew: bool  # each process has a clock of its own
    calm_after: int  # steps after which there are no faults and no slowness: the job has to come to its end
    check_every: int
    variation: Variation

    @property
    def command(self) -> str:
        faults = "" if self.faulty else " --no-faults"
        variation = "" if self.variation is Variation.PLAIN else f" --variation {self.variation.value}"
        harsher = " --harsher" if self.harsher else ""
        which = f"--seed {self.seed} --mode {self.mode.value}{variation}{faults}{harsher}"
        return f"python -m tests.simulation {which} --trace"


def draw_scenario(
    seed: int, mode: Mode, faulty: bool, variation: Variation = Variation.PLAIN, harsher: bool = False
) -> Scenario:
    prefix = "" if variation is Variation.PLAIN else f"{variation.value}/"
    rng = random.Random(f"{prefix}{mode.value}/{faulty}/{seed}")
    builder = _builder(variation)(rng, size=rng.choice((2, 3, 4)))
    builder.rescalable = rescale = variation in RESCALED
    builder.growing = variation is Variation.GROWING
    builder.at_least_once = mode is Mode.AT_LEAST_ONCE
    job = builder.build()
    checkpoints = None
    if mode is not Mode.NONE:
        checkpoints = draw_checkpoints(rng, _ALIGNMENT[mode], _concurrent(rng, mode), job.long, faulty)
    if rescale and mode is Mode.NONE:
        checkpoints = CheckpointSettings(interval_ms=math.inf)  # savepoints only
    runtime = RuntimeSettings(
        batch_size=rng.randint(1, 2 if job.long else 20 if variation is Variation.CHAINED else 5),
        credits_per_channel=rng.randint(1, 3),
        max_batch_bytes=rng.choice((60, 1 << 20)),
        checkpointing=mode is not Mode.NONE,
        exactly_once=mode is not Mode.AT_LEAST_ONCE,
        max_increments=10 if job.long else rng.choice((0, 1, 3, 10)),
        commit_retries=rng.choice((0, 1, 3, 6)),
        commit_backoff_ms=any_ms(rng, 0.01, 30.0),
        watermark_interval_ms=job.watermark_interval_ms,
        state_backend=_backend(rng, variation),
    )
    storage: Any = None
    if checkpoints is not None:
        if not rescale and rng.random() < 0.15 and variation is not Variation.LED:
            storage = JobManagerStorage()
        else:
            storage = FakeStorage(min_file_size=rng.choice((0, 0, 150)), remote=rng.random() < 0.3)
    lean = (0.3, 1.0, 1.0, 3.0)
    return Scenario(
        seed=seed,
        mode=mode,
        faulty=faulty,
        harsher=harsher,
        rng=rng,
        job=job,
        runtime=runtime,
        checkpoints=checkpoints,
        job_settings=draw_job_settings(rng, faulty),
        storage=storage,
        weights=Weights(
            frames=rng.choice(lean),
            control=rng.choice(lean),
            steps=rng.choice(lean),
            async_work=rng.choice(lean),
            helper=rng.choice(lean),
            events=rng.choice((0.1, 0.5, 1.0)),
            clock=rng.choice((0.05, 0.2, 0.5)),
        ),
        tick_ms=any_ms(rng, 0.1, 3.0),
        link_slowness=rng.choice((0.0, 0.0, 0.7, 0.9)),
        async_slowness=rng.choice((0.0, 0.0, 0.7, 0.95)),
        restart=draw_restart(rng, may_give_up=faulty),
        hang_rate=rng.choice((0.0, 0.0, 0.01, 0.1)) if faulty else 0.0,
        restore_hang_rate=rng.choice((0.0, 0.0, 0.05, 0.3)) if faulty and isinstance(storage, FakeStorage) else 0.0,
        clock_skew=rng.random() < 0.3,
        calm_after=rng.choice((1500, 3000)),
        check_every=20,
        variation=variation,
    )


def _builder(variation: Variation) -> type[JobBuilder]:
    if variation is Variation.CHAINED:
        from tests.simulation.chained_jobs import ChainedJobBuilder

        return ChainedJobBuilder
    if variation is not Variation.TIME:
        return JobBuilder
    from tests.simulation.time_jobs import TimeJobBuilder  # brings the model of the windows with it

    return TimeJobBuilder


def _backend(rng: random.Random, variation: Variation) -> str:
    share = IN_ROCKSDB.get(variation, 0.0)
    return ROCKSDB if share == 1.0 or (share and rng.random() < share) else HASHMAP


def _concurrent(rng: random.Random, mode: Mode) -> int:
    if mode is Mode.CONCURRENT:
        return rng.randint(2, 4)
    return rng.randint(1, 3) if mode is Mode.AT_LEAST_ONCE else 1
