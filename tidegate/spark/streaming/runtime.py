"""The STREAMING runtime: one gang of Spark barrier tasks runs the whole graph at once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial

from tidegate.common import options, run_end
from tidegate.common.errors import ConfigurationError
from tidegate.common.job_status import JobStatus
from tidegate.common.log_lines import LogSettings
from tidegate.graph.driver_sides import StartingJob
from tidegate.graph.picklability import check_picklable
from tidegate.graph.splits import make_splits
from tidegate.jobmanager.leadership.ended_job import EndedJobClient
from tidegate.jobmanager.leadership.leadership import JobHasEndedError, Leadership
from tidegate.jobmanager.leadership.led_here import refuse_second, remember
from tidegate.jobmanager.leadership.settings import HighAvailability
from tidegate.jobmanager.preparation import prepare_job
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.running_jobs import jobs_are_running
from tidegate.jobmanager.runtime import Runtime, Submission
from tidegate.spark.interrupts import spare_background_jobs
from tidegate.spark.session import arrives_here, check_slots, obtain_session
from tidegate.spark.streaming.gang import warm_up
from tidegate.spark.streaming.job_manager import JobManager
from tidegate.spark.worker_files import code_for, distribute
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.web.rest_settings import RestSettings

log = logging.getLogger("tidegate.jobmanager")


class StreamingRuntime(Runtime):
    def _start(self, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        available = HighAvailability.from_configuration(submission.configuration)
        return self._run(submission, starting) if available is None else self._lead(available, submission, starting)

    def _lead(self, available: HighAvailability, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        """Wait until this program leads the job. Whatever takes long is done before that; what depends on the moment,
        as splits do, after it."""
        graph, configuration = submission.graph, submission.configuration
        check_picklable(graph)
        leadership = available.leadership(graph)
        try:
            refuse_second(leadership, graph.name)
        except ConfigurationError:
            leadership.close()
            raise
        keep_warm: Callable[[], None] = lambda: None  # noqa: E731
        try:
            if available.standby:
                session = obtain_session(
                    configuration, submission.session, graph.num_slots, busy=jobs_are_running(), gang=True
                )
                check_slots(session, graph.num_slots)
                keep_warm = partial(warm_up, session, graph.num_slots)
                keep_warm()
            leadership.campaign(available.standby, keep_warm)
            remember(leadership)
            submission = dataclasses.replace(
                submission, graph=dataclasses.replace(graph, job_id=leadership.record.job_id)
            )
            return self._run(submission, starting, leadership)
        except JobHasEndedError as error:
            leadership.close()
            log.warning("%s", error)
            run_end.has_ended(leadership.where, JobStatus[error.record.status])
            return EndedJobClient(error.record, str(error), graph, configuration)
        except BaseException:
            leadership.close()
            raise

    def _run(
        self, submission: Submission, starting: StartingJob, leadership: Leadership | None = None
    ) -> PublishedJobClient:
        graph, configuration, files = make_splits(submission.graph), submission.configuration, submission.files
        starting.check_start(graph.num_slots)
        starting.check_checkpoints(configuration)
        check_picklable(graph)
        logs = LogSettings.from_configuration(configuration)
        logs.apply_to_driver()
        manager: JobManager | None = None
        job = prepare_job(graph, configuration, files, submission.instrument, leadership)
        try:
            session = obtain_session(
                configuration, submission.session, graph.num_slots, busy=jobs_are_running(), gang=True
            )
            check_slots(session, graph.num_slots)
            spare_background_jobs()
            distribute(session, files)
            manager = JobManager(
                session=session,
                job=job,
                bundle=code_for(session, files),
                savepoint_directory=options.read(configuration, options.SAVEPOINT_DIR),
                rest=RestSettings.from_configuration(configuration),
                prints=arrives_here(configuration, options.PRINT_ON_DRIVER, session),
                logs=WorkerLogs(
                    graph.job_id, graph.name, logs, arrives_here(configuration, options.LOG_ON_DRIVER, session)
                ),
            )
            manager.start()
        except BaseException:
            if manager is None or not manager.running:  # Ctrl-C may come when it has begun
                job.discard()
            raise
        return manager.client
