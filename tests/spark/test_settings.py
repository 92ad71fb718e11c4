"""Every setting that a program can make, made, read back, and the job runs with it."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Duration, RestartStrategies, Time, Types
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import (
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    HashMapStateBackend,
    MapFunction,
    MemorySize,
    RuntimeContext,
    RuntimeExecutionMode,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from tidegate.datastream.checkpoint_storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from tidegate.datastream.state_backend import PredefinedOptions
from tidegate.datastream.window import TumblingProcessingTimeWindows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]


def rocksdb(folder: str) -> EmbeddedRocksDBStateBackend:
    backend = EmbeddedRocksDBStateBackend(True)
    backend.set_db_storage_paths(folder)
    backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    backend.set_number_of_transfer_threads(2)
    assert backend.is_incremental_checkpoints_enabled()
    assert backend.get_db_storage_paths() == [folder]
    assert backend.get_predefined_options() is PredefinedOptions.FLASH_SSD_OPTIMIZED
    assert backend.get_number_of_transfer_threads() == 2
    assert backend.get_options() is None
    return backend


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_settings_of_checkpoints(backend: str, make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(2)
    env.enable_checkpointing(50, CheckpointingMode.EXACTLY_ONCE)
    config = env.get_checkpoint_config()
    folder = f"file://{tmp_path}/checkpoints"
    storage = FileSystemCheckpointStorage(folder, file_state_size_threshold=1000, write_buffer_size=4096)
    assert storage.get_checkpoint_path() == folder
    assert storage.get_savepoint_path() is None
    assert (storage.get_min_file_size_threshold(), storage.get_write_buffer_size()) == (1000, 4096)
    memory = JobManagerCheckpointStorage(max_state_size=10_000_000)
    assert memory.get_max_state_size() == 10_000_000
    (
        config.set_checkpoint_storage(memory)
        .set_checkpoint_storage(storage)
        .set_checkpoint_interval(60)
        .set_checkpoint_timeout(30_000)
        .set_min_pause_between_checkpoints(1)
        .set_max_concurrent_checkpoints(1)
        .set_tolerable_checkpoint_failure_number(3)
        .set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION)
        .enable_unaligned_checkpoints()
        .disable_unaligned_checkpoints()
        .enable_unaligned_checkpoints()
        .set_alignment_timeout(Duration.of_millis(50))
        .set_aligned_checkpoint_timeout(Duration.of_millis(100))
        .set_fail_on_checkpointing_errors(False)
        .set_tolerable_checkpoint_failure_number(3)
        .set_force_unaligned_checkpoints(True)
    )
    assert config.is_checkpointing_enabled()
    assert config.is_externalized_checkpoints_enabled()
    assert (config.get_checkpoint_interval(), config.get_checkpoint_timeout()) == (60, 30_000)
    assert (config.get_min_pause_between_checkpoints(), config.get_max_concurrent_checkpoints()) == (1, 1)
    assert config.get_tolerable_checkpoint_failure_number() == 3
    assert config.is_fail_on_checkpointing_errors() is False
    assert config.get_externalized_checkpoint_retention() is ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
    assert config.get_checkpointing_mode() is env.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    assert env.get_checkpointing_consistency_mode() is CheckpointingMode.EXACTLY_ONCE
    assert config.get_alignment_timeout() == config.get_aligned_checkpoint_timeout() == Duration.of_millis(100)
    assert env.is_unaligned_checkpoints_enabled()
    assert env.is_force_unaligned_checkpoints()
    assert config.is_unaligned_checkpoints_enabled()
    assert config.is_force_unaligned_checkpoints()
    assert env.get_checkpoint_interval() == 60
    chosen = HashMapStateBackend() if backend == "hashmap" else rocksdb(str(tmp_path / "db"))
    assert isinstance(env.set_state_backend(chosen).get_state_backend(), type(chosen))
    assert env.enable_changelog_state_backend(False).is_changelog_state_backend_enabled() is False
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 0))
    env.set_default_savepoint_directory(f"file://{tmp_path}/savepoints")
    assert env.get_default_savepoint_directory() == f"file://{tmp_path}/savepoints"
    counted = env.from_collection(list(range(1000))).key_by(lambda n: n % 7).reduce(lambda a, b: a + b)
    with counted.key_by(lambda n: 0).max().execute_and_collect() as results:
        assert max(results) == max(sum(range(k, 1000, 7)) for k in range(7))


class FromTheArchive(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.words = Path("words", "words.txt").read_text().split()
        assert Path(runtime_context.get_cached_file("words"), "words.txt").read_text().split() == self.words
        self.parameter = runtime_context.get_job_parameter("greeting", "")

    def map(self, value: int) -> Any:
        return f"{self.parameter} {self.words[value]}"


def test_settings_of_a_program(make_env: MakeEnv, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "words.zip", "w") as archive:
        archive.writestr("words.txt", "zero one two three")
    (tmp_path / "requirements.txt").write_text("")
    env = make_env(2)
    assert env.get_parallelism() == 2
    assert env.set_max_parallelism(64).get_max_parallelism() == 64
    assert env.set_buffer_timeout(5).get_buffer_timeout() == 5
    assert env.is_chaining_enabled()
    assert not env.disable_operator_chaining().is_chaining_enabled()
    assert isinstance(env.is_chaining_of_operators_with_different_max_parallelism_enabled(), bool)
    before = env.get_default_local_parallelism()
    env.set_default_local_parallelism(3)
    assert env.get_default_local_parallelism() == 3
    env.set_default_local_parallelism(before)
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    env.set_python_executable(sys.executable)
    env.set_python_requirements(str(tmp_path / "requirements.txt"))
    env.add_python_archive(str(tmp_path / "words.zip"), "words")
    env.get_config().set_global_job_parameters({"greeting": "hello"})
    env.get_config().set_auto_watermark_interval(20)
    group = (
        SlotSharingGroup.builder("apart")
        .set_cpu_cores(0.5)
        .set_task_heap_memory(MemorySize.of_mebi_bytes(64))
        .set_task_off_heap_memory(MemorySize.of_mebi_bytes(32))
        .set_managed_memory_mb(16)
        .set_external_resource("gpu", 1.0)
        .build()
    )
    assert (group.get_name(), group.get_cpu_cores(), group.get_external_resources()) == ("apart", 0.5, {"gpu": 1.0})
    sizes = [group.get_task_heap_memory(), group.get_task_off_heap_memory(), group.get_managed_memory()]
    assert [size.get_mebi_bytes() for size in sizes if size is not None] == [64, 32, 16]
    size = MemorySize(2**40)
    assert (size.get_bytes(), size.get_kibi_bytes(), size.get_gibi_bytes(), size.get_tebi_bytes()) == (
        2**40,
        2**30,
        2**10,
        1,
    )
    env.register_slot_sharing_group(group)
    numbers = env.from_collection(list(range(4)), Types.INT()).name("numbers").set_uid_hash("a" * 32)
    assert numbers.get_name() == "numbers"
    assert numbers.get_type() == Types.INT()
    assert numbers.get_execution_config() is not None
    assert numbers.get_execution_environment() is env
    windowed = numbers.key_by(lambda n: n).window(TumblingProcessingTimeWindows.of(Time.seconds(1)))
    assert windowed.get_input_type() == Types.INT()
    words = numbers.map(FromTheArchive()).slot_sharing_group(group).start_new_chain().force_non_parallel()
    words.set_description("finds words")
    with words.execute_and_collect() as results:
        assert sorted(results) == ["hello one", "hello three", "hello two", "hello zero"]


def test_an_archive_is_found_by_a_relative_path_in_batch_too(make_env: MakeEnv, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "words.zip", "w") as archive:
        archive.writestr("words.txt", "zero one two three")
    env = make_env(2, {"execution.runtime-mode": "BATCH"})
    env.add_python_archive(str(tmp_path / "words.zip"), "words")
    numbers = env.from_collection(list(range(4))).rebalance()
    assert sorted(numbers.map(FromTheArchive()).execute_and_collect()) == [" one", " three", " two", " zero"]


def test_jars_and_other_settings_without_a_meaning_are_accepted_or_refused_clearly(
    make_env: MakeEnv, tmp_path: Path
) -> None:
    env = make_env(1)
    backend = EmbeddedRocksDBStateBackend()
    backend.set_options("org.example.MyOptionsFactory")
    with pytest.raises(ConfigurationError, match="options factories are Java classes"):
        env.set_state_backend(backend)
    jar = tmp_path / "some.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    for add in (env.add_jars, env.add_classpaths):
        add(f"file://{jar}")
    cached = env.from_collection([1, 2, 3]).map(lambda n: n * 2).cache()
    with cached.execute_and_collect() as results:
        assert sorted(results) == [2, 4, 6]
    cached.invalidate()
    with cached.map(lambda n: n + 1).execute_and_collect() as results:
        assert sorted(results) == [3, 5, 7]
