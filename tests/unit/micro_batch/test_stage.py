"""What Spark's operator hands to the task of a micro-batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.micro_batch.engine import Engine
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.micro_batch import stage
from tidegate.spark.micro_batch import task as task_module
from tidegate.spark.micro_batch.ticks import TICK


def test_a_task_that_spark_tries_again_is_of_the_same_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the next query is not taken before, and each try has an id that no other has, of any query."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    plan = Engine.collecting(env.from_collection([1])).plan
    seen: list[tuple[int, str]] = []

    class Task:
        def __init__(self, *args: Any) -> None:
            seen.append(args[5:7])

        def run(self, payloads: Any) -> Any:
            return iter(())

    monkeypatch.setattr(task_module, "MicroBatchTask", Task)
    monkeypatch.setattr(stage, "install", lambda bundle: None)
    monkeypatch.setattr(stage, "load_plan", lambda pickled, what: plan)
    for query, again, number in ((3, 0, 10), (3, 1, 11), (4, 0, 10)):
        context = SimpleNamespace(attemptNumber=lambda again=again: again, taskAttemptId=lambda number=number: number)
        monkeypatch.setattr("pyspark.TaskContext.get", lambda context=context: context)
        processor = stage.StageProcessor(CodeBundle.collect(()), b"", 0, {1: 0}, None, query)  # type: ignore[arg-type]
        processor._own = processor._buckets = None
        order = TICK + b'{"batch": 0, "time_ms": 0}'
        list(processor._run(0, iter([SimpleNamespace(payload=order)])))  # type: ignore[list-item]
    assert [attempt for attempt, _ in seen] == [3, 3, 4]
    assert len({name for _, name in seen}) == 3
