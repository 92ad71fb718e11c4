from __future__ import annotations

import re
import sys
import threading
import types
from types import SimpleNamespace

import pytest

from tidegate.common import Configuration, RestartStrategies, Types, options
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import ConfigurationError, JobGraphError, SerializationError
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import (
    EmbeddedRocksDBStateBackend,
    FsStateBackend,
    HashMapStateBackend,
    MemoryStateBackend,
    PredefinedOptions,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import CollectSink, DataGeneratorSource, NumberSequenceSource
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.operator_specs import SinkSpec
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager.runtime import Runtime


def environment(**keys: str) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(
        Configuration.from_dict({key.replace("__", "-").replace("_", "."): value for key, value in keys.items()})
    )


class FakeClient:
    def __init__(self, values=()):
        self.values = values
        self.cancelled = 0

    def get_job_execution_result(self):
        return CompletableFuture.completed("result")

    def cancel(self):
        self.cancelled += 1
        return CompletableFuture.completed(None)

    def collect_results(self):
        return iter(self.values)

    def view(self):
        return SimpleNamespace(bounded=False)  # no line of progress


@pytest.fixture
def submitted(monkeypatch):
    """The submissions that reach the STREAMING runtime."""
    calls = []
    client = FakeClient([1, 2, 3, 4])

    class FakeRuntime(Runtime):
        def _start(self, submission, starting):
            calls.append(submission)
            return client

    module = types.ModuleType("tidegate.spark.streaming.runtime")
    module.StreamingRuntime = FakeRuntime
    monkeypatch.setitem(sys.modules, "tidegate.spark.streaming.runtime", module)
    return types.SimpleNamespace(calls=calls, client=client)


# ---------------------------------------------------------------- execute


def test_execute_submits_the_whole_job_once(submitted, tmp_path):
    (tmp_path / "helper.py").write_text("")
    session = type("SparkSession", (), {})()
    env = StreamExecutionEnvironment.get_execution_environment(spark=session)
    env.add_python_file(str(tmp_path / "helper.py"))
    env.from_collection([1, 2]).map(abs).print()
    assert env.execute("My job") == "result"
    submission = submitted.calls[0]
    assert submission.graph.name == "My job"
    assert submission.session is session
    assert submission.files.modules == (str(tmp_path / "helper.py"),)
    assert submission.configuration == env.get_configuration()
    with pytest.raises(JobGraphError, match="no operators"):
        env.execute()


def test_a_refused_job_can_be_mended_and_run(submitted):
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1])
    with pytest.raises(JobGraphError, match="no sink"):
        env.execute()
    stream.print()
    env.execute()
    assert len(submitted.calls) == 1


def test_streaming_makes_the_splits_before_it_prepares_the_job(monkeypatch):
    prepared = []

    def prepare(graph, *_):
        prepared.append(graph)
        raise ConfigurationError("not here")

    monkeypatch.setattr("tidegate.spark.streaming.runtime.prepare_job", prepare)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).print()
    with pytest.raises(ConfigurationError, match="not here"):
        env.execute()
    assert prepared[0].vertices[0].operators[0].spec.splits is not None


def test_functions_that_cannot_be_pickled_never_reach_spark(monkeypatch):
    prepared = []
    monkeypatch.setattr("tidegate.spark.streaming.runtime.prepare_job", lambda *_: prepared.append(1))
    env = StreamExecutionEnvironment.get_execution_environment()
    lock = threading.Lock()
    env.from_collection([1]).map(lambda value: lock and value).print()
    with pytest.raises(SerializationError, match="captured variable 'lock'"):
        env.execute()
    assert prepared == []


def test_execute_and_collect(submitted):
    env = StreamExecutionEnvironment.get_execution_environment()
    results = env.from_collection([1]).map(abs).name("Abs").execute_and_collect("Collecting")
    assert list(results) == [1, 2, 3, 4]
    sink = submitted.calls[0].graph.vertices[0].operators[-1]
    assert isinstance(sink.spec, SinkSpec)
    assert isinstance(sink.spec.sink, CollectSink)
    assert submitted.client.cancelled == 0


def test_execute_and_collect_with_a_limit_cancels_the_job(submitted):
    env = StreamExecutionEnvironment.get_execution_environment()
    assert env.from_collection([1]).execute_and_collect(limit=2) == [1, 2]
    assert submitted.client.cancelled == 1


def test_a_failed_execute_and_collect_leaves_no_sink_behind(submitted):
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).map(abs).uid("a").map(abs).uid("a")
    with pytest.raises(JobGraphError, match="used twice"):
        stream.execute_and_collect()
    assert len(env._operators) == 3


