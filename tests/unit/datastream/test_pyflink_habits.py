"""Things that programs for PyFlink do, or that people coming from it try."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Configuration, Row, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import Encoder
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import (
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    BroadcastConnectedStream,
    BroadcastStream,
    CheckpointingMode,
    StreamExecutionEnvironment,
    async_retry_predicates,
)
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink
from tidegate.datastream.functions import TimerService
from tidegate.datastream.state import MapStateDescriptor
from tidegate.testing.in_process_job import InProcessJob


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def test_an_interval_without_a_mode_keeps_the_configured_mode() -> None:
    keys = Configuration.from_dict({"execution.checkpointing.mode": "AT_LEAST_ONCE"})
    env = StreamExecutionEnvironment.get_execution_environment(keys)
    assert env.enable_checkpointing(100).get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    env.enable_checkpointing(100, CheckpointingMode.EXACTLY_ONCE)
    assert env.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE


def test_retry_predicates() -> None:
    only_time_outs = functools.partial(
        async_retry_predicates.exception_type_predicate, expected_error_type=TimeoutError
    )
    assert only_time_outs(TimeoutError())
    assert not only_time_outs(ValueError())
    assert async_retry_predicates.has_exception_predicate(ValueError())
    assert not async_retry_predicates.has_exception_predicate(None)
    assert [async_retry_predicates.empty_result_predicate(r) for r in (None, [], [0])] == [True, True, False]
    predicate = AsyncRetryStrategy.fixed_delay(1, 1, exception_predicate=only_time_outs).get_retry_predicate()
    assert isinstance(predicate, AsyncRetryPredicate)


def test_streams_are_exported_where_pyflink_has_them(env: StreamExecutionEnvironment) -> None:
    rules = env.from_collection([1]).broadcast(MapStateDescriptor("rules", Types.INT(), Types.INT()))
    assert isinstance(rules, BroadcastStream)
    assert isinstance(env.from_collection([1]).connect(rules), BroadcastConnectedStream)
    assert TimerService is importlib.import_module("tidegate.datastream.timerservice").TimerService


class Stamps(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.window, AttributeError, r"'window': .*call key_by\(\) first, or use window_all\(\)"),
        (lambda s: s.reduce, AttributeError, r"'reduce': .*call key_by\(\) first$"),
        (lambda s: s.flatmap, AttributeError, "no attribute 'flatmap'$"),
        (lambda s: s.key_by("word"), TypeError, r"got str: 'word'; .* write lambda record: record\['word'\]"),
        (lambda s: s.key_by(0), TypeError, r"got int: 0; .* write lambda record: record\[0\]"),
        (lambda s: s.map(str, output_type=str), TypeError, r"for str use Types.STRING\(\)"),
        (
            lambda s: WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamps),
            ConfigurationError,
            r"got the class Stamps itself; pass an instance: Stamps\(\)",
        ),
    ],
)
def test_mistakes_come_with_advice(
    env: StreamExecutionEnvironment, call: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(env.from_collection([1]))


@pytest.mark.parametrize(
    ("declared", "value", "text"),
    [
        (Types.TUPLE([Types.STRING(), Types.INT()]), ("a", 1), "(a,1)"),
        (Types.TUPLE([Types.LIST(Types.INT()), Types.BOOLEAN()]), ([1, 2], None), "([1, 2],null)"),
        (Types.MAP(Types.STRING(), Types.INT()), {"a": 1}, "{a=1}"),
        (Types.BOOLEAN(), True, "true"),
        (Types.ROW([Types.STRING(), Types.TUPLE([Types.INT()])]), Row("a", (1,)), "+I[a, (1)]"),
        (Types.ROW([Types.PRIMITIVE_ARRAY(Types.BYTE())]), Row(b"flink\xff"), "+I[[102, 108, 105, 110, 107, -1]]"),
        (Types.ROW([Types.SQL_TIME()]), Row(time(12, 0, 0, 123000)), "+I[12:00:00.123]"),
        (Types.ROW([Types.SQL_TIME()]), Row(time(12, 0)), "+I[12:00:00]"),
        (None, ("a", 1), "('a', 1)"),
    ],
)
def test_a_declared_type_is_written_as_flink_writes_it(
    declared: Any, value: Any, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = environment({}, 1)
    stream = env.from_collection([value], declared)
    sink = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
    stream.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    stream.print()
    with InProcessJob(env) as job:
        job.run_to_end()
    [file] = [p for p in tmp_path.iterdir() if p.is_file()]
    assert file.read_text() == f"{text}\n"
    assert text in capsys.readouterr().out.splitlines()


def test_a_keyed_stream_is_collected_with_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment({}, 2)
    keyed = env.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(lambda r: r[0].upper(), Types.STRING())

    class Client:
        def __init__(self, name: str | None) -> None:
            assert name == "Pairs"

        def collect_results(self) -> list[Any]:
            with InProcessJob(env) as job:
                job.run_to_end()
                return job.results

        def cancel(self) -> None: ...

    monkeypatch.setattr(env, "_submit", Client)
    found = sorted(keyed.execute_and_collect("Pairs"), key=lambda row: row.f1)
    assert found == [Row(f0="A", f1=("a", 1)), Row(f0="A", f1=("a", 3)), Row(f0="B", f1=("b", 2))]
