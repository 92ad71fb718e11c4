"""What users get wrong: a clear message, soon, before the gang starts where that is possible, and never a hang."""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.spark.cases.single import numbers
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.common.errors import (
    ConfigurationError,
    JobExecutionError,
    JobGraphError,
    ResourceError,
    SerializationError,
)
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    ProcessFunction,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream.state import ValueStateDescriptor

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]

JAVA_NOISE = re.compile(
    r"at org\.apache|at java\.|Py4J|py4j|\.scala:|\.java:|SparkException|Traceback.*pyspark", re.DOTALL
)
AT_ONCE_S = 60.0  # checks that need no worker: nothing was waited for; much less on a free machine
SOON_S = 120.0  # a failure of a running job


def clean(error: BaseException) -> str:
    """The message, once it was seen to be fit for a person."""
    message = str(error)
    assert not JAVA_NOISE.search(message), message
    assert "tidegate/spark" not in message, message  # the user's traceback has the user's frames
    assert len(message) < 6000
    return message


def failure(stream: DataStream, job_name: str = "bad") -> str:
    """The message with which a job fails, soon."""
    started = time.monotonic()
    with pytest.raises(JobExecutionError) as caught:
        list(stream.execute_and_collect(job_name))
    assert time.monotonic() - started < SOON_S
    return clean(caught.value)


