"""Names of side outputs."""

from __future__ import annotations

from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.typeinfo import TypeInformation, Types


class OutputTag:
    """Names one side output of a process function, which emits to it by `yield tag, value`.

    Two tags are equal when their ids are equal, so a tag that was pickled to a worker is still the user's tag.
    """

    __slots__ = ("tag_id", "type_info")

    in_use = False  # class-wide: some tag was made in this process, so results have to be looked at for tags

    def __init__(self, tag_id: str, type_info: Any = None) -> None:
        if not isinstance(tag_id, str):
            raise TypeError(f"OutputTag(tag_id): the id has to be a string, got {type(tag_id).__name__}")
        if not tag_id:
            raise ConfigurationError("OutputTag(tag_id): the id is empty; give every side output a name of its own")
        self.tag_id = tag_id
        if isinstance(type_info, list):  # PyFlink takes a list of types for a row
            type_info = Types.ROW(type_info)
        if type_info is not None and not isinstance(type_info, TypeInformation):
            raise TypeError(f"OutputTag(type_info): expected a type such as Types.STRING(), got {type_info!r}")
        self.type_info = type_info
        OutputTag.in_use = True

    def __reduce__(self) -> tuple[type[OutputTag], tuple[str, Any]]:
        return OutputTag, (self.tag_id, self.type_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and self.tag_id == other.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r}{'' if self.type_info is None else f', {self.type_info}'})"
