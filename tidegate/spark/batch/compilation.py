"""A batch plan as RDDs. Nothing runs until somebody asks for the result."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle
from pyspark import RDD, StorageLevel
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.worker_files import WorkerFiles
from tidegate.contracts.collect_sink import CollectSink
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SinkSpec, SourceSpec
from tidegate.graph.picklability import check_picklable
from tidegate.graph.splits import make_splits
from tidegate.jobmanager.preparation import runtime_settings
from tidegate.jobmanager.runtime import Submission
from tidegate.spark.batch.blocks import only_for
from tidegate.spark.batch.plan import BatchPlan, SavepointPlan, VertexPlan, check_bounded, plan_job
from tidegate.spark.batch.source_blocks import gives_blocks, with_stand_in_splits
from tidegate.spark.batch.worker import TaskLaunch, run_collected_partition, run_partition
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.session import obtain_session
from tidegate.spark.start_points import StartState
from tidegate.spark.worker_files import code_for, distribute
from tidegate.spark.worker_logs import WorkerLogs

_partitioner_ids = itertools.count(1)  # Spark takes partitioners of equal size and id for the same


@dataclass
class CompiledJob:
    report: RDD[bytes]  # one partition: all that the tasks have to say; to run it is to run the job
    tasks: set[tuple[int, int]]  # vertex and subtask of every task
    persisted: list[RDD[Any]] = field(default_factory=list)

    def unpersist(self) -> None:
        for rdd in self.persisted:
            rdd.unpersist()


def with_splits(graph: JobGraph) -> JobGraph:
    """The graph as it is shipped. Raises when a source never ends or something cannot be pickled."""
    check_bounded(graph)
    graph = make_splits(with_stand_in_splits(graph), all_of_them=True)
    check_picklable(graph)
    return graph


def plan_configured(
    graph: JobGraph,
    configuration: Configuration,
    files: WorkerFiles,
    savepoint: SavepointPlan | None = None,
    start: StartState | None = None,
) -> BatchPlan:
    settings = dataclasses.replace(runtime_settings(configuration, None), cached_files=files.paths())
    return plan_job(graph, settings, options.read(configuration, options.BATCH_BUFFER_SIZE), savepoint, start)


def collected_rdd(submission: Submission) -> RDD[bytes]:
    """The records of the graph's collect sink, as the package's docstring says. Lazy."""
    graph, configuration, files = submission.graph, submission.configuration, submission.files
    plan = plan_configured(with_splits(graph), configuration, files)
    ends = [i for i in plan.ends if _collects(plan.vertices[i])]
    if len(ends) != 1 or len(plan.ends) != 1:
        names = ", ".join(f"'{plan.graph.vertices[i].name}'" for i in plan.ends)
        raise ConfigurationError(f"a stream that stays in Spark has to be the only end of its job; there is: {names}")
    session = obtain_session(configuration, submission.session, width(graph), busy=True)
    distribute(session, files)
    compiler = _Compiler(session, plan, code_for(session, files))
    compiler.build(leave_out=ends[0])
    rdd = compiler.task_rdd(ends[0], run_collected_partition)
    return RDD(rdd._jrdd, session.sparkContext, NoOpSerializer())


def compile_job(
    session: SparkSession, plan: BatchPlan, bundle: CodeBundle, logs: WorkerLogs | None = None
) -> CompiledJob:
    """Called on the thread that runs the job: names go through Spark's properties of the thread."""
    compiler = _Compiler(session, plan, bundle, logs)
    compiler.build()
    report = compiler.shuffled([compiler.pairs(i, 0) for i in plan.ends], 1, "Report")
    return CompiledJob(report, compiler.tasks, compiler.persisted)


def _collects(plan: VertexPlan) -> bool:
    specs = [node.spec for node in plan.vertex.operators]
    return any(isinstance(spec, SinkSpec) and isinstance(spec.sink, CollectSink) for spec in specs)


def width(graph: JobGraph) -> int:
    return max(v.parallelism for v in graph.vertices)


