"""The BATCH runtime: a bounded job as ordinary Spark stages."""

from __future__ import annotations

import dataclasses
import logging

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.log_lines import LogSettings
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.driver_sides import StartingJob
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.running_jobs import jobs_are_running
from tidegate.jobmanager.runtime import Runtime, Submission
from tidegate.jobmanager.state_assignment import adopt_max_parallelism
from tidegate.spark.batch.compilation import plan_configured, width, with_splits
from tidegate.spark.batch.job import BatchJob
from tidegate.spark.batch.job_savepoint import planned_savepoint
from tidegate.spark.batch.source_blocks import gives_blocks
from tidegate.spark.interrupts import spare_background_jobs
from tidegate.spark.session import arrives_here, obtain_session, workers_write_to_the_terminal
from tidegate.spark.start_points import StartState, initial_point, start_options, start_state
from tidegate.spark.worker_files import code_for, distribute
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.taskmanager.clock import SystemClock

log = logging.getLogger("tidegate.batch")


class BatchRuntime(Runtime):
    def _start(self, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        configuration, files = submission.configuration, submission.files
        point = initial_point(configuration, "BATCH")
        graph = with_splits(submission.graph)
        if point is not None:
            graph = adopt_max_parallelism(graph, point.metadata)
        starting.check_start(width(graph))
        settings = LogSettings.from_configuration(configuration)
        settings.apply_to_driver()
        savepoint = planned_savepoint(configuration, SystemClock().now_ms())
        start = None if point is None else _start_of(graph, point, configuration)
        plan = plan_configured(graph, configuration, files, savepoint, start)
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


def _start_of(graph: JobGraph, point: RestorePoint, configuration: Configuration) -> StartState:
    allow = JobSettings.from_configuration(graph.name, configuration).allow_non_restored_state
    start = start_state(graph, point, allow, start_options(configuration))
    known = {operator.operator_id for task in start.tasks.values() for operator in task.operators}
    for vertex in graph.vertices:
        head = vertex.operators[0]
        if not isinstance(head.spec, SourceSpec):
            continue
        if gives_blocks(head.spec.source) and any(node.operator_id in known for node in vertex.operators):
            raise ConfigurationError(
                f"{options.RECOVERY_PATH.key}: the snapshot has state of '{vertex.name}', which reads a DataFrame as "
                "Spark's own partitions in BATCH mode, and these cannot be matched with it. Give the source another "
                "uid and keep operators with state out of its chain (start_new_chain), or run the job in STREAMING or "
                "MICRO_BATCH mode"
            )
        if head.operator_id in known and getattr(head.spec.source, "discovery_interval_ms", None) is not None:
            raise ConfigurationError(
                f"{options.RECOVERY_PATH.key}: '{head.name}' finds its splits while the job runs, and a BATCH job "
                "takes those that are there at the start: it cannot tell which of them the snapshot has. Give the "
                "source another uid, or run the job in STREAMING mode"
            )
    return start
