"""How the query is started: what belongs to the whole Spark application is given back as it was."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.spark.micro_batch.query import _no_broadcast

THRESHOLD = "spark.broadcast.UDFCompressionThreshold"


class Conf(dict[str, str]):
    def set(self, key: str, value: str) -> None:
        self[key] = value


def session_with(conf: Conf) -> Any:
    return SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(conf=lambda: conf)))
    )


def test_two_jobs_that_start_together_leave_the_threshold_as_it_was() -> None:
    """Whoever enters second finds the value of the first, and must not keep it."""
    conf = Conf({THRESHOLD: "3m"})
    second_is_in, first_is_out = threading.Event(), threading.Event()
    seen: list[str] = []

    def second() -> None:
        with _no_broadcast(session_with(conf)):
            second_is_in.set()
            first_is_out.wait(60)
            seen.append(conf[THRESHOLD])

    thread = threading.Thread(target=second)
    with _no_broadcast(session_with(conf)):
        thread.start()
        second_is_in.wait(60)
    first_is_out.set()
    thread.join(60)
    assert seen == [f"{(1 << 31) - 1}b"]  # it was still inside
    assert conf == {THRESHOLD: "3m"}


def test_a_start_that_fails_gives_it_back_too() -> None:
    conf = Conf()
    with pytest.raises(OSError), _no_broadcast(session_with(conf)):
        raise OSError
    assert conf == {THRESHOLD: "1m"}
