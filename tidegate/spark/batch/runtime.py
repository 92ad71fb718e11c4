"""The BATCH runtime: a bounded job as ordinary Spark stages."""

from __future__ import annotations

import dataclasses
import logging

from tidegate.common import options
from tidegate.common.errors import ConfigurationError
from tidegate.common.log_lines import LogSettings
from tidegate.graph.driver_sides import StartingJob
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.running_jobs import jobs_are_running
from tidegate.jobmanager.runtime import Runtime, Submission
from tidegate.spark.batch.compilation import plan_configured, width, with_splits
from tidegate.spark.batch.job import BatchJob
from tidegate.spark.batch.job_savepoint import planned_savepoint
from tidegate.spark.interrupts import spare_background_jobs
from tidegate.spark.session import arrives_here, obtain_session, workers_write_to_the_terminal
from tidegate.spark.worker_files import code_for, distribute
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.taskmanager.clock import SystemClock

log = logging.getLogger("tidegate.batch")


class BatchRuntime(Runtime):
    def _start(self, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        configuration, files = submission.configuration, submission.files
        if options.read(configuration, options.RECOVERY_PATH):
            raise ConfigurationError(
                f"{options.RECOVERY_PATH.key} is set, but a BATCH job starts from nothing: all its input is there from "
                "the beginning. Leave it out, or run the job in STREAMING mode"
            )
        graph = with_splits(submission.graph)
        starting.check_start(width(graph))
        settings = LogSettings.from_configuration(configuration)
        settings.apply_to_driver()
        savepoint = planned_savepoint(configuration, SystemClock().now_ms())
        plan = plan_configured(graph, configuration, files, savepoint)
        if options.read(configuration, options.CHECKPOINT_INTERVAL):
            log.info("job %s: there are no checkpoints in BATCH mode, those settings have no effect", graph.name)
        if options.read(configuration, options.HA_TYPE) != "NONE":
            log.warning(
                "job %s: there is no high availability in BATCH mode, those settings have no effect", graph.name
            )
        session = obtain_session(configuration, submission.session, width(graph), busy=jobs_are_running())
        if arrives_here(configuration, options.PRINT_ON_DRIVER, session):
            plan = dataclasses.replace(
                plan, vertices=tuple(dataclasses.replace(vertex, prints_on_driver=True) for vertex in plan.vertices)
            )
        on_terminal = workers_write_to_the_terminal(session)
        logs = WorkerLogs(graph.job_id, graph.name, settings, on_terminal=on_terminal)
        spare_background_jobs()
        distribute(session, files)
        job = BatchJob(session, plan, code_for(session, files), configuration, savepoint, logs)
        job.start()
        return job.client
