"""What programs and tests written for PyFlink look at, beside what a job computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate.common import Configuration, ExecutionConfig, Types
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import (
    DataStream,
    KeyedStream,
    MemorySize,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from tidegate.datastream.checkpoint_storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.state_backend import EmbeddedRocksDBStateBackend
from tidegate.jobmanager.job_settings import JobSettings, cancellation_timeout_ms


def test_text_of_row_and_tuple_types() -> None:
    assert str(Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.STRING()])) == "RowTypeInfo(a: String, b: String)"
    assert str(Types.ROW([Types.INT()])) == "RowTypeInfo(f0: Integer)"
    assert str(Types.TUPLE([Types.STRING(), Types.INT()])) == "TupleTypeInfo(String, Integer)"


def test_constants_of_the_execution_config() -> None:
    assert ExecutionConfig.PARALLELISM_DEFAULT == -1
    assert ExecutionConfig.PARALLELISM_UNKNOWN == -2


def test_execution_configs_are_equal_when_their_settings_are() -> None:
    one = StreamExecutionEnvironment.get_execution_environment().get_config()
    other = StreamExecutionEnvironment.get_execution_environment().get_config()
    assert one == other
    assert hash(one) == hash(other)
    one.set_parallelism(12)
    assert one != other
    other.set_parallelism(12)
    assert one == other
    assert hash(one) == hash(other)
    assert one != 12


def test_the_closure_cleaner_can_be_switched() -> None:
    config = ExecutionConfig()
    assert config.is_closure_cleaner_enabled()
    assert not config.disable_closure_cleaner().is_closure_cleaner_enabled()
    assert config.enable_closure_cleaner().is_closure_cleaner_enabled()


def test_the_cancellation_timeout_shows_three_minutes_and_is_one_second_unless_it_is_set() -> None:
    configuration = Configuration()
    assert ExecutionConfig(configuration).get_task_cancellation_timeout() == 180_000
    assert cancellation_timeout_ms(configuration) == 1_000
    assert JobSettings.from_configuration("job", configuration).leave_grace_ms == 2_500
    ExecutionConfig(configuration).set_task_cancellation_timeout(180_000)
    assert cancellation_timeout_ms(configuration) == 180_000


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("file://var/checkpoints/", "file://var/checkpoints"),
        ("file:///var//checkpoints/", "file:///var/checkpoints"),
        ("/data/checkpoints/", "/data/checkpoints"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("file:///", "file:///"),
        ("/", "/"),
        ("data", "data"),
    ],
)
def test_folders_are_shown_without_what_a_path_does_not_need(given: str, shown: str) -> None:
    assert FileSystemCheckpointStorage(given).get_checkpoint_path() == shown
    assert JobManagerCheckpointStorage(given).get_checkpoint_path() == shown


def test_folders_of_rocksdb_are_local_paths() -> None:
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths("file://var/db_storage_dir1/", "file:///var/two", "/three/", "file:/four")
    assert backend.get_db_storage_paths() == ["/db_storage_dir1", "/var/two", "/three", "/four"]


PARTITIONINGS: dict[str, Callable[[KeyedStream], DataStream]] = {
    "shuffle": lambda s: s.shuffle(),
    "rebalance": lambda s: s.rebalance(),
    "rescale": lambda s: s.rescale(),
    "forward": lambda s: s.forward(),
    "broadcast": lambda s: s.broadcast(),
    "broadcast state": lambda s: s.broadcast(MapStateDescriptor("rules")),  # type: ignore[return-value]
    "global_": lambda s: s.global_(),
    "partition_custom": lambda s: s.partition_custom(lambda key, n: 0, lambda v: v),
}


@pytest.mark.parametrize("method", PARTITIONINGS)
def test_the_partitioning_of_a_keyed_stream_cannot_be_changed(method: str) -> None:
    keyed = StreamExecutionEnvironment.get_execution_environment().from_collection([1]).key_by(lambda v: v)
    with pytest.raises(ConfigurationError, match="Cannot override partitioning for KeyedStream"):
        PARTITIONINGS[method](keyed)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.set_cpu_cores(1.0), "task heap memory has to be set"),
        (lambda b: b.set_task_heap_memory_mb(100), "cpu cores have to be set"),
        (lambda b: b.set_managed_memory("10 mb"), "cpu cores have to be set"),
        (lambda b: b.set_external_resource("gpu", 1.0), "cpu cores have to be set"),
        (lambda b: b.set_cpu_cores(1.0).set_task_heap_memory(MemorySize(0)), "heap memory has to be > 0"),
        (lambda b: b.set_cpu_cores(0), "cpu cores must be > 0"),
        (lambda b: b.set_cpu_cores(1.0).set_task_heap_memory_mb(1).set_external_resource("gpu", -1), "must be > 0"),
    ],
)
def test_a_slot_sharing_group_asks_for_all_or_nothing(build: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(SlotSharingGroup.builder("group")).build()


def test_a_slot_sharing_group_with_and_without_resources() -> None:
    assert SlotSharingGroup.builder("group").build().get_cpu_cores() is None
    full = SlotSharingGroup.builder("group").set_cpu_cores(1.5).set_task_heap_memory_mb(100).build()
    assert full.get_task_heap_memory() == MemorySize.of_mebi_bytes(100)
