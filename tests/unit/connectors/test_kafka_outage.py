"""A broker that is away: how long it is waited for, what is said, and when the wait ends."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import ByteArraySchema
from tidegate.connectors.kafka import lease, transactions, writers
from tidegate.connectors.kafka.producers import ProducerFactory, TransactionalIds
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.settings import BrokerUnavailableError, KafkaError, refused
from tidegate.connectors.kafka.transactions import TransactionClient, Witness
from tidegate.connectors.kafka.writers import RecordProduction
from tidegate.taskmanager.failure import may_pass

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_SECONDS", 0.1)  # of one try to connect


def client(wait_seconds: float) -> TransactionClient:
    return TransactionClient("KafkaSink", {"bootstrap.servers": NOWHERE}, wait_seconds)


@pytest.mark.usefixtures("impatient")
def test_one_that_stays_away_is_an_error_that_names_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="tidegate.connectors.kafka"),
        pytest.raises(KafkaError, match=rf"{NOWHERE}: looking at a transaction .*tidegate\.outage\.timeout\.ms"),
    ):
        client(0.3).describe("t")
    assert [NOWHERE in record.getMessage() for record in caplog.records] == [True]  # said once


@pytest.mark.usefixtures("impatient")
def test_a_wait_ends_when_the_client_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    waiting, raised = client(600), []

    def ask() -> None:
        with pytest.raises(KafkaError) as error:
            waiting.describe("t")
        raised.append(error)

    thread = threading.Thread(target=ask)
    with caplog.at_level(logging.WARNING, logger="tidegate.connectors.kafka"):
        thread.start()
        while not caplog.records:
            thread.join(0.01)
    waiting.close()
    thread.join(20)
    assert raised


class SlowProducer:
    """`flush` leaves what it is told to."""

    def __init__(self, *left: int) -> None:
        self._left = list(left)

    def __len__(self) -> int:
        return 10

    def flush(self, seconds: float) -> int:
        return self._left.pop(0)


def test_records_that_nobody_acknowledges_are_said_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    schema = KafkaRecordSerializationSchema.builder().set_topic("t").set_value_serialization_schema(ByteArraySchema())
    production = RecordProduction(schema.build(), NOWHERE, 60.0, True)
    with caplog.at_level(logging.WARNING, logger="tidegate.connectors.kafka"):
        production.flush(SlowProducer(7, 3, 0), [])
        assert not caplog.records  # slow, but there
        production.flush(SlowProducer(10, 10, 0), [])
    assert ["acknowledged: 10 are due" in caplog.records[0].getMessage(), len(caplog.records)] == [True, 2]
    impatient = RecordProduction(schema.build(), NOWHERE, 0.0, True)
    with pytest.raises(BrokerUnavailableError, match=r"10 records were not acknowledged .*message\.timeout\.ms"):
        impatient.flush(SlowProducer(10), [])


@pytest.mark.parametrize(
    ("code", "passes", "said"),
    [
        (Code._MSG_TIMED_OUT, True, r"no broker has taken a record for topic t, partition 1 within 60 s"),
        (Code.NOT_ENOUGH_REPLICAS, True, r"no broker has taken a record for topic t, partition 1"),
        (Code.MSG_SIZE_TOO_LARGE, False, r"the broker refuses a record for topic t, partition 1"),
    ],
)
def test_an_outage_is_no_failure_of_the_program_that_would_end_a_job_for_good(
    code: int, passes: bool, said: str
) -> None:
    schema = KafkaRecordSerializationSchema.builder().set_topic("t").set_value_serialization_schema(ByteArraySchema())
    production = RecordProduction(schema.build(), NOWHERE, 60.0, True)
    with pytest.raises(KafkaError, match=said) as at_the_barrier:
        production.flush(SlowProducer(0), [(Code(code), "t", 1)])
    assert may_pass(at_the_barrier.value) is passes
    assert may_pass(refused("KafkaSink", "asking", NOWHERE, KafkaException(Code(code)))) is passes


def test_a_transaction_whose_end_cannot_be_looked_up_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_SECONDS", 0.1)
    with pytest.raises(KafkaError, match=rf"{NOWHERE}: topic t, partition 0, .*could not be read") as error:
        client(0.0).fate(Witness("t", 0, 1))
    assert may_pass(error.value)


@pytest.mark.usefixtures("impatient")
def test_a_group_without_a_coordinator_is_waited_for_as_long_as_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([(None, "[Error 16] NotCoordinatorError")] * 3 + [({"members": [{"client_id": "me"}]}, "")])
    monkeypatch.setattr(TransactionClient, "_ask", lambda *_: next(answers))
    assert client(600).members("group") == ["me"]
    monkeypatch.setattr(TransactionClient, "_ask", lambda *_: (None, "[Error 16] NotCoordinatorError"))
    with pytest.raises(BrokerUnavailableError, match="NotCoordinatorError"):
        client(0).members("group")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError(), True),
        (type("Retriable", (Exception,), {"retriable": True, "errno": None})(), True),
        (type("CoordinatorLoads", (Exception,), {"retriable": True, "errno": 14})(), True),
        (type("TopicIsGone", (Exception,), {"retriable": True, "errno": 3})(), False),
        (type("NotAllowed", (Exception,), {"retriable": False, "errno": 53})(), False),
        (ValueError(), False),
    ],
)
def test_what_passes_by_itself(error: Exception, passes: bool) -> None:
    assert transactions._passes(error) is passes


def test_a_task_is_woken_when_a_full_producer_takes_records_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_QUEUE", 10)
    monkeypatch.setattr(writers, "_ROOM_SECONDS", 60.0)
    held, woken = HeldRecords(8), threading.Event()
    room = writers._Room(woken.set)
    assert not room.is_in(held)
    assert not room.is_in(held)
    assert not woken.is_set()
    held.count = 4
    assert woken.wait(30)
    assert room.is_in(held)


class Group:
    """Answers with these members, one list after the other, the last one for ever."""

    def __init__(self, *members: list[str]) -> None:
        self._members = list(members)

    def members(self, group: str) -> list[str]:
        return self._members.pop(0) if len(self._members) > 1 else self._members[0]

    def pause(self, seconds: float) -> bool:
        return False


def held(owner: str | None, *members: list[str], seconds: float = 600.0) -> None:
    lease.check_held("p", owner, cast(TransactionClient, Group(*members)), seconds)


def test_a_writer_looks_whose_the_prefix_is() -> None:
    held(None, [])  # no driver has taken it: a harness of tests, say
    held("mine", ["mine"])
    held("mine", [], [], ["mine"])  # the broker was away: the driver joins again
    for members in (["other"], ["mine", "other"]):
        with pytest.raises(ConfigurationError, match=r"prefix 'p' is in use by another job, .*driver: other"):
            held("mine", members)
    with pytest.raises(ConfigurationError, match="prefix 'p' is in use"):
        held("mine", [], ["other"])  # a driver that was frozen has lost it
    with pytest.raises(ConfigurationError, match="prefix 'p' is in use"):
        held(None, ["other"])
    with pytest.raises(KafkaError, match="does not hold the transactional id prefix 'p' any more"):
        held("mine", [], seconds=0.0)


class HeldRecords:
    """A producer that holds so many."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def poll(self, seconds: float) -> int:
        return 0


