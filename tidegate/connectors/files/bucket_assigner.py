"""Which folder below the base path of a file sink a record goes to."""

from __future__ import annotations

import abc
import datetime
import re
import zoneinfo
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError


@dataclass
class BucketContext:
    """Beside the record: its timestamp, and the worker's clock. In ms since the epoch."""

    current_processing_time: int
    timestamp: int | None


class BucketAssigner(abc.ABC):
    """Subclass it for an assigner of your own; an instance is pickled to the workers.

    A bucket id is a relative path ('' for the base path itself, 'year=2026/month=11', ...). No part of it may begin
    with '.' or '_': readers leave such names out."""

    @abc.abstractmethod
    def get_bucket_id(self, element: Any, context: BucketContext) -> str: ...

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """No buckets: all files lie in the base path itself."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """A folder by the time at which a record is written, in a pattern as Java has them (yyyy MM dd HH mm ss,
        'text'). The time zone is that of the worker when none is given."""
        return DateTimeBucketAssigner(format_str, timezone_id)


class BasePathBucketAssigner(BucketAssigner):
    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        return ""


class DateTimeBucketAssigner(BucketAssigner):
    def __init__(self, format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> None:
        self.format_str = format_str
        self.timezone_id = timezone_id
        self._pattern = _python_pattern(format_str)
        if timezone_id is not None:
            _zone(timezone_id)
        self._cached: tuple[int, str] | None = None  # (second, bucket)
        check_bucket_id(self._format(0), f"date_time_bucket_assigner({format_str!r})")

    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        second = context.current_processing_time // 1000
        cached = self._cached
        if cached is None or cached[0] != second:
            self._cached = cached = (second, self._format(second))
        return cached[1]

    def _format(self, second: int) -> str:
        zone = None if self.timezone_id is None else _zone(self.timezone_id)
        moment = datetime.datetime.fromtimestamp(second, datetime.UTC).astimezone(zone)
        return moment.strftime(self._pattern)


_JAVA_FIELDS = {
    "yyyy": "%Y",
    "uuuu": "%Y",
    "yy": "%y",
    "MM": "%m",
    "MMM": "%b",
    "dd": "%d",
    "DDD": "%j",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "a": "%p",
    "EEE": "%a",
}
_JAVA_TOKEN = re.compile(r"'((?:[^']|'')*)'|([a-zA-Z])\2*|[^a-zA-Z']+")


def _python_pattern(pattern: str) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise ConfigurationError(f"date_time_bucket_assigner(format_str): has to be a pattern, got {pattern!r}")
    out, position = [], 0
    for match in _JAVA_TOKEN.finditer(pattern):
        if match.start() != position:
            break
        position = match.end()
        text = match.group()
        if text.startswith("'"):
            literal = match.group(1).replace("''", "'") if len(text) > 2 else "'"
            out.append(literal.replace("%", "%%"))
        elif match.group(2):
            if text not in _JAVA_FIELDS:
                known = ", ".join(_JAVA_FIELDS)
                raise ConfigurationError(
                    f"date_time_bucket_assigner: '{text}' in the pattern {pattern!r} is not supported; known are "
                    f"{known}; text goes in single quotes"
                )
            out.append(_JAVA_FIELDS[text])
        else:
            out.append(text.replace("%", "%%"))
    if position != len(pattern):
        raise ConfigurationError(f"date_time_bucket_assigner: a quote is not closed in the pattern {pattern!r}")
    return "".join(out)


def _zone(timezone_id: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(timezone_id)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"date_time_bucket_assigner(timezone_id): unknown time zone {timezone_id!r}; use a name such as "
            "'Europe/Paris'"
        ) from error


def check_bucket_id(bucket_id: object, who: str) -> str:
    """The bucket id as it is, when it is one."""
    if not isinstance(bucket_id, str):
        raise ConfigurationError(f"{who}: a bucket id has to be a string, got {bucket_id!r}")
    if bucket_id == "":
        return bucket_id
    for part in bucket_id.split("/"):
        if part == "" or part[0] in "._" or "\0" in part:
            raise ConfigurationError(
                f"{who}: {bucket_id!r} is not a bucket id: it has to be a relative path whose parts do not begin with "
                "'.' or '_'"
            )
    return bucket_id
