"""Each method of the DataStream API stands in at least one test that runs on real Spark."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Systems that have an issue of their own, and what the engine calls and no program does (its tests are exact ones:
# tests/unit/windows, tests/unit/datastream).
ELSEWHERE = {"datastream.connectors.kafka", "datastream.connectors.jdbc"}
CALLED_BY_THE_ENGINE = {
    *("assign_windows", "can_merge", "deserialize", "get_default_trigger", "get_window_serializer", "is_event_time"),
    *("is_fire", "is_purge", "merge_windows", "on_element", "on_event_time", "on_merge", "on_processing_time"),
    *("register_next_fire_timestamp", "serialize", "generate_op_desc", "generate_op_name", "max_timestamp"),
    *("can_retry", "get_backoff_time_millis", "get_retry_predicate", "exception_predicate", "result_predicate"),
    *("get_window_start_with_offset", "intersects", "cover"),
}


def wanted() -> set[str]:
    found: set[str] = set()
    section = ""
    for line in (ROOT / "scripts" / "pyflink_names.txt").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif ":" in line and section.startswith("datastream") and section not in ELSEWHERE:
            found.update(name.strip() for name in line.split(":", 1)[1].split(",") if name.strip())
    return found - CALLED_BY_THE_ENGINE


def test_each_method_is_in_a_test_on_spark() -> None:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "tests" / "spark").rglob("*.py")))
    used = set(re.findall(r"\w+", text))
    missing = sorted(wanted() - used)
    assert not missing, f"no test under tests/spark uses {', '.join(missing)}"
