"""What becomes of a line that a format cannot read: it fails the job, is left out, or becomes a record of its own
(`tidegate.datastream.formats.malformed` shows how a program parts the two)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.value_conversion import shorten


class OnMalformed(enum.Enum):
    FAIL = "fail"  # with file and line number; the default
    SKIP = "skip"
    SIDE_OUTPUT = "side output"  # as a MalformedLine among the records


@dataclass(frozen=True)
class MalformedLine:
    path: str
    line_number: int  # from 1; of a record of several lines, the first
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line_number}: {self.reason}: {shorten(self.text)}"


class MalformedLineError(TidegateError):
    """A line cannot be read; the message has file and line number."""

    def __init__(self, line: MalformedLine) -> None:
        super().__init__(
            f"{line}. Correct the file, or have the format leave such lines out or set them apart: "
            "on_malformed(OnMalformed.SKIP) or on_malformed(OnMalformed.SIDE_OUTPUT)."
        )
        self.line = line

    def __reduce__(self) -> tuple[Any, ...]:
        return MalformedLineError, (self.line,)


def checked_action(action: object) -> OnMalformed:
    if not isinstance(action, OnMalformed):
        names = ", ".join(f"OnMalformed.{member.name}" for member in OnMalformed)
        raise ConfigurationError(f"on_malformed: takes one of {names}, got {action!r}")
    return action
