"""The closed lists of reasons hold nothing that nobody gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tidegate
from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason, Tolerance
from tidegate.fault_tolerance.recovery_points import Refusal
from tidegate.jobmanager.collect_ledger import ChunkVerdict
from tidegate.jobmanager.gang import Admission
from tidegate.protocol.messages import DeclineReason

SOURCES = {path: path.read_text() for path in Path(tidegate.__file__).parent.rglob("*.py")}
LISTS = [CheckpointFailureReason, DeclineReason, Tolerance, Refusal, ChunkVerdict, Admission]
REASONS = [reason for kind in LISTS for reason in kind]


@pytest.mark.parametrize("reason", REASONS, ids=str)
def test_every_reason_is_given_somewhere(reason: DeclineReason) -> None:
    name = rf"\b(?:{type(reason).__name__}|cls)\.{reason.name}\b"
    read_only = re.compile(rf"(?:case|is|is not|==|in) \(?(?:{name})")
    uses = sum(len(re.findall(name, text)) - len(read_only.findall(text)) for text in SOURCES.values())
    assert uses > 0, f"{reason} is in the list, and nobody gives it"
