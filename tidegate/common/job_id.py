"""JobID: the name of one run of a job."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from tidegate.common.errors import ConfigurationError

_HEX = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, order=True, slots=True)
class JobID:
    """The id of a job: 32 hex digits, which `str()` gives."""

    hex: str

    def __post_init__(self) -> None:
        if not isinstance(self.hex, str) or not _HEX.fullmatch(self.hex):
            raise ConfigurationError(f"A job id is 32 hex digits in lower case, got {self.hex!r}.")

    @staticmethod
    def generate() -> JobID:
        return JobID(uuid.uuid4().hex)

    @staticmethod
    def from_hex(text: str) -> JobID:
        return JobID(text.strip().lower())

    def __str__(self) -> str:
        return self.hex
