"""One subtask of a vertex in one batch: takes up its state, processes what came, leaves its state. No Spark in here.

It is the task of a streaming job, fed from rows and stopped at the end of them: records, watermarks and the end of data
come in the order of their channels, so operators, time and timers behave as they do in STREAMING mode. What begins and
ends with the batch:

- a source reads until the batch is full or nothing is there;
- processing-time timers that are due are fired, and periodic watermarks are made;
- results of asynchronous calls are waited for;
- sinks prepare what they have written; it is the driver that commits it.

Only buckets of keys are loaded that have records or a timer that may become due (`_needed`), and only those that have
changed are written.
"""

from __future__ import annotations

import base64
import dataclasses
import logging
import pickle
from collections.abc import Iterable, Iterator

import cloudpickle
import msgspec

from tidegate.common.ids import AttemptNumber, ChannelAddress, OperatorId, SubtaskIndex
from tidegate.common.metric_values import MetricReport
from tidegate.connectors.print_sink import own_streams, print_to
from tidegate.contracts.batches import Batch
from tidegate.fault_tolerance.frozen_operator import FrozenOperator
from tidegate.fault_tolerance.none.task import Unprotected
from tidegate.graph.job_graph import JobEdge, JobVertex
from tidegate.graph.operator_specs import WindowSpec
from tidegate.graph.task_place import TaskPlace
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK, EndOfData, Watermark, WatermarkStatus
from tidegate.network.serialization import Element
from tidegate.protocol.messages import Message, StateReport
from tidegate.spark.batch.host import BatchHost
from tidegate.spark.micro_batch.bucket_keeper import BucketKeeper
from tidegate.spark.micro_batch.exchange import BatchChannel, Row, RowWriter, fill_inputs
from tidegate.spark.micro_batch.looks import SubtaskLooks
from tidegate.spark.micro_batch.places import DRIVER
from tidegate.spark.micro_batch.plan import MicroBatchPlan, SplitOrder, Tick
from tidegate.spark.micro_batch.report import TakenSplits, TaskReport
from tidegate.spark.micro_batch.task_state import (
    Figures,
    KeyedStates,
    OwnState,
    TaskMemory,
    dump_own,
    figure_name,
    figures_of,
    load_bucket,
    load_own,
    restores_of,
)
from tidegate.state.factory import HASHMAP, KeyedBackends
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.heap.buckets import Buckets
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.handles import OperatorSnapshot, TaskSnapshot
from tidegate.storage.reader import InlineStateSource
from tidegate.storage.writers import InlineTaskStateWriter
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.edge_output import EdgeOutput, make_edge_output
from tidegate.taskmanager.failure import OperatorFailure, describe
from tidegate.taskmanager.operator_contexts import OperatorContexts, RestoredStates
from tidegate.taskmanager.operators.base import bind
from tidegate.taskmanager.operators.batch_mode import HandsOverCommittables, RemembersBatches
from tidegate.taskmanager.operators.collect import CollectOperator
from tidegate.taskmanager.operators.source import SourceOperator
from tidegate.taskmanager.services import TaskServices
from tidegate.taskmanager.state_reads import StateReads
from tidegate.taskmanager.task import Task, TaskChannels, TaskState
from tidegate.taskmanager.task_figures import event_time_of, figures_of_source, records_given
from tidegate.taskmanager.user_report import UserReport

log = logging.getLogger("tidegate.worker")

_FIRST_RECORD_MS = 100.0  # how long a source waits for its first record of a batch
_NEXT_RECORD_MS = 10.0  # and for one that may be there at any moment, at its beginning
_CONNECTING_MS = 10_000.0  # and for readers that still make a connection
_UNLIMITED = 1 << 62
_GOLDEN = (5**0.5 - 1) / 2


