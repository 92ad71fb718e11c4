from __future__ import annotations

import collections
import gc
import sys
import threading

import pytest

from tidegate.common import Row, Types
from tidegate.common.completable_future import CompletableFuture
from tidegate.datastream import KeySelector, Partitioner, StreamExecutionEnvironment
from tidegate.datastream.aggregations import max_by, max_of, min_by, min_of, sum_of
from tidegate.datastream.closeable_iterator import cancel_interrupted
from tidegate.datastream.data_stream import CloseableIterator, DataStream, KeyedStream
from tidegate.graph.job_graph import PartitionKind
from tidegate.graph.operator_specs import KeyedMapSpec, ReduceSpec

Point = collections.namedtuple("Point", "name value")


@pytest.fixture
def stream():
    return StreamExecutionEnvironment.get_execution_environment().from_collection([(1, "a")])


# ---------------------------------------------------------------- aggregations


@pytest.mark.parametrize(
    ("reduce", "first", "second", "expected"),
    [
        (sum_of(0), 3, 4, 7),
        (sum_of(1), ("a", 1), ("b", 2), ("a", 3)),
        (sum_of(1), ["a", 1], ["b", 2], ["a", 3]),
        (sum_of("value"), Point("a", 1), Point("b", 2), Point("a", 3)),
        (sum_of(1), Row("a", 1), Row("b", 2), Row("a", 3)),
        (sum_of("n"), Row(k="a", n=1), Row(k="b", n=2), Row(k="a", n=3)),
        (min_of(1), ("a", 5), ("b", 2), ("a", 2)),
        (min_of(1), ("a", 2), ("b", 5), ("a", 2)),
        (max_of(0), 3, 9, 9),
        (max_of(1), ("a", 2), ("b", 5), ("a", 5)),
        (min_by(1), ("a", 5), ("b", 2), ("b", 2)),
        (min_by(1), ("a", 2), ("b", 2), ("a", 2)),
        (max_by(1), ("a", 2), ("b", 2), ("a", 2)),
        (max_by("n"), Row(k="a", n=1), Row(k="b", n=2), Row(k="b", n=2)),
    ],
)
def test_aggregations(reduce, first, second, expected):
    before = repr(first)
    result = reduce(first, second)
    assert result == expected
    assert type(result) is type(expected)
    assert repr(first) == before  # the first record is not changed in place


@pytest.mark.parametrize(
    ("position", "record"), [(1, 5), ("x", (1, 2)), (2, (1, 2)), ("x", Row(1)), ("x", Row(a=1)), ("x", {"x": 1})]
)
def test_a_missing_field_is_explained(position, record):
    with pytest.raises(TypeError, match="has no field"):
        sum_of(position)(record, record)


def test_aggregations_are_reduces(stream):
    keyed = stream.key_by(lambda value: value[0])
    for result, name in [(keyed.sum(1), "Sum"), (keyed.min_by(1), "Min By"), (keyed.max(), "Max")]:
        assert isinstance(result._transformation.spec, ReduceSpec)
        assert result.get_name() == name


# ---------------------------------------------------------------- streams


def test_project():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([(1, "a", 2.0)], Types.TUPLE([Types.INT(), Types.STRING(), Types.DOUBLE()]))
    projected = stream.project(2, 0)
    function = projected._transformation.spec.function
    assert function((1, "a", 2.0)) == (2.0, 1)
    assert function(Row(1, "a", 2.0)) == (2.0, 1)
    assert projected.get_type() == Types.TUPLE([Types.DOUBLE(), Types.INT()])


def test_setters_return_the_stream(stream):
    mapped = stream.map(lambda value: value)
    for setting in (
        lambda: mapped.name("n"),
        lambda: mapped.uid("u"),
        lambda: mapped.set_description("d"),
        lambda: mapped.set_parallelism(2),
        lambda: mapped.set_max_parallelism(2),
        lambda: mapped.set_buffer_timeout(1),
        lambda: mapped.start_new_chain(),
        lambda: mapped.disable_chaining(),
        lambda: mapped.slot_sharing_group("g"),
        lambda: mapped.force_non_parallel(),
    ):
        assert setting() is mapped
    sink = mapped.print()
    assert sink.name("p").uid("s").set_parallelism(1).disable_chaining().slot_sharing_group("x") is sink
    assert sink.get_name() == "p"


