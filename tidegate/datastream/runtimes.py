"""Which runtime runs a job: the one place that knows them, by name, and that decides what AUTOMATIC means."""

from __future__ import annotations

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.datastream.execution_mode import RuntimeExecutionMode
from tidegate.datastream.spark_bridge import spark_module
from tidegate.graph.boundedness import unbounded_sources
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.runtime import Runtime

_RUNTIMES = {  # mode -> module below tidegate.spark, and the class in it
    RuntimeExecutionMode.STREAMING: ("streaming.runtime", "StreamingRuntime"),
    RuntimeExecutionMode.BATCH: ("batch.runtime", "BatchRuntime"),
    RuntimeExecutionMode.MICRO_BATCH: ("micro_batch.runtime", "MicroBatchRuntime"),
}


def runtime_of(configuration: Configuration, graph: JobGraph) -> Runtime:
    """The runtime of the configured mode. AUTOMATIC: BATCH for a job whose sources all end, otherwise STREAMING."""
    mode = checked_mode(options.read(configuration, options.RUNTIME_MODE))
    if mode is RuntimeExecutionMode.AUTOMATIC:
        mode = RuntimeExecutionMode.STREAMING if unbounded_sources(graph) else RuntimeExecutionMode.BATCH
    module, name = _RUNTIMES[mode]
    runtime: Runtime = getattr(spark_module(module), name)()
    return runtime


def checked_mode(name: str) -> RuntimeExecutionMode:
    mode = RuntimeExecutionMode.__members__.get(name)
    if mode is None:
        raise ConfigurationError(
            f"the runtime mode {name} is not available yet: set execution.runtime-mode to one of "
            f"{', '.join(RuntimeExecutionMode.__members__)}"
        )
    return mode
