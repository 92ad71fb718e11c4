"""KafkaSink against a real broker: what is visible when, commits by others, what is left over, what is refused."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.connectors.broker import Broker, running_broker
from tests.connectors.kafka_kit import WallClock, barrier, builder, commit, numbers, open_writer, write
from tidegate.common import WatermarkStrategy
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import ByteArraySchema, SimpleStringSchema
from tidegate.connectors.kafka import admin, lease, transactions
from tidegate.connectors.kafka.producers import ProducerFactory
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema, KafkaTopicSelector
from tidegate.connectors.kafka.settings import KafkaError
from tidegate.connectors.kafka.sink import KafkaSink, TransactionLostError
from tidegate.connectors.kafka.transactions import EndResult, Fate, KafkaTransaction, TransactionClient, Witness
from tidegate.contracts.connectors import DeliveryGuarantee, SinkContext
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.graph.chaining import build_job_graph
from tidegate.jobmanager.job_publisher import JobPublisher


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    return broker.create_topic(name, partitions=2)


def client(broker: Broker) -> TransactionClient:
    return TransactionClient("test", {"bootstrap.servers": broker.bootstrap_servers})


def test_records_are_seen_after_the_commit_and_a_commit_may_be_repeated(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic).build())
    write(writer, numbers(range(10)))
    first = barrier(writer)
    write(writer, numbers(range(10, 20)))  # behind the barrier: of the next transaction
    assert broker.values(topic) == []
    for _ in range(2):
        commit(writer.committer, first)
        assert sorted(broker.values(topic), key=int) == numbers(range(10))
    second = barrier(writer)
    assert barrier(writer) == []  # nothing was written: nothing to commit
    writer.close()
    commit(open_writer(builder(broker, topic).build(), restored=second).committer, [*first, *second])
    assert sorted(broker.values(topic), key=int) == numbers(range(20))


def test_micro_batches_use_the_ids_of_one_pool_and_make_one_producer_each(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = ProducerFactory._make

    def counted(self: ProducerFactory, transactional_id: str) -> Any:
        made.append(transactional_id)
        return make(self, transactional_id)

    monkeypatch.setattr(ProducerFactory, "_make", counted)
    sink, memo, used = builder(broker, topic).build(), None, []
    for batch in range(8):
        if batch == 5:  # a try of the task that dies: the next one of the same batch comes after it
            dead = open_writer(sink, memo=memo)
            write(dead, ["never"])
            dead.flush(False)
        writer = open_writer(sink, memo=memo)
        if batch != 3:  # nothing to write in this one
            write(writer, [str(batch)])
        committables = barrier(writer)
        used += [committable.transactional_id for committable in committables]
        memo = pickle.loads(pickle.dumps(writer.memo()))
        assert writer.committer.commit(committables) == []
        writer.close()
    assert sorted(broker.values(topic)) == [str(n) for n in range(8) if n != 3]
    assert all(len({*used[i : i + 3]}) == 3 for i in range(len(used) - 2)), "two others come between"
    assert len(set(made)) <= 4
    assert len(made) == 2 + 7 + 1


def test_another_process_commits_what_a_killed_one_wrote_also_after_the_broker_was_killed(name: str) -> None:
    with running_broker() as broker:
        broker.create_topic(name)
        program = f"""
            import os, pickle, sys
            from tests.connectors.kafka_kit import *
            broker = type("Broker", (), {{"bootstrap_servers": "{broker.bootstrap_servers}"}})()
            writer = open_writer(builder(broker, "{name}").build())
            write(writer, numbers(range(100)))
            sys.stdout.buffer.write(pickle.dumps(barrier(writer)))
            sys.stdout.flush()
            write(writer, numbers(range(100, 200)))
            writer.flush(False)
            os.kill(os.getpid(), 9)
        """
        ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60)
        assert ran.returncode == -9, ran.stderr.decode()
        committables = pickle.loads(ran.stdout)
        broker.kill()
        broker.start()
        writer = open_writer(builder(broker, name).build(), restored=committables)
        assert writer.committer.commit(committables) == []
        assert broker.values(name) == numbers(range(100))
        assert client(broker).open_transactions("tidegate-") == []
        writer.close()


def test_what_no_checkpoint_holds_is_aborted_at_the_start_also_after_scaling_down(broker: Broker, topic: str) -> None:
    sink = builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build()
    writers = [open_writer(sink, subtask, 3) for subtask in range(3)]
    for n, writer in enumerate(writers):
        write(writer, [f"kept-{n}"])
    kept = [committable for writer in writers for committable in barrier(writer)]
    for writer in writers:
        write(writer, ["lost"])
        writer.flush(False)
    assert len(client(broker).open_transactions(f"{topic}-p-")) == 6
    for writer in writers:
        writer.close()
    # One subtask where there were three: it gets a share of what waits, and is told of all of it.
    after = open_writer(sink, 0, 2, restored=kept[:1], of_all=kept)
    after_too = open_writer(sink, 1, 2, restored=kept[1:], of_all=kept)
    assert sorted(t.transactional_id for t in client(broker).open_transactions(f"{topic}-p-")) == sorted(
        t.transactional_id for t in kept
    )
    assert after.committer.commit(kept[:1]) == []
    assert after_too.committer.commit(kept[1:]) == []
    assert sorted(broker.values(topic)) == ["kept-0", "kept-1", "kept-2"]
    after.close()
    after_too.close()


def test_a_job_that_never_completed_a_checkpoint_leaves_nothing_open(broker: Broker, topic: str) -> None:
    sink = builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build()
    first = open_writer(sink)
    write(first, ["lost"])
    first.flush(False)
    first.close()
    second = open_writer(sink)
    write(second, ["kept"])
    assert second.committer.commit(barrier(second)) == []
    assert broker.values(topic) == ["kept"]
    second.close()


def test_a_writer_wakes_its_task_when_its_next_producer_is_ready(broker: Broker, topic: str) -> None:
    """Otherwise the barrier behind the records that wait for it would wait for the slot to look by itself."""
    woken = threading.Event()
    writer = open_writer(builder(broker, topic).build(), wake=woken.set)
    for n in range(3):
        assert woken.wait(30)
        assert writer.available
        woken.clear()
        write(writer, [str(n)])
        assert writer.committer.commit(barrier(writer)) == []
    writer.close()


def test_ids_come_from_a_small_pool(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic).build())
    used = set()
    for n in range(12):
        write(writer, [str(n)])
        prepared = barrier(writer)
        used |= {t.transactional_id for t in prepared}
        assert writer.committer.commit(prepared) == []
    assert len(used) <= 5
    assert sorted(broker.values(topic), key=int) == numbers(range(12))
    writer.close()


def test_a_writer_that_was_closed_takes_no_id_from_the_one_after_it(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes its next producer on a thread. The worker lives on, and the next attempt takes the same ids: a thread
    that goes on late would abort what the next attempt has written, and what a checkpoint holds of it."""
    sink, going_on = builder(broker, topic).build(), threading.Event()
    make, first = ProducerFactory._init, f"tidegate-{topic}-op-0-0"
    threads: list[threading.Thread] = []

    def late(self: ProducerFactory, holder: Any, doing: str) -> None:
        if threads or first not in doing:
            return make(self, holder, doing)
        threads.append(threading.current_thread())
        assert going_on.wait(30)
        return make(self, holder, doing)

    monkeypatch.setattr(ProducerFactory, "_init", late)
    context = SinkContext(topic, "sink", 0, 1, 0, WallClock(), operator_id="op")
    closed = sink.create_writer(context)
    deadline = time.monotonic() + 30
    while not threads:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    # The one that is closed is in the middle of it: what it does is done when `close` is over, not after it.
    timer = threading.Timer(0.5, going_on.set)
    timer.start()
    closed.close()
    assert going_on.is_set()
    after = open_writer(sink, job_id=topic)
    write(after, ["kept"])
    prepared = barrier(after)
    assert [t.transactional_id for t in prepared] == [first]
    timer.join()
    commit(after.committer, prepared)
    assert broker.values(topic) == ["kept"]
    after.close()


