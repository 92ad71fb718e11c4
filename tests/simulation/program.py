"""A simulated job's program, which can be submitted again at another parallelism."""

from __future__ import annotations

from tidegate.datastream import StreamExecutionEnvironment
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph, PartitionKind
from tidegate.graph.splits import make_splits
from tidegate.graph.stream_graph import _producers


class Program:
    """`graph` makes what a submission makes: chains and edges follow from the parallelism of the operators."""

    def __init__(self, env: StreamExecutionEnvironment) -> None:
        self._operators = list(env._operators)
        self._settings = env._graph_settings()
        # A copy for each subtask: how many there are of a record depends on when it is sent. These stay as they are.
        self.fixed = frozenset(
            index
            for index, operator in enumerate(self._operators)
            for input_ in operator.inputs
            for _, _, partition in _producers(input_)
            if partition is not None and partition.kind is PartitionKind.BROADCAST
        )

    def name_operators(self) -> None:
        """A uid for each: its state is found again, whatever becomes of the chains."""
        for index, operator in enumerate(self._operators):
            operator.uid = f"op-{index}"

    @property
    def widths(self) -> list[int]:
        """The parallelism of each operator."""
        return [operator.parallelism or 1 for operator in self._operators]

    def graph(self, widths: list[int] | None = None) -> JobGraph:
        for operator, width in zip(self._operators, widths or self.widths, strict=True):
            operator.parallelism = width
        return make_splits(build_job_graph(self._operators, self._settings, "simulated", "0" * 32).job_graph)