def refused(stream: DataStream, kind: type[BaseException]) -> str:
    """The message with which a job is refused before anything starts."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        stream.execute_and_collect("refused")
    assert time.monotonic() - started < AT_ONCE_S
    return clean(caught.value)


# ---------------------------------------------------------------- before the gang starts


def test_parallelism_over_the_slots_of_spark(make_env: MakeEnv) -> None:
    message = refused(numbers(make_env(5)).map(str), ResourceError)
    assert "needs 5 slots" in message
    assert "local[4]" in message
    assert "4 tasks" in message
    assert "at most 4" in message
    assert "local[5]" in message


def test_slot_sharing_groups_over_the_slots_of_spark(make_env: MakeEnv) -> None:
    message = refused(numbers(make_env(3)).map(str).slot_sharing_group("other"), ResourceError)
    assert "needs 6 slots" in message


@pytest.mark.parametrize("parallelism", [0, -1])
def test_parallelism_of_zero_or_less(make_env: MakeEnv, parallelism: int) -> None:
    env = make_env(1)
    with pytest.raises(ConfigurationError, match=f"set_parallelism.*at least 1, got {parallelism}"):
        env.set_parallelism(parallelism)
    with pytest.raises(ConfigurationError, match=f"set_parallelism.*at least 1, got {parallelism}"):
        numbers(env).map(str).set_parallelism(parallelism)
    with pytest.raises(ConfigurationError, match=r"parallelism\.default"):
        make_env(1).configure(Configuration.from_dict({"parallelism.default": parallelism}))


def test_parallelism_over_max_parallelism(make_env: MakeEnv) -> None:
    stream = numbers(make_env(4)).map(str).name("Text").set_max_parallelism(3)
    message = refused(stream, JobGraphError)
    assert "operator 'Text'" in message
    assert "parallelism 4" in message
    assert "max parallelism 3" in message


def test_a_function_that_captures_what_cannot_be_pickled(make_env: MakeEnv) -> None:
    lock = threading.Lock()

    def locked(n: int) -> int:
        with lock:
            return n

    message = refused(numbers(make_env(2)).map(locked).name("Guard"), SerializationError)
    assert "operator 'Guard'" in message
    assert "locked" in message
    assert "'lock'" in message
    assert "open()" in message


class HoldsAFile(MapFunction):
    def __init__(self, path: str) -> None:
        self.log_file = open(path, "w", encoding="utf-8")  # noqa: SIM115

    def map(self, value: Any) -> Any:
        return value


def test_a_function_object_that_holds_what_cannot_be_pickled(make_env: MakeEnv, tmp_path: Any) -> None:
    function = HoldsAFile(str(tmp_path / "log"))
    message = refused(numbers(make_env(2)).map(function).name("Log"), SerializationError)
    function.log_file.close()
    assert "operator 'Log'" in message
    assert "HoldsAFile" in message
    assert "log_file" in message


def test_a_key_selector_and_a_collection_that_cannot_be_pickled(make_env: MakeEnv) -> None:
    lock = threading.Lock()
    message = refused(numbers(make_env(2)).key_by(lambda n: (lock, n)[1]).reduce(max), SerializationError)
    assert "key selector" in message
    assert "'lock'" in message
    with pytest.raises(SerializationError, match=r"from_collection: element 1 .*lock"):
        make_env(1).from_collection([1, lock])


def test_an_unknown_configuration_key() -> None:
    config = Configuration.from_dict({"tidegate.network.batchsize": 10})
    with pytest.raises(
        ConfigurationError, match=r"'tidegate.network.batchsize'.*Did you mean 'tidegate.network.batch-size'"
    ):
        StreamExecutionEnvironment.get_execution_environment(config)


def test_a_configuration_value_that_cannot_be_read() -> None:
    config = Configuration.from_dict({"tidegate.network.batch-size": "many"})
    with pytest.raises(ConfigurationError, match=r"tidegate.network.batch-size.*many"):
        StreamExecutionEnvironment.get_execution_environment(config)


def test_duplicate_uids(make_env: MakeEnv) -> None:
    stream = numbers(make_env(1)).map(str).name("One").uid("same").map(len).name("Two").uid("same")
    message = refused(stream, JobGraphError)
    assert "'same'" in message
    assert "'One'" in message
    assert "'Two'" in message


def test_execute_on_an_empty_graph(make_env: MakeEnv) -> None:
    with pytest.raises(JobGraphError, match="nothing to execute") as caught:
        make_env(1).execute()
    assert "from_collection" in clean(caught.value)


def test_execute_without_a_sink(make_env: MakeEnv) -> None:
    env = make_env(1)
    numbers(env).map(str).name("Lonely")
    with pytest.raises(JobGraphError, match=r"no sink.*'Lonely'"):
        env.execute()


def test_functions_of_the_wrong_kind_are_refused_where_they_are_given(make_env: MakeEnv) -> None:
    with pytest.raises(TypeError, match=r"map: .*got int"):
        numbers(make_env(1)).map(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"HoldsAFile itself; pass an instance"):
        numbers(make_env(1)).map(HoldsAFile)  # type: ignore[arg-type]


# ---------------------------------------------------------------- keys


class CountState(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("bad_at", [0, 7])
def test_an_unhashable_key(make_env: MakeEnv, parallelism: int, bad_at: int) -> None:
    keyed = make_env(parallelism).from_collection(range(10)).key_by(lambda n: {n} if n == bad_at else n)
    check_refused(keyed, bad_at, f"{{{bad_at}}}")


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_list_among_other_keys(make_env: MakeEnv, parallelism: int) -> None:
    keyed = make_env(parallelism).from_collection(range(10)).key_by(lambda n: [n] if n == 7 else n)
    check_refused(keyed, 7, "[7]")


def check_refused(keyed: KeyedStream, bad_at: int, shown: str) -> None:
    message = failure(keyed.process(CountState()).name("Count"))
    assert "key_by()" in message
    assert f"on record {bad_at}" in message
    assert shown in message
    assert "not hashable" in message
    assert "tuple" in message  # what to do
    assert "operator '" in message
    assert "(subtask 0)" in message or "(subtask 1)" in message


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_selector_that_raises(make_env: MakeEnv, parallelism: int) -> None:
    keyed = make_env(parallelism).from_collection([{"id": 1}, {"name": "x"}]).key_by(lambda r: r["id"])
    message = failure(keyed.reduce(lambda a, b: a))
    assert "KeyError: 'id'" in message
    assert "{'name': 'x'}" in message


def test_a_partitioner_that_returns_no_subtask(make_env: MakeEnv) -> None:
    stream = numbers(make_env(2)).map(lambda n: n).name("Before").partition_custom(lambda key, n: n, lambda n: n)
    message = failure(stream.map(str))
    assert "operator 'Before'" in message
    assert "partition_custom()" in message
    assert "0 to 1" in message


# ---------------------------------------------------------------- the user's exceptions


class Breaks(ProcessFunction):
    """Fails at one place, in the subtask that sees the record (or in every one)."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        if self.where == "open":
            self.connect_to_the_database()

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if self.where == "process_element" and value == 13:
            self.connect_to_the_database()
        yield value

    def close(self) -> None:
        if self.where == "close":
            self.connect_to_the_database()

    def connect_to_the_database(self) -> None:
        raise ConnectionError("no database today")


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("where", ["open", "process_element", "close"])
def test_an_exception_of_the_user(make_env: MakeEnv, where: str, parallelism: int) -> None:
    message = failure(numbers(make_env(parallelism)).process(Breaks(where)).name("Fragile"))
    summary = message.splitlines()[0]
    assert "operator 'Fragile'" in summary
    assert re.search(r"\(subtask \d\)", summary)
    assert f"failed in {where}()" in summary
    assert "ConnectionError: no database today" in summary
    assert ("on record 13" in summary) == (where == "process_element")
    assert "in connect_to_the_database" in message  # the user's own traceback, down to the line
    assert 'raise ConnectionError("no database today")' in message
    assert os.path.basename(__file__) in message


