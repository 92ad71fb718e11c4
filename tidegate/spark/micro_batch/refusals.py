"""Why a batch does not count, or a drained job cannot end as it was told."""

from __future__ import annotations

from tidegate.common.errors import TidegateError


class BatchRefusedError(Exception):
    """Ends the query. Short: Spark searches the text of an error with a regular expression that overflows its stack
    when the text is long. What has happened is kept here."""


class DrainRefusedError(Exception):
    """A batch that drains the job has no savepoint: it does not count, and is run again without the order."""

    def __init__(self, target: str, why: str) -> None:
        super().__init__(why)
        self.target = target


class SavepointLostError(TidegateError):
    """The job is drained, which cannot be taken back, and its savepoint could not be completed."""
