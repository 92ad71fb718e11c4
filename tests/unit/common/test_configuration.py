from __future__ import annotations

import datetime
import enum
import warnings
from pathlib import Path

import pytest

from tidegate.common import ConfigOptions, Configuration, Duration, ExecutionConfig, Time, options
from tidegate.common.config_options import ConfigOption, OptionType, format_duration, format_memory
from tidegate.common.errors import ConfigurationError
from tidegate.common.option_validation import validate_keys, validate_values
from tidegate.common.options import read
from tidegate.common.options_page import configuration_page

ROOT = Path(__file__).parents[3]


# ---------------------------------------------------------------- Configuration


def test_typed_getters_read_what_was_set_also_as_text() -> None:
    config = Configuration()
    config.set_string("a", "7").set_integer("b", 3).set_boolean("c", True).set_float("d", 0.5).set_bytearray(
        "e", bytearray(b"x")
    )
    assert config.get_string("a", "") == "7"
    assert config.get_integer("a", 0) == 7
    assert config.get_float("a", 0.0) == 7.0
    assert config.get_string("b", "") == "3"
    assert config.get_string("c", "") == "true"
    assert config.get_boolean("c", False) is True
    assert config.get_float("d", 0.0) == 0.5
    assert config.get_bytearray("e") == bytearray(b"x")
    assert config.get_string("none", "default") == "default"
    assert config.get_integer("none") is None


def test_wrong_values_name_the_key() -> None:
    config = Configuration().set_string("a", "x")
    for getter in (config.get_integer, config.get_float, config.get_boolean, config.get_bytearray):
        with pytest.raises(ConfigurationError, match="a = 'x' is not allowed"):
            getter("a")
    with pytest.raises(ConfigurationError, match="a whole number wanted"):
        config.set_integer("b", "many")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="remove_config"):
        config.set_string("b", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not empty"):
        config.set_string("", "x")


def test_keys_and_copies() -> None:
    config = Configuration.from_dict({"a": 1, "b": [1, 2], "c": {"k": True}})
    assert config.key_set() == {"a", "b", "c"}
    assert config.contains_key("a")
    assert config.to_dict() == {"a": "1", "b": "1;2", "c": "k:true"}
    twin = Configuration(config)
    assert twin == config
    assert hash(twin) == hash(config)
    assert twin.remove_config("a")
    assert not twin.remove_config("a")
    assert config.contains_key("a")
    target: dict[str, object] = {"z": 0}
    twin.add_all(Configuration().set_string("x", "y"), "prefix.")
    twin.add_all_to_dict(target)
    assert target == {"z": 0, "b": [1, 2], "c": {"k": True}, "prefix.x": "y"}


def test_lists() -> None:
    assert Configuration.parse_list_value("a;b ; c") == ["a", "b", "c"]
    assert Configuration.parse_list_value("- a\n- b") == ["a", "b"]
    assert Configuration.parse_list_value("[a, 'b c']") == ["a", "b c"]
    assert Configuration.parse_list_value("") == []


def test_secrets_are_not_printed() -> None:
    text = str(Configuration().set_string("my.password", "hunter2").set_string("a", "b"))
    assert "hunter2" not in text
    assert text == "{a=b, my.password=******}"


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        ("10 s", 10_000),
        ("500ms", 500),
        ("1 min", 60_000),
        ("2 h", 7_200_000),
        ("1d", 86_400_000),
        ("7", 7),
        (7, 7),
        ("3 Seconds", 3000),
        ("10 us", 1),
        (Duration.of_seconds(2), 2000),
        (Time.minutes(1), 60_000),
        (datetime.timedelta(seconds=1), 1000),
    ],
)
def test_durations(value: object, millis: int) -> None:
    assert ConfigOption("k", OptionType.DURATION).parse(value) == millis


@pytest.mark.parametrize(
    ("value", "size"), [("5 mb", 5 << 20), ("512kb", 512 << 10), ("1g", 1 << 30), ("12", 12), (12, 12), ("3 bytes", 3)]
)
def test_memory_sizes(value: object, size: int) -> None:
    assert ConfigOption("k", OptionType.MEMORY).parse(value) == size


@pytest.mark.parametrize(
    ("option_type", "value", "parsed"),
    [
        (OptionType.BOOLEAN, "True", True),
        (OptionType.BOOLEAN, False, False),
        (OptionType.INTEGER, " 5 ", 5),
        (OptionType.INTEGER, 5.0, 5),
        (OptionType.FLOAT, "1e3", 1000.0),
        (OptionType.LIST, ["a", 1], ["a", "1"]),
        (OptionType.MAP, "a:1,b:'x y'", {"a": "1", "b": "x y"}),
        (OptionType.MAP, {"a": 1}, {"a": "1"}),
        (OptionType.STRING, True, "true"),
    ],
)
def test_other_values(option_type: OptionType, value: object, parsed: object) -> None:
    assert ConfigOption("k", option_type).parse(value) == parsed


