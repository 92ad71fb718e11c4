"""A sink that prints its records."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.types import flink_text
from tidegate.contracts.connectors import Sink, SinkContext, SinkWriter

log = logging.getLogger("tidegate.print")

Target = Callable[[str, bool], None]
"""Takes whole lines, and whether they are for standard error."""


def own_streams(text: str, to_stderr: bool) -> None:
    """The standard streams of this process."""
    stream = sys.stderr if to_stderr else sys.stdout
    stream.write(text)  # one write, so that lines of several workers on the same terminal do not mix within a line
    stream.flush()


def print_here(text: str, to_stderr: bool) -> None:
    """On the driver, what workers have printed. A stream that is closed, or whose encoding lacks a character, is no
    reason for a job to fail."""
    try:
        own_streams(text, to_stderr)
    except Exception as error:
        log.debug("what a job has printed could not be written: %s", error)


_target: Target = own_streams


def print_to(target: Target) -> None:
    """From now on what is printed in this process goes there."""
    global _target
    _target = target


class PrintSink(Sink[Any, None]):
    """One line per record on the standard output (or error) of the program, or else of the worker (docs/connectors.md).

    A line begins with `identifier:subtask> `; the identifier when one was given, the subtask (from 1) when there are
    several. After a recovery, records since the last checkpoint are printed again.
    """

    def __init__(self, sink_identifier: str | None = None, to_stderr: bool = False) -> None:
        if sink_identifier is not None and not isinstance(sink_identifier, str):
            raise TypeError(f"PrintSink(sink_identifier): expected a string, got {type(sink_identifier).__name__}")
        if sink_identifier == "":
            raise ConfigurationError("PrintSink(sink_identifier): the identifier is empty; leave it out instead")
        self._sink_identifier = sink_identifier
        self._to_stderr = to_stderr
        self._text: Callable[[Any], str] = str

    def for_declared_type(self) -> PrintSink:
        sink = copy.copy(self)
        sink._text = flink_text
        return sink

    def create_writer(self, context: SinkContext) -> PrintWriter:
        parts = [] if self._sink_identifier is None else [self._sink_identifier]
        if context.parallelism > 1:
            parts.append(str(context.subtask + 1))
        return PrintWriter(":".join(parts) + "> " if parts else "", self._to_stderr, self._text)

    def __repr__(self) -> str:
        return "PrintSink()" if self._sink_identifier is None else f"PrintSink({self._sink_identifier!r})"


class PrintWriter(SinkWriter[Any, None]):
    """A batch is one write."""

    def __init__(self, prefix: str, to_stderr: bool, text: Callable[[Any], str] = str) -> None:
        self._prefix = prefix
        self._text = text
        self._to_stderr = to_stderr

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not values:
            return
        prefix, text = self._prefix, self._text
        _target("".join([f"{prefix}{text(value)}\n" for value in values]), self._to_stderr)