class _Compiler:
    def __init__(
        self, session: SparkSession, plan: BatchPlan, bundle: CodeBundle, logs: WorkerLogs | None = None
    ) -> None:
        self._session = session
        self._sc = session.sparkContext
        self._jvm: Any = self._sc._jvm
        self._plan = plan
        self._bundle = bundle
        self._logs = logs
        self._outputs: dict[int, RDD[Any]] = {}  # by vertex: alternating keys and blocks
        self.tasks: set[tuple[int, int]] = set()
        self.persisted: list[RDD[Any]] = []

    def build(self, leave_out: int | None = None) -> None:
        for i in range(len(self._plan.vertices)):
            if i == leave_out:
                continue
            rdd = self.task_rdd(i, run_partition)
            if len(self._plan.consumers[i]) > 1:  # computed once, read by each consumer
                rdd.persist(StorageLevel.DISK_ONLY)
                self.persisted.append(rdd)
            self._outputs[i] = rdd

    def task_rdd(self, index: int, body: Any) -> RDD[Any]:
        plan = self._plan.vertices[index]
        name = plan.vertex.name
        job_id = self._plan.graph.job_id
        launch = TaskLaunch(self._bundle, bytes(cloudpickle.dumps(plan)), job_id, name, self._logs)
        with self._call_site(name):
            received = self._input(index)
            rdd: RDD[Any] = received.mapPartitionsWithIndex(partial(body, launch))
            rdd._bypass_serializer = True  # type: ignore[attr-defined]
            rdd.setName(name)
        self.tasks |= {(index, i) for i in range(received.getNumPartitions())}
        return rdd

    def _input(self, index: int) -> RDD[Any]:
        vertex = self._plan.graph.vertices[index]
        spec = vertex.operators[0].spec
        if isinstance(spec, SourceSpec):
            if not gives_blocks(spec.source):
                return self._sc.parallelize(range(vertex.parallelism), vertex.parallelism)
            rdd: RDD[Any] = spec.source.batch_rdd(self._session)
            return rdd if rdd.getNumPartitions() <= vertex.parallelism else rdd.coalesce(vertex.parallelism)
        producers = dict.fromkeys(int(e.source) for e in self._plan.graph.in_edges(vertex.vertex_id))
        pairs = [self.pairs(p, self._plan.consumers[p].index(index)) for p in producers]
        return self.shuffled(pairs, vertex.parallelism, vertex.name)

    def pairs(self, producer: int, consumer: int) -> Any:
        """The output of a vertex for one consumer, as Spark's own pairs of Long and bytes."""
        rdd = self._outputs[producer]
        name = self._plan.graph.vertices[producer].name
        with self._call_site(name):
            if len(self._plan.consumers[producer]) > 1:
                raw: RDD[bytes] = RDD(rdd._jrdd, self._sc, NoOpSerializer())
                rdd = raw.mapPartitions(partial(only_for, consumer))
                rdd._bypass_serializer = True  # type: ignore[attr-defined]
            return self._jvm.PairwiseRDD(rdd._jrdd.rdd()).asJavaPairRDD()

    def shuffled(self, pairs: list[Any], partitions: int, name: str) -> RDD[bytes]:
        """One shuffle of everything that a consumer reads, sorted by Spark, which spills what it cannot hold."""
        with self._call_site(name):
            together = pairs[0]
            for more in pairs[1:]:
                together = together.union(more)
            partitioner = self._jvm.PythonPartitioner(partitions, -next(_partitioner_ids))
            order = self._jvm.java.util.Comparator.naturalOrder()
            shuffle = together.repartitionAndSortWithinPartitions(partitioner, order)
            rdd: RDD[bytes] = RDD(self._jvm.PythonRDD.valueOfPair(shuffle), self._sc, NoOpSerializer())
            rdd.setName(f"Input of {name}")
        return rdd

    def _call_site(self, name: str) -> Any:
        return _NamedCallSite(self._sc, name)


class _NamedCallSite:
    """Stages are named after where their RDDs were made: let that be the operators."""

    _SHORT, _LONG = "callSite.short", "callSite.long"

    def __init__(self, sc: Any, name: str) -> None:
        self._sc = sc
        self._name = name

    def __enter__(self) -> None:
        self._before = self._sc.getLocalProperty(self._SHORT), self._sc.getLocalProperty(self._LONG)
        self._sc.setLocalProperty(self._SHORT, self._name)
        self._sc.setLocalProperty(self._LONG, self._name)

    def __exit__(self, *exception: object) -> None:
        self._sc.setLocalProperty(self._SHORT, self._before[0])
        self._sc.setLocalProperty(self._LONG, self._before[1])
