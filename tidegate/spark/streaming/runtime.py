"""The STREAMING runtime: one gang of Spark barrier tasks runs the whole graph at once."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidegate.common import options
from tidegate.common.config_options import ConfigOption
from tidegate.common.configuration import Configuration
from tidegate.common.log_lines import LogSettings
from tidegate.graph.driver_sides import StartingJob
from tidegate.graph.picklability import check_picklable
from tidegate.graph.splits import make_splits
from tidegate.jobmanager.preparation import prepare_job
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.running_jobs import jobs_are_running
from tidegate.jobmanager.runtime import Runtime, Submission
from tidegate.spark.interrupts import spare_background_jobs
from tidegate.spark.session import check_slots, obtain_session
from tidegate.spark.streaming.job_manager import JobManager
from tidegate.spark.worker_files import code_for, distribute
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.web.rest_settings import RestSettings


class StreamingRuntime(Runtime):
    def _start(self, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        graph, configuration, files = make_splits(submission.graph), submission.configuration, submission.files
        starting.check_start(graph.num_slots)
        check_picklable(graph)
        logs = LogSettings.from_configuration(configuration)
        logs.apply_to_driver()
        job = prepare_job(graph, configuration, files, submission.instrument)
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
                prints=_arrives_here(configuration, options.PRINT_ON_DRIVER, session),
                logs=WorkerLogs(
                    graph.job_id, graph.name, logs, _arrives_here(configuration, options.LOG_ON_DRIVER, session)
                ),
            )
            manager.start()
        except BaseException:
            job.discard()
            raise
        return manager.client


def _arrives_here(configuration: Configuration, option: ConfigOption, session: SparkSession) -> bool:
    chosen = options.read(configuration, option)
    return bool((session.sparkContext.master or "").startswith("local") if chosen is None else chosen)
