from __future__ import annotations

import re

import pytest

from tidegate.common import Duration
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    StreamExecutionEnvironment,
)
from tidegate.datastream.checkpoint_config import CheckpointConfig


def test_the_defaults_are_flinks():
    config = CheckpointConfig()
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() == -1
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    assert config.get_checkpoint_timeout() == 600_000
    assert config.get_min_pause_between_checkpoints() == 0
    assert config.get_max_concurrent_checkpoints() == 1
    assert config.get_tolerable_checkpoint_failure_number() == 0
    assert config.is_fail_on_checkpointing_errors()
    assert not config.is_unaligned_checkpoints_enabled()
    assert not config.is_externalized_checkpoints_enabled()
    assert config.get_aligned_checkpoint_timeout() == Duration.of_millis(0)
    assert config.get_checkpoint_storage() is None


def test_every_setting_is_kept_and_is_in_the_configuration():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(500, CheckpointingMode.AT_LEAST_ONCE)
    config = env.get_checkpoint_config()
    config.set_checkpoint_timeout(Duration.of_seconds(9)).set_min_pause_between_checkpoints(3)
    config.set_max_concurrent_checkpoints(2).set_tolerable_checkpoint_failure_number(4)
    config.enable_unaligned_checkpoints().set_aligned_checkpoint_timeout(Duration.of_millis(7))
    config.set_force_unaligned_checkpoints(True)
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    config.set_checkpoint_storage_dir("file:///data").set_prefer_checkpoint_for_recovery(True)
    assert env.get_checkpoint_interval() == 500
    assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    assert env.is_unaligned_checkpoints_enabled()
    assert env.is_force_unaligned_checkpoints()
    assert config.get_aligned_checkpoint_timeout() == config.get_alignment_timeout() == Duration.of_millis(7)
    assert config.is_externalized_checkpoints_enabled()
    assert config.get_checkpoint_storage().get_checkpoint_path() == "file:///data"
    assert config.is_prefer_checkpoint_for_recovery()
    assert env.get_configuration().to_dict() == {
        "execution.checkpointing.interval": "500",
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "execution.checkpointing.timeout": "9000",
        "execution.checkpointing.min-pause": "3",
        "execution.checkpointing.max-concurrent-checkpoints": "2",
        "execution.checkpointing.tolerable-failed-checkpoints": "4",
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.unaligned.forced": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "7",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": "file:///data",
    }
    assert not config.disable_unaligned_checkpoints().is_unaligned_checkpoints_enabled()


@pytest.mark.parametrize(
    ("setter", "value"),
    [
        ("set_checkpoint_interval", 0),
        ("set_checkpoint_interval", -5),
        ("set_checkpoint_timeout", 0),
        ("set_min_pause_between_checkpoints", -1),
        ("set_max_concurrent_checkpoints", 0),
        ("set_tolerable_checkpoint_failure_number", -1),
        ("set_aligned_checkpoint_timeout", -1),
        ("set_checkpointing_mode", "SOMETIMES"),
        ("set_checkpoint_storage_dir", ""),
    ],
)
def test_wrong_values_are_refused(setter, value):
    config = CheckpointConfig()
    with pytest.raises(ConfigurationError):
        getattr(config, setter)(value)


def test_enable_checkpointing_checks_the_interval():
    with pytest.raises(ConfigurationError, match=re.escape("execution.checkpointing.interval")):
        StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(0)


def test_failing_on_errors_is_the_old_form_of_the_tolerable_number():
    config = CheckpointConfig().set_fail_on_checkpointing_errors(False)
    assert config.get_tolerable_checkpoint_failure_number() == 2**31 - 1
    assert config.set_fail_on_checkpointing_errors(True).get_tolerable_checkpoint_failure_number() == 0


def test_storages():
    config = CheckpointConfig().set_checkpoint_storage(JobManagerCheckpointStorage(max_state_size=99))
    assert config.get_checkpoint_storage().get_max_state_size() == 99
    config.set_checkpoint_storage(FileSystemCheckpointStorage("s3://bucket/checkpoints"))
    assert isinstance(config.get_checkpoint_storage(), FileSystemCheckpointStorage)
    with pytest.raises(ConfigurationError):
        JobManagerCheckpointStorage(max_state_size=0)
    with pytest.raises(TypeError, match="set_checkpoint_storage_dir"):
        config.set_checkpoint_storage("file:///data")
