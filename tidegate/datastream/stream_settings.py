"""The settings that every operator has: what DataStream and DataStreamSink share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tidegate.common.errors import ConfigurationError
from tidegate.datastream.arguments import checked_int, checked_text
from tidegate.datastream.slot_sharing_group import SlotSharingGroup
from tidegate.graph.operator_ids import is_uid_hash
from tidegate.graph.stream_graph import UPPER_MAX_PARALLELISM
from tidegate.graph.transformations import ChainingStrategy, OperatorTransformation, Transformation

if TYPE_CHECKING:
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment


class OperatorSettings:
    """Setters change the operator that made this stream (or this sink) and return the stream itself."""

    def __init__(self, environment: StreamExecutionEnvironment, transformation: Transformation) -> None:
        self._environment = environment
        self._transformation = transformation

    def name(self, name: str) -> Self:
        """The name in logs, errors and on the page. Not part of the operator's identity: that is the uid."""
        self._operator("name").name = checked_text("name", name, "the name")
        return self

    def get_name(self) -> str:
        return self._transformation.name

    def uid(self, uid: str) -> Self:
        """Names the operator's state: a checkpoint or savepoint finds it again by this, also when the program changed.
        Unique within a job."""
        operator = self._operator("uid")
        operator.uid = checked_text("uid", uid, "the uid")
        return self

    def set_uid_hash(self, uid_hash: str) -> Self:
        """The operator id itself, as an earlier job reported it: for operators that had no uid then."""
        operator = self._operator("set_uid_hash")
        text = checked_text("set_uid_hash", uid_hash, "the hash").lower()
        if not is_uid_hash(text):
            raise ConfigurationError(f"set_uid_hash: the hash has to be 32 hex digits, got '{uid_hash}'")
        operator.uid_hash = text
        return self

    def set_description(self, description: str) -> Self:
        """A longer text for the execution plan."""
        self._operator("set_description").description = checked_text("set_description", description, "the description")
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        operator = self._operator("set_parallelism")
        checked_int("set_parallelism", parallelism, 1, "the parallelism")
        if operator.parallelism_fixed and parallelism != 1:
            raise ConfigurationError(
                f"set_parallelism: '{operator.name}' cannot run in parallel (it is a collection, or "
                f"force_non_parallel() was called), got {parallelism}"
            )
        operator.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """The number of key groups: the most subtasks that this operator can ever be rescaled to."""
        operator = self._operator("set_max_parallelism")
        checked_int("set_max_parallelism", max_parallelism, 1, "the max parallelism")
        if max_parallelism > UPPER_MAX_PARALLELISM:
            raise ConfigurationError(
                f"set_max_parallelism: the max parallelism is at most {UPPER_MAX_PARALLELISM}, got {max_parallelism}"
            )
        operator.max_parallelism = max_parallelism
        return self

    def disable_chaining(self) -> Self:
        """Run the operator in a task of its own."""
        self._operator("disable_chaining").chaining_strategy = ChainingStrategy.NEVER
        return self

    def slot_sharing_group(self, slot_sharing_group: str | SlotSharingGroup) -> Self:
        """Operators of different groups never share a slot. Consumers inherit the group."""
        operator = self._operator("slot_sharing_group")
        if isinstance(slot_sharing_group, SlotSharingGroup):
            self._environment.register_slot_sharing_group(slot_sharing_group)
            slot_sharing_group = slot_sharing_group.get_name()
        operator.slot_sharing_group = checked_text("slot_sharing_group", slot_sharing_group, "the group")
        return self

    def _operator(self, method: str) -> OperatorTransformation:
        if isinstance(self._transformation, OperatorTransformation):
            return self._transformation
        raise ConfigurationError(
            f"{method}: this stream comes from key_by, union, get_side_output or a partitioning such as rebalance, "
            f"which is not an operator and has no settings; call {method}() on the stream before it, or after the next "
            "operator"
        )


def missing_attribute(stream: OperatorSettings, name: str) -> AttributeError:
    """The error for a method that the stream lacks, with advice when a keyed stream has it."""
    from tidegate.datastream.keyed_stream import KeyedStream

    hint = ""
    if not name.startswith("_") and hasattr(KeyedStream, name):
        hint = f": {name}() is one of a KeyedStream; call key_by() first"
        if hasattr(KeyedStream, f"{name}_all"):
            hint += f", or use {name}_all()"
    return AttributeError(f"'{type(stream).__name__}' object has no attribute '{name}'{hint}")
