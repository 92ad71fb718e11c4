"""What the API builds: a graph of transformations, later turned into a `JobGraph` by `graph.chaining`.

Operators (source, one input, two inputs, sink) become nodes of the job. Union, partition and side output are virtual:
they only say how records get from one operator to another. A transformation refers to its inputs, never to its
consumers; the environment keeps the list of all operators in the order in which the program made them.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.graph.job_graph import PartitionSpec
from tidegate.graph.operator_specs import OperatorSpec

DEFAULT_SLOT_SHARING_GROUP = "default"

_ids = itertools.count(1)


class ChainingStrategy(enum.Enum):
    """Whether an operator may run in one task with the operators around it."""

    ALWAYS = "always"  # with the one before and those after
    HEAD = "head"  # starts a chain: only with those after
    NEVER = "never"  # with none


@dataclass(frozen=True)
class SettingsAtCreation:
    """What the environment said when the program made an operator. None: nothing by then, so what it says when the job
    is submitted counts. A later change of the environment concerns later operators."""

    parallelism: int | None = None
    max_parallelism: int | None = None
    buffer_timeout_ms: int | None = None
    chaining: bool | None = None


class Transformation:
    """Base of all. The settings are changed by the API until the job is submitted."""

    def __init__(self, name: str, inputs: Sequence[Transformation], output_type: Any = None) -> None:
        self.id = next(_ids)  # unique in the process; not part of any operator id
        self.name = name
        self.inputs = tuple(inputs)
        self.output_type = output_type  # declared TypeInformation of the main output, None when undeclared
        self.uid: str | None = None
        self.uid_hash: str | None = None
        self.description: str | None = None
        self.parallelism: int | None = None  # None: the environment's
        self.max_parallelism: int | None = None  # None: the environment's, or derived from the parallelism
        self.parallelism_fixed = False  # True: force_non_parallel or a source that cannot be parallel
        self.chaining_strategy = ChainingStrategy.ALWAYS
        self.slot_sharing_group: str | None = None  # None: inherited from the inputs
        self.buffer_timeout_ms: int | None = None  # None: the environment's
        self.created_under = SettingsAtCreation()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, {self.name!r})"


class OperatorTransformation(Transformation):
    """Base of the transformations that become operators and run user code."""

    def __init__(
        self, name: str, spec: OperatorSpec, inputs: Sequence[Transformation] = (), output_type: Any = None
    ) -> None:
        super().__init__(name, inputs, output_type)
        self.spec = spec
        self.converts_output = False  # True: the user declared `output_type` here, so records are converted to it
        self.key_type: Any = None  # declared TypeInformation of the key, None when undeclared
        self.key_selectors: tuple[Any, ...] = ()  # one per input for keyed operators: callable(value) -> key
        self.side_output_types: dict[str, Any] = {}  # tag_id -> TypeInformation or None, for each tag asked for


class SourceTransformation(OperatorTransformation):
    """An operator without input: a source."""


class OneInputTransformation(OperatorTransformation):
    """An operator with one input and one main output."""


class TwoInputTransformation(OperatorTransformation):
    """`inputs[0]` and `inputs[1]`. Always the head of its chain."""


class SinkTransformation(OperatorTransformation):
    """An operator with one input and no output: a sink."""


class UnionTransformation(Transformation):
    """The records of all inputs as one stream."""

    def __init__(self, inputs: Sequence[Transformation]) -> None:
        super().__init__("Union", inputs, inputs[0].output_type)


class PartitionTransformation(Transformation):
    """Says how the records of the input reach the next operator."""

    def __init__(self, input_: Transformation, partition: PartitionSpec) -> None:
        super().__init__("Partition", (input_,), input_.output_type)
        self.partition = partition


class SideOutputTransformation(Transformation):
    """The records that the input emits with one tag."""

    def __init__(self, input_: Transformation, tag_id: str, output_type: Any = None) -> None:
        super().__init__("SideOutput", (input_,), output_type)
        self.tag_id = tag_id