def test_the_job_name_comes_from_the_call_or_the_configuration(submitted):
    env = environment(pipeline_name="Configured")
    env.from_collection([1]).print()
    env.execute()
    assert submitted.calls[0].graph.name == "Configured"


def test_a_closed_environment_runs_nothing(submitted):
    with StreamExecutionEnvironment.get_execution_environment() as env:
        env.from_collection([1]).print()
    with pytest.raises(ConfigurationError, match="closed"):
        env.execute()


# ---------------------------------------------------------------- sources


def test_from_collection():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([])
    assert env.from_collection((n for n in range(3)), Types.INT()).get_type() == Types.INT()
    with pytest.raises(TypeError, match="from_collection: takes a list"):
        env.from_collection("abc")
    with pytest.raises(TypeError, match="from_collection: takes a list"):
        env.from_collection(5)
    with pytest.raises(SerializationError, match=r"element 1 \(type lock\) cannot be pickled"):
        env.from_collection([1, threading.Lock()])


def test_from_source_checks_its_arguments():
    env = StreamExecutionEnvironment.get_execution_environment()
    none = WatermarkStrategy.no_watermarks()
    stream = env.from_source(NumberSequenceSource(1, 2), none, "Numbers")
    assert stream.get_type() == Types.LONG()
    with pytest.raises(TypeError, match="source has to be an instance of Source"):
        env.from_source([1, 2], none, "Numbers")
    with pytest.raises(TypeError, match="watermark_strategy has to be"):
        env.from_source(NumberSequenceSource(1, 2), None, "Numbers")
    with pytest.raises(ConfigurationError, match="name of the source is empty"):
        env.from_source(NumberSequenceSource(1, 2), none, "")


# ---------------------------------------------------------------- settings


def test_settings_are_views_of_one_configuration():
    env = environment(parallelism_default="3")
    assert env.get_parallelism() == 3
    env.set_parallelism(4).set_max_parallelism(64).set_buffer_timeout(5)
    assert (env.get_config().get_parallelism(), env.get_config().get_max_parallelism()) == (4, 64)
    env.configure(Configuration.from_dict({"execution.buffer-timeout.enabled": "false"}))
    assert env.get_buffer_timeout() == -1
    assert StreamExecutionEnvironment.get_execution_environment().get_max_parallelism() == -1


def test_the_configuration_that_was_given_is_not_changed():
    given = Configuration()
    env = StreamExecutionEnvironment.get_execution_environment(given)
    env.set_parallelism(7)
    assert len(given) == 0
    env.get_configuration().set_string("parallelism.default", "9")
    assert env.get_parallelism() == 7


def test_unknown_keys_and_wrong_values_are_refused():
    with pytest.raises(ConfigurationError, match=re.escape("'parallelism.default'")):
        environment(paralelism_default="3")
    with pytest.raises(ConfigurationError, match=re.escape("parallelism.default")):
        environment(parallelism_default="0")
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigurationError, match=re.escape("pipeline.name")):
        env.configure(Configuration.from_dict({"pipeline.nam": "x"}))
    with pytest.raises(TypeError, match=re.escape("Configuration.from_dict")):
        StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 3})


@pytest.mark.parametrize(
    ("mode", "bounded", "batch"),
    [("STREAMING", True, False), ("BATCH", True, True), ("AUTOMATIC", True, True), ("AUTOMATIC", False, False)],
)
def test_the_runtime_mode_picks_who_runs_the_job(mode, bounded, batch, submitted, monkeypatch):
    in_batch = []
    monkeypatch.setattr("tidegate.spark.batch.runtime.BatchRuntime._start", lambda _, job, __: in_batch.append(job))
    env = environment(execution_runtime__mode=mode)
    source = DataGeneratorSource(lambda i: i, count=3 if bounded else None)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").print()
    env.execute_async()
    assert len(in_batch) == batch


def test_micro_batches_have_a_runtime_of_their_own(submitted, monkeypatch):
    in_batches = []
    monkeypatch.setattr(
        "tidegate.spark.micro_batch.runtime.MicroBatchRuntime._start", lambda _, job, __: in_batches.append(job)
    )
    env = environment(execution_runtime__mode="MICRO_BATCH")
    env.from_collection([1]).print()
    env.execute_async()
    assert len(in_batches) == 1


@pytest.mark.parametrize("parallelism", [0, -1])
def test_parallelism_is_positive(parallelism):
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigurationError, match="at least 1"):
        env.set_parallelism(parallelism)
    with pytest.raises(ConfigurationError, match="at least 1"):
        env.set_max_parallelism(parallelism)


