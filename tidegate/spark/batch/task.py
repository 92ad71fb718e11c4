"""One subtask of a vertex in a batch job: reads blocks in order, drives the chain, emits blocks. No Spark in here.

Keyed operators read one group of keys after the other. Within a group, records that carry timestamps come in their
order; the watermark stands still. At the end of the group its event timers fire, then its processing timers, and its
state is dropped: only one group's state exists at a time.

With a savepoint at the end, state is kept instead, and time comes to where the watermark strategies had brought it:
windows that are complete by then fire, those that are open are in the savepoint.

From a savepoint at the start, all state of the subtask is there from the beginning, and time is where it was: what is
late there is late here. State is kept to the end, when all timers fire, also those of keys without records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from tidegate.common.errors import InternalError
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskIndex
from tidegate.connectors.print_sink import own_streams, print_to
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.state import ListStateDescriptor
from tidegate.graph.job_graph import PartitionKind
from tidegate.graph.task_place import TaskPlace
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.network.serialization import dump_values
from tidegate.spark.batch import blocks
from tidegate.spark.batch.combining import CombiningOutput
from tidegate.spark.batch.group_sorter import GroupSorter
from tidegate.spark.batch.hash_output import GroupedHashOutput
from tidegate.spark.batch.host import BatchHost
from tidegate.spark.batch.order import Phase
from tidegate.spark.batch.plan import OutputPlan, VertexPlan, group_number
from tidegate.spark.batch.report import CollectedChunk, PrintedChunk, TaskReport, dump_committables, dump_report
from tidegate.spark.batch.task_savepoint import write_savepoint
from tidegate.state.factory import HASHMAP, KeyedBackends
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.edge_output import EdgeOutput, make_edge_output
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operator_contexts import OperatorContexts
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.operators.batch_mode import HandsOverCommittables, ReadsByKeys, TakesCombined
from tidegate.taskmanager.operators.collect import CollectOperator
from tidegate.taskmanager.operators.source import SourceOperator
from tidegate.taskmanager.services import OperatorServices
from tidegate.taskmanager.task_time import SavedTime, TaskTime, restored_watermark
from tidegate.taskmanager.user_report import UserReport

log = logging.getLogger("tidegate.worker")

SAVEPOINT_ID = CheckpointId(1)
_POLL = 2048  # records that a source is asked for at once: with 8192 a batch no longer fits the processor's cache
_FIRST_SLICE = 8
_TIMERS_AT_ONCE = 256
_CHUNK_BYTES = 1 << 18  # of collected results in one block


class BatchTask:
    """`run` is called once. `attempt_id` is unique among all attempts of all tasks of the job."""

    def __init__(self, plan: VertexPlan, subtask: int, attempt: int, attempt_id: str) -> None:
        self._plan = plan
        self._vertex = plan.vertex
        self._subtask = subtask
        self._attempt_id = attempt_id
        self._host = BatchHost()
        restored = None if plan.start is None else plan.start.of_task(int(plan.vertex.vertex_id), subtask)
        self._saves = plan.savepoint is not None
        self._restored = restored is not None
        self._keeps_state = self._saves or self._restored
        settings = plan.settings
        kind = settings.state_backend if self._keeps_state else HASHMAP
        self._out = blocks.BlockOutput(plan.buffer_bytes, self._fail_pickling)
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._chunks = 0
        self._printed: list[str] = []  # of one stream, not reported yet
        self._printed_length, self._prints_errors = 0, False
        self._reports = blocks.BlockSeries(
            blocks.Header(plan.report.consumer, blocks.REPORT, 0, blocks.NO_GROUP),
            plan.report.layout.first(Phase.REPORT, 0, plan.report.first_producer + subtask),
            plan.report.layout.max_blocks,
            subtask % plan.report.targets,
            plan.report.consumer_name,
        )
        self._combining: list[CombiningOutput] = []
        outputs = [self._edge_output(o) for o in plan.outputs]
        self._ends = [(o, self._end_series(p)) for o, p in zip(outputs, plan.outputs, strict=True)]
        self._contexts = OperatorContexts(
            TaskPlace(plan.job_id, plan.vertex, SubtaskIndex(subtask), AttemptNumber(attempt)),
            OperatorServices(self._host.clock, self._host.run_async, self._host.run_coroutine, self, None, log.warning),
            KeyedBackends(kind, settings.rocksdb, 0, self._host.clock.now_ms),
            dataclasses.replace(settings, checkpointing=False, exactly_once=True),
            restored,
        )
        self._chain = OperatorChain(self._vertex, outputs, self._operator_context)
        self._waits = any(op.asynchronous for op in self._chain.operators)
        self._records_in = 0
        self._slice = _FIRST_SLICE
        self._group: int | None = None  # that is being read
        self._sorter = GroupSorter()
        self._edge_watermarks: dict[int, int] = {}  # the highest of any producer, by edge
        self._closed = False

    # ------------------------------------------------------------ building
    def _edge_output(self, plan: OutputPlan) -> EdgeOutput[blocks.BlockChannel]:
        edge = plan.edge
        name = self._vertex.operators[edge.source_operator].name
        producer = plan.first_producer + self._subtask
        channels: list[blocks.BlockChannel] = []
        for target in plan.targets[self._subtask]:
            for group in range(plan.groups if edge.partition.kind is PartitionKind.HASH and plan.groups else 1):
                header = blocks.Header(plan.consumer, blocks.ROWS, edge.target_input, group_number(plan, group))
                first = plan.layout.first(plan.phase, group, producer)
                series = blocks.BlockSeries(header, first, plan.layout.max_blocks, target, plan.consumer_name)
                channels.append(blocks.BlockChannel(self._out, series, name))
        args = edge, channels, self._host.clock, name, self._subtask
        output: EdgeOutput[blocks.BlockChannel]
        if edge.partition.kind is PartitionKind.HASH and len(channels) > 1:
            # Keys are routed to a channel, which is a group of one target: groups are ranges of key groups.
            output = GroupedHashOutput(self._out, *args, max_parallelism=plan.max_parallelism)
        else:
            output = make_edge_output(*args, plan.max_parallelism)
        if plan.combined_for is None:
            return output
        self._combining.append(
            CombiningOutput(self._out, output, plan.combined_for, self._subtask, plan.max_parallelism)
        )
        return self._combining[-1]

    def _end_series(self, plan: OutputPlan) -> dict[int, blocks.BlockSeries]:
        """By target, for where time had come to."""
        if not self._saves:
            return {}
        header = blocks.Header(plan.consumer, blocks.END, plan.edge.target_input, blocks.NO_GROUP)
        first = plan.layout.first(Phase.END, 0, plan.first_producer + self._subtask)
        limit = plan.layout.max_blocks
        return {t: blocks.BlockSeries(header, first, limit, t, plan.consumer_name) for t in plan.targets[self._subtask]}

    def _operator_context(self, index: int) -> OperatorContext:
        context = self._contexts.make(index)
        context.sink_owner = f"{context.node.operator_id}-{self._attempt_id}"
        return context

    def _fail_pickling(self, name: str, error: BaseException, values: list[Any]) -> NoReturn:
        for value in values:
            try:
                dump_values(value)
            except Exception as wrong:
                raise OperatorFailure(name, self._subtask, "pickling its results", wrong, value) from wrong
        raise OperatorFailure(name, self._subtask, "pickling its results", error) from error

    # ------------------------------------------------------------ the whole
    def run(self, received: Iterator[bytes]) -> Iterator[bytes]:
        """Keys and blocks in turn."""
        try:
            if self._plan.prints_on_driver:
                print_to(self._print)
            self._chain.open()
            source = self._chain.source
            if self._restored and source is None:
                yield from self._restore_time()
            if source is None:
                yield from self._read(received)
            else:
                yield from self._poll(source)
            yield from self._finish(source)
            snapshot = self._write_savepoint()
            committables = self._take_committables()
            self._closed = True
            self._chain.close()
            self._report_self(snapshot, committables)
            yield from self._out.take()
        finally:
            if not self._closed:
                with contextlib.suppress(Exception):  # the first failure is what counts
                    self._chain.close()
            print_to(own_streams)
            self._host.close()

    def _poll(self, source: SourceOperator) -> Iterator[bytes]:
        source.read_in_order()  # the same records in the same order each time
        while not source.finished:
            count = source.poll(self._slice_size(), self._host.clock.now_ms())
            self._records_in += count
            if count == 0 and not source.finished:
                self._host.sleep_until(source.wake_at_ms)
            self._settle()
            yield from self._out.take()

    def _read(self, received: Iterator[bytes]) -> Iterator[bytes]:
        for block in received:
            _, kind, input_index, group = blocks.read_header(block)
            if kind == blocks.REPORT:
                self._out.push(self._reports.next(blocks.REPORT, memoryview(block)[blocks.HEADER_SIZE :]))
            elif kind == blocks.END:
                edge, watermark = blocks.read_end(block)
                self._edge_watermarks[edge] = max(watermark, self._edge_watermarks.get(edge, MIN_WATERMARK))
            else:
                if group != blocks.NO_GROUP and group != self._group:
                    yield from self._end_group()
                    self._group = group
                if kind == blocks.COMBINED:
                    self._take_combined(block)
                else:
                    yield from self._take_in(self._records(block, kind), input_index, group != blocks.NO_GROUP)
            yield from self._out.take()
        yield from self._end_group()

    def _records(self, block: bytes, kind: int) -> RecordBatch:
        batch: RecordBatch = self._unpickled(lambda: blocks.read_records(block, kind))
        self._records_in += len(batch)
        return batch

    def _take_combined(self, block: bytes) -> None:
        values, keys = self._unpickled(lambda: blocks.read_combined(block))
        self._records_in += len(keys)
        head = self._chain.head
        if not isinstance(head, TakesCombined):
            raise InternalError(f"'{head.name}' is sent reduced records")
        head.process_combined(keys, values)
        self._settle()

    def _unpickled(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            name = self._vertex.operators[0].name
            raise OperatorFailure(name, self._subtask, "unpickling records from another task", error) from error

    def _take_in(self, batch: RecordBatch, input_index: int, grouped: bool) -> Iterator[bytes]:
        if grouped and batch.timestamps is not None:
            self._sorter.add(batch, input_index)
            return
        if grouped:  # without a timestamp nothing can be put in order: as it comes, one input after the other
            yield from self._drain_sorter()
        yield from self._process(batch, input_index)

    def _drain_sorter(self) -> Iterator[bytes]:
        if not self._sorter.empty:
            for input_index, batch in self._sorter.drain():
                yield from self._process(batch, input_index)

    def _slice_size(self) -> int:
        """How many records are processed at once. How large their results are is known when some were sent: large ones
        are not to be made by the thousand."""
        self._slice = min(2 * self._slice, _POLL)
        return min(self._slice, self._out.limit) if self._out.records else self._slice

    def _process(self, batch: RecordBatch, input_index: int) -> Iterator[bytes]:
        done = 0
        while done < len(batch):
            size = self._slice_size()
            part = batch if done == 0 and size >= len(batch) else batch.slice(done, done + size)
            self._chain.process(part, input_index)
            done += len(part)
            self._settle()
            yield from self._out.take()

    def _settle(self) -> None:
        """Between slices of work: results of asynchronous calls, operators that take no more for now, full buffers."""
        chain, host = self._chain, self._host
        if self._waits:
            host.read_mail()
            chain.advance(host.clock.now_ms(), True)
        while not chain.available:
            if self._waits:
                host.wait(chain.next_deadline())
                chain.advance(host.clock.now_ms(), True)
            else:
                host.sleep_until(None)
        self._out.settle()

    # ------------------------------------------------------------ time
    def _end_group(self) -> Iterator[bytes]:
        yield from self._drain_sorter()
        if self._group is None:
            return
        head = self._chain.head
        if not isinstance(head, ReadsByKeys):
            raise InternalError(f"'{head.name}' is sent records by groups of keys")
        head.end_of_keys(self._keeps_state)
        self._settle()
        yield from self._out.take()
        if self._keeps_state:
            return
        yield from self._fire_all_timers(head)
        head.forget_keys()
        head.current_watermark = MIN_WATERMARK
        self._settle()

    def _restore_time(self) -> Iterator[bytes]:
        head = self._chain.head
        state = head.context.operator_state.get_union_list_state(ListStateDescriptor(TaskTime.STATE_NAME))
        watermark, firing = restored_watermark(state.get(), self._subtask, self._vertex.parallelism)
        if watermark > MIN_WATERMARK:
            if firing:
                yield from self._fire_event_timers(watermark)
            head.process_watermark(watermark)

    def _fire_all_timers(self, head: Operator) -> Iterator[bytes]:
        yield from self._fire_event_timers(MAX_WATERMARK)
        last = head.last_processing_timer() if isinstance(head, ReadsByKeys) else None
        if last is not None:
            while not head.fire_processing_timers(last + 1, _TIMERS_AT_ONCE):
                self._settle()
                yield from self._out.take()

    def _fire_event_timers(self, watermark: int) -> Iterator[bytes]:
        head = self._chain.head
        head.current_watermark = watermark
        while not head.fire_event_timers(_TIMERS_AT_ONCE):
            self._settle()
            yield from self._out.take()

    def _finish(self, source: SourceOperator | None) -> Iterator[bytes]:
        if self._saves:
            yield from self._come_to_rest(source)
        else:
            if source is None:
                if self._restored:
                    yield from self._fire_all_timers(self._chain.head)
                self._chain.head.process_watermark(MAX_WATERMARK)
            while not self._chain.finish():
                self._host.wait(self._chain.next_deadline())
                self._chain.advance(self._host.clock.now_ms(), True)
                self._out.settle()
                yield from self._out.take()
        for combining in self._combining:
            combining.flush()
        self._out.flush()
        for output, series in self._ends:
            told: set[int] = set()
            for channel in output.channels:
                target = channel.series.target
                if target in series and target not in told:
                    told.add(target)
                    channel.end(output.edge.edge_id, series[target])
        yield from self._out.take()

    def _come_to_rest(self, source: SourceOperator | None) -> Iterator[bytes]:
        """Everything but the end: a streaming job goes on from here."""
        head, now = self._chain.head, self._host.clock.now_ms()
        watermark = max(head.current_watermark, min(self._edge_watermarks.values(), default=MIN_WATERMARK))
        if source is not None:
            source.announce_reached()
        elif watermark > MIN_WATERMARK:
            yield from self._fire_event_timers(watermark)
            head.process_watermark(watermark)
        for operator in self._chain.periodic:
            if operator is not source:
                operator.on_periodic(now)
        while not all(op.settled for op in self._chain.operators):
            self._host.wait(self._chain.next_deadline())
            self._chain.advance(self._host.clock.now_ms(), True)
            self._out.settle()
            yield from self._out.take()
        self._chain.prepare_barrier(SAVEPOINT_ID)
        for operator in self._chain.operators:
            if isinstance(operator, HandsOverCommittables):
                operator.finish()  # nobody writes on: what it leaves open is discarded with the left-overs
        if source is None and watermark > MIN_WATERMARK:
            names = self._plan.input_names[self._subtask]
            saved = SavedTime(
                self._subtask, watermark, dict.fromkeys(names, (watermark, False)), False, self._vertex.parallelism
            )
            state = head.context.operator_state.get_union_list_state(ListStateDescriptor(TaskTime.STATE_NAME))
            state.update([tuple(saved)])

    # ------------------------------------------------------------ report
    def send(self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int, payload: bytes) -> None:
        """This is the result port of the operators: collected results are part of the report."""
        self._collected.append(payload)
        self._collected_bytes += len(payload)
        for operator in self._chain.operators:
            if isinstance(operator, CollectOperator) and operator.node.operator_id == operator_id:
                operator.acknowledged(seq)
        if self._collected_bytes >= _CHUNK_BYTES:
            self._report_collected()

    def want_checkpoint(self) -> None:
        """There are none, and no result waits for one."""

    def _report_collected(self) -> None:
        chunk = CollectedChunk(self._vertex.vertex_id, self._subtask, self._chunks, tuple(self._collected))
        self._chunks += 1
        self._collected, self._collected_bytes = [], 0
        self._out.push(self._reports.next(blocks.REPORT, dump_report(chunk)))

    def _print(self, text: str, to_stderr: bool) -> None:
        if to_stderr is not self._prints_errors or self._printed_length >= _CHUNK_BYTES:
            self._report_printed()
            self._prints_errors = to_stderr
        self._printed.append(text)
        self._printed_length += len(text)

    def _report_printed(self) -> None:
        if self._printed:
            place = self._vertex.vertex_id, self._subtask, self._chunks
            chunk = PrintedChunk(*place, "".join(self._printed), self._prints_errors)
            self._chunks += 1
            self._printed, self._printed_length = [], 0
            self._out.push(self._reports.next(blocks.REPORT, dump_report(chunk)))

    def _write_savepoint(self) -> bytes:
        plan = self._plan.savepoint
        if plan is None:
            return b""
        return write_savepoint(self._chain, plan, self._vertex, self._subtask, self._attempt_id, SAVEPOINT_ID)

    def _take_committables(self) -> tuple[tuple[OperatorId, bytes], ...]:
        found = []
        for operator in self._chain.operators:
            if isinstance(operator, HandsOverCommittables):
                committables = operator.take_committables()
                if committables:
                    found.append((operator.node.operator_id, dump_committables(committables)))
        return tuple(found)

    def _report_self(self, snapshot: bytes, committables: tuple[tuple[OperatorId, bytes], ...]) -> None:
        if self._collected:
            self._report_collected()
        self._report_printed()
        users = UserReport(0.0)
        users.watch(self._vertex.vertex_id, [operator.context for operator in self._chain.operators])
        accumulators = users.final()
        report = TaskReport(
            vertex=self._vertex.vertex_id,
            subtask=self._subtask,
            attempt_id=self._attempt_id,
            records_in=self._records_in,
            records_out=self._out.records,
            metrics=users.metrics,
            accumulators=accumulators,
            committables=committables,
            snapshot=snapshot,
        )
        self._out.push(self._reports.next(blocks.REPORT, dump_report(report)))