def test_a_job_that_failed_does_not_harm_the_next(make_env: MakeEnv) -> None:
    failure(numbers(make_env(4)).process(Breaks("process_element")))
    assert sorted(numbers(make_env(4), 8).execute_and_collect()) == list(range(8))


def test_a_long_record_is_shortened(make_env: MakeEnv) -> None:
    message = failure(make_env(1).from_collection(["x" * 100_000]).map(lambda text: text.nothing).name("Long"))
    summary = message.splitlines()[0]
    assert "operator 'Long'" in summary
    assert "'xxx" in summary
    assert "..." in summary
    assert len(summary) < 500


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_a_record_whose_repr_raises(make_env: MakeEnv) -> None:
    stream = make_env(1).from_collection([1]).map(lambda n: Unprintable()).map(lambda u: u.missing).name("Next")
    message = failure(stream)
    assert "operator 'Next'" in message
    assert "Unprintable" in message


def test_the_cause_of_an_exception_is_shown(make_env: MakeEnv) -> None:
    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise RuntimeError("the line is broken") from error

    message = failure(make_env(1).from_collection(["7", "seven"]).map(parse).name("Parse"))
    assert "RuntimeError: the line is broken" in message
    assert "invalid literal for int() with base 10: 'seven'" in message
    assert "on record 'seven'" in message


def test_a_record_that_does_not_fit_the_declared_type(make_env: MakeEnv) -> None:
    message = failure(make_env(1).from_collection([1]).map(lambda n: "one", Types.LONG()).name("Typed"))
    assert "operator 'Typed'" in message
    assert "'one'" in message
    assert "declared type" in message


def test_state_on_a_stream_without_keys(make_env: MakeEnv) -> None:
    message = failure(numbers(make_env(1)).map(NeedsState()).name("Stateful"))
    assert "operator 'Stateful'" in message
    assert "key_by()" in message


class NeedsState(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("s"))

    def map(self, value: Any) -> Any:
        return value


def test_records_that_cannot_be_sent_to_another_worker(make_env: MakeEnv) -> None:
    stream = numbers(make_env(2)).map(lambda n: threading.Lock()).name("Locks").rebalance().map(str)
    message = failure(stream)
    assert "operator 'Locks'" in message
    assert "lock" in message
    assert "pickl" in message


def test_results_that_cannot_be_sent_to_the_client(make_env: MakeEnv) -> None:
    message = failure(numbers(make_env(1)).map(lambda n: threading.Lock()))
    assert "client" in message
    assert "lock" in message


class BadSink(SinkFunction):
    def invoke(self, value: Any, context: SinkFunction.Context) -> None:
        raise OSError(28, "No space left on device")


def test_a_sink_that_raises(make_env: MakeEnv) -> None:
    env = make_env(2)
    numbers(env).add_sink(BadSink()).name("Disk")
    with pytest.raises(JobExecutionError) as caught:
        env.execute()
    message = clean(caught.value)
    assert "operator 'Sink: Disk'" in message
    assert "No space left on device" in message


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("place", ["map", "open", "close"])
def test_sys_exit_in_user_code(make_env: MakeEnv, parallelism: int, place: str) -> None:
    message = failure(numbers(make_env(parallelism)).map(Exits(place)).name("Quitter"))
    assert "sys.exit(3)" in message
    assert "operator 'Quitter'" in message
    assert re.search(r"\(subtask \d\)", message)


