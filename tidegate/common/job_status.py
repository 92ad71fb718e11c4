"""JobStatus: where a job is in its life."""

from __future__ import annotations

import enum


class JobStatus(enum.Enum):
    """The states of a job. The job master moves between them."""

    CREATED = 0  # submitted, nothing runs yet
    RUNNING = 1  # a gang is being started or runs
    FAILING = 2  # a failure that is not followed by a restart: tasks are being stopped
    FAILED = 3  # ended by a failure
    CANCELLING = 4  # cancelled by the user: tasks are being stopped
    CANCELED = 5  # ended by the user
    FINISHED = 6  # ended because all input was processed
    RESTARTING = 7  # stopped by a failure, a new gang will follow
    SUSPENDED = 8  # the JobManager stopped; another one may go on
    RECONCILING = 9  # a new JobManager is finding out what still runs

    def is_globally_terminal_state(self) -> bool:
        """Nothing will ever run again for this job."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)

    def is_terminal_state(self) -> bool:
        """This JobManager will run nothing for it; after SUSPENDED another one may."""
        return self is JobStatus.SUSPENDED or self.is_globally_terminal_state()
