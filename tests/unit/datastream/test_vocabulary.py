from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import tidegate.datastream
import tidegate.datastream.connectors
from tidegate.common import Duration, Time, Types
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import MemorySize, OutputTag, SlotSharingGroup
from tidegate.datastream.functions import AggregateFunction, AsyncRetryStrategy, KeyedProcessFunction, ReduceFunction
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)


@pytest.mark.parametrize("module", [tidegate.datastream, tidegate.datastream.connectors])
def test_every_exported_name_exists(module):
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_a_worker_loads_no_more_than_it_needs():
    script = (
        "import sys, tidegate.datastream.functions, tidegate.datastream.state, tidegate.datastream.output_tag\n"
        "heavy = {'tidegate.datastream.stream_execution_environment', 'tidegate.datastream.stream', 'pyspark'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_output_tags_are_equal_by_id_also_after_pickling():
    tag = OutputTag("late", Types.INT())
    assert pickle.loads(pickle.dumps(tag)) == tag == OutputTag("late")
    assert hash(tag) == hash(OutputTag("late"))
    assert tag != OutputTag("other")
    assert OutputTag("row", [Types.INT()]).type_info == Types.ROW([Types.INT()])


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def test_descriptors():
    descriptors = [
        ValueStateDescriptor("v", Types.INT()),
        ListStateDescriptor("l"),
        MapStateDescriptor("m", Types.STRING(), Types.INT()),
        ReducingStateDescriptor("r", max),
        AggregatingStateDescriptor("a", Mean()),
    ]
    assert [(d.get_name(), d.kind) for d in descriptors] == [
        ("v", "value"),
        ("l", "list"),
        ("m", "map"),
        ("r", "reducing"),
        ("a", "aggregating"),
    ]
    assert isinstance(descriptors[3].get_reduce_function(), ReduceFunction)
    assert descriptors[3].get_reduce_function().reduce(2, 5) == 5
    assert descriptors[2].value_type_info == Types.INT()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ValueStateDescriptor(""), ConfigurationError),
        (lambda: ValueStateDescriptor(5), TypeError),
        (lambda: ReducingStateDescriptor("r", 5), TypeError),
        (lambda: AggregatingStateDescriptor("a", max), TypeError),
        (lambda: ValueStateDescriptor("v").enable_time_to_live(5), TypeError),
        (lambda: StateTtlConfig.new_builder(Time.seconds(0)), ConfigurationError),
        (lambda: StateTtlConfig.new_builder("1 s"), ConfigurationError),
        (lambda: StateTtlConfig.new_builder(Time.seconds(1)).set_update_type("always"), TypeError),
        (lambda: StateTtlConfig.new_builder(Time.seconds(1)).cleanup_incrementally(0, True), ConfigurationError),
    ],
)
def test_wrong_descriptors_are_refused(call, error):
    with pytest.raises(error):
        call()


def test_time_to_live():
    builder = StateTtlConfig.new_builder(Time.seconds(2))
    config = builder.build()
    assert config.ttl_ms == 2000
    assert config.get_ttl() == Time.seconds(2)
    assert config.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert config.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    assert config.get_cleanup_strategies().is_cleanup_in_background()
    assert config.get_cleanup_strategies().get_incremental_cleanup_strategy().get_cleanup_size() == 5
    config = (
        builder.update_ttl_on_read_and_write()
        .return_expired_if_not_cleaned_up()
        .use_processing_time()
        .cleanup_full_snapshot()
        .cleanup_incrementally(3, True)
        .cleanup_in_rocksdb_compact_filter(10, Duration.of_days(1))
        .disable_cleanup_in_background()
        .set_ttl(Duration.of_millis(5))
        .build()
    )
    assert config.ttl_ms == 5
    assert config.get_cleanup_strategies().in_full_snapshot()
    assert config.get_cleanup_strategies().get_incremental_cleanup_strategy().run_cleanup_for_every_record()
    rocks = config.get_cleanup_strategies().get_rocksdb_compact_filter_cleanup_strategy()
    assert rocks.get_periodic_compaction_time() == Duration.of_days(1)
    assert pickle.loads(pickle.dumps(config)).ttl_ms == 5

    descriptor = ValueStateDescriptor("v")
    assert descriptor.ttl_config is None
    descriptor.enable_time_to_live(config)
    assert descriptor.ttl_config is config
    descriptor.enable_time_to_live(builder.set_update_type(StateTtlConfig.UpdateType.Disabled).build())
    assert descriptor.ttl_config is None


def test_on_timer_may_be_left_out():
    class Function(KeyedProcessFunction):
        def process_element(self, value, ctx):
            return None

    assert Function().on_timer(1, None) is None


def test_slot_sharing_groups_and_memory_sizes():
    group = SlotSharingGroup.builder("g").set_cpu_cores(2).set_task_heap_memory_mb(4).set_managed_memory("1 gb").build()
    assert group.get_cpu_cores() == 2.0
    assert group.get_task_heap_memory() == MemorySize.of_mebi_bytes(4)
    assert group.get_managed_memory().get_gibi_bytes() == 1
    assert group == SlotSharingGroup("g", 2.0, MemorySize(4 << 20), None, MemorySize(1 << 30))
    for wrong in (lambda: MemorySize.parse("many"), lambda: SlotSharingGroup(""), lambda: MemorySize(-1)):
        with pytest.raises(ConfigurationError):
            wrong()


def test_async_retry_strategies():
    fixed = AsyncRetryStrategy.fixed_delay(2, 10)
    assert [fixed.can_retry(n) for n in (1, 2, 3)] == [True, True, False]
    growing = AsyncRetryStrategy.exponential_backoff(9, 10, 50, 2.0)
    assert [growing.get_backoff_time_millis(n) for n in (1, 2, 3, 4)] == [10, 20, 40, 50]
    assert not AsyncRetryStrategy.no_restart().can_retry(1)
    with pytest.raises(ConfigurationError):
        AsyncRetryStrategy.fixed_delay(0, 10)
