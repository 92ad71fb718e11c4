from __future__ import annotations

import pytest

from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings, Retention
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.network.elements import Alignment


def read(**keys: str) -> CheckpointSettings:
    names = {f"execution.checkpointing.{key.replace('__', '.').replace('_', '-')}": v for key, v in keys.items()}
    settings = CheckpointSettings.from_configuration(
        Configuration.from_dict({"execution.checkpointing.interval": "1 s", **names})
    )
    assert settings is not None
    return settings


def test_checkpointing_is_off_by_default() -> None:
    assert CheckpointSettings.from_configuration(Configuration()) is None


def test_the_defaults_are_those_of_flink() -> None:
    settings = read()
    assert settings == CheckpointSettings(
        interval_ms=1_000,
        alignment=Alignment.ALIGNED,
        timeout_ms=600_000,
        min_pause_ms=0,
        max_concurrent=1,
        tolerable_failures=0,
        num_retained=1,
        retention=Retention.NO_EXTERNALIZED_CHECKPOINTS,
    )


def test_every_key_reaches_its_setting() -> None:
    settings = read(
        timeout="1 min",
        min_pause="5 ms",
        max_concurrent_checkpoints="3",
        tolerable_failed_checkpoints="4",
        num_retained="5",
        externalized_checkpoint_retention="RETAIN_ON_CANCELLATION",
    )
    assert (settings.timeout_ms, settings.min_pause_ms, settings.max_concurrent) == (60_000, 5, 3)
    assert (settings.tolerable_failures, settings.num_retained) == (4, 5)
    assert settings.retention is Retention.RETAIN_ON_CANCELLATION


@pytest.mark.parametrize(
    ("keys", "alignment", "timeout"),
    [
        ({"mode": "AT_LEAST_ONCE"}, Alignment.AT_LEAST_ONCE, 0),
        ({"unaligned__enabled": "true"}, Alignment.UNALIGNED, 0),
        ({"unaligned__enabled": "true", "aligned_checkpoint_timeout": "30 ms"}, Alignment.ALIGNED_WITH_TIMEOUT, 30),
        ({"aligned_checkpoint_timeout": "30 ms"}, Alignment.ALIGNED, 0),
    ],
)
def test_the_mode_and_the_unaligned_keys_give_the_alignment(
    keys: dict[str, str], alignment: Alignment, timeout: int
) -> None:
    settings = read(**keys)
    assert (settings.alignment, settings.alignment_timeout_ms) == (alignment, timeout)
    assert settings.warnings == ()


def test_unaligned_with_at_least_once_is_ignored_with_a_warning() -> None:
    settings = read(mode="AT_LEAST_ONCE", unaligned__enabled="true")
    assert settings.alignment is Alignment.AT_LEAST_ONCE
    assert "no effect" in settings.warnings[0]


def test_unaligned_with_concurrent_checkpoints_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max-concurrent-checkpoints = 1"):
        read(unaligned__enabled="true", max_concurrent_checkpoints="2")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"interval_ms": 0}, "interval"),
        ({"interval_ms": 1, "timeout_ms": 0}, "timeout"),
        ({"interval_ms": 1, "min_pause_ms": -1}, "min-pause"),
        ({"interval_ms": 1, "max_concurrent": 0}, "max-concurrent"),
        ({"interval_ms": 1, "num_retained": 0}, "num-retained"),
        ({"interval_ms": 1, "tolerable_failures": -1}, "tolerable"),
        ({"interval_ms": 1, "alignment_timeout_ms": 1}, "ALIGNED_WITH_TIMEOUT"),
    ],
)
def test_wrong_values_are_refused_by_name(keys: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        CheckpointSettings(**keys)


def test_the_settings_of_a_job_come_from_the_configuration() -> None:
    keys = {
        "heartbeat.interval": "100 ms",
        "heartbeat.timeout": "2 s",
        "tidegate.slot.start-timeout": "3 s",
        "tidegate.slot.restore-timeout": "4 s",
        "execution.state-recovery.ignore-unclaimed-state": "true",
    }
    assert JobSettings.from_configuration("j", Configuration.from_dict(keys)) == JobSettings(
        "j", 100, 2_000, 3_000, restore_timeout_ms=4_000, allow_non_restored_state=True, max_repeated_failures=3
    )


@pytest.mark.parametrize(
    ("keys", "repeats"),
    [
        ({}, 3),
        ({"restart-strategy.type": "fixed-delay"}, 0),
        ({"tidegate.restart.stop-on-repeated-failure": "0"}, 0),
        ({"restart-strategy.type": "fixed-delay", "tidegate.restart.stop-on-repeated-failure": "5"}, 5),
    ],
)
def test_a_restart_strategy_that_was_chosen_is_not_cut_short(keys: dict[str, str], repeats: int) -> None:
    settings = JobSettings.from_configuration("j", Configuration.from_dict(keys))
    assert settings.max_repeated_failures == repeats