def test_restart_strategies_come_back_as_they_were_set():
    env = StreamExecutionEnvironment.get_execution_environment()
    for strategy in (
        RestartStrategies.fixed_delay_restart(3, 100),
        RestartStrategies.failure_rate_restart(2, 1000, 10),
        RestartStrategies.exponential_delay_restart(10, 1000, 2.0, 5000, 0.0, 4),
        RestartStrategies.exponential_delay_restart(10, 1000, 2.0, 5000, 0.0),
        RestartStrategies.no_restart(),
    ):
        assert env.set_restart_strategy(strategy).get_restart_strategy() == strategy
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(0, 100))
    assert env.get_restart_strategy() == RestartStrategies.no_restart()
    env.set_restart_strategy(RestartStrategies.fall_back_restart()).enable_checkpointing(1000)
    assert type(env.get_restart_strategy()).__name__ == "ExponentialDelayRestartStrategyConfiguration"
    with pytest.raises(TypeError, match="set_restart_strategy"):
        env.set_restart_strategy("fixed-delay")


def test_state_backends(submitted):
    env = StreamExecutionEnvironment.get_execution_environment()
    backend = FsStateBackend("file:///data/checkpoints", "file:///data/savepoints")
    assert env.set_state_backend(backend).get_state_backend() is backend
    config = env.get_configuration()
    assert config.get_string("execution.checkpointing.storage") == "filesystem"
    assert config.get_string("execution.checkpointing.dir") == "file:///data/checkpoints"
    assert env.get_default_savepoint_directory() == "file:///data/savepoints"
    env.set_state_backend(MemoryStateBackend(max_state_size=77))
    storage = env.get_checkpoint_config().get_checkpoint_storage()
    assert storage.get_max_state_size() == 77
    env.set_state_backend(HashMapStateBackend())
    env.from_collection([1]).print()
    env.execute()
    assert config.get_string("state.backend.type") == "hashmap"
    for rocks in (EmbeddedRocksDBStateBackend(True), RocksDBStateBackend("file:///data", False)):
        rocks.set_db_storage_paths("file:///disk1", "file:///disk2")
        rocks.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
        env.set_state_backend(rocks)
        env.from_collection([1]).print()
        env.execute()
        config = env.get_configuration()
        assert config.get_string("state.backend.type") == "rocksdb"
        assert config.get(options.INCREMENTAL) is rocks.is_incremental_checkpoints_enabled()
        assert config.get(options.ROCKSDB_LOCAL_DIRECTORIES) == ["/disk1", "/disk2"]
        assert config.get(options.ROCKSDB_PREDEFINED_OPTIONS) == "FLASH_SSD_OPTIMIZED"
    assert config.get_string("execution.checkpointing.dir") == "file:///data"
    with_factory = EmbeddedRocksDBStateBackend()
    with_factory.set_options("com.example.Factory")
    with pytest.raises(ConfigurationError, match=r"com\.example\.Factory"):
        env.set_state_backend(with_factory)
    with pytest.raises(TypeError, match="set_state_backend"):
        env.set_state_backend("hashmap")


def test_a_python_file_has_to_exist():
    with pytest.raises(ConfigurationError, match=re.escape("no file or folder 'nowhere.py'")):
        StreamExecutionEnvironment.get_execution_environment().add_python_file("nowhere.py")


def test_jars_are_accepted_with_a_warning():
    with pytest.warns(UserWarning, match="no effect"):
        StreamExecutionEnvironment.get_execution_environment().add_jars("file:///x.jar")


def test_an_operator_has_the_parallelism_that_the_environment_had_when_it_was_made() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    ordered = env.from_collection([1]).map(str).name("ordered")
    env.set_parallelism(4)
    wide = ordered.map(str).name("wide")
    env.set_parallelism(2)
    wide.print().name("out")
    env.set_parallelism(7)
    nodes = {n.name: n.parallelism for n in build_stream_graph(env._operators, env._graph_settings()).nodes}
    assert nodes == {"Source: Collection": 1, "ordered": 1, "wide": 4, "Sink: out": 2}


def test_what_was_set_when_an_operator_was_made_stays_and_what_was_not_set_comes_later() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    first = env.from_collection([1]).map(str).name("first")
    env.set_max_parallelism(64).set_buffer_timeout(5).disable_operator_chaining()
    second = first.map(str).name("second")
    env.set_max_parallelism(256).set_buffer_timeout(500)
    second.print().name("out")
    built = build_job_graph(env._operators, env._graph_settings(), "job", None).job_graph
    found = {v.operators[-1].name: (v.max_parallelism, v.buffer_timeout_ms) for v in built.vertices}
    assert found == {"Source: Collection": (256, 500), "first": (256, 500), "second": (64, 5), "Sink: out": (256, 500)}
