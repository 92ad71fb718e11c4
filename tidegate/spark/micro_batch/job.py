"""One micro-batch job on the driver: runs the query, again when it failed and the restart strategy says so, and commits
after every batch.

A batch, step by step:

1. `Control.allow(n)`: Spark finds a new offset, writes it to its offset log and runs batch n.
2. All subtasks have run and their state is in Spark's state store; `_on_batch` (from `foreachBatch`) gets their report,
   and writes what the sinks have prepared into the checkpoint location.
3. Spark writes its commit of n. From here on the batch counts; until here, a failure runs it again.
4. The job's thread sees the commit, has the sinks commit, hands out results, completes a savepoint, and allows n + 1.

So nothing is visible outside that could be computed again otherwise: functions need not be deterministic.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import tempfile
import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus
from tidegate.connectors.print_sink import print_here
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.boundedness import unbounded_vertices
from tidegate.jobmanager.catch_up import RecoveryWatch
from tidegate.jobmanager.failure_history import FailureHistory
from tidegate.jobmanager.job import told as told_verdict
from tidegate.jobmanager.job_publisher import JobPublisher, StatusHistory
from tidegate.jobmanager.job_view import states_of
from tidegate.jobmanager.live_state import LiveStates
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter
from tidegate.jobmanager.running_jobs import add_running_job
from tidegate.protocol.instructions import JobEnded
from tidegate.protocol.messages import FailureInfo, StateReport
from tidegate.spark.batch.commits import commit_all
from tidegate.spark.batch.job import RetryPolicy
from tidegate.spark.batch.worker import failure_in
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.micro_batch.client import MicroBatchJobClient
from tidegate.spark.micro_batch.discovery import SplitSearch, first_states
from tidegate.spark.micro_batch.ending import Steps, commit_the_rest, undo_the_rest
from tidegate.spark.micro_batch.location import CheckpointLocation, LocationError
from tidegate.spark.micro_batch.looks import BatchLooks
from tidegate.spark.micro_batch.plan import MicroBatchPlan, width
from tidegate.spark.micro_batch.prepared import Prepared, load_committables
from tidegate.spark.micro_batch.progress import Batches, Totals
from tidegate.spark.micro_batch.query import start_query
from tidegate.spark.micro_batch.refusals import BatchRefusedError, DrainRefusedError, SavepointLostError
from tidegate.spark.micro_batch.report import BatchReport
from tidegate.spark.micro_batch.reruns import StageReruns
from tidegate.spark.micro_batch.results import HeldResults
from tidegate.spark.micro_batch.savepoints import SavepointRequests, complete_savepoint
from tidegate.spark.micro_batch.stopping import STOP_S, StoppedQueries
from tidegate.spark.micro_batch.ticks import Control
from tidegate.spark.slot_wait import SlotWait, SparkJobs
from tidegate.spark.spark_errors import summarize, why_spark_is_gone
from tidegate.spark.spark_page import PATIENCE_S
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.failure import describe
from tidegate.web.history import History
from tidegate.web.job_control import ClientPort
from tidegate.web.otel import OtelSettings
from tidegate.web.rest_settings import RestSettings

log = logging.getLogger("tidegate.micro_batch")

_LOOK_S = 0.01  # how often the job looks for Spark's commit while one is awaited
_WATCH_S = 0.1  # and how often whether the query is still there
_IDLE_S = 0.1  # pause after a batch in which nothing was read


class MicroBatchJob:
    """`start` returns at once; the client learns of the end. The location is open, and is closed at the end."""

    def __init__(
        self,
        session: SparkSession,
        plan: MicroBatchPlan,
        bundle: CodeBundle,
        configuration: Configuration,
        location: CheckpointLocation,
        temporary: bool,
        logs: WorkerLogs,
        point: RestorePoint | None = None,
    ) -> None:
        """`point`: what a job starts from that begins in this location."""
        self._session = session
        self._plan = plan
        self._graph = plan.graph
        self._bundle = bundle
        self._logs = logs
        self._location = location
        self._temporary = temporary  # the location goes with the job
        self._policy = RetryPolicy(configuration)
        self._interval_ms: int = int(options.read(configuration, options.MICRO_BATCH_INTERVAL))
        self._available_now = options.read(configuration, options.MICRO_BATCH_TRIGGER) == "AVAILABLE_NOW"
        self._commit_retries: int = options.read(configuration, options.SINK_COMMIT_RETRIES)
        self._commit_backoff_ms: float = options.read(configuration, options.SINK_COMMIT_BACKOFF)
        self._clock = SystemClock()
        self._job_id = JobID.from_hex(plan.graph.job_id)
        self._control_folder = tempfile.mkdtemp(prefix="tidegate-micro-batch-")
        self._control_path = os.path.join(self._control_folder, "control.json")
        self._control = Control(self._control_path)
        self._tasks = {(int(v), int(i)) for v, i in plan.graph.all_tasks()}
        self._endless = {int(vertex.vertex_id) for vertex in unbounded_vertices(plan.graph)}
        self._failures = FailureHistory()
        self._attempt = 0
        self._cancelled = threading.Event()
        self._wake = threading.Event()
        known = location.known_splits(lambda: first_states(plan.graph, point))
        self._search = SplitSearch(plan.graph, known, self._wake.set)
        self._query: Any = None
        self._stopped = StoppedQueries(session.sparkContext.statusTracker())
        self._revoked: frozenset[str] = frozenset()  # see MicroBatchPlan
        self._started = threading.Event()  # `_query` is that of this attempt
        self._reruns = StageReruns(session.sparkContext.statusTracker(), session.sparkContext.getConf())
        # Between the thread that `_on_batch` comes on and the job's own: set by the first, taken by the second.
        self._reported: BatchReport | None = None
        self._batch_error: BaseException | None = None
        self._batch_began_ms = 0.0
        self._allow_at_ms = 0.0
        self._allowed = self._first = -1  # `_first`: of this attempt
        self._query_attempt = -1  # no other query in this location has had it
        # The latest batch whose results were committed, and the query attempt that had run it, where that is known.
        self._committed_run: tuple[int, int | None] = (-1, None)
        self._broken = False  # the location is not what it was: nobody knows what counts there
        self._over = False
        jobs = SparkJobs(session.sparkContext, lambda: self.spark_groups)
        self._slot_wait = SlotWait(self, jobs, self._clock.now_ms())
        self._thread = threading.Thread(target=self._run, name=f"tidegate-micro-batch-{self._job_id}", daemon=True)
        self._statuses = StatusHistory()
        self._recoveries = RecoveryWatch()  # an attempt runs, as it sees it, when its first batch is done
        self._batches = Batches(options.read(configuration, options.CHECKPOINT_HISTORY_SIZE))
        self._totals = Totals()
        self._states: dict[tuple[int, int, str, str], StateReport] = {}  # of each subtask, as it said last
        self._publisher = JobPublisher(
            plan.graph, "MICRO_BATCH", width(plan.graph), self._clock.now_ms(), configuration
        )
        self._savepoints = SavepointRequests(
            plan.graph.job_id,
            options.read(configuration, options.SAVEPOINT_DIR),
            plan.savepoints,
            options.read(configuration, options.CHECKPOINT_TIMEOUT),
            self._wake.set,
        )
        self._looks = BatchLooks(plan.graph)
        self._results = HeldResults(self._wake.set)
        states = LiveStates(plan.graph, self._publisher, self._looks, committed=None)
        self.client = MicroBatchJobClient(self._publisher, self._savepoints, self._results, self.cancel, states)
        rest, history = RestSettings.from_configuration(configuration), History.from_configuration(configuration)
        self._port = ClientPort(self.client, rest, history, OtelSettings.from_configuration(configuration))

    def start(self) -> None:
        add_running_job(self)
        self._port.open()  # before the thread, which closes it
        self._thread.start()

    def cancel(self) -> None:
        self._cancelled.set()
        self._wake.set()

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._over

    @property
    def label(self) -> str:
        return f"job '{self._graph.name}' ({self._job_id}, MICRO_BATCH)"

    @property
    def spark_groups(self) -> tuple[str, ...]:
        query = self._query
        return () if query is None else (str(query.runId),)

    @property
    def has_workers(self) -> bool:
        return False  # Spark's own tasks do the work

    def program_ends(self) -> None:
        self.cancel()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        status, reason = JobStatus.FAILED, ""
        try:
            self._changed(JobStatus.RUNNING)
            finished, reason = self._until_done()
            if finished:
                status = JobStatus.FINISHED
            elif self._cancelled.is_set():
                status = JobStatus.CANCELED
        except BaseException as error:
            log.debug("micro-batch job %s failed on the driver", self._job_id, exc_info=True)
            self._record(describe(error))
        finally:
            self._wind_up(status, reason)

    def _wind_up(self, status: JobStatus, reason: str) -> None:
        """Whatever fails here is told in the log, and the client learns of the end: somebody waits for it."""
        steps = Steps(self._graph.name)
        done = status is JobStatus.FINISHED or steps.take("undo what does not count", self._leave) is True
        steps.take("wait for its savepoints", self._savepoints.close)
        steps.take("end the search for splits", self._search.close)
        steps.take("give back its checkpoint location", self._location.close)
        shutil.rmtree(self._control_folder, ignore_errors=True)
        if self._temporary and done:
            shutil.rmtree(self._location.path, ignore_errors=True)
        steps.take("tell whoever waits for a savepoint", lambda: self._savepoints.job_over(status.name))
        steps.take("publish its end", lambda: self._changed(status))
        steps.take("keep its history and close its page", self._port.close)
        runtime = self._clock.now_ms() - self._publisher.view.started_ms
        end = JobEnded(
            status,
            self._failures.entries,
            self._failures.total,
            runtime,
            accumulators=self._publisher.accumulators,
            reason=reason,
        )
        self._over = True
        self.client.ended(end)

    def _leave(self) -> bool:
        """The job was cancelled or has failed. Whether its location holds nothing more to be done: see `ending`."""
        if self._broken:
            return True
        try:
            if not commit_the_rest(self._graph.name, self._stopped, self._location, self._finish_committed):
                return False
        except LocationError:
            return True
        if self._query_attempt >= 0:
            undo_the_rest(self._plan, self._location, for_good=self._temporary and not self._savepoints.may_exist)
        return True

    def _finish_committed(self) -> None:
        """Not again and again: the job is over, and what fails is told."""
        self._commit_left_over(retries=0)
        report = self._committed_report()
        if report is not None:
            self._hand_out(report)

    def _until_done(self) -> tuple[bool, str]:
        """Whether it has finished; if not, why it is given up ("" when it was cancelled)."""
        while not self._cancelled.is_set():
            try:
                self._stopped.check()  # a query that is still there might commit a batch after we have looked
                self._location.check()
                self._commit_left_over()
                report = self._committed_report()
                if report is not None and self._hand_out(report):  # the attempt failed between commit and this
                    return True, ""
                following = self._location.next_batch
                if following:
                    self._batches.restored(following - 1, self._clock.now_ms())
                return self._run_query(following), ""
            except DrainRefusedError as error:
                self._revoke(error)
                continue
            except (LocationError, ConfigurationError, SavepointLostError) as error:
                self._broken = isinstance(error, LocationError)
                failure, raised = FailureInfo(summary=str(error), permanent=True), True
            except Exception as error:
                if self._cancelled.is_set():
                    break
                told = failure_in(str(error))
                gone = why_spark_is_gone(self._session.sparkContext)
                if gone is not None:
                    failure = FailureInfo(summary=f"Spark is gone: {gone}", permanent=True)
                else:
                    failure = FailureInfo(summary=summarize(error)) if told is None else told
                raised = told is not None
            self._record(failure)
            reached = CheckpointId(self._location.next_batch)
            verdict = self._policy.on_failure(failure, raised, self._clock.now_ms(), reached)
            self._decided(told_verdict(GiveUp(verdict) if isinstance(verdict, str) else RestartAfter(verdict)))
            if isinstance(verdict, str):
                return False, "; ".join(filter(None, (verdict, self._how_to_resume())))
            story = self._failures.story_of(failure)
            log.warning("job %s: attempt %d failed: %s", self._graph.name, self._attempt, story)
            self._changed(JobStatus.RESTARTING)
            if self._cancelled.wait(verdict / 1000):
                break
            self._attempt += 1
            self._changed(JobStatus.RUNNING)
        return False, ""

    def _how_to_resume(self) -> str:
        """For a job that has failed; "" when nothing of it is kept."""
        following = 0 if self._broken else self._location.next_batch
        if not following or self._temporary:
            return ""
        return (
            f"the job can go on after batch {following - 1}: run the same program again with "
            f"{options.MICRO_BATCH_LOCATION.key} = {self._location.path}"
        )

    def _revoke(self, error: DrainRefusedError) -> None:
        """No failure of the job: it goes on from the batch before, as if nothing had been asked for."""
        self._revoked |= {error.target}
        self._savepoints.failed(SnapshotError(str(error)), error.target)
        self._savepoints.discard(error.target)
        log.warning("job %s goes on: it was to be drained, and %s", self._graph.name, error)
        self._changed(JobStatus.RESTARTING)
        self._attempt += 1
        self._changed(JobStatus.RUNNING)

    def _commit_left_over(self, retries: int | None = None) -> None:
        """What a batch before this attempt had prepared, and Spark has committed."""
        retries = self._commit_retries if retries is None else retries
        for batch, left in self._location.to_commit():
            self._location.keep_commit(batch)
            commit_all(self._graph, load_committables(left.committables), retries, self._commit_backoff_ms)
            self._committed_run = batch, left.attempt
            self._search.taken(left.taken)
            self._check_left(left.savepoint)
            self._location.committed(batch, self._search.states)

    def _run_query(self, following: int) -> bool:
        """True: the job has come to its end. Raises when the query has failed."""
        self._reported, self._batch_error = None, None
        self._first = following
        self._allow(following, first=True)
        attempt, self._query_attempt = self._attempt, self._location.begin_attempt()
        self._started.clear()
        self._query = start_query(
            self._session,
            dataclasses.replace(self._plan, revoked=self._revoked),
            self._bundle,
            self._logs,
            self._query_attempt,
            self._location.path,
            self._control_path,
            self._interval_ms,
            self._shown_name(),
            lambda rows, batch: self._on_batch(rows, batch, attempt),
        )
        self._started.set()
        try:
            while not self._cancelled.is_set():
                report = self._committed_report()
                if report is not None and self._complete(report):
                    return True
                self._search.look(self._clock.now_ms())
                self._savepoints.watch()
                self._slot_wait.look(not self._batch_runs, self._clock.now_ms())
                self._allow_next()
                soon = self._reported is not None or (self._allow_at_ms and self._results.room)
                self._wake.wait(_LOOK_S if soon else _WATCH_S)
                self._wake.clear()
                if not self._query.isActive and self._committed_report() is None:
                    raise self._query_error()
                self._check_reported()
            return False
        finally:
            self._stopped.stop(self._query)

    def _shown_name(self) -> str:
        """What Spark's page calls the query. That shows it in some places as HTML and in others as text: no link."""
        page = self._port.address(PATIENCE_S) if self._session.sparkContext.uiWebUrl else ""
        return f"{self._graph.name} · {page}" if page else self._graph.name

    @property
    def _batch_runs(self) -> bool:
        """Whether Spark has a batch to run: it has been allowed, and nothing is heard of it yet."""
        return self._reported is None and not self._allow_at_ms

    def _committed_report(self) -> BatchReport | None:
        """Of a batch that Spark has committed."""
        report = self._reported
        return report if report is not None and self._location.spark_committed(report.batch) else None

    def _check_reported(self) -> None:
        """Whoever commits the batch that is awaited has reported it before. This query will never run it now."""
        if self._batch_runs and self._location.spark_committed(self._allowed):
            raise RuntimeError(
                f"batch {self._allowed} is committed in {self._location.path}, and not by the query that was to run "
                "it: one that was thought dead has gone on. The job goes on after that batch"
            )

    def _query_error(self) -> BaseException:
        if self._batch_error is not None:
            return self._batch_error
        found = self._query.exception()
        return RuntimeError("the streaming query has ended") if found is None else found

    def _allow(self, batch: int, first: bool = False) -> None:
        """`first`: of this attempt. Spark may run it with the order that it had before; questions wait for the next."""
        request, looks = self._savepoints.take(), [] if first else self._looks.take()
        self._allow_at_ms = 0.0
        self._allowed = batch
        self._batch_began_ms = self._clock.now_ms()
        if request is None:
            # With the first batch the subtasks say what they have: a snapshot of an older version says it nowhere else.
            self._control.allow(batch, splits=self._search.orders() if batch else None, looks=looks)
        else:
            permissions = self._savepoints.storage.permissions
            self._control.allow(batch, request.target, permissions, request.drain, looks=looks)

    # ------------------------------------------------------------ batches
    def _on_batch(self, rows: DataFrame, batch: int, attempt: int) -> None:
        """On a thread of Py4J's. All subtasks run in here, once: their rows are asked for once."""
        try:
            self._check_current(attempt)
            self._check_number(batch)
            payloads = [bytes(row.payload) for row in rows.collect()]
            self._started.wait(STOP_S)
            self._reruns.check(str(self._query.runId))
            report = BatchReport.read(batch, payloads, self._tasks)
            if batch == self._first:
                self._location.check_shared(width(self._graph))
            self._check_current(attempt)
            self._location.check()
            self._check_state(report)
            if report.drain and (why := report.savepoint_error()):
                raise DrainRefusedError(report.savepoint, f"no savepoint was taken: {why}")
            self._location.prepared(batch, self._to_prepare(report))
            self._reported = report
        except BaseException as error:
            self._batch_error = error
            raise BatchRefusedError(f"batch {batch} failed") from None
        self._wake.set()

    def _check_current(self, attempt: int) -> None:
        if attempt != self._attempt or self._cancelled.is_set():
            raise BatchRefusedError("this attempt is over")

    def _check_number(self, batch: int) -> None:
        if batch != self._allowed:
            raise LocationError(
                f"Spark runs batch {batch} in {self._location.path}, where batch {self._allowed} is the next: what it "
                f"keeps there is not what it was. {self._location.what_to_do}"
            )

    def _check_state(self, report: BatchReport) -> None:
        """The state that the batch began with has to be of the very run whose results were committed."""
        before, attempt = self._committed_run
        foreign = report.foreign_state(attempt) if before == report.batch - 1 else None
        if foreign is not None:
            raise LocationError(
                f"subtask {foreign.subtask} of vertex {foreign.vertex} has found state in {self._location.path} that "
                f"attempt {foreign.begun_with} has written in batch {before}, and what was committed of that batch is "
                f"of attempt {attempt}: a query that was thought dead has gone on, and records of that batch may be "
                f"missing or twice in the output. {self._location.what_to_do}"
            )

    def _complete(self, report: BatchReport) -> bool:
        """Spark has committed the batch. True: it was the last one."""
        batch = report.batch
        committables = load_committables(report.committables())
        self._location.keep_commit(batch)
        commit_all(self._graph, committables, self._commit_retries, self._commit_backoff_ms)
        self._committed_run = batch, self._query_attempt
        self._search.taken(report.taken())
        self._location.committed(batch, self._search.states)
        if self._hand_out(report):
            return True
        self._allow_at_ms = self._clock.now_ms() + (0 if report.records_read else _IDLE_S * 1000)
        self._allow_next()
        return False

    def _allow_next(self) -> None:
        """When its time has come, and the results that wait for a reader leave room for its own. A batch with a
        savepoint reads nothing, and goes on."""
        due = self._allow_at_ms and self._clock.now_ms() >= self._allow_at_ms
        if due and (self._results.room or self._savepoints.any_waits):
            self._allow(self._allowed + 1)

    def _hand_out(self, report: BatchReport) -> bool:
        """Spark and the sinks have committed the batch. Returns what `_complete` does. Done once for each batch that
        this driver has run, also when the attempt has failed before."""
        self._reported = None
        for to_stderr, text in report.printed():
            print_here(text, to_stderr)
        self._results.put(report.collected())
        stopped = self._finish_savepoint(report)
        now = self._clock.now_ms()
        self._totals.add(report, self._batch_began_ms, now)
        taken = any(task.snapshot for task in report.tasks)
        self._batches.add(report, AttemptNumber(self._attempt), taken, self._batch_began_ms, now)
        self._publisher.accumulators = self._totals.accumulators()
        self._states.update({(s.vertex, s.subtask, s.operator_id, s.state): s for s in report.states()})
        metrics = self._totals.metrics()
        self._publisher.update(
            metrics=metrics,
            recoveries=self._recoveries.look(self._failures.latest, True, self._attempt, metrics, now),
            checkpoints=self._batches.view(),
            states=states_of(self._graph, self._publisher.queries, self._states.values()),
        )
        self._looks.done(report.answers(), CheckpointId(report.batch + 1))
        all_read = not report.savepoint and self._search.at_rest and report.all_read(self._endless)
        return report.ended or stopped or (self._available_now and all_read)

    def _to_prepare(self, report: BatchReport) -> Prepared:
        return Prepared(report.committables(), report.taken(), self._query_attempt, report.savepoint)

    def _check_left(self, target: str) -> None:
        """Of a batch that counts, and whose report is lost, unless this driver has it: then it hands it out."""
        if target and (self._reported is None or self._reported.savepoint != target):
            error = f"savepoint {target} was not taken: what its batch has told is lost with the query or the driver"
            log.warning("job %s: %s", self._graph.name, error)
            self._savepoints.failed(SnapshotError(error), target)
            self._savepoints.discard(target)

    def _finish_savepoint(self, report: BatchReport) -> bool:
        """True: the job ends with it. One of a driver that is dead is nobody's any more, unless the job was drained for
        it."""
        request, target = self._savepoints.under_way, report.savepoint
        if not target:
            return False
        asked_for = request is not None and request.target == target
        if not asked_for and not report.drain:
            self._savepoints.discard(target)
            return False
        now, states = self._clock.now_ms(), dict(self._search.states)
        done = self._savepoints.complete(
            target, lambda files: complete_savepoint(files, target, self._graph, report, now, states)
        )
        if not report.drain and not (request is not None and request.stop):
            return False
        error = self._savepoints.wait_for(done, target, self._cancelled)
        if error is not None and report.drain:
            raise SavepointLostError(
                f"the job was drained, and its savepoint {target} could not be completed: {error}. Everything that "
                "was read is committed; the job cannot go on after a drain"
            ) from error
        if not asked_for:
            log.warning("job %s ends with savepoint %s, as was asked of its driver before", self._graph.name, target)
        return error is None and not self._cancelled.is_set()

    # ------------------------------------------------------------ what is shown
    def _record(self, failure: FailureInfo) -> None:
        now = self._clock.now_ms()
        self._failures.record(AttemptNumber(self._attempt), failure, now)
        recoveries = self._recoveries.look(self._failures.latest, False, self._attempt, (), now)
        self._publisher.update(failures=self._failures.entries, recoveries=recoveries)

    def _decided(self, verdict: str) -> None:
        self._failures.decided(verdict)
        self._publisher.update(failures=self._failures.entries)

    def _changed(self, status: JobStatus) -> None:
        attempt = AttemptNumber(self._attempt)
        self._statuses.add(status, attempt, self._clock.now_ms())
        self._publisher.update(attempt=attempt, checkpoints=self._batches.view(), **self._statuses.fields())
        self._looks.status_changed(status)
        log.info("job %s (%s) is %s", self._graph.name, self._job_id, status.name)