class MicroBatchTask:
    """`run` is called once. `attempt` is that of the query: of the tries that Spark gives a task in it, one counts.
    `attempt_id` is unique among all tries of all attempts of all subtasks."""

    def __init__(
        self,
        plan: MicroBatchPlan,
        vertex: int,
        subtask: int,
        tick: Tick,
        memory: TaskMemory,
        attempt: int,
        attempt_id: str,
        host: BatchHost | None = None,
    ) -> None:
        self._plan = plan
        self._graph = plan.graph
        self._vertex: JobVertex = plan.graph.vertices[vertex]
        self._subtask = SubtaskIndex(subtask)
        self._tick = plan.in_force(tick)
        self._memory = memory
        self._attempt = AttemptNumber(attempt)
        self._attempt_id = attempt_id
        self._host = host or BatchHost()
        # The end of a batch is an exact cut.
        self._settings = dataclasses.replace(plan.settings, checkpointing=False, exactly_once=True)
        self._per_group = plan.buckets_per_group(self._vertex)
        self._buckets = Buckets(self._vertex.max_parallelism, self._per_group)
        self._cut_anew = False  # into more buckets than before
        self._keyed = any(node.spec.keyed for node in self._vertex.operators)
        self._connected_ms = 0.0  # readers were still making a connection then
        self._taken: TakenSplits | None = None
        self._looks = SubtaskLooks(tick.looks, vertex, subtask)
        self._loaded: dict[int, Figures] = {}  # what was in the buckets that the batch began with
        self._collected: list[bytes] = []
        self._printed: list[tuple[bool, str]] = []
        self._collecting: list[CollectOperator] = []
        self._edges: list[EdgeOutput[OutputChannel]] = []
        self._outputs: list[tuple[BatchChannel, int]] = []

    def run(self, payloads: Iterable[bytes]) -> Iterator[Row]:
        """`payloads`: all rows of elements for this subtask."""
        started = self._host.clock.now_ms()
        blob = self._memory.own()
        own = None if blob is None else load_own(blob)
        if own is not None and own.ended and not self._tick.savepoint and not self._looks:
            yield DRIVER, self._report(None, ended=True).to_row()
            return
        if own is not None:
            self._cut_keys(own)
        inputs, names = self._inputs()
        self._fill(inputs, payloads)
        task = self._make_task(inputs, names, own)
        try:
            if self._plan.prints_on_driver:
                print_to(lambda text, to_stderr: self._printed.append((to_stderr, text)))
            if own is None or not own.ended:
                yield from self._process(task, own)
            report = self._end_batch(task, own)
            yield from self._written.finish()
        finally:
            try:
                task.close()
            finally:
                print_to(own_streams)
                self._host.close()
        took_ms = self._host.clock.now_ms() - started
        report = dataclasses.replace(report, took_ms=took_ms, printed=tuple(self._printed))
        yield DRIVER, dataclasses.replace(report, records_out=self._records_out()).to_row()

    def _cut_keys(self, own: OwnState) -> None:
        planned = self._per_group
        self._per_group = own.wanted_per_group(planned)
        self._cut_anew = self._per_group != (own.buckets_per_group or planned)
        self._buckets = Buckets(self._vertex.max_parallelism, self._per_group)

    def _records_out(self) -> int:
        return sum(channel.records_out for channel, _ in self._outputs)

    # ------------------------------------------------------------ building
    def _inputs(self) -> tuple[list[InputChannel], list[str]]:
        inputs: list[InputChannel] = []
        names: list[str] = []
        for edge in self._graph.in_edges(self._vertex.vertex_id):
            for upstream in self._graph.upstream_subtasks(edge, self._subtask):
                address = ChannelAddress(edge.edge_id, upstream, self._subtask)
                inputs.append(InputChannel(address, len(inputs), edge.target_input, 0))
                names.append(f"{edge.key}/{upstream}")
        return inputs, names

    def _fill(self, inputs: list[InputChannel], payloads: Iterable[bytes]) -> None:
        try:
            fill_inputs(inputs, payloads)
        except Exception as error:
            name = self._vertex.operators[0].name
            raise OperatorFailure(name, self._subtask, "unpickling records from another task", error) from error

    def _make_task(self, inputs: list[InputChannel], names: list[str], own: OwnState | None) -> Task:
        place = TaskPlace(self._graph.job_id, self._vertex, self._subtask, self._attempt)
        host = self._host
        services = TaskServices(host.clock, host.run_async, host.run_coroutine, self, None, log.warning, _unheard)
        backends = KeyedBackends(HASHMAP, self._settings.rocksdb, 0, host.clock.now_ms)
        contexts = OperatorContexts(place, services, backends, self._settings, self._restored(own, inputs))
        outputs = [self._edge_output(edge) for edge in self._graph.out_edges(self._vertex.vertex_id)]
        self._written = RowWriter(self._outputs)
        chain = OperatorChain(self._vertex, outputs, contexts.make)
        told = own is not None and own.memo and own.attempt == self._attempt
        memos = pickle.loads(own.memo) if own is not None and told else {}
        for index, operator in enumerate(chain.operators):
            if isinstance(operator, RemembersBatches):
                operator.resume(memos.get(index))
        self._collecting = [op for op in chain.operators if isinstance(op, CollectOperator)]
        task = Task(
            place, chain, TaskChannels(inputs, outputs, names), services, self._settings, lambda _: Unprotected()
        )
        if own is not None:
            for channel in inputs:
                channel.end_of_data = channel.index in own.ended_inputs
            task.drained = own.drained
            for output, turn in zip(outputs, own.turns, strict=True):
                output.turn = turn
        self._edges = outputs
        return task

    def _edge_output(self, edge: JobEdge) -> EdgeOutput[OutputChannel]:
        channels: list[OutputChannel] = []
        for downstream in self._graph.downstream_subtasks(edge, self._subtask):
            address = ChannelAddress(edge.edge_id, self._subtask, downstream)
            channel = BatchChannel(address, _UNLIMITED, self._settings.batch_size, self._settings.max_batch_bytes)
            self._outputs.append((channel, self._plan.places[int(edge.target), int(downstream)]))
            channels.append(channel)
        name = self._vertex.operators[edge.source_operator].name
        groups = self._graph.vertices[edge.target].max_parallelism
        return make_edge_output(edge, channels, self._host.clock, name, self._subtask, groups)

    # ------------------------------------------------------------ state that is taken up
    def _restored(self, own: OwnState | None, inputs: list[InputChannel]) -> RestoredStates | None:
        if own is None:
            start = self._plan.start
            return None if start is None else start.of_task(int(self._vertex.vertex_id), int(self._subtask))
        found: dict[int, KeyedStates] = {}
        if self._keyed and own.buckets:
            needed = self._needed(own, inputs)
            if needed is None or len(needed) * 2 > len(own.buckets):
                found = {number: load_bucket(blob) for number, blob in self._memory.all_buckets()}
            else:
                blobs = ((number, self._memory.bucket(number)) for number in sorted(needed))
                found = {number: load_bucket(blob) for number, blob in blobs if blob is not None}
        self._loaded = {number: figures_of(states) for number, states in found.items()}
        return RestoredStates(own.checkpoint_id, InlineStateSource(), restores_of(own, found.values()), False)

    def _needed(self, own: OwnState, inputs: list[InputChannel]) -> set[int] | None:
        """The buckets that may be read in this batch. None: any."""
        head = self._vertex.operators[0]
        elements = [(channel.input_index, element) for channel in inputs for element in channel.queue]
        highest = self._highest(own, [element for _, element in elements])
        ends = any(isinstance(e, EndOfData) for _, e in elements)
        later = any(node.spec.keyed for node in self._vertex.operators[1:])
        if self._tick.savepoint or self._cut_anew or ends or later or not head.key_selectors:
            return None
        if isinstance(head.spec, WindowSpec) and (highest is not None or not head.spec.assigner.is_event_time()):
            return None  # windows keep no timers that would say when they fire
        now = self._host.clock.now_ms()
        due = {
            bucket
            for bucket, (event, processing) in own.timers.items()
            if processing <= now or (highest is not None and event <= highest)
        }
        selectors = [bind(selector, "get_key") for selector in head.key_selectors]
        try:
            for index, element in elements:
                if isinstance(element, Batch) and index < len(selectors) and selectors[index] is not None:
                    due |= self._buckets.touched(map(selectors[index], element.rows().values))
        except Exception:  # whatever is wrong with the record is said when it is processed
            return None
        due |= self._looks.buckets(self._buckets.of_key.__getitem__, own.buckets)
        return due & set(own.buckets)

    def _highest(self, own: OwnState, elements: list[Element]) -> int | None:
        """Where time may come to in this batch. None: it does not move. What is said again does not move it, and
        silence can: of what others wait for."""
        told = [e.timestamp for e in elements if isinstance(e, Watermark)]
        silent = any(isinstance(e, WatermarkStatus) and e.idle for e in elements)
        highest = max([*told, own.reached] if silent else told, default=own.watermark)
        return highest if highest > own.watermark else None

    # ------------------------------------------------------------ work
    def _process(self, task: Task, own: OwnState | None) -> Iterator[Row]:
        chain, host = task.chain, self._host
        chain.open()
        self._begin_rounds(chain)
        if own is not None:
            chain.notify_complete(own.checkpoint_id)  # Spark has committed that batch, or this one would not be
        task.start()
        if self._tick.drain:
            task.drain()
        source = chain.source
        if source is not None:
            self._take_splits(source, first=own is None)
            source.counts_bytes = True
        started = host.clock.now_ms()
        while True:
            now = host.clock.now_ms()
            worked = task.tick(now)
            task.may_read = 0 if source is None else self._may_read(task, source)
            reading = source is not None and task.state is TaskState.RUNNING and not source.finished
            if reading and not task.may_read and not chain.behind:
                worked = chain.advance(now, True) or worked
            else:
                worked = task.step(now) or worked
            yield from self._take_rows()
            if worked:
                continue
            if not all(op.settled for op in chain.operators):
                host.wait(chain.next_deadline())
                chain.advance(host.clock.now_ms(), True)
            elif not chain.available:
                host.sleep_until(None)
            elif source is not None and reading and task.may_read and self._may_wait(task, source, started, now):
                host.sleep_until(source.wake_at_ms)
            else:
                break
        for operator in chain.operators:
            if isinstance(operator, RemembersBatches):
                operator.end_of_batch()
        if task.state is TaskState.RUNNING and self._settings.watermark_interval_ms > 0:
            for operator in chain.periodic:
                operator.on_periodic(host.clock.now_ms())

    def _begin_rounds(self, chain: OperatorChain) -> None:
        """Looking for expired entries begins elsewhere in each batch: a small one looks at a few of them. The parts of
        the golden ratio come near every place soon, whatever the number of entries."""
        for operator in chain.operators:
            if isinstance(operator.context.keyed, HeapKeyedStateBackend):
                for table in operator.context.keyed.tables():
                    table.begin_rounds(self._tick.batch * _GOLDEN % 1)

    def _take_splits(self, source: SourceOperator, first: bool) -> None:
        order = self._tick.splits.get(str(source.node.operator_id), SplitOrder([], False))
        payloads = [base64.b64decode(payload) for subtask, payload in order.splits if subtask == self._subtask]
        names = [name for payload in payloads for name in pickle.loads(payload).names]
        if payloads or order.complete:
            source.take_splits(1, payloads, order.complete)
        names += (source.restored_names or []) if first else []
        if names or order.complete:
            operator_id = source.node.operator_id
            self._taken = TakenSplits(operator_id, tuple(names), len(payloads), order.complete)

    def _may_read(self, task: Task, source: SourceOperator) -> int:
        """How many more records belong to the batch, if they are as large as those before."""
        if self._tick.savepoint:
            return 0
        left = self._plan.max_records(self._vertex) - task.records_in
        read, most = source.bytes_read, self._plan.limits.max_bytes
        if read == 0:
            return left
        return 0 if read >= most else min(left, max(1, (most - read) * task.records_in // read))

    def _may_wait(self, task: Task, source: SourceOperator, started: float, now: float) -> bool:
        """Whether the batch waits for records. After a reader has its connection, there is time to read from it."""
        if source.settling and now < started + _CONNECTING_MS:
            self._connected_ms = now
            return True
        return now < max(started, self._connected_ms) + (_NEXT_RECORD_MS if task.records_in else _FIRST_RECORD_MS)

    def _take_rows(self) -> Iterator[Row]:
        try:
            yield from self._written.take()
        except (GeneratorExit, OperatorFailure):
            raise
        except Exception as error:
            name = self._vertex.operators[-1].name
            raise OperatorFailure(name, self._subtask, "pickling its results", error) from error

    # ------------------------------------------------------------ for the operators
    def send(self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int, payload: bytes) -> None:
        """This is their result port: collected results are part of the report."""
        self._collected.append(payload)
        for operator in self._collecting:
            if operator.node.operator_id == operator_id:
                operator.acknowledged(seq)

    def want_checkpoint(self) -> None:
        """Every batch is one."""

    # ------------------------------------------------------------ the end of the batch
    def _end_batch(self, task: Task, own: OwnState | None) -> TaskReport:
        chain, tick = task.chain, self._tick
        checkpoint_id = tick.checkpoint_id
        ended_before = own is not None and own.ended
        ended = ended_before or task.state is TaskState.END_OF_DATA
        if ended_before:
            chain.open()
        chain.prepare_barrier(checkpoint_id)
        if not ended_before:
            task.time.save(task.drained)
        for operator in chain.operators:
            operator.update_state(checkpoint_id, tick.time_ms)
        committables = []
        for operator in chain.operators:
            if isinstance(operator, HandsOverCommittables) and (taken := operator.hand_over_committables()):
                committables.append((operator.node.operator_id, bytes(cloudpickle.dumps(taken, 5))))
        reads = StateReads(self._attempt, self._host.clock, self._host.clock.now_ms)
        reads.watch([task])
        answers = self._looks.answers(reads.answer)
        written, figures = self._keep(task, own, ended)  # before the savepoint, which forgets what has changed
        snapshot, error = self._savepoint(chain, ended and not task.drained)
        users = UserReport(0.0)
        users.watch(self._vertex.vertex_id, [operator.context for operator in chain.operators])
        accumulators = users.final()
        return dataclasses.replace(
            self._report(task, ended),
            state_bytes=written,
            metrics=(*self._figures(task), *users.metrics),
            accumulators=accumulators,
            committables=tuple(committables),
            collected=tuple(self._collected),
            taken=self._taken,
            states=() if figures is None else tuple(self._counted(reads, figures)),
            answers=answers,
            savepoint=tick.savepoint,
            drain=tick.drain,
            snapshot=snapshot,
            savepoint_error=error,
            begun_with=None if own is None or ended_before else own.attempt,
        )

    def _report(self, task: Task | None, ended: bool) -> TaskReport:
        vertex = self._vertex
        read, given = (0, None) if task is None else (task.records_in, records_given(task))
        return TaskReport(int(vertex.vertex_id), int(self._subtask), read, 0, given, ended, vertex.is_source)

    def _figures(self, task: Task) -> Iterator[MetricReport]:
        """Where the task is; how much it has done the driver counts."""
        values, source = event_time_of(task), task.chain.source
        if source is not None:
            values |= figures_of_source(source, self._host.clock.now_ms())
        for name, value in values.items():
            yield MetricReport(self._vertex.vertex_id, self._subtask, name, value)

    def _counted(self, reads: StateReads, figures: Figures) -> Iterator[StateReport]:
        """The states of the task with what all their buckets have, and not only those that are loaded."""
        reads.report_if_due(self._host.clock.now_ms())
        for report in reads.reports:
            entries, size = figures.get(figure_name(report.operator_id, report.state), (0, 0))
            yield msgspec.structs.replace(report, entries=entries, bytes=size, exact=True)

    def _keep(self, task: Task, own: OwnState | None, ended: bool) -> tuple[int, Figures | None]:
        """Write the state. Returns its bytes, and what there is of each state; None when that is not known."""
        sink = InlineTaskStateWriter(_UNLIMITED, task.name)
        operators = [
            OperatorSnapshot(
                operator_id=op.node.operator_id,
                name=op.node.name,
                uid=op.node.uid or "",
                lists=op.context.operator_state.snapshot().write(sink),
            )
            for op in task.chain.operators
        ]
        keyed: list[tuple[OperatorId, HeapKeyedStateBackend]] = []
        for op in task.chain.operators:
            if op.context.keyed is not None:
                assert isinstance(op.context.keyed, HeapKeyedStateBackend)
                keyed.append((op.node.operator_id, op.context.keyed))
        keeper = BucketKeeper(self._buckets, self._memory, own, self._loaded, self._cut_anew)
        written = keeper.keep(keyed, self._tick.checkpoint_id, sink)
        state = OwnState(
            checkpoint_id=self._tick.checkpoint_id,
            operators=operators,
            ended_inputs=[channel.index for channel in task.inputs if channel.end_of_data],
            ended=ended,
            drained=task.drained,
            timers=keeper.timers,
            buckets=keeper.sizes,
            lone=sorted(keeper.lone),
            skew_cut=0 if own is None else own.skew_met(self._cut_anew),
            figures=keeper.figures,
            buckets_per_group=self._per_group,
            turns=[output.turn for output in self._edges],
            memo=b"" if ended else self._memos(task.chain),
            attempt=int(self._attempt),
            watermark=MIN_WATERMARK if task.drained else task.time.watermark,
            reached=MAX_WATERMARK if task.drained else task.time.reached,
        )
        blob = dump_own(state)
        self._memory.keep_own(blob)
        return written + len(blob), keeper.figures

    def _memos(self, chain: OperatorChain) -> bytes:
        told = {i: op.memo() for i, op in enumerate(chain.operators) if isinstance(op, RemembersBatches)}
        told = {index: memo for index, memo in told.items() if memo is not None}
        return pickle.dumps(told, 5) if told else b""

    def _savepoint(self, chain: OperatorChain, at_end: bool) -> tuple[bytes, str]:
        """Its part of the savepoint, encoded; or why there is none, which is no reason to fail the batch: it would be
        run again with the same order, and fail for ever."""
        tick = self._tick
        if not tick.savepoint:
            return b"", ""
        frozen = [
            FrozenOperator(op.node, op.context.keyed, op.context.operator_state, tick.checkpoint_id, True)
            for op in chain.operators
        ]
        files = self._plan.savepoints.files(tick.savepoint, tick.permissions)
        part = f"{self._subtask}-{self._attempt_id}"
        try:
            writer = SavepointWriter(files, self._subtask, self._vertex.max_parallelism, tick.checkpoint_id, part)
            try:
                operators = [operator.write_savepoint(writer) for operator in frozen]
            except BaseException:
                writer.abort()
                raise
        except Exception as error:
            return b"", f"subtask {self._subtask} of '{self._vertex.name}': {describe(error).summary}"
        snapshot = TaskSnapshot(
            vertex=self._vertex.vertex_id, subtask=self._subtask, operators=operators, end_of_data=at_end
        )
        return msgspec.msgpack.encode(snapshot), ""


def _unheard(message: Message) -> None:
    """Control messages of a streaming task: the report says all that there is to say."""
