"""The seam between the API and what drives the operators: a submission goes to a runtime, a job client comes back.

There is a runtime per mode (STREAMING, MICRO_BATCH, BATCH). Nobody but the table of names in `datastream/runtimes.py`
knows which ones there are.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.configuration import Configuration
from tidegate.common.worker_files import WorkerFiles
from tidegate.graph.driver_sides import StartingJob, starting_job
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.taskmanager.instrument import Instrument


@dataclass(frozen=True)
class Submission:
    """A job as the API hands it over. The runtime may keep all of it: nobody else changes it any more."""

    graph: JobGraph  # its sources have no splits yet
    configuration: Configuration
    session: Any = None  # the user's SparkSession; None: the active one, or a new one
    files: WorkerFiles = field(default_factory=WorkerFiles)
    instrument: Instrument | None = None  # STREAMING only


class Runtime(abc.ABC):
    """Holds no jobs: every call of `submit` is on its own."""

    def submit(self, submission: Submission) -> PublishedJobClient:
        """Start the job and return at once. Raises, with nothing left behind, when it cannot be started; sources that
        keep something on the driver are told in both cases."""
        with starting_job(submission.graph) as starting:
            client = self._start(submission, starting)
            starting.started(client)
        return client

    @abc.abstractmethod
    def _start(self, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        """Make the splits, check all that can be checked, and run the job on threads of its own."""