def test_keys_last_until_the_next_operator(stream):
    keyed = stream.key_by(lambda value: value[0])
    assert isinstance(keyed, KeyedStream)
    assert isinstance(keyed.key_by(lambda value: value[1]), KeyedStream)
    for other in (keyed.map(str), keyed.union(stream), keyed.sum(1)):
        assert type(other) is DataStream


def test_operators_on_a_keyed_stream_may_use_state(stream):
    keyed = stream.key_by(lambda value: value[0])
    specs = [s._transformation.spec for s in (keyed.map(str), keyed.flat_map(list), keyed.filter(bool))]
    assert [(type(s), s.kind) for s in specs] == [(KeyedMapSpec, k) for k in ("map", "flat_map", "filter")]


class First(KeySelector):
    def get_key(self, value):
        return value[0]


class Modulo(Partitioner):
    def partition(self, key, num_partitions):
        return key % num_partitions


def test_selectors_and_partitioners_become_callables(stream):
    keyed = stream.key_by(First())
    assert keyed._transformation.partition.key_selector((7, "a")) == 7
    custom = stream.partition_custom(Modulo(), First())._transformation.partition
    assert custom.kind is PartitionKind.CUSTOM
    assert custom.partitioner(custom.key_selector((7, "a")), 4) == 3


def test_a_declared_key_type_is_honoured(stream):
    keyed = stream.key_by(lambda value: [value[0]], Types.TUPLE([Types.INT()]))
    assert keyed._transformation.partition.key_selector((7, "a")) == (7,)


def test_types_are_known_where_declared(stream):
    assert stream.get_type() == Types.PICKLED_BYTE_ARRAY()
    typed = stream.map(str, Types.STRING())
    assert typed.get_type() == Types.STRING()
    assert typed.filter(bool).rebalance().key_by(len).reduce(max).get_type() == Types.STRING()
    assert stream.map(str, [Types.STRING(), Types.INT()]).get_type() == Types.ROW([Types.STRING(), Types.INT()])


def test_union_with_nothing_is_the_stream_itself(stream):
    assert stream.union()._transformation is stream._transformation


# ---------------------------------------------------------------- CloseableIterator


class Job:
    def __init__(self):
        self.cancelled = threading.Event()
        self.times = 0

    def cancel(self):
        self.times += 1
        self.cancelled.set()
        return CompletableFuture.completed(None)


def test_closing_early_cancels_once():
    job = Job()
    with CloseableIterator(iter([1, 2, 3]), job.cancel) as results:
        assert results.next() == 1
    results.close()
    assert job.times == 1
    assert list(results) == []


def test_taking_all_cancels_nothing():
    job = Job()
    results = CloseableIterator(iter([1, 2]), job.cancel)
    assert list(results) == [1, 2]
    results.close()
    del results
    gc.collect()
    assert not job.cancelled.wait(0.05)


def test_an_iterator_that_is_dropped_ends_its_job():
    job = Job()
    for value in CloseableIterator(iter([1, 2, 3]), job.cancel):
        assert value == 1
        break
    assert job.cancelled.wait(5)


def test_an_iterator_in_a_cycle_ends_its_job_when_it_is_collected():
    job = Job()
    cycle = [CloseableIterator(iter([1, 2, 3]), job.cancel)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert job.cancelled.wait(5)


def test_ctrl_c_while_waiting_for_a_result_cancels_the_job():
    def interrupted():
        yield 1
        raise KeyboardInterrupt

    job = Job()
    results = CloseableIterator(interrupted(), job.cancel)
    with pytest.raises(KeyboardInterrupt):
        list(results)
    assert job.times == 1


def test_ctrl_c_in_the_code_that_reads_results_cancels_their_job_and_no_other():
    def busy(value):
        cancel_interrupted(sys._getframe())

    def reads(results):
        return next(results)

    job, other = Job(), Job()
    results, elsewhere = CloseableIterator(iter([1, 2]), job.cancel), CloseableIterator(iter([1, 2]), other.cancel)
    reads(elsewhere)
    for value in results:
        busy(value)
    assert (job.times, other.times) == (1, 0)


def test_an_error_of_the_job_is_raised_and_ends_the_iteration():
    def failing():
        yield 1
        raise RuntimeError("job failed")

    job = Job()
    results = CloseableIterator(failing(), job.cancel)
    assert next(results) == 1
    with pytest.raises(RuntimeError, match="job failed"):
        next(results)
    results.close()
    assert job.times == 0
