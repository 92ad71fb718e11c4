from __future__ import annotations

import json

import pytest

from tidegate.common.errors import JobGraphError
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import NumberSequenceSource, Source, SourceSplit
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.splits import make_splits


def test_the_plan_has_flinks_form():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.from_collection([1]).map(abs).set_description("absolute value").key_by(abs).sum().print()
    nodes = json.loads(env.get_execution_plan())["nodes"]
    assert [(n["id"], n["type"], n["pact"], n["parallelism"]) for n in nodes] == [
        (1, "Source: Collection", "Data Source", 1),
        (2, "Map", "Operator", 2),
        (3, "Sum", "Operator", 2),
        (4, "Sink: Print to Std. Out", "Data Sink", 2),
    ]
    assert nodes[1]["contents"] == "absolute value"
    assert "predecessors" not in nodes[0]
    assert [n["predecessors"][0]["ship_strategy"] for n in nodes[1:]] == ["REBALANCE", "HASH", "FORWARD"]
    assert nodes[2]["predecessors"] == [{"id": 2, "ship_strategy": "HASH", "side": "second"}]


def test_the_plan_needs_no_sink():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1])
    assert len(json.loads(env.get_execution_plan())["nodes"]) == 1


class Splits(Source):
    def __init__(self, splits):
        self.splits = splits

    def create_splits(self, parallelism):
        if isinstance(self.splits, Exception):
            raise self.splits
        return self.splits

    def create_reader(self, split, offset, context):
        raise NotImplementedError


def job(source):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "Mine").map(abs).print()
    return build_job_graph(env._operators, env._graph_settings()).job_graph


def test_splits_are_made_once_for_the_parallelism():
    graph = make_splits(job(NumberSequenceSource(1, 9)))
    spec = graph.vertices[0].operators[0].spec
    assert [(s.start, s.end) for s in spec.splits] == [(1, 3), (4, 6), (7, 9)]
    assert make_splits(graph) == graph


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (OSError("no such bucket"), "'Source: Mine': Splits.create_splits.3. failed: OSError: no such bucket"),
        ([SourceSplit("a"), SourceSplit("a")], "'Source: Mine'.*'a' twice"),
        (["a"], "'Source: Mine'.*has to be a SourceSplit"),
        (5, "'Source: Mine'.*TypeError"),
    ],
)
def test_bad_splits_name_the_source(splits, message):
    with pytest.raises(JobGraphError, match=message):
        make_splits(job(Splits(splits)))
