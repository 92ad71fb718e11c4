from __future__ import annotations

import functools
import threading

import pytest

from tidegate.common.errors import SerializationError
from tidegate.datastream import KeyedProcessFunction, KeySelector, MapFunction, StreamExecutionEnvironment
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.picklability import check_picklable

LOCK = threading.Lock()


class Holder:
    def __init__(self) -> None:
        self.inner = {"connections": [threading.Lock()]}


class WithAttribute(MapFunction):
    def __init__(self) -> None:
        self.helper = Holder()

    def map(self, value):
        return value


class Counting(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Selector(KeySelector):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def get_key(self, value):
        return value


def check(build) -> str:
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env.from_collection([1])).print()
    graph = build_job_graph(env._operators, env._graph_settings()).job_graph
    with pytest.raises(SerializationError) as error:
        check_picklable(graph)
    return str(error.value)


def test_a_good_job_passes():
    env = StreamExecutionEnvironment.get_execution_environment()
    offset = 3
    env.from_collection([1]).map(lambda value: value + offset).key_by(lambda value: value).sum().print()
    check_picklable(build_job_graph(env._operators).job_graph)


def test_a_captured_variable_is_named():
    lock = threading.Lock()

    def locked(value):
        with lock:
            return value

    text = check(lambda stream: stream.map(locked).name("Locked"))
    assert "operator 'Locked'" in text
    assert "locked" in text
    assert "the captured variable 'lock', of type _thread.lock" in text
    assert "open()" in text


def test_the_way_to_an_attribute_is_given():
    text = check(lambda stream: stream.map(WithAttribute()))
    assert "'WithAttribute'" in text
    assert (
        "the attribute 'helper' -> the attribute 'inner' -> item 'connections' -> item 0, of type _thread.lock" in text
    )
    assert "Create the object in open()" in text


def test_a_global_is_named():
    script = {"LOCK": LOCK, "__name__": "__main__"}
    exec("def use(value):\n    return LOCK and value", script)  # a function as in the user's own script
    text = check(lambda stream: stream.map(script["use"]))
    assert "its function 'use' holds the global 'LOCK', of type _thread.lock" in text


def test_a_partials_argument_is_named():
    text = check(lambda stream: stream.map(functools.partial(max, key=threading.Lock())))
    assert "argument 'key', of type _thread.lock" in text


def test_a_key_selector_is_checked():
    text = check(lambda stream: stream.key_by(Selector()).process(Counting()))
    assert "key selector 'Selector.get_key'" in text
    assert "the attribute 'lock'" in text


def test_partitioners_are_checked():
    lock = threading.Lock()
    text = check(lambda stream: stream.partition_custom(lambda key, n: lock and 0, abs).map(abs))
    assert "partitioning from 'Source: Collection' to 'Map'" in text
    assert "'lock'" in text