class Exits(MapFunction):
    def __init__(self, place: str) -> None:
        self.place = place

    def open(self, runtime_context: RuntimeContext) -> None:
        if self.place == "open":
            sys.exit(3)

    def map(self, value: Any) -> Any:
        if self.place == "map":
            sys.exit(3)
        return value

    def close(self) -> None:
        if self.place == "close":
            sys.exit(3)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_user_code_that_kills_its_process(make_env: MakeEnv, parallelism: int) -> None:
    message = failure(numbers(make_env(parallelism)).map(lambda n: os._exit(7)))
    assert "worker" in message
    assert sorted(numbers(make_env(4), 4).execute_and_collect()) == [0, 1, 2, 3]


def test_a_keyboard_interrupt_in_user_code_is_a_failure(make_env: MakeEnv) -> None:
    def interrupt(n: int) -> int:
        raise KeyboardInterrupt("by hand")

    message = failure(numbers(make_env(2)).map(interrupt).name("Interrupted"))
    assert "KeyboardInterrupt" in message
    assert "operator 'Interrupted'" in message


# ---------------------------------------------------------------- sources


class BadSource(Source[int]):
    def __init__(self, where: str) -> None:
        self.where = where

    def create_splits(self, parallelism: int) -> list[SourceSplit]:
        if self.where == "create_splits":
            raise PermissionError("may not list the folder")
        return [SourceSplit(f"file-{i}") for i in range(parallelism)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[int]:
        if self.where == "create_reader":
            raise PermissionError("may not open the file")
        return BadReader()


class BadReader(SplitReader[int]):
    def __init__(self) -> None:
        self.polls = 0

    def poll(self, max_records: int) -> list[int] | None:
        self.polls += 1
        if self.polls == 3:
            raise PermissionError("may not read the file")
        return [self.polls]

    def offset(self) -> int:
        return self.polls


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(
    ("where", "what"), [("create_reader", "may not open the file"), ("poll", "may not read the file")]
)
def test_a_source_that_raises(make_env: MakeEnv, where: str, what: str, parallelism: int) -> None:
    env = make_env(parallelism)
    message = failure(env.from_source(BadSource(where), WatermarkStrategy.no_watermarks(), "Folder").map(str))
    assert "operator 'Source: Folder'" in message
    assert re.search(r"\(subtask \d\)", message)
    assert "'file-" in message
    assert f"PermissionError: {what}" in message


def test_a_source_that_cannot_list_its_splits(make_env: MakeEnv) -> None:
    env = make_env(1)
    stream = env.from_source(BadSource("create_splits"), WatermarkStrategy.no_watermarks(), "Folder")
    with pytest.raises(Exception) as caught:
        stream.execute_and_collect()
    message = clean(caught.value)
    assert "Folder" in message
    assert "may not list the folder" in message


def test_a_generator_function_that_raises(make_env: MakeEnv) -> None:
    source = DataGeneratorSource(lambda i: 10 // (i - 3), count=10)
    message = failure(make_env(1).from_source(source, WatermarkStrategy.no_watermarks(), "Generator").map(str))
    assert "operator 'Source: Generator'" in message
    assert "ZeroDivisionError" in message


# ---------------------------------------------------------------- imports


def test_a_module_that_only_the_driver_has(make_env: MakeEnv, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_on_the_driver.py").write_text("def double(n):\n    return 2 * n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("only_on_the_driver")
    (tmp_path / "only_on_the_driver.py").unlink()
    monkeypatch.undo()
    try:
        message = failure(numbers(make_env(2)).map(module.double).name("Double"))
    finally:
        sys.modules.pop("only_on_the_driver", None)
    assert "cannot import" in message
    assert "'only_on_the_driver'" in message
    assert "add_python_file" in message


def test_add_python_file_of_a_missing_file(make_env: MakeEnv, tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"add_python_file.*missing\.py"):
        make_env(1).add_python_file(str(tmp_path / "missing.py"))
