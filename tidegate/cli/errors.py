"""A command that cannot be carried out: the sentence for the user, and the exit code."""

from __future__ import annotations

from typing import ClassVar

from tidegate.common.errors import TidegateError


class CommandError(TidegateError):
    exit_code: ClassVar[int] = 1


class EndedForGoodError(CommandError):
    """`tidegate run`: to start the program again would do nothing."""

    exit_code = 3
