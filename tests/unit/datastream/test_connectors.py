from __future__ import annotations

import pickle

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.common.errors import ConfigurationError
from tidegate.datastream.connectors import (
    Boundedness,
    CollectionSource,
    DataGeneratorSource,
    DiscardingSink,
    NumberSequenceSource,
    PrintSink,
)
from tidegate.datastream.connectors.base import SinkContext, SourceContext


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000.0

    def now_ms(self) -> float:
        return self.now


def context(clock=None):
    return SourceContext("Source", 0, 1, clock or Clock())


def drain(reader, size=7):
    values = []
    while (batch := reader.poll(size)) is not None:
        assert len(batch) <= size
        values += batch
    return values


def read_all(source, parallelism):
    return [drain(source.create_reader(s, None, context())) for s in source.create_splits(parallelism)]


SOURCES = [
    NumberSequenceSource(-3, 40),
    CollectionSource(["a", "b", "c", "d", "e"]),
    DataGeneratorSource(lambda i: i * i, 20),
]


@pytest.mark.parametrize("source", SOURCES, ids=repr)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_reader_opened_at_an_offset_goes_on_exactly_there(source, parallelism):
    source = pickle.loads(cloudpickle.dumps(source))
    for split in source.create_splits(parallelism):
        whole = drain(source.create_reader(split, None, context()))
        for size in (1, 4):
            reader, seen = source.create_reader(split, None, context()), []
            while True:
                offset = pickle.loads(pickle.dumps(reader.offset()))
                assert seen + drain(source.create_reader(split, offset, context())) == whole
                batch = reader.poll(size)
                if batch is None:
                    break
                seen += batch


@settings(max_examples=50)
@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9))
def test_number_ranges_are_contiguous_and_whole(start, length, parallelism):
    parts = read_all(NumberSequenceSource(start, start + length), parallelism)
    assert [n for part in parts for n in part] == list(range(start, start + length + 1))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_number_sequence_needs_a_range():
    with pytest.raises(ConfigurationError, match=r"start \(5\) is greater than end \(4\)"):
        NumberSequenceSource(5, 4)
    with pytest.raises(TypeError, match="end"):
        NumberSequenceSource(5, "9")


def test_a_collection_is_taken_as_it_is_at_the_call():
    elements = [[1], [2]]
    source = CollectionSource(elements)
    elements[0].append(9)
    assert read_all(source, 4) == [[[1], [2]]]
    assert read_all(CollectionSource([]), 1) == [[]]


# ---------------------------------------------------------------- generator


def test_a_generator_makes_each_index_once():
    assert sorted(n for part in read_all(DataGeneratorSource(lambda i: i, 10), 3) for n in part) == list(range(10))
    assert read_all(DataGeneratorSource(str, 2), 4) == [["0"], ["1"]]
    assert read_all(DataGeneratorSource(str, 0), 4) == [[]]


def test_a_generator_without_count_never_ends():
    source = DataGeneratorSource(lambda i: i)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    first, second = source.create_splits(2)
    assert source.create_reader(first, 5, context()).poll(3) == [10, 12, 14]
    assert source.create_reader(second, None, context()).poll(3) == [1, 3, 5]


def test_the_rate_holds_per_split_and_late_records_are_caught_up():
    clock = Clock()
    source = DataGeneratorSource(lambda i: i, 1000, records_per_second=100.0)
    split = source.create_splits(2)[1]  # 50 records a second: one every 20 ms
    reader = source.create_reader(split, None, context(clock))
    start = clock.now
    assert reader.poll(10) == [1]
    assert reader.poll(10) == []
    assert reader.wake_at_ms() == start + 20
    clock.now = start + 59
    assert reader.poll(10) == [3, 5]
    clock.now = start + 1000  # a pause: 51 records are due in all, no more
    batches = [reader.poll(10) for _ in range(6)]
    assert [len(batch) for batch in batches] == [10, 10, 10, 10, 8, 0]
    assert reader.wake_at_ms() == start + 51 * 20


@settings(max_examples=50)
@given(st.floats(0.1, 5000), st.integers(1, 4), st.floats(0, 1e12))
def test_a_clock_that_jumps_to_the_wake_time_always_finds_a_record(rate, parallelism, start):
    clock = Clock()
    clock.now = start
    source = DataGeneratorSource(lambda i: i, None, records_per_second=rate)
    reader = source.create_reader(source.create_splits(parallelism)[0], None, context(clock))
    for _ in range(50):
        assert reader.poll(100)
        while reader.poll(100):
            pass
        clock.now = max(clock.now, reader.wake_at_ms())


def test_after_a_restart_the_rate_starts_anew():
    clock = Clock()
    source = DataGeneratorSource(lambda i: i, None, records_per_second=10.0)
    reader = source.create_reader(source.create_splits(1)[0], 500, context(clock))
    clock.now += 60_000
    assert reader.poll(10) == [500]
    assert reader.poll(10) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x",), TypeError),
        ((str, -1), ConfigurationError),
        ((str, 1.5), TypeError),
        ((str, 1, 0), ConfigurationError),
        ((str, 1, float("inf")), ConfigurationError),
    ],
)
def test_a_generator_checks_its_arguments(arguments, error):
    with pytest.raises(error, match="DataGeneratorSource"):
        DataGeneratorSource(*arguments)


# ---------------------------------------------------------------- sinks


def sink_context(subtask, parallelism):
    return SinkContext("job", "Sink", subtask, parallelism, 0, Clock())


@pytest.mark.parametrize(
    ("identifier", "subtask", "parallelism", "line"),
    [
        (None, 0, 1, "5\n"),
        (None, 1, 2, "2> 5\n"),
        ("out", 0, 1, "out> 5\n"),
        ("out", 1, 2, "out:2> 5\n"),
    ],
)
def test_print_prefixes_are_flinks(capsys, identifier, subtask, parallelism, line):
    writer = PrintSink(identifier).create_writer(sink_context(subtask, parallelism))
    writer.write_batch([5, 5], None)
    writer.write_batch([], None)
    assert capsys.readouterr().out == line * 2


def test_print_to_standard_error(capsys):
    PrintSink(to_stderr=True).create_writer(sink_context(0, 1)).write_batch(["a"], None)
    assert capsys.readouterr() == ("", "a\n")


def test_discarding():
    DiscardingSink().create_writer(sink_context(0, 1)).write_batch([1], None)
