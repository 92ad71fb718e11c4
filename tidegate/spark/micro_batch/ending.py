"""The end of a micro-batch job that has not finished: what Spark has committed, the sinks commit too; what they have
prepared beyond that is undone, as far as nobody can go on from it.

Whoever goes on in the checkpoint location runs the batch again that was under way: what was prepared in it counts for
nothing, and would hold locks of a database, or hold up readers of a topic, until then. What sinks keep in their own
state (files that are not finished) is different: a batch that is committed has it, and so may a savepoint. That goes
only with a location that goes with the job, and not where a savepoint was taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tidegate.common import options
from tidegate.spark.batch.commits import discard_leftovers, discard_uncommitted
from tidegate.spark.micro_batch.location import CheckpointLocation, LocationError
from tidegate.spark.micro_batch.plan import MicroBatchPlan
from tidegate.spark.micro_batch.stopping import StoppedQueries

log = logging.getLogger("tidegate.micro_batch")


class Steps:
    """The last steps of a job's thread. None keeps the others from being taken."""

    def __init__(self, name: str) -> None:
        self._name = name

    def take(self, what: str, step: Callable[[], Any]) -> Any:
        """What the step returns; None when it failed."""
        try:
            return step()
        except BaseException:
            log.warning("job %s has ended, and could not %s:", self._name, what, exc_info=True)
            return None


def commit_the_rest(
    name: str, stopped: StoppedQueries, location: CheckpointLocation, commit: Callable[[], None]
) -> bool:
    """Whether all that counts is committed, and the queries of the job are gone. LocationError when the location does
    not say any more what counts."""
    try:
        stopped.check()  # a query that is still there might commit a batch after we have looked
        location.check()
        commit()
    except LocationError:
        raise
    except Exception as error:
        log.warning(
            "job %s: at its end the sinks could not commit all that Spark has committed: %s. The program does it when "
            "it is started again with %s: %s",
            name,
            error,
            options.MICRO_BATCH_LOCATION.key,
            location.path,
        )
        return False
    return True


def undo_the_rest(plan: MicroBatchPlan, location: CheckpointLocation, for_good: bool) -> None:
    """After `commit_the_rest`, and when a query was started. `for_good`: nobody can go on from any state of the job."""
    if plan.start is not None and not location.next_batch:
        return  # what is prepared outside may be what the snapshot has that the job has started from
    discard_uncommitted(plan.graph, plan.graph.job_id)
    if for_good:
        discard_leftovers(plan.graph, plan.graph.job_id)
