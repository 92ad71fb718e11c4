"""Lines of logs: what a worker says of each, how they look, and which levels hold.

Workers log through Python's `logging`. Each line carries the job, the operator and the subtask that it came from; on
its way to the driver it is a `LogLine`, which there becomes a record of `logging` again, so that the program's own
handlers show it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.texts import bounded, encodable

MAX_TEXT = 16_000  # characters of a message, and of a traceback
_MAX_LOGGERS = 500  # whose levels are taken over from the program
ROOT = "root"
_FIELDS = ("job", "job_id", "operator", "subtask", "attempt", "host", "pid")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line came from."""

    job: str
    job_id: str
    operator: str = ""  # "": of no operator
    subtask: int | None = None
    attempt: int = 0
    host: str = ""
    pid: int = 0

    def __str__(self) -> str:
        if not self.operator:
            return f"[{self.job}]"
        return f"[{self.job} | {self.operator} (subtask {self.subtask})]"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    logger: str
    level: int
    text: str
    created: float  # seconds since the epoch
    place: Place
    story: str = ""  # the traceback of an exception
    path: str = ""
    line: int = 0
    function: str = ""
    thread: str = ""

    @staticmethod
    def of(record: logging.LogRecord, place: Place) -> LogLine:
        """Never raises: arguments that do not fit the message are part of the text."""
        try:
            text = record.getMessage()
        except Exception as error:
            text = f"{record.msg} {record.args!r} ({type(error).__name__}: {error})"
        story = record.exc_text or ""
        if record.exc_info and not story:
            story = logging.Formatter().formatException(record.exc_info)
        return LogLine(
            logger=encodable(record.name),
            level=record.levelno,
            text=bounded(encodable(text), MAX_TEXT),
            created=record.created,
            place=place,
            story=bounded(encodable(story), MAX_TEXT),
            path=encodable(record.pathname),
            line=record.lineno,
            function=encodable(record.funcName or ""),
            thread=encodable(record.threadName or ""),
        )

    def to_record(self) -> logging.LogRecord:
        """`message` begins with the place; `plain` has it without, and the parts of the place are attributes."""
        return logging.makeLogRecord(
            {
                "name": self.logger,
                "levelno": self.level,
                "levelname": logging.getLevelName(self.level),
                "msg": f"{self.place} {self.text}",
                "plain": self.text,
                "created": self.created,
                "msecs": (self.created % 1) * 1000,
                "exc_text": self.story or None,
                "pathname": self.path,
                "filename": self.path.rpartition("/")[2],
                "lineno": self.line,
                "funcName": self.function,
                "threadName": self.thread,
                **{name: getattr(self.place, name) for name in _FIELDS},
            }
        )


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")


class JsonFormatter(logging.Formatter):
    """A JSON object per line. May be used by a program's own handlers too."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": encodable(str(record.__dict__.get("plain") or record.getMessage())),
            "thread": record.threadName,
            "at": f"{record.filename}:{record.lineno}",
        }
        line |= {name: record.__dict__[name] for name in _FIELDS if record.__dict__.get(name) not in (None, "")}
        story = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else "")
        if story:
            line["exception"] = encodable(story)
        return json.dumps(line, ensure_ascii=False)


@dataclass(frozen=True)
class LogSettings:
    levels: dict[str, int] = field(default_factory=dict)  # by name of the logger, "root" for that of all
    as_json: bool = False
    given: bool = False  # by the configuration: then the driver follows it too

    @staticmethod
    def from_configuration(configuration: Configuration) -> LogSettings:
        """Levels that are not given are those of this program. Raises ConfigurationError."""
        chosen = {
            name or ROOT: _level(name, level) for name, level in options.read(configuration, options.LOG_LEVEL).items()
        }
        as_json = options.read(configuration, options.LOG_FORMAT) == "json"
        given = configuration.contains(options.LOG_LEVEL) or configuration.contains(options.LOG_FORMAT)
        return LogSettings({**_levels_here(), **chosen}, as_json, given)

    @property
    def formatter(self) -> logging.Formatter:
        return JsonFormatter() if self.as_json else TextFormatter()

    def apply_to_driver(self) -> None:
        """The levels hold here too, and a program that has set up no logging of its own gets lines on its standard
        error. Nothing when the configuration does not speak of logs: they are the program's business."""
        if not self.given:
            return
        for name, level in self.levels.items():
            _logger(name).setLevel(level)
        if not logging.root.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(self.formatter)
            logging.root.addHandler(handler)


def show_line(line: LogLine) -> None:
    """Hands it to the loggers of this process, whose levels and handlers decide."""
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        logger.handle(line.to_record())


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _levels_here() -> dict[str, int]:
    levels = {ROOT: logging.root.level}
    for name, logger in list(logging.root.manager.loggerDict.items())[:_MAX_LOGGERS]:
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            levels[name] = logger.level
    return levels


def _level(name: str, given: str) -> int:
    level = logging.getLevelNamesMapping().get(given.strip().upper())
    if level is None:
        known = ", ".join(n for n in logging.getLevelNamesMapping() if n not in ("NOTSET", "WARN", "FATAL"))
        raise ConfigurationError(
            f"{options.LOG_LEVEL.key}: '{given}' of logger '{name or ROOT}' is no level; there are {known}"
        )
    return level
