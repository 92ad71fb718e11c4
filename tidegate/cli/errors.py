"""A command that cannot be carried out: the sentence for the user. The exit code is 1."""

from __future__ import annotations

from tidegate.common.errors import TidegateError


class CommandError(TidegateError):
    pass
