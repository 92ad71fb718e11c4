"""One batch job on the driver: runs the Spark job, again when it failed and the restart strategy says so, then commits.

Running again means the same action on the same RDDs: Spark knows which shuffle outputs it has and computes only what is
missing, down to single tasks of a stage that was half done.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time

from pyspark.sql import SparkSession

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus
from tidegate.common.restart_strategy import restart_strategy_of
from tidegate.connectors.print_sink import print_here
from tidegate.jobmanager.catch_up import RecoveryView, RecoveryWatch
from tidegate.jobmanager.failure_history import FailureHistory
from tidegate.jobmanager.job import told as told_verdict
from tidegate.jobmanager.job_publisher import JobPublisher, StatusHistory
from tidegate.jobmanager.job_settings import max_repeated_failures
from tidegate.jobmanager.job_view import StageView
from tidegate.jobmanager.recovery_policy import RepeatedFailures
from tidegate.jobmanager.restart_strategies import (
    FixedDelay,
    GiveUp,
    RestartAfter,
    RestartStrategy,
    make_restart_strategy,
)
from tidegate.jobmanager.running_jobs import add_running_job
from tidegate.protocol.instructions import JobEnded
from tidegate.protocol.messages import FailureInfo
from tidegate.spark.batch.client import BatchJobClient
from tidegate.spark.batch.commits import commit_all, discard_leftovers
from tidegate.spark.batch.compilation import CompiledJob, compile_job, width
from tidegate.spark.batch.job_savepoint import complete_savepoint, discard_savepoint
from tidegate.spark.batch.plan import BatchPlan, SavepointPlan
from tidegate.spark.batch.progress import StageWatch
from tidegate.spark.batch.remaining_tasks import tasks_are_gone
from tidegate.spark.batch.report import JobReport
from tidegate.spark.batch.worker import RUN_PROPERTY, failure_in
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.exit_codes import ended_badly
from tidegate.spark.slot_wait import SlotWait, SparkJobs
from tidegate.spark.spark_errors import summarize, why_spark_is_gone
from tidegate.spark.spark_page import description
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.failure import describe
from tidegate.web.history import History
from tidegate.web.job_control import ClientPort
from tidegate.web.otel import OtelSettings
from tidegate.web.rest_settings import RestSettings

log = logging.getLogger("tidegate.batch")

_GONE_MS, _POLL_S = 5_000.0, 0.05
_NOTED_S = 1.0  # until a worker's end is noted
_NAMED = 3  # workers
_LOST_WORKERS, _LOST_WORKER_DELAY_MS = 3, 100.0


class RetryPolicy:
    """The restart strategy that was set. Without one, workers and executors that are lost are forgiven a few times, as
    Spark does, and an exception of the user's code ends the job. A failure that comes again and again ends it too, when
    that was set."""

    def __init__(self, configuration: Configuration) -> None:
        self._configured = options.read(configuration, options.RESTART_STRATEGY) is not None
        self._strategy: RestartStrategy = (
            make_restart_strategy(restart_strategy_of(configuration, False), random.Random())
            if self._configured
            else FixedDelay(_LOST_WORKERS, _LOST_WORKER_DELAY_MS)
        )
        self._most = max_repeated_failures(configuration)
        self._repeated = RepeatedFailures()

    def on_failure(
        self, failure: FailureInfo, raised: bool, now_ms: float, reached: CheckpointId | None = None
    ) -> float | str:
        """The pause before the next run in ms, or why there is none. `raised`: by a task, rather than a loss.
        `reached`: what is done by now, and not computed again."""
        if failure.permanent:
            return "a restart could not help"
        if raised and not self._configured:
            return "no restart strategy is set (restart-strategy.type)"
        decision = self._repeated.given_up(failure, reached, self._most) or self._strategy.on_failure(now_ms)
        return decision.reason if isinstance(decision, GiveUp) else decision.delay_ms


class BatchJob:
    """`start` returns at once; the client learns of the end."""

    def __init__(
        self,
        session: SparkSession,
        plan: BatchPlan,
        bundle: CodeBundle,
        configuration: Configuration,
        savepoint: SavepointPlan | None,
        logs: WorkerLogs | None = None,
    ) -> None:
        self._session = session
        self._sc = session.sparkContext
        self._plan = plan
        self._bundle = bundle
        self._savepoint = savepoint
        self._logs = logs
        self._policy = RetryPolicy(configuration)
        self._commit_retries: int = options.read(configuration, options.SINK_COMMIT_RETRIES)
        self._commit_backoff_ms: float = options.read(configuration, options.SINK_COMMIT_BACKOFF)
        self._clock = SystemClock()
        self._job_id = JobID.from_hex(plan.graph.job_id)
        self._group = f"tidegate-{self._job_id}"
        self._failures = FailureHistory()
        self._run_number = 0
        self._cancelled = threading.Event()
        self._committing = False
        self._over = False  # nothing is left to do but to tell the client
        self._slot_wait = SlotWait(self, SparkJobs(self._sc, lambda: self.spark_groups), self._clock.now_ms())
        self._thread = threading.Thread(target=self._run, name=f"tidegate-batch-{self._job_id}", daemon=True)
        self._statuses = StatusHistory()
        self._recoveries = RecoveryWatch()
        self._publisher = JobPublisher(plan.graph, "BATCH", width(plan.graph), self._clock.now_ms(), configuration)
        self.client = BatchJobClient(self._publisher, self.cancel)
        rest, history = RestSettings.from_configuration(configuration), History.from_configuration(configuration)
        self._port = ClientPort(self.client, rest, history, OtelSettings.from_configuration(configuration))

    def start(self) -> None:
        add_running_job(self)
        self._port.open()  # before the thread, which closes it
        self._thread.start()

    def cancel(self) -> None:
        """Without effect once the commits have begun: the job is as good as finished."""
        if self._committing:
            return
        self._cancelled.set()
        with contextlib.suppress(Exception):  # the session is gone, and the tasks with it
            self._sc.cancelJobGroup(self._group)

    @property
    def running(self) -> bool:
        """False as soon as the client may know of the end: what it starts next must not find this job in its way."""
        return self._thread.is_alive() and not self._over

    @property
    def label(self) -> str:
        return f"job '{self._plan.graph.name}' ({self._job_id}, BATCH)"

    @property
    def spark_groups(self) -> tuple[str, ...]:
        return (self._group,)

    @property
    def has_workers(self) -> bool:
        return False  # Spark's own tasks do the work

    def program_ends(self) -> None:
        self.cancel()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        status, reason, savepoint = JobStatus.FAILED, "", None
        compiled: CompiledJob | None = None
        try:
            self._changed(JobStatus.RUNNING)
            self._sc.setJobGroup(
                self._group,
                description(self._sc, self._plan.graph.name, str(self._job_id), self._port.address),
                interruptOnCancel=True,
            )
            compiled = compile_job(self._session, self._plan, self._bundle, self._logs)
            blocks, reason = self._until_done(compiled)
            if blocks is not None:
                savepoint = self._complete(blocks, compiled)
                status = JobStatus.FINISHED
            elif self._cancelled.is_set():
                status = JobStatus.CANCELED
        except BaseException as error:
            log.debug("batch job %s failed on the driver", self._job_id, exc_info=True)
            self._record(describe(error))
        finally:
            if compiled is not None:
                with contextlib.suppress(Exception):  # the session is gone
                    compiled.unpersist()
            self._wait_for_tasks()
            discard_leftovers(self._plan.graph, self._plan.graph.job_id)
            if self._savepoint is not None and status is not JobStatus.FINISHED:
                discard_savepoint(self._savepoint)
            self._changed(status)
            runtime = self._clock.now_ms() - self._publisher.view.started_ms
            end = JobEnded(status, self._failures.entries, self._failures.total, runtime, reason=reason)
            self._port.close()
            self._over = True
            self.client.ended(end, savepoint)

    def _until_done(self, compiled: CompiledJob) -> tuple[list[bytes] | None, str]:
        """The blocks of the report; or None, and why there will be none."""
        while not self._cancelled.is_set():
            self._sc.setLocalProperty(RUN_PROPERTY, str(self._run_number))
            began = time.time()
            try:
                with StageWatch(self._sc, self._group, self._on_stages):
                    return compiled.report.collect(), ""
            except Exception as error:
                if self._cancelled.is_set():
                    break
                told = failure_in(str(error))
                gone = why_spark_is_gone(self._sc)
                if gone is not None:
                    failure = FailureInfo(summary=f"Spark is gone: {gone}", permanent=True)
                else:
                    failure = FailureInfo(summary=self._told_by_spark(error, began)) if told is None else told
            self._record(failure)
            verdict = self._policy.on_failure(failure, told is not None, self._clock.now_ms())
            self._decided(told_verdict(GiveUp(verdict) if isinstance(verdict, str) else RestartAfter(verdict)))
            if isinstance(verdict, str):
                return None, verdict
            story = self._failures.story_of(failure)
            log.warning("job %s: run %d failed: %s", self._plan.graph.name, self._run_number, story)
            self._changed(JobStatus.RESTARTING)
            if self._cancelled.wait(verdict / 1000):
                break
            self._run_number += 1
            self._changed(JobStatus.RUNNING)
        return None, ""

    def _on_stages(self, stages: tuple[StageView, ...]) -> None:
        """On a thread of the watch's, twice a second."""
        self._publisher.update(stages=stages)
        waits = any(stage.completed < stage.tasks for stage in stages) and not any(stage.active for stage in stages)
        self._slot_wait.look(not waits, self._clock.now_ms())

    def _told_by_spark(self, error: Exception, began: float) -> str:
        """Of a run that began then, with its workers of this machine that have ended since, and how."""
        summary = summarize(error)
        lost = "worker process" in summary
        ended = ended_badly(self._plan.graph.job_id, began, _NOTED_S) if lost else []
        return f"{summary}: {'; '.join(ended[:_NAMED])}" if ended else summary

    def _complete(self, blocks: list[bytes], compiled: CompiledJob) -> str | None:
        self._committing = True
        report = JobReport.read(blocks, compiled.tasks)
        self.client.reported(report)
        savepoint = None
        if self._savepoint is not None:
            self._wait_for_tasks()  # one that does not count would write into it after it was cleaned
            savepoint = complete_savepoint(self._savepoint, self._plan.graph, report)
        commit_all(self._plan.graph, report.committables(), self._commit_retries, self._commit_backoff_ms)
        for chunk in report.printed:
            print_here(chunk.text, chunk.to_stderr)
        return savepoint

    def _wait_for_tasks(self) -> None:
        """Until tasks that do not count any more (of a failed job, or speculative ones) have gone, for a while."""
        deadline = self._clock.now_ms() + _GONE_MS
        while self._clock.now_ms() < deadline:
            try:
                if tasks_are_gone(self._sc.statusTracker(), self._group):
                    return
            except Exception:  # the session is gone, and the tasks with it
                return
            time.sleep(_POLL_S)

    def _record(self, failure: FailureInfo) -> None:
        now = self._clock.now_ms()
        self._failures.record(AttemptNumber(self._run_number), failure, now)
        self._publisher.update(failures=self._failures.entries, recoveries=self._recovered(False, now))

    def _recovered(self, running: bool, now_ms: float) -> tuple[RecoveryView, ...]:
        return self._recoveries.look(self._failures.latest, running, self._run_number, (), now_ms)

    def _decided(self, verdict: str) -> None:
        self._failures.decided(verdict)
        self._publisher.update(failures=self._failures.entries)

    def _changed(self, status: JobStatus) -> None:
        attempt, now = AttemptNumber(self._run_number), self._clock.now_ms()
        self._statuses.add(status, attempt, now)
        recoveries = self._recovered(status is JobStatus.RUNNING, now)
        self._publisher.update(attempt=attempt, recoveries=recoveries, **self._statuses.fields())
        log.info("job %s (%s) is %s", self._plan.graph.name, self._job_id, status.name)