@pytest.mark.parametrize(
    ("option_type", "value"),
    [
        (OptionType.DURATION, "10 parsecs"),
        (OptionType.DURATION, True),
        (OptionType.DURATION, 1.5),
        (OptionType.DURATION, ""),
        (OptionType.MEMORY, "5 elephants"),
        (OptionType.MEMORY, 1.5),
        (OptionType.BOOLEAN, "yes"),
        (OptionType.BOOLEAN, 1),
        (OptionType.INTEGER, "1.5"),
        (OptionType.INTEGER, True),
        (OptionType.INTEGER, float("inf")),
        (OptionType.FLOAT, "x"),
        (OptionType.LIST, 3),
        (OptionType.MAP, "abc"),
    ],
)
def test_wrong_values_are_refused(option_type: OptionType, value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^k = .* is not allowed: .* wanted\.$"):
        ConfigOption("k", option_type).parse(value)


def test_enums_take_any_spelling_and_enum_members() -> None:
    class Mode(enum.Enum):
        AT_LEAST_ONCE = 1

    assert options.CHECKPOINT_MODE.parse("exactly-once") == "EXACTLY_ONCE"
    assert options.CHECKPOINT_MODE.parse(Mode.AT_LEAST_ONCE) == "AT_LEAST_ONCE"
    assert options.RESTART_STRATEGY.parse("fixeddelay") == "fixed-delay"
    assert options.STATE_BACKEND.parse("filesystem") == "hashmap"
    with pytest.raises(ConfigurationError, match="one of EXACTLY_ONCE, AT_LEAST_ONCE wanted"):
        options.CHECKPOINT_MODE.parse("twice")


def test_ranges_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="out of range: a whole number of at least 1 wanted"):
        options.PARALLELISM.parse(0)
    with pytest.raises(ConfigurationError, match="from 1 to 32768"):
        options.MAX_PARALLELISM.parse(40_000)
    with pytest.raises(ConfigurationError, match=r"a duration .* of at least 1 ms"):
        options.CHECKPOINT_INTERVAL.parse("0 s")


def test_formats_read_back() -> None:
    for millis in (0, 5, 1000, 90_000, 3_600_000, 86_400_000):
        assert ConfigOption("k", OptionType.DURATION).parse(format_duration(millis)) == millis
    for size in (0, 5, 1 << 10, 5 << 20, 1 << 30):
        assert ConfigOption("k", OptionType.MEMORY).parse(format_memory(size)) == size


def test_users_options() -> None:
    option = ConfigOptions.key("my.threads").int_type().default_value("4")
    config = Configuration()
    assert config.get(option) == 4
    assert config.set(option, "8").get(option) == 8
    assert Configuration().get(ConfigOptions.key("x").duration_type().no_default_value()) is None


# ---------------------------------------------------------------- the registry


def test_read_looks_at_the_key_then_its_aliases_then_the_default() -> None:
    config = Configuration()
    assert read(config, options.NUM_RETAINED) == 1
    config.set_string("state.checkpoints.num-retained", "3")
    assert read(config, options.NUM_RETAINED) == 3
    config.set_string("execution.checkpointing.num-retained", "5")
    assert read(config, options.NUM_RETAINED) == 5


def test_setting_an_option_replaces_what_an_alias_said() -> None:
    config = Configuration().set_string("restart-strategy", "none")
    config.set(options.RESTART_STRATEGY, "fixed-delay")
    assert config.to_dict() == {"restart-strategy.type": "fixed-delay"}


def test_infinite() -> None:
    config = Configuration().set_string(options.EXPONENTIAL_ATTEMPTS.key, "infinite")
    assert read(config, options.EXPONENTIAL_ATTEMPTS) is None
    config.set(options.EXPONENTIAL_ATTEMPTS, 3)
    assert read(config, options.EXPONENTIAL_ATTEMPTS) == 3
    config.set(options.EXPONENTIAL_ATTEMPTS, "infinite")
    assert read(config, options.EXPONENTIAL_ATTEMPTS) is None


def test_a_default_is_not_shared() -> None:
    read(Configuration(), options.PYTHON_FILES).append("x")
    assert read(Configuration(), options.PYTHON_FILES) == []


