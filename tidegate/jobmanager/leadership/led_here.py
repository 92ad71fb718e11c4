"""The jobs that this program leads, or has brought to their end: another one under the same cluster id is refused, and
not taken for one of them that has ended already."""

from __future__ import annotations

from tidegate.common import run_end
from tidegate.common.errors import ConfigurationError
from tidegate.jobmanager.leadership.leadership import Leadership

_led: dict[str, Leadership] = {}  # by where the record is; the latest


def refuse_second(leadership: Leadership, job_name: str) -> None:
    """ConfigurationError when this program has a job under the cluster id of `leadership`, or had one that ended here.
    One that it only does not lead any more may be tried again."""
    earlier = _led.get(leadership.where)
    if earlier is not None and earlier.occupied:
        status = "runs" if earlier.leads() else "has ended"
        raise ConfigurationError(
            f"this program executes a second job, '{job_name}', under the cluster id of {leadership.where}, and its "
            f"first one, '{earlier.record.name}', {status}: a cluster id belongs to one job, once. Give each execute "
            "its own high-availability.cluster-id, or a program of its own"
        )


def remember(leadership: Leadership) -> None:
    """It leads now."""
    _led[leadership.where] = leadership
    run_end.leads(leadership.where)