def test_a_writer_that_was_closed_before_its_start_was_over_aborts_nothing(broker: Broker, topic: str) -> None:
    sink = builder(broker, topic).build()
    after = open_writer(sink, job_id=topic)
    write(after, ["kept"])
    prepared = barrier(after)
    context = SinkContext(topic, "sink", 0, 1, 0, WallClock(), operator_id="op")
    find, found, closing = TransactionClient.open_transactions, threading.Event(), threading.Event()

    def slow(self: TransactionClient, *arguments: Any) -> Any:
        open_ones = find(self, *arguments)
        found.set()
        assert closing.wait(30)
        return open_ones

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TransactionClient, "open_transactions", slow)
        closed: Any = sink.create_writer(context)
        assert found.wait(30)
        closed.close()
        closing.set()
        with pytest.raises(KafkaError, match="closed"):
            closed._producers.check_started(wait=True)
    commit(after.committer, prepared)
    assert broker.values(topic) == ["kept"]
    after.close()


def test_a_transaction_that_somebody_aborts_before_its_barrier_fails_the_checkpoint_and_says_so(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the two questions that a barrier asks."""
    describe, aborted = TransactionClient.describe, []

    def and_abort(self: TransactionClient, transactional_id: str) -> Any:
        found = describe(self, transactional_id)
        if found is not None and found.state == "Ongoing" and not aborted:
            aborted.append(transactional_id)
            other = client(broker)
            assert other.ended(transactional_id, found.producer_id, found.epoch, False, 30) is EndResult.DONE
            ended = open_writer(builder(broker, topic).build(), job_id=topic)  # returns when the abort is in the log
            ended.close()
        return found

    writer = open_writer(builder(broker, topic).build(), job_id=topic)
    write(writer, ["again"])
    writer.flush(False)
    monkeypatch.setattr(TransactionClient, "describe", and_abort)
    with pytest.raises(KafkaError, match=r"aborted by somebody else .* goes back to its last checkpoint"):
        writer.prepare_commit()
    writer.close()


def test_the_first_record_of_a_transaction_is_looked_for_more_than_once(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each partition's own error is told apart from a partition that shows no record."""
    from kafka.admin import KafkaAdminClient
    from kafka.errors import NotLeaderForPartitionError

    monkeypatch.setattr(transactions, "_LOOK_PAUSE_SECONDS", 0.01)
    ask, answers = KafkaAdminClient.describe_producers, ["none", "no leader", "none", "no leader"]

    def describe(self: Any, places: Any) -> Any:
        found = ask(self, places)
        answer = answers.pop(0) if answers else ""
        if answer == "no leader":
            raise NotLeaderForPartitionError(f"DescribeProducersRequest failed for {places}")
        return {place: type(state)(active_producers=[]) for place, state in found.items()} if answer else found

    monkeypatch.setattr(KafkaAdminClient, "describe_producers", describe)
    writer = open_writer(builder(broker, topic).build(), job_id=topic)
    write(writer, ["kept"])
    prepared = barrier(writer)
    assert answers == []
    commit(writer.committer, prepared)
    assert broker.values(topic) == ["kept"]
    monkeypatch.setattr(transactions, "_LOOK_SECONDS", 0.5)
    answers += ["none", "no leader"] * 1000
    write(writer, ["again"])
    with pytest.raises(KafkaError, match=r"is open .* could be found within .*: none of its 0 producers is this one"):
        barrier(writer)
    writer.close()


def test_a_commit_that_comes_long_after_its_id_was_used_again_is_known_to_be_done(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic).build())
    seen = []
    for n in range(8):
        write(writer, [str(n)])
        seen += barrier(writer)
        assert writer.committer.commit(seen[-1:]) == []
    write(writer, ["open"])
    writer.flush(False)
    # As from an old savepoint: the ids have served again since, one of them holds an open transaction.
    assert writer.committer.commit(seen) == []
    assert sorted(broker.values(topic), key=int) == numbers(range(8))
    writer.close()


