"""What moves records knows a batch only by its operations: shown with a kind that the runtime has never heard of."""

import pytest

from tidegate.common.errors import InternalError
from tidegate.common.ids import ChannelAddress, EdgeId, VertexId
from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.graph.job_graph import JobEdge, PartitionKind, PartitionSpec
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.serialization import deserialize, serialize
from tidegate.taskmanager.edge_output import make_edge_output

ADDRESS = ChannelAddress(0, 0, 0)


class Numbers(Batch):
    """A kind without a list of values in it: ints as bytes."""

    timestamps = None

    def __init__(self, numbers):
        self.data = bytes(numbers)

    def __len__(self):
        return len(self.data)

    def slice(self, start, stop):
        return Numbers(self.data[start:stop])

    def stride(self, start, step):
        return Numbers(self.data[start::step])

    def split(self, targets, count):
        return [Numbers(n for n, t in zip(self.data, targets, strict=True) if t == i) for i in range(count)]

    def join(self, others):
        return Numbers(b"".join(batch.data for batch in [self, *others]))

    def rows(self):
        return RecordBatch(list(self.data))


class StoppedClock:
    def now_ms(self):
        return 0.0


def edge_of(kind, **how):
    partition = PartitionSpec(kind, **how)
    return JobEdge(EdgeId(0), VertexId(0), 0, None, VertexId(1), 0, partition, "a->b:0")


def emitted(kind, batches, targets=2, **how):
    """What each channel sends, with its kinds."""
    channels = [OutputChannel(ADDRESS, credits=100, batch_size=3) for _ in range(targets)]
    output = make_edge_output(edge_of(kind, **how), channels, StoppedClock(), "op", 0, 128)
    for batch in batches:
        output.emit(batch)
    for channel in channels:
        channel.flush()
    return [[(type(b), b.rows().values) for b, _ in channel.take_sendable()] for channel in channels]


@pytest.mark.parametrize("batch", [RecordBatch([5, 6, 7, 8]), RecordBatch([5, 6, 7, 8], [50, 60, 70, 80])])
def test_rows_are_cut_with_their_timestamps(batch):
    stamped = batch.timestamps is not None

    def rows(*values):
        return RecordBatch(list(values), [10 * v for v in values] if stamped else None)

    assert batch.slice(1, 3) == rows(6, 7)
    assert batch.stride(1, 2) == rows(6, 8)
    assert batch.split([2, 0, 2, 0], 3) == [rows(6, 8), rows(), rows(5, 7)]
    assert batch.rows() is batch


def test_rows_are_joined_with_rows_that_have_timestamps_like_them():
    first = RecordBatch([1], [10])
    assert first.joins(RecordBatch([2], [20]))
    assert not first.joins(RecordBatch([2]))
    assert not RecordBatch([1]).joins(Numbers([2]))
    assert first.join([RecordBatch([2, 3], [20, 30]), RecordBatch([4], [40])]) == RecordBatch(
        [1, 2, 3, 4], [10, 20, 30, 40]
    )
    assert first == RecordBatch([1], [10])  # it may be in other channels too
    assert RecordBatch([1]).join([RecordBatch([2])]) == RecordBatch([1, 2])


@pytest.mark.parametrize("kind", [PartitionKind.FORWARD, PartitionKind.GLOBAL])
def test_any_kind_goes_to_one_channel(kind):
    assert emitted(kind, [Numbers([1, 2]), Numbers([3])], targets=1) == [[(Numbers, [1, 2, 3])]]


def test_any_kind_is_broadcast():
    assert emitted(PartitionKind.BROADCAST, [Numbers([1, 2])]) == [[(Numbers, [1, 2])]] * 2


@pytest.mark.parametrize("kind", [PartitionKind.REBALANCE, PartitionKind.RESCALE])
def test_any_kind_is_dealt_out_in_turn(kind):
    batches = [Numbers([1]), Numbers([2, 3, 4])]
    assert emitted(kind, batches) == [[(Numbers, [1, 3])], [(Numbers, [2, 4])]]


def test_any_kind_is_shuffled():
    first, second = emitted(PartitionKind.SHUFFLE, [Numbers(range(6))])
    assert {kind for kind, _ in first + second} == {Numbers}
    assert sorted(n for _, some in first + second for n in some) == list(range(6))


def test_a_partitioner_is_asked_about_rows_and_the_batch_keeps_its_kind():
    how = {"key_selector": lambda n: n, "partitioner": lambda key, count: key % count}
    assert emitted(PartitionKind.CUSTOM, [Numbers([1, 2, 3, 4])], **how) == [
        [(Numbers, [2, 4])],
        [(Numbers, [1, 3])],
    ]


def test_a_key_selector_is_asked_about_rows():
    sent = emitted(PartitionKind.HASH, [Numbers(range(8))], key_selector=lambda n: n)
    assert sent == emitted(PartitionKind.HASH, [RecordBatch(list(range(8)))], key_selector=lambda n: n)


def test_kinds_do_not_share_a_batch():
    batches = [Numbers([1]), RecordBatch([2]), Numbers([3])]
    assert emitted(PartitionKind.FORWARD, batches, targets=1) == [[(Numbers, [1]), (RecordBatch, [2]), (Numbers, [3])]]


def test_a_large_batch_of_any_kind_is_cut_and_costs_a_credit_for_each_part():
    channel = OutputChannel(ADDRESS, credits=2, batch_size=3)
    channel.add(Numbers(range(8)), 0.0)
    assert [len(b) for b, _ in channel.take_sendable()] == [3, 3]
    assert channel.queued_batches == 1
    channel.check_invariants()


def test_a_batch_of_any_kind_counts_against_the_credits_of_its_receiver():
    channel = InputChannel(ADDRESS, index=0, input_index=0, capacity=1)
    channel.receive(Numbers([1]))
    assert channel.held == 1
    with pytest.raises(InternalError):
        channel.receive(Numbers([2]))


def test_a_kind_without_a_codec_is_not_sent_as_something_else():
    with pytest.raises(InternalError, match="Numbers"):
        serialize(Numbers([1]))


def test_bytes_of_an_unknown_kind_are_not_unpickled():
    with pytest.raises(InternalError, match="99"):
        deserialize(99, serialize(RecordBatch([1])).payload)


def test_an_edge_is_of_no_other_kind_than_those_above():
    """A new way of partitioning has to be tried here with a foreign kind of batch."""
    tried = {"forward", "global", "broadcast", "rebalance", "rescale", "shuffle", "custom", "hash"}
    assert {kind.value for kind in PartitionKind} == tried