def test_a_writer_that_was_refused_touches_nobodys_transactions() -> None:
    def refused() -> None:
        raise ConfigurationError("in use")

    settings: dict[str, Any] = {"no.such.setting": "a producer cannot be made of this"}
    factory = ProducerFactory(settings, NOWHERE, TransactionalIds("p", 0, ()), refused, 1.0)
    with pytest.raises(ConfigurationError, match="in use"):
        factory.take()
    with pytest.raises(ConfigurationError, match="in use"):
        factory.check_started(wait=True)
    factory.close()


class _Starting:
    """A broker whose coordinators are elected, and then load, only after some questions; listing does not say so."""

    def __init__(self) -> None:
        self.questions = 0

    def describe_transactions(self, ids: list[str]) -> Any:
        from kafka import errors

        self.questions += 1
        if self.questions <= 2:
            raise errors.NotCoordinatorError
        if self.questions <= 4:
            raise errors.CoordinatorLoadInProgressError
        if ids != ["p-0-7"]:
            raise errors.for_code(transactions._UNKNOWN_ID)
        return {"p-0-7": _Described()}

    def list_transactions(self, state_filters: list[str]) -> Any:
        return {1: [_Described()]} if self.questions > 4 else {1: []}

    def close(self) -> None:
        pass


class _Described:
    transactional_id, producer_id, producer_epoch, transaction_timeout_ms = "p-0-7", 5, 1, 1000
    transaction_start_time_ms, topic_partitions = 0, ()

    class state:
        value = "Ongoing"


def test_open_transactions_are_not_overlooked_while_a_broker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listed none then, and readers of committed records waited behind what was left for its whole timeout."""
    admin = _Starting()
    monkeypatch.setattr(TransactionClient, "_connected", lambda self: admin)
    assert [found.transactional_id for found in client(60.0).open_transactions("p-")] == ["p-0-7"]