def test_a_transaction_that_the_broker_timed_out_is_an_error_that_names_the_setting(broker: Broker, topic: str) -> None:
    build = builder(broker, topic).set_property("transaction.timeout.ms", "1000")
    writer = open_writer(build.build())
    write(writer, ["lost"])
    committables = barrier(writer)
    writer.close()
    deadline = time.monotonic() + 20
    while client(broker).describe(committables[0].transactional_id).state == "Ongoing":  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    time.sleep(0.5)
    with pytest.raises(KafkaError, match=r"aborted transaction .*transaction.timeout.ms = 1000"):
        open_writer(build.build(), restored=committables).committer.commit(committables)
    build.set_property("tidegate.lost.transactions", "drop")
    assert open_writer(build.build(), restored=committables).committer.commit(committables) == []
    assert broker.values(topic) == []


def test_a_transaction_that_times_out_before_its_barrier_fails_the_checkpoint(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic).set_property("transaction.timeout.ms", "1000").build())
    write(writer, ["again"])
    writer.flush(False)
    time.sleep(2.5)
    with pytest.raises(KafkaError, match=r"aborted by the broker \(transaction.timeout.ms = 1000\)"):
        barrier(writer)


def test_a_transaction_that_comes_near_its_timeout_is_warned_about(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The time until the commit counts, however long the job was down meanwhile; it is said once."""
    sink = builder(broker, topic).set_property("transaction.timeout.ms", "30000").build()
    writer = open_writer(sink)
    write(writer, ["x"])
    (transaction,) = barrier(writer)
    assert time.time() * 1000 - 60_000 < transaction.opened_ms <= time.time() * 1000
    long_ago = dataclasses.replace(transaction, opened_ms=transaction.opened_ms - 11_000)
    with caplog.at_level(logging.WARNING, logger="tidegate.connectors.kafka.sink"):
        after = sink.create_committer()
        assert after is not None
        commit(after, [dataclasses.replace(transaction, opened_ms=0.0)])  # of an older snapshot
        assert not caplog.records
        for _ in range(2):
            commit(after, [long_ago])
    (record,) = caplog.records
    assert "the broker aborts it after 30 s (transaction.timeout.ms)" in record.getMessage()


def test_a_committable_of_an_older_version_is_read() -> None:
    old = KafkaTransaction("id", 1, 2, Witness("topic", 0, 3), 4, 5.0)
    state = dict(old.__dict__)
    del state["opened_ms"]
    read = KafkaTransaction.__new__(KafkaTransaction)
    read.__dict__.update(state)  # as unpickling does
    assert read == dataclasses.replace(old, opened_ms=0.0)


def test_the_fate_of_a_transaction_whose_topic_was_deleted(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart from an old savepoint: the broker may as well have aborted it, before retention came. What may
    be lost is never taken for done, unless the job allows it."""
    from confluent_kafka.admin import AdminClient

    writer = open_writer(builder(broker, topic).build())
    write(writer, ["gone"])
    (transaction,) = barrier(writer)
    commit(writer.committer, [transaction])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(10)
    monkeypatch.setattr(transactions, "_BELIEVED_SECONDS", 1.0)
    assert client(broker).fate(transaction.witness) is Fate.DELETED
    stale = dataclasses.replace(transaction, epoch=transaction.epoch + 7)
    with pytest.raises(TransactionLostError, match=r"nobody can tell .*set_property\('tidegate.lost.transactions'"):
        commit(writer.committer, [stale])
    dropping = builder(broker, topic).set_property("tidegate.lost.transactions", "drop").build().create_committer()
    assert dropping is not None
    commit(dropping, [stale])
    writer.close()


def test_of_an_id_that_the_broker_has_forgotten_the_record_tells_whether_it_was_committed(
    broker: Broker, topic: str
) -> None:
    """As from a savepoint that is older than the broker's transactional.id.expiration.ms (a week)."""
    writer = open_writer(builder(broker, topic).build())
    write(writer, ["committed"])
    (done,) = barrier(writer)
    commit(writer.committer, [done])
    write(writer, ["aborted"])
    (lost,) = barrier(writer)
    ended = client(broker).ended(lost.transactional_id, lost.producer_id, lost.epoch, False, 30)
    assert ended is EndResult.DONE
    done, lost = (dataclasses.replace(t, transactional_id=f"{topic}-forgotten") for t in (done, lost))
    assert client(broker).describe(done.transactional_id) is None
    commit(writer.committer, [done])
    with pytest.raises(TransactionLostError, match=r"aborted transaction .*-forgotten"):
        commit(writer.committer, [lost])
    assert broker.values(topic) == ["committed"]
    writer.close()


def test_a_second_job_with_the_prefix_is_refused_while_the_first_runs(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job() -> KafkaSink:
        return builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build()

    first, client_of_first = job(), EndingClient()
    first.check_start(1)
    first.job_started(client_of_first)  # type: ignore[arg-type]
    writer = open_writer(first)
    write(writer, ["kept"])
    writer.flush(False)
    second = job()
    with monkeypatch.context() as patch:
        patch.setattr(lease, "_DEAD_SECONDS", 1.0)
        with pytest.raises(ConfigurationError, match=rf"prefix '{topic}-p' is in use by another job"):
            second.check_start(1)
    second.job_refused()
    assert writer.committer.commit(barrier(writer)) == []
    assert broker.values(topic) == ["kept"]
    writer.close()
    client_of_first.end()
    second.check_start(1)
    second.job_refused()


class EndingClient:
    """A job client whose job can be told to end."""

    def __init__(self) -> None:
        self._result: CompletableFuture[Any] = CompletableFuture()

    def get_job_execution_result(self) -> CompletableFuture[Any]:
        return self._result

    def end(self) -> None:
        self._result.complete(None)


def test_no_writer_of_a_second_job_touches_what_the_first_has_prepared(broker: Broker, topic: str) -> None:
    """Whatever its number: each looks for itself whose the prefix is."""
    sinks = [builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build() for _ in range(2)]
    sinks[0].check_start(2)
    writer = open_writer(sinks[0], 1, 2)
    write(writer, ["kept"])
    prepared = barrier(writer)
    for subtask in range(2):
        with pytest.raises(ConfigurationError, match=rf"prefix '{topic}-p' is in use by another job"):
            open_writer(sinks[1], subtask, 2, job_id="second")
    assert writer.committer.commit(prepared) == []
    assert broker.values(topic) == ["kept"]
    writer.close()
    sinks[0].job_refused()


def test_of_jobs_that_start_at_the_same_time_with_one_prefix_one_does(broker: Broker, topic: str) -> None:
    sinks = [builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build() for _ in range(3)]
    together = threading.Barrier(len(sinks))

    def start(sink: KafkaSink) -> bool:
        together.wait()
        try:
            sink.check_start(1)
        except ConfigurationError:
            return False
        return True

    with ThreadPoolExecutor(len(sinks)) as threads:
        assert sorted(threads.map(start, sinks)) == [False, False, True]
    for sink in sinks:
        sink.job_refused()


def test_a_program_that_ends_gives_its_prefix_back(broker: Broker, topic: str) -> None:
    """Otherwise the next run of it would have to wait until the membership has run out."""
    program = f"""
        from tests.connectors.kafka_kit import *
        broker = type("Broker", (), {{"bootstrap_servers": "{broker.bootstrap_servers}"}})()
        builder(broker, "{topic}").set_transactional_id_prefix("{topic}-p").build().check_start(1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
    assert client(broker).members(f"{topic}-p-tidegate-owner") == []


def test_a_job_leaves_those_alone_whose_prefix_begins_with_its_own(broker: Broker, topic: str) -> None:
    other = open_writer(builder(broker, topic).set_transactional_id_prefix(f"{topic}-0").build(), job_id="other")
    write(other, ["of the other"])
    prepared = barrier(other)
    short = builder(broker, topic).set_transactional_id_prefix(topic).build()
    open_writer(short).close()
    short.discard_leftovers("job")
    assert other.committer.commit(prepared) == []
    assert broker.values(topic) == ["of the other"]
    other.close()


def test_what_is_open_is_aborted_also_under_an_id_that_the_savepoint_holds(broker: Broker, topic: str) -> None:
    sink = builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build()
    writer = open_writer(sink)
    write(writer, ["first"])
    saved = barrier(writer)
    assert writer.committer.commit(saved) == []
    while True:
        write(writer, ["next"])
        writer.flush(False)
        found = client(broker).describe(saved[0].transactional_id)
        if found is not None and found.state == "Ongoing":
            break  # the id serves again
        assert writer.committer.commit(barrier(writer)) == []
    writer.close()
    again = open_writer(sink, restored=saved)
    assert client(broker).open_transactions(f"{topic}-p-") == []
    assert again.committer.commit(saved) == []
    again.close()


def test_a_worker_of_a_leader_that_was_replaced_commits_late(broker: Broker, topic: str) -> None:
    """High availability: what it was told to commit is in the record, so its successor has committed it as well."""
    sink = builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build()
    old = open_writer(sink)
    write(old, ["recorded"])
    recorded = barrier(old)
    write(old, ["never recorded"])
    old.flush(False)
    new = open_writer(sink, restored=recorded)
    assert new.committer.commit(recorded) == []
    write(new, ["of the successor"])
    successors = barrier(new)
    write(new, ["open"])
    new.flush(False)
    assert old.committer.commit(recorded) == []  # neither doubled, nor what is open now
    assert broker.values(topic) == ["recorded"]
    assert new.committer.commit(successors) == []
    assert old.committer.commit(recorded) == []
    assert sorted(broker.values(topic)) == ["of the successor", "recorded"]

    def go_on() -> None:
        write(old, ["after that"])
        barrier(old)

    with pytest.raises((KafkaError, SystemError)):  # fenced; librdkafka says so in a callback, whose error Python wraps
        go_on()
    assert sorted(broker.values(topic)) == ["of the successor", "recorded"]
    new.close()


def test_attempts_side_by_side_do_not_touch_each_other(broker: Broker, topic: str) -> None:
    """As in BATCH mode, where a slow task is tried twice at once."""
    sink = builder(broker, topic).set_transactional_id_prefix(f"{topic}-p").build()
    first = open_writer(sink, attempt=f"{'a' * 32}-1")
    write(first, ["first"])
    first.flush(False)
    second = open_writer(sink, attempt=f"{'a' * 32}-2")
    assert first.committer.commit(barrier(first)) == []
    second.close()
    assert broker.values(topic) == ["first"]
    other = open_writer(sink, attempt=f"{'a' * 32}-3")
    write(other, ["nobody commits this"])
    other.flush(False)
    sink.discard_leftovers("job")
    assert client(broker).open_transactions(topic) == []


def test_at_least_once_is_acknowledged_at_the_barrier(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic, DeliveryGuarantee.AT_LEAST_ONCE).build())
    assert writer.committer is None
    write(writer, numbers(range(1000)))
    assert barrier(writer) == []
    assert sorted(broker.values(topic), key=int) == numbers(range(1000))
    writer.close()


def test_what_none_leaves_out_is_told_now_and_then(broker: Broker, name: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.create_topic(name, config={"max.message.bytes": "1000"})
    writer = open_writer(builder(broker, topic, DeliveryGuarantee.NONE).build())
    write(writer, ["x" * 5000 for _ in range(20)])
    writer.flush(True)
    writer.close()
    first, last = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert f"topic {topic}, partition 0" in first
    assert "1 so far" in first
    assert "20 so far" in last


def test_none_is_written_without_waiting(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic, DeliveryGuarantee.NONE).build())
    write(writer, ["a"])
    writer.flush(False)
    writer.flush(True)
    assert broker.values(topic) == ["a"]
    writer.close()


class ByLength(KafkaTopicSelector):
    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def apply(self, data: Any) -> str:
        return self.topics[len(data) % 2]


def test_key_headers_timestamp_partition_and_topic_of_each_record(broker: Broker, name: str) -> None:
    even, odd = broker.create_topic(f"{name}-even", 2), broker.create_topic(f"{name}-odd", 2)
    schema = (
        KafkaRecordSerializationSchema.builder()
        .set_topic_selector(ByLength(even, odd))
        .set_key_serialization_schema(SimpleStringSchema())
        .set_value_serialization_schema(SimpleStringSchema())
        .set_header_provider(lambda value: {"length": str(len(value)).encode()})
        .set_partitioner(lambda value: 1)
        .build()
    )
    sink = KafkaSink.builder().set_bootstrap_servers(broker.bootstrap_servers).set_record_serializer(schema)
    writer = open_writer(sink.set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE).build())
    writer.write_batch(["ab", "abc"], [1000, 2000])
    writer.flush(True)
    (first,), (second,) = broker.read(even), broker.read(odd)
    assert (first.key(), first.value(), first.headers(), first.timestamp()[1], first.partition()) == (
        b"ab",
        b"ab",
        [("length", b"2")],
        1000,
        1,
    )
    assert second.value() == b"abc"
    assert second.timestamp()[1] == 2000


def test_a_record_that_the_broker_refuses_fails_the_checkpoint(broker: Broker, name: str) -> None:
    topic = broker.create_topic(name, config={"max.message.bytes": "1000"})
    for guarantee in (DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.EXACTLY_ONCE):
        writer = open_writer(builder(broker, topic, guarantee).build())
        write(writer, ["x" * 5000])
        with pytest.raises(KafkaError, match=f"refuses a record for topic {topic}"):
            writer.flush(False)
        writer.close()


def test_a_record_that_is_too_large_for_the_client_is_named(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic, DeliveryGuarantee.AT_LEAST_ONCE).build())
    with pytest.raises(KafkaError, match=r"record 1 of this batch is larger than message\.max\.bytes"):
        writer.write_batch(["a", "x" * 2_000_000], None)


def test_a_timeout_above_the_brokers_maximum_is_refused_before_the_start(broker: Broker, topic: str) -> None:
    sink = builder(broker, topic).set_property("transaction.timeout.ms", "3600000").build()
    with pytest.raises(ConfigurationError, match=r"3600000 is above .* transaction\.max\.timeout\.ms = 9"):
        sink.check_start(1)


def test_an_unknown_topic_and_an_unreachable_broker_are_refused_before_the_start(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KafkaError, match=f"no topic '{name}'"):
        builder(broker, name).build().check_start(1)
    monkeypatch.setattr(admin, "_SECONDS", 1.0)
    away = type("Away", (), {"bootstrap_servers": "127.0.0.1:1"})()
    build = builder(away, name).set_property("sasl.password", "hunter2").set_property("socket.timeout.ms", "1000")
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1: asking for the topics: no broker answers") as caught:
        build.build().check_start(1)
    assert "hunter2" not in str(caught.value)


SECRETS = {
    "sasl.password": "hunter-1",
    "ssl.key.password": "hunter-2",
    "sasl.oauthbearer.client.secret": "hunter-3",
    "sasl.oauthbearer.config": "principal=hunter-4",
    "sasl.oauthbearer.assertion.private.key.passphrase": "hunter-5",
    "sasl.oauthbearer.assertion.private.key.pem": "hunter-6",
    "ssl.key.pem": "hunter-7",
    "sasl.jaas.config": 'Module required username="me" password="hunter-8";',
}


def test_what_is_told_of_a_job_has_no_secrets_of_its_connectors(broker: Broker) -> None:
    """Its graph, its view, which the REST API and the web page show, and how its parts print themselves."""
    from tests.connectors.test_kafka_source import of

    source = of(broker, "in").set_properties(SECRETS).build()
    build = builder(broker, "out", DeliveryGuarantee.AT_LEAST_ONCE)
    for key, value in SECRETS.items():
        build.set_property(key, value)
    sink = build.build()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "in").sink_to(sink)
    graph = build_job_graph(env._operators, env._graph_settings(), "job", env._job_id()).job_graph
    view = JobPublisher(graph, "STREAMING", 1, 0.0, env._configuration).view
    for told in (repr(source), str(sink), view.to_json().decode(), repr(view), repr(graph)):
        assert "in" in told
        assert "hunter" not in told


def test_secrets_are_in_no_text(
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tidegate.connectors.kafka.settings import python_settings

    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="hunter2";'
    build = builder(broker, "t").set_property("sasl.jaas.config", login).set_property("security.protocol", "SASL_SSL")
    build.set_property("debug", "all").set_property("log_level", "7")
    sink = build.set_property("sasl.mechanism", "PLAIN").build()
    assert "hunter2" not in repr(sink)
    settings = python_settings(sink._connection())
    assert settings["sasl_plain_password"] == "hunter2"
    assert "hunter2" not in repr(settings)
    # And what each of the two clients says of a broker that speaks no TLS, at the top of its voice.
    caplog.set_level(logging.DEBUG)
    logging.getLogger("tests").debug("settings: %s", settings)
    monkeypatch.setattr(admin, "_SECONDS", 1.0)
    with pytest.raises(KafkaError) as refusal:
        sink.check_start(1)
    monkeypatch.setattr(transactions, "_SECONDS", 1.0)
    asked = TransactionClient("KafkaSink", sink._connection())
    with pytest.raises(KafkaError) as refusal_too:
        asked.describe("t-0-0")
    asked.close()
    assert "hunter2" not in f"{caplog.text}{refusal.value}{refusal_too.value}{capfd.readouterr()}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.set_property("transactional.id", "x"), "set_transactional_id_prefix"),
        (lambda b: b.set_property("transaction.timeout.ms", "soon").build(), "transaction.timeout.ms has to be"),
        (lambda b: b.set_property("linger.ms", None), "'linger.ms' has to be text or a number"),
        (lambda b: b.set_property("tidegate.lost.transactions", "yes"), "'fail' or 'drop'"),
        (lambda b: b.set_transactional_id_prefix(""), "set_transactional_id_prefix"),
        (lambda b: b.set_bootstrap_servers(""), "bootstrap servers are text"),
        (lambda b: b.set_property("ssl.keystore.location", "x").build(), "ssl.keystore.location"),
        (lambda b: KafkaSink.builder().set_bootstrap_servers("a:1").build(), "set_record_serializer is missing"),
        (lambda b: KafkaRecordSerializationSchema.builder().set_topic("a").build(), "set_value_serialization_schema"),
        (
            lambda b: (
                KafkaRecordSerializationSchema.builder().set_value_serialization_schema(ByteArraySchema()).build()
            ),
            "either set_topic or set_topic_selector",
        ),
    ],
)
def test_bad_settings(broker: Broker, change: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        change(builder(broker, "t"))


def test_an_unknown_property_is_named(broker: Broker, topic: str) -> None:
    for guarantee in DeliveryGuarantee:
        sink = builder(broker, topic, guarantee).set_property("no.such.thing", "1").build()
        with pytest.raises(ConfigurationError, match=r"no\.such\.thing"):
            sink.check_start(1)
        sink.job_refused()
