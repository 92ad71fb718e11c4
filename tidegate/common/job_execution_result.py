"""JobExecutionResult: what is known of a job that has finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.common.job_id import JobID


class JobExecutionResult:
    """The result of a finished job."""

    def __init__(self, job_id: JobID, net_runtime_ms: int, accumulators: Mapping[str, Any] | None = None) -> None:
        self._job_id = job_id
        self._net_runtime_ms = net_runtime_ms
        self._accumulators = dict(accumulators or {})

    def get_job_id(self) -> JobID:
        return self._job_id

    def is_job_execution_result(self) -> bool:
        return True

    def get_net_runtime(self) -> int:
        """Milliseconds from the submission to the end, restarts included."""
        return self._net_runtime_ms

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """The value of one accumulator, None when the job had none of that name."""
        return self._accumulators.get(accumulator_name)

    def get_all_accumulator_results(self) -> dict[str, Any]:
        return dict(self._accumulators)

    def __repr__(self) -> str:
        return f"JobExecutionResult(job_id={self._job_id}, net_runtime={self._net_runtime_ms} ms)"

    def __str__(self) -> str:
        lines = [f"Job {self._job_id} finished after {self._net_runtime_ms} ms."]
        lines += [f"- {name}: {value}" for name, value in sorted(self._accumulators.items())]
        return "\n".join(lines)
