from __future__ import annotations

import pytest

from tidegate.common import Types
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import (
    CoProcessFunction,
    FilterFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    SinkFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import DiscardingSink


class Mapper(MapFunction):
    def map(self, value):
        return value


class AsyncMapper(MapFunction):
    async def map(self, value):
        return value


class Filtering(FilterFunction):
    def filter(self, value):
        return True


class Processing(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class KeyedProcessing(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class CoProcessing(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield value

    process_element2 = process_element1


class KeyedCoProcessing(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield value

    process_element2 = process_element1


class Writing(SinkFunction):
    def invoke(self, value, context):
        pass


async def coroutine(value):
    return value


@pytest.fixture
def stream():
    return StreamExecutionEnvironment.get_execution_environment().from_collection([1])


@pytest.mark.parametrize("function", [Mapper(), abs, str, lambda v: v, Mapper().map])
def test_map_takes_functions_of_all_kinds(stream, function):
    stream.map(function)
    stream.key_by(abs).map(function)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.map(5), "map: takes a MapFunction or a plain function, got int: 5"),
        (lambda s: s.map(Mapper), "got the class Mapper itself; pass an instance"),
        (lambda s: s.map(coroutine), "map: 'coroutine' is a coroutine function"),
        (lambda s: s.map(AsyncMapper()), "AsyncMapper.map is a coroutine function"),
        (lambda s: s.map(Filtering()), r"got the FilterFunction Filtering; use filter\(\)"),
        (lambda s: s.flat_map(Mapper()), r"flat_map: .* got the MapFunction Mapper; use map\(\)"),
        (lambda s: s.filter(None), "filter: takes a FilterFunction or a plain function, got NoneType"),
        (lambda s: s.filter(Mapper()), r"filter: .* use map\(\)"),
        (lambda s: s.process(abs), "process: takes a ProcessFunction, got builtin_function_or_method"),
        (lambda s: s.process(KeyedProcessing()), r"use key_by\(...\).process\(\)"),
        (lambda s: s.key_by(abs).process(Processing()), r"process \(on a keyed stream\): takes a KeyedProcessFunction"),
        (lambda s: s.key_by("word"), "key_by: takes a KeySelector or a plain function, got str: 'word'"),
        (lambda s: s.key_by(coroutine), "key_by: 'coroutine' is a coroutine function"),
        (lambda s: s.key_by(abs).reduce(3), "reduce: takes a ReduceFunction or a plain function"),
        (lambda s: s.key_by(abs).sum(1.5), "sum: the field has to be an index or a name"),
        (lambda s: s.partition_custom(3, abs), "partition_custom: takes a Partitioner"),
        (lambda s: s.connect(s).map(abs), r"map \(on connected streams\): takes a CoMapFunction"),
        (lambda s: s.connect(s).process(Processing()), "takes a CoProcessFunction or a KeyedCoProcessFunction"),
        (lambda s: s.add_sink(7), "add_sink: takes a SinkFunction"),
        (lambda s: s.sink_to(Writing()), "sink_to: takes a Sink .add_sink takes functions"),
        (lambda s: s.sink_to(DiscardingSink), "sink_to: .*pass an instance"),
        (lambda s: s.union(5), "union: takes a DataStream, got int"),
        (lambda s: s.connect(None), "connect: takes a DataStream"),
        (lambda s: s.map(abs, Types.INT), "call it, with parentheses"),
        (lambda s: s.map(abs, int), r"map\(output_type\): expected a type such as Types.STRING\(\)"),
        (lambda s: s.get_side_output("late"), "get_side_output: takes an OutputTag"),
        (lambda s: s.assign_timestamps_and_watermarks(5), "takes a WatermarkStrategy"),
        (lambda s: s.project("a"), "project: the index of a field has to be an int"),
        (lambda s: s.set_parallelism("2"), "set_parallelism: the parallelism has to be an int"),
        (lambda s: s.name(5), "name: the name has to be a string"),
        (lambda s: OutputTag(5), "OutputTag"),
        (lambda s: OutputTag("a", int), "OutputTag"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(stream, call, message):
    with pytest.raises(TypeError, match=message):
        call(stream)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.set_parallelism(2), "cannot run in parallel"),
        (lambda s: s.map(abs).set_parallelism(0), "at least 1, got 0"),
        (lambda s: s.map(abs).set_max_parallelism(40_000), "at most 32768"),
        (lambda s: s.map(abs).uid(""), "uid: the uid is empty"),
        (lambda s: s.rebalance().set_parallelism(2), "not an operator"),
        (lambda s: s.key_by(abs).uid("a"), "uid: this stream comes from key_by"),
        (lambda s: s.project(), "at least one field"),
        (lambda s: s.key_by(abs).sum(-1), "at least 0, got -1"),
        (lambda s: s.connect(s).process(KeyedCoProcessing()), "needs keys on both streams"),
        (lambda s: s.execute_and_collect(limit=0), "the limit has to be at least 1"),
        (lambda s: s.union(StreamExecutionEnvironment.get_execution_environment().from_collection([1])), "different"),
        (lambda s: OutputTag(""), "the id is empty"),
        (lambda s: s.print(""), "identifier is empty"),
        (lambda s: s.map(abs).set_buffer_timeout(-2), "at least -1"),
    ],
)
def test_wrong_values_are_refused_at_the_call(stream, call, message):
    with pytest.raises(ConfigurationError, match=message):
        call(stream)


def test_a_tag_with_two_types_is_a_clash(stream):
    processed = stream.process(Processing())
    processed.get_side_output(OutputTag("late", Types.INT()))
    processed.get_side_output(OutputTag("late", Types.INT()))
    processed.get_side_output(OutputTag("late"))
    with pytest.raises(ConfigurationError, match="side output 'late' of 'Process' was asked for as"):
        processed.get_side_output(OutputTag("late", Types.STRING()))


def test_keyed_co_process_needs_keys_and_co_process_may_have_them(stream):
    keyed = stream.connect(stream).key_by(abs, abs)
    assert keyed.process(KeyedCoProcessing())._transformation.spec.is_keyed
    assert keyed.process(CoProcessing())._transformation.spec.is_keyed
    assert not stream.connect(stream.key_by(abs)).process(CoProcessing())._transformation.spec.is_keyed
