"""Which subtask of which job, in which attempt."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.common.ids import AttemptNumber, SubtaskIndex
from tidegate.graph.job_graph import JobVertex


@dataclass(frozen=True)
class TaskPlace:
    job_id: str
    vertex: JobVertex
    subtask: SubtaskIndex
    attempt: AttemptNumber

    @property
    def name(self) -> str:
        """As users read it, for example "map (1/4)"."""
        return f"{self.vertex.name} ({self.subtask + 1}/{self.vertex.parallelism})"
