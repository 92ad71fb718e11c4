"""Which workers were lost, how they ended, and what they ran."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.gang import Member
from tidegate.spark.exit_codes import how_it_ended

_MOST = 3  # workers, and vertices of each, that are named


def name_lost(error: str | None, members: Iterable[Member], graph: JobGraph, began: float) -> str | None:
    """Spark's story of the end of a gang that began then (`time.time()`), with the workers of this machine that are no
    more. Their processes are looked for, so it has to be asked before the others are told to leave."""
    if error is None:
        return None
    here = socket.gethostname()
    lost = [text for m in members if m.host == here and (text := _lost(m, graph, began)) is not None]
    more = f", and {len(lost) - _MOST} more" if len(lost) > _MOST else ""
    return f"{error}: {'; '.join(lost[:_MOST])}{more}" if lost else error


def _lost(member: Member, graph: JobGraph, began: float) -> str | None:
    ended = how_it_ended(member.pid, began)
    if ended is None:
        if _alive(member.pid):
            return None
        ended = "is gone"
    names = [f"'{graph.vertices[vertex].name}'" for vertex, _ in graph.tasks_of_slot(member.slot)]
    shown = ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
    return f"the {member.describe()} {ended}; it ran {shown}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
