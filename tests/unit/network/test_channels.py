"""The credit book and the order of a channel."""

import pytest

from tidegate.common.errors import InternalError
from tidegate.common.ids import ChannelAddress
from tidegate.contracts.batches import RecordBatch
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.elements import Alignment, CheckpointBarrier, EndOfData
from tidegate.network.serialization import deserialize, serialize

ADDRESS = ChannelAddress(0, 1, 2)


def output(credits=2, batch_size=3):
    return OutputChannel(ADDRESS, credits, batch_size)


def sent(channel):
    return [element for element, _ in channel.take_sendable()]


def values(elements):
    return [e.values if isinstance(e, RecordBatch) else e for e in elements]


def barrier(n, alignment=Alignment.ALIGNED):
    return CheckpointBarrier(n, 0, alignment)


def test_records_are_sent_in_batches_of_the_given_size():
    channel = output(credits=9)
    for i in range(7):
        channel.add(RecordBatch([i]), now_ms=float(i))
    assert values(sent(channel)) == [[0, 1, 2], [3, 4, 5]]
    assert channel.oldest_ms == 6.0
    channel.flush()
    assert values(sent(channel)) == [[6]]
    assert channel.oldest_ms is None


def test_a_large_list_becomes_a_batch_without_a_copy():
    channel, records = output(), [1, 2, 3, 4]
    channel.add(RecordBatch(records), 0.0)
    assert sent(channel)[0].values is records


def test_records_with_and_without_timestamps_do_not_share_a_batch():
    channel = output(credits=9)
    channel.add(RecordBatch([1]), 0.0)
    channel.add(RecordBatch([2], [20]), 0.0)
    channel.flush()
    assert [(b.values, b.timestamps) for b in sent(channel)] == [([1], None), ([2], [20])]


def test_a_batch_needs_a_credit_and_a_control_element_keeps_its_place():
    channel = output(credits=1, batch_size=1)
    channel.add(RecordBatch([1]), 0.0)
    channel.add(RecordBatch([2]), 0.0)
    channel.add_control(EndOfData())
    assert values(sent(channel)) == [[1]]
    assert channel.credits == 0
    channel.grant(1)
    assert values(sent(channel)) == [[2], EndOfData()]
    channel.check_invariants()


def test_a_producer_is_backlogged_when_batches_wait_for_credit():
    channel = output(credits=0, batch_size=1)
    assert not channel.backlogged
    for i in range(OutputChannel.MAX_QUEUED):
        channel.add(RecordBatch([i]), 0.0)
    assert channel.backlogged
    channel.grant(1)
    sent(channel)
    assert not channel.backlogged


def test_an_unaligned_barrier_overtakes_what_waits_and_needs_no_credit():
    channel = output(credits=0, batch_size=1)
    channel.add(RecordBatch([1]), 0.0)
    channel.add(RecordBatch([2]), 0.0)
    overtaken = channel.overtake(barrier(1, Alignment.UNALIGNED))
    assert values(overtaken) == [[1], [2]]
    assert values(sent(channel)) == [barrier(1, Alignment.UNALIGNED)]
    channel.grant(2)
    assert values(sent(channel)) == [[1], [2]], "the overtaken records are still sent"


def test_a_waiting_aligned_barrier_can_turn_unaligned():
    channel = output(credits=0, batch_size=1)
    channel.add(RecordBatch([1]), 0.0)
    channel.add_control(barrier(1, Alignment.ALIGNED_WITH_TIMEOUT))
    channel.add(RecordBatch([2]), 0.0)
    assert channel.holds_barrier(1)
    assert values(channel.make_unaligned(barrier(1, Alignment.UNALIGNED))) == [[1]], "not what comes after the barrier"
    channel.grant(2)
    assert values(sent(channel)) == [barrier(1, Alignment.UNALIGNED), [1], [2]]
    assert not channel.holds_barrier(1)


def receiver(capacity=2):
    return InputChannel(ADDRESS, 0, 0, capacity)


def test_more_batches_than_credits_are_a_broken_invariant():
    channel = receiver(capacity=1)
    channel.receive(RecordBatch([1]))
    with pytest.raises(InternalError, match="credits"):
        channel.receive(RecordBatch([2]))


def test_a_consumed_batch_is_owed_back_once():
    channel = receiver()
    channel.receive(RecordBatch([1]))
    channel.consumed_batch()
    assert channel.take_owed() == 1
    assert channel.take_owed() == 0


