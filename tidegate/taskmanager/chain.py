"""The operators of one task, wired to each other and to the task's outputs.

Records may wait between the operators when the time of a piece of work is up (`ChainLink`). A snapshot gives them the
time of a few pieces to get through, which is enough for those that are quick. What still waits then becomes part of it:
a thousand records that take 50 ms each would keep a barrier waiting for a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidegate.common.ids import CheckpointId
from tidegate.common.typeinfo import value_converter
from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.fault_tolerance.frozen_operator import FrozenOperator
from tidegate.graph.job_graph import JobVertex
from tidegate.network.serialization import Element, SerializedElement, serialize
from tidegate.taskmanager.chain_link import ChainLink
from tidegate.taskmanager.copying import copying
from tidegate.taskmanager.edge_output import EdgeOutput
from tidegate.taskmanager.mutation_checks import check_mutations
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import Emit, Operator, discard
from tidegate.taskmanager.operators.factory import make_operator
from tidegate.taskmanager.operators.source import SourceOperator

_PATIENCE = 4  # pieces of work, beside one for each operator, that are done before a snapshot holds what waits


class OperatorChain:
    """Operators of a vertex in topological order; `operators[0]` is the head."""

    def __init__(
        self,
        vertex: JobVertex,
        outputs: Sequence[EdgeOutput[Any]],
        make_context: Callable[[int], OperatorContext],
        made: Callable[[Operator], None] = lambda _: None,
    ) -> None:
        """`made` is told of each operator before it is wired to the others."""
        self.operators = [make_operator(make_context(i)) for i in range(len(vertex.operators))]
        for operator in self.operators:
            if operator.context.settings.check_mutations:
                check_mutations(operator)
            made(operator)
        self.head = self.operators[0]
        self.source = self.head if isinstance(self.head, SourceOperator) else None
        self._limit = self.head.limit
        links = [ChainLink(operator, self._limit) for operator in self.operators]
        self._all_links = links
        self._links = links[1:] if self.source is None else links
        self._queues = [link.waiting for link in self._links]
        self._inner = {key: links[j] for key, j in vertex.links.items()}
        self._pieces = 0  # of catching up that were done since the chain has fallen behind
        self.patience = _PATIENCE + len(links)  # may be set to less
        self._can_hold = True  # what waits can be pickled, as far as is known
        for i, operator in enumerate(self.operators):
            readers: dict[str | None, list[_Reader]] = {}
            for j, node in enumerate(vertex.operators):
                if node.link is not None and node.link.upstream == i:
                    readers.setdefault(node.link.side_output, []).append(_Reader(links[j].emit, True))
            for output in outputs:
                if output.edge.source_operator == i:
                    reader = _Reader(output.emit, output.hands_on)
                    readers.setdefault(output.edge.side_output, []).append(reader)
            copies = not operator.context.settings.object_reuse
            for tag, found in readers.items():
                declared = operator.node.output_type if tag is None else operator.node.side_output_types.get(tag)
                emit = _converting(operator, _fan_out(found, copies), declared)
                if tag is None:
                    operator.output = emit
                else:
                    operator.side_outputs[tag] = emit
            if copies and len(readers) > 1:
                changed = (tag for tag, found in readers.items() if all(reader.may_change for reader in found))
                operator.copied_outputs = frozenset(changed)
            self._connect_time(i, vertex, links, outputs)
        self.periodic = [op for op in self.operators if op.periodic]
        self._limited = self._limited_from(0)
        first = 1 if self.source is None else 0
        self._ways = [(link, self._limited_from(i)) for i, link in enumerate(self._links, first)]
        self._keyed = [op.context.keyed for op in self.operators if op.context.keyed is not None]
        self._asynchronous = [(op, self._behind(i)) for i, op in enumerate(self.operators) if op.asynchronous]
        self._unfinished = list(self.operators)  # whose `finish` has not come to its end, in order
        self._finish_called = False  # of the first of them
        self._entries: tuple[Emit, Emit] = (self.head.process, self.head.process_second)

    def _connect_time(
        self, index: int, vertex: JobVertex, links: list[ChainLink], outputs: Sequence[EdgeOutput[Any]]
    ) -> None:
        """Watermarks and idleness go to everything that reads any output of the operator."""
        operator = self.operators[index]
        inside = [links[j] for j, n in enumerate(vertex.operators) if n.link is not None and n.link.upstream == index]
        outside = [output for output in outputs if output.edge.source_operator == index]
        if inside or outside:
            operator.output_watermark = _to_all([o.watermark for o in inside] + [o.emit_watermark for o in outside])
            operator.output_status = _to_all([o.status for o in inside] + [o.emit_status for o in outside])

    def _limited_from(self, index: int) -> list[Operator]:
        """Operators that may not be available, of this one and those behind it."""
        return [op for op in self.operators[index:] if type(op).available is not Operator.available]

    def _behind(self, index: int) -> _Behind:
        return _Behind(self._limited_from(index + 1), [link.waiting for link in self._all_links[index + 1 :]])

    @property
    def available(self) -> bool:
        return not self._limited or all(operator.available for operator in self._limited)

    def process(self, batch: Batch, input_index: int) -> int:
        """How many of the records the head has processed: all, unless the time was up before. Operators take rows: a
        batch of another kind is converted here, where it comes in."""
        self._entries[input_index](batch.rows())
        for keyed in self._keyed:
            keyed.end_of_batch()
        left, self.head.left = self.head.left, None
        return len(batch) if left is None else len(batch) - len(left)

    def poll(self, source: SourceOperator, max_records: int, now_ms: float) -> int:
        """`SourceOperator.poll` of its source: how many records were read."""
        count = source.poll(max_records, now_ms)
        self._links[0].keep_left()
        return count

    @property
    def behind(self) -> bool:
        """Records that the head has done with, or the source has read, wait between operators, since the time was up.
        As long as they do, the chain is to be given nothing else: call `catch_up`."""
        return any(self._queues)

    @property
    def holdable(self) -> bool:
        """What waits may be part of a snapshot. Not what its own source has left: the offset is behind it, and only
        the source knows which of its splits it belongs to."""
        return self._can_hold and (self.source is None or not self._queues[0])

    @property
    def impatient(self) -> bool:
        """What waits had its chance to get through before a snapshot."""
        return self._pieces >= self.patience

    @property
    def may_catch_up(self) -> bool:
        """Something waits that all operators in its way take."""
        return self._next_way(forced=False) is not None

    def catch_up(self, forced: bool = False) -> None:
        """Go on with what waits, what is furthest along first, until the time is up. But first with what the source
        has left: as long as that is not in the chain, nothing can be part of a snapshot. What operators that are not
        available would have to take stays where it is, unless it is `forced`."""
        self._pieces += 1
        self._go_on(forced)
        if not self.behind:
            self._pieces = 0

    def _next_way(self, forced: bool) -> ChainLink | None:
        """Each operator depends on those behind it only. So what waits before an operator that is full of asynchronous
        calls keeps nobody from what waits behind it, nor the operator from emitting."""
        if self.source is not None and self._queues[0] and (forced or self.available):
            return self._links[0]
        for link, limited in reversed(self._ways):
            if link.waiting and (forced or all(operator.available for operator in limited)):
                return link
        return None

    def _go_on(self, forced: bool) -> None:
        while True:
            link = self._next_way(forced)
            if link is None:
                return
            link.go_on()
            for keyed in self._keyed:
                keyed.end_of_batch()
            if self._limit.expired:
                return

    def _drain(self) -> None:
        """Catch up, however long it takes."""
        while self.behind:
            self.catch_up(forced=True)

    def restore_waiting(self, key: str, elements: list[Element]) -> None:
        """What `prepare_and_hold` has returned for a link, before the chain is opened."""
        self._inner[key].restore(elements)

    def open(self) -> None:
        for operator in reversed(self.operators):  # the end first: a head may emit as soon as it is open
            operator.open()

    def advance(self, now_ms: float, can_send: bool) -> bool:
        """Let operators with work elsewhere see to it. `can_send`: the outputs of the task take more. True: something
        was done."""
        worked = False
        for operator, behind in self._asynchronous:
            worked = operator.advance(now_ms, can_send and behind.takes_more) or worked
        return worked

    def next_deadline(self, can_send: bool = True) -> float | None:
        times = [operator.next_deadline(can_send and behind.takes_more) for operator, behind in self._asynchronous]
        return min((t for t in times if t is not None), default=None)

    def finish(self) -> bool:
        """Finish the operators one after the other, each when the one before it is settled and nothing waits between
        them. False: call again."""
        while self._unfinished:
            if self.behind:
                return False
            if not self._finish_called:
                self._finish_called = True
                self._unfinished[0].finish()
            if self.behind or not self._unfinished[0].settled:
                return False
            del self._unfinished[0]
            self._finish_called = False
        return True

    def prepare_barrier(self, checkpoint_id: CheckpointId) -> None:
        """For a snapshot in which nothing waits."""
        self._drain()
        for operator in self.operators:
            operator.prepare_barrier(checkpoint_id)
            self._drain()

    def prepare_and_hold(self, checkpoint_id: CheckpointId) -> dict[str, list[SerializedElement]]:
        """For a snapshot that may hold what waits: by key of the link, as `JobVertex.links` names it. All of it is
        worked off first after all when it cannot be part of a snapshot."""
        if not self.holdable:
            self._drain()
        for operator in self.operators:
            operator.prepare_barrier(checkpoint_id)
            while self.behind and not self.impatient:
                self.catch_up()
        try:
            return {key: [serialize(e) for e in link.elements()] for key, link in self._inner.items() if link.waiting}
        except Exception:  # as many kinds as there are objects that cannot be pickled
            self._can_hold = False
        self._drain()
        return {}

    def freeze(self, checkpoint_id: CheckpointId, timestamp: int, full: bool) -> list[FrozenOperator]:
        """The synchronous part of a snapshot."""
        for operator in self.operators:
            operator.update_state(checkpoint_id, timestamp)
        return [
            FrozenOperator(o.node, o.context.keyed, o.context.operator_state, checkpoint_id, full)
            for o in self.operators
        ]

    def notify_complete(self, checkpoint_id: CheckpointId) -> None:
        for operator in self.operators:
            if operator.context.keyed is not None:
                operator.context.keyed.notify_checkpoint_complete(checkpoint_id)
            operator.notify_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: CheckpointId) -> None:
        for operator in self.operators:
            if operator.context.keyed is not None:
                operator.context.keyed.notify_checkpoint_aborted(checkpoint_id)
            operator.notify_aborted(checkpoint_id)

    def commit_all(self) -> None:
        for operator in self.operators:
            operator.commit_all()

    @property
    def committed(self) -> bool:
        return all(op.committed for op in self.operators)

    def close(self) -> None:
        """Close every operator, also when one of them fails; raise the first failure at the end."""
        first: BaseException | None = None
        for operator in self.operators:
            try:
                operator.close()
            except BaseException as error:  # also sys.exit() in user code
                first = first or error
            if operator.context.keyed is not None:
                operator.context.keyed.dispose()
        if first is not None:
            raise first


def _to_all(receivers: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
    if len(receivers) == 1:
        return receivers[0]

    def to_all(news: Any) -> None:
        for receive in receivers:
            receive(news)

    return to_all


class _Behind(NamedTuple):
    """What is behind an operator. What waits before it is none of its business: only if it emits, there is room."""

    limited: list[Operator]
    queues: list[deque[Any]]

    @property
    def takes_more(self) -> bool:
        return not any(self.queues) and all(operator.available for operator in self.limited)


class _Reader(NamedTuple):
    """Of an operator's output."""

    emit: Emit
    may_change: bool  # user code gets the very records that it is given, and may change them in place


def _fan_out(readers: list[_Reader], copies: bool) -> Emit:
    """To all readers. With `copies`, no reader sees what another does to the records: each that may change them gets
    its own. Those that only write them somewhere share the original, as does the last of the others when there are no
    such; the original comes last, so that all copies are of what was emitted."""
    if not readers:
        return discard
    if len(readers) == 1:
        return readers[0].emit
    changing = [reader.emit for reader in readers if reader.may_change]
    original = [reader.emit for reader in readers if not reader.may_change] or [changing.pop()]
    emits = [copying(emit) if copies else emit for emit in changing] + original

    def to_all(batch: RecordBatch) -> None:
        for emit in emits:
            emit(batch)

    return to_all


def _converting(operator: Operator, emit: Emit, declared: Any) -> Emit:
    """Convert values to the declared type on their way out, where the type asks for it."""
    convert = None if declared is None else value_converter(declared)
    if convert is None:
        return emit

    def convert_and_emit(batch: RecordBatch) -> None:
        rest = iter(batch.values)
        try:
            values = [convert(v) for v in rest]
        except Exception as error:
            operator.fail_at(f"converting its result to the declared type {declared}", error, batch.values, rest)
        emit(RecordBatch(values, batch.timestamps))

    return convert_and_emit