@pytest.mark.parametrize("option", options.ALL_OPTIONS, ids=lambda o: o.key)
def test_defaults_are_values_of_their_option(option: ConfigOption) -> None:
    if option.default is not None:
        assert option.parse(option.default) == option.default
        assert option.parse(option.format(option.default)) == option.default


def test_keys_belong_to_one_option() -> None:
    keys = [key for option in options.ALL_OPTIONS for key in option.keys]
    assert len(keys) == len(set(keys))


def test_unknown_keys_are_refused_with_the_nearest() -> None:
    config = Configuration().set_string("execution.checkpointing.intervall", "1 s")
    with pytest.raises(ConfigurationError, match=r"Did you mean 'execution.checkpointing.interval'"):
        validate_keys(config)
    with pytest.raises(ConfigurationError, match=r"Did you mean 'tidegate.network.batch-size'"):
        validate_keys(Configuration().set_string("tidegate.network.batch_size", "1"))
    with pytest.raises(ConfigurationError, match="lists all keys"):
        validate_keys(Configuration().set_string("zzz", "1"))


def test_known_keys_and_sparks_pass_silently() -> None:
    config = Configuration.from_dict(dict.fromkeys(options.KEYS, "1") | {"spark.master": "local[2]"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validate_keys(config)


@pytest.mark.parametrize(
    "key", ["taskmanager.numberOfTaskSlots", "state.backend.rocksdb.memory", "s3.endpoint", "execution.target"]
)
def test_flinks_unused_keys_warn(key: str) -> None:
    with pytest.warns(UserWarning, match=f"'{key}' has no effect"):
        validate_keys(Configuration().set_string(key, "1"))


def test_values_are_validated_under_the_key_that_was_set() -> None:
    with pytest.raises(ConfigurationError, match=r"^state.checkpoints.num-retained = 'x'"):
        validate_values(Configuration().set_string("state.checkpoints.num-retained", "x"))


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page(), "run: make docs"


def test_the_page_has_every_option_once() -> None:
    lines = configuration_page().splitlines()
    for option in options.ALL_OPTIONS:
        assert len([line for line in lines if line.startswith(f"| `{option.key}` |")]) == 1, option.key


# ---------------------------------------------------------------- ExecutionConfig


def test_execution_config_is_a_view_of_the_configuration() -> None:
    config = Configuration()
    execution = ExecutionConfig(config)
    assert (execution.get_parallelism(), execution.get_max_parallelism()) == (1, -1)
    execution.set_parallelism(4).set_max_parallelism(64).set_auto_watermark_interval(Duration.of_millis(50))
    execution.enable_object_reuse().disable_auto_generated_uids().set_use_snapshot_compression(True)
    execution.set_global_job_parameters({"a": 1}).set_latency_tracking_interval(10)
    execution.set_task_cancellation_interval(5).set_task_cancellation_timeout(0)
    assert read(config, options.PARALLELISM) == 4
    assert execution.get_max_parallelism() == 64
    assert execution.get_auto_watermark_interval() == 50
    assert execution.is_object_reuse_enabled()
    assert not execution.disable_object_reuse().is_object_reuse_enabled()
    assert not execution.has_auto_generated_uids_enabled()
    assert execution.enable_auto_generated_uids().has_auto_generated_uids_enabled()
    assert execution.is_use_snapshot_compression()
    assert execution.get_global_job_parameters() == {"a": "1"}
    assert execution.get_latency_tracking_interval() == 10
    assert execution.get_task_cancellation_interval() == 5
    assert execution.get_task_cancellation_timeout() == 0


def test_execution_config_refuses_wrong_values() -> None:
    for wrong in (
        lambda: ExecutionConfig().set_parallelism(0),
        lambda: ExecutionConfig().set_max_parallelism(-1),
        lambda: ExecutionConfig().set_auto_watermark_interval(-1),
        lambda: ExecutionConfig().set_global_job_parameters("x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError):
            wrong()


def test_each_value_knows_where_it_came_from() -> None:
    given = Configuration.from_dict({"a": 1, "b": 2, "c": 3}).come_from("configuration")
    command = Configuration.from_dict({"c": 4, "d": 5}).come_from("tidegate run")
    both = Configuration(command.add_all(given))
    both.set_string("b", "7")
    sources = {key: both.source_of(key) for key in sorted(both.key_set())}
    assert sources == {"a": "configuration", "b": "program", "c": "configuration", "d": "tidegate run"}
    assert both.source_of("unset", "d") == "tidegate run"
    assert Configuration.from_dict({"a": 1}) == Configuration.from_dict({"a": 1}).come_from("elsewhere")