def test_restored_batches_come_first_and_cost_no_credit():
    channel = receiver(capacity=1)
    channel.receive(RecordBatch([3]))
    channel.restore([RecordBatch([1]), RecordBatch([2])])
    assert values(channel.queue) == [[1], [2], [3]]
    owed = []
    for _ in range(3):
        channel.queue.popleft()
        channel.consumed_batch()
        owed.append(channel.take_owed())
    assert owed == [0, 0, 1]


def test_recording_keeps_what_arrives_as_it_was_on_arrival():
    channel = receiver(capacity=3)
    recorded = []
    channel.record(recorded, 7)
    record = [1]
    channel.receive(RecordBatch([record]))
    record.append(2)  # user code changes a record in place later
    assert [deserialize(e.kind, e.payload).values for e in recorded] == [[[1]]]


def test_recording_ends_when_the_barrier_arrives_whenever_the_task_hears_of_it():
    channel = receiver(capacity=9)
    recorded = []
    channel.record(recorded, 7)
    for element in (RecordBatch([1]), barrier(6), RecordBatch([2]), barrier(7), RecordBatch([3])):
        channel.receive(element)
    assert [deserialize(e.kind, e.payload).values for e in recorded] == [[1], [2]]
    assert channel.recording is None


def test_queued_before_barrier_stops_at_the_barrier():
    channel = receiver(capacity=9)
    for element in (RecordBatch([1]), barrier(1), RecordBatch([2])):
        channel.receive(element)
    assert values(channel.queued_before_barrier(1)) == [[1]]
    channel.remove_barrier(1)
    assert values(channel.queue) == [[1], [2]]


@pytest.mark.parametrize(
    "element", [RecordBatch([1, "a"]), RecordBatch([1], [5]), EndOfData(), barrier(3, Alignment.UNALIGNED)]
)
def test_an_element_survives_the_wire(element):
    form = serialize(element)
    assert deserialize(form.kind, form.payload) == element


def test_values_that_plain_pickle_refuses_are_sent_all_the_same():
    class Local:
        x = 7

    form = serialize(RecordBatch([Local(), lambda: 8]))
    restored = deserialize(form.kind, form.payload).values
    assert restored[0].x == 7
    assert restored[1]() == 8


# ---------------------------------------------------------------- bytes


def heavy(count, size=100):
    return RecordBatch([bytes([i]) * size for i in range(count)])


def test_batches_of_large_records_are_cut_by_their_bytes_from_the_first_on():
    channel = OutputChannel(ADDRESS, 99, 1024, max_bytes=250)
    channel.add(heavy(20), 0.0)
    assert channel.oldest_ms is None, "finished at once, not when it has 1024 records"
    batches = sent(channel)
    assert all(sum(map(len, b.values)) < 500 for b in batches)
    assert [v for b in batches for v in b.values] == heavy(20).values


def test_small_and_large_records_in_one_batch_are_cut_where_the_large_ones_are():
    channel = OutputChannel(ADDRESS, 99, 1024, max_bytes=10_000)
    mixed = [b"x"] * 60 + [b"y" * 20_000] * 4
    channel.add(RecordBatch(mixed), 0.0)
    channel.flush()
    batches = sent(channel)
    assert [v for b in batches for v in b.values] == mixed
    assert max(sum(map(len, b.values)) for b in batches) < 25_000


def test_a_batch_that_is_too_large_costs_several_credits_and_gives_them_back():
    channel, into = OutputChannel(ADDRESS, 4, 1024, max_bytes=100), receiver(capacity=4)
    channel.add(heavy(3, size=1000), 0.0)
    assert channel.queued_batches == 3
    sent_now = list(channel.take_sendable())
    assert [cost for _, cost in sent_now] == [3], "not a second one beside it"
    into.receive(*sent_now[0])
    into.consumed_batch()
    assert (into.held, into.owed) == (0, 3)
    channel.grant(into.take_owed())
    assert len(list(channel.take_sendable())) == 1


@pytest.mark.parametrize("capacity", range(1, 9))
def test_no_size_of_batches_makes_a_channel_stand_still(capacity):
    """Credits are given back when half of them are due: what is left must be enough for any batch."""
    for sizes in ([1, 1, 50, 1, 50], [50, 50, 1, 50], [3, 2, 50, 2, 1, 50]):
        channel, into = OutputChannel(ADDRESS, capacity, 1024, max_bytes=1), receiver(capacity)
        for size in sizes:
            channel.add(RecordBatch([b"x" * size]), 0.0)
        arrived = 0
        for _ in range(len(sizes)):
            for element, cost in channel.take_sendable():
                into.receive(element, cost)
                into.queue.popleft()
                into.consumed_batch()
                arrived += 1
            if into.owed * 2 >= capacity:
                channel.grant(into.take_owed())
        assert arrived == len(sizes)
