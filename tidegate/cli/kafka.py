"""`tidegate kafka transactions`: what `KafkaSink` has left open at a broker, seen and ended by hand.

Readers of committed records wait behind an open transaction. A job that is started again ends its own; these commands
are for one that is not, so they refuse what belongs to a job that runs. Commit only what a complete checkpoint holds:
`list` says since when each is open, and a job that recovers commits its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.cli.errors import CommandError
from tidegate.connectors.kafka.lease import owners_of
from tidegate.connectors.kafka.settings import KafkaError, check_installed, checked_property
from tidegate.connectors.kafka.transactions import EndResult, OpenTransaction, TransactionClient

_SECONDS = 30.0


def _client(arguments: Any) -> TransactionClient:
    check_installed("tidegate kafka", transactions=True)
    properties = {"bootstrap.servers": arguments.bootstrap_servers}
    if arguments.config is not None:
        properties |= _file(arguments.config)
    return TransactionClient("tidegate kafka", properties)


def _file(path: str) -> dict[str, str]:
    """A file of properties, as Kafka's own commands take it: secrets stay out of the list of processes."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CommandError(f"--config {path}: {error.strerror}") from None
    pairs = [line.split("=", 1) for line in map(str.strip, lines) if line and not line.startswith("#")]
    if any(len(pair) != 2 for pair in pairs):
        raise CommandError(f"--config {path}: every line has to be NAME=VALUE")
    return dict(checked_property(f"--config {path}", key.strip(), value.strip()) for key, value in pairs)


def list_transactions(arguments: Any) -> dict[str, Any]:
    client = _client(arguments)
    try:
        found = client.open_transactions(arguments.prefix)
        asked: dict[str, list[str]] = {}
        owners = [_owner(client, transaction.transactional_id, asked) for transaction in found]
    finally:
        client.close()
    now = time.time() * 1000
    return {"transactions": [_shown(*pair, now) for pair in zip(found, owners, strict=True)]}


def _owner(client: TransactionClient, transactional_id: str, asked: dict[str, list[str]]) -> str | None:
    try:
        return next(iter(owners_of(client, transactional_id, asked)), None)
    except KafkaError as error:  # no right to look at the group: the list is worth having without it
        return f"unknown ({error})"


def _shown(transaction: OpenTransaction, owner: str | None, now_ms: float) -> dict[str, Any]:
    """`owner`: the driver of the running job that holds the prefix, None when no job does."""
    return {
        "transactional_id": transaction.transactional_id,
        "owner": owner,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
        "open_seconds": round((now_ms - transaction.started_ms) / 1000, 1),
        "timeout_seconds": transaction.timeout_ms / 1000,
        "partitions": [f"{topic}-{number}" for topic, number in transaction.partitions],
    }


def print_transactions(answer: dict[str, Any]) -> None:
    for found in answer["transactions"]:
        print(
            f"{found['transactional_id']}  producer {found['producer_id']} epoch {found['epoch']}  open for "
            f"{found['open_seconds']:.0f} s of {found['timeout_seconds']:.0f} s  {' '.join(found['partitions'])}"
            + (f"  of a running job: {found['owner']}" if found["owner"] else "")
        )
    if not answer["transactions"]:
        print("no open transactions")


def ending(commit: bool) -> Callable[[Any], dict[str, Any]]:
    """The command `commit`, or `abort`."""

    def end(arguments: Any) -> dict[str, Any]:
        if (arguments.producer_id is None) != (arguments.epoch is None):
            raise CommandError("--producer-id and --epoch name a transaction together: give both, as `list` shows them")
        client = _client(arguments)
        try:
            found = client.describe(arguments.transactional_id)
            if found is None or found.state != "Ongoing":
                state = "unknown to the broker" if found is None else found.state
                raise CommandError(f"transaction {arguments.transactional_id} is not open: {state}")
            if arguments.epoch is not None and (found.producer_id, found.epoch) != (
                arguments.producer_id,
                arguments.epoch,
            ):
                raise CommandError(
                    f"the transaction of {arguments.transactional_id} that is open now is another one, of producer "
                    f"{found.producer_id} epoch {found.epoch}; that of producer {arguments.producer_id} epoch "
                    f"{arguments.epoch} has ended, or was taken over"
                )
            if not arguments.force:
                _check_unowned(client, found.transactional_id)
            result = client.ended(found.transactional_id, found.producer_id, found.epoch, commit, _SECONDS)
        finally:
            client.close()
        if result is not EndResult.DONE:
            raise CommandError(f"transaction {arguments.transactional_id} was not ended: {result.value}")
        return {"transactional_id": arguments.transactional_id, "result": "committed" if commit else "aborted"}

    return end


def _check_unowned(client: TransactionClient, transactional_id: str) -> None:
    try:
        owners = owners_of(client, transactional_id, {})
    except KafkaError as error:
        raise CommandError(
            f"whether a running job has {transactional_id} cannot be told: {error}. --force does not ask"
        ) from None
    if owners:
        raise CommandError(
            f"transaction {transactional_id} belongs to a job that runs (its driver: {owners[0]}), which commits or "
            "aborts it itself; ended by hand, its records would be seen half written or twice, or be missing. Stop "
            "the job first (one that was killed holds its prefix for some seconds), or --force it"
        )


def print_end(answer: dict[str, Any]) -> None:
    print(f"{answer['transactional_id']} {answer['result']}")


def add_commands(commands: Any, command: Callable[..., Any]) -> None:
    """`command` is how the command line makes one: (commands, name, help, function, printer)."""
    kafka = commands.add_parser("kafka", help="look after what sinks have at a broker")
    below = kafka.add_subparsers(required=True, metavar="<command>")
    transactions = below.add_parser("transactions", help="open transactions of KafkaSink")
    verbs = transactions.add_subparsers(required=True, metavar="<command>")
    listing = command(verbs, "list", "open transactions", list_transactions, print_transactions)
    listing.add_argument("--prefix", default="", help="only ids that begin with this")
    for name, commit, text in (
        ("commit", True, "make an open transaction's records visible"),
        ("abort", False, "throw an open transaction away"),
    ):
        end = command(verbs, name, text, ending(commit), print_end)
        end.add_argument("transactional_id", help="its whole id, from `list`")
        end.add_argument("--producer-id", type=int, metavar="N", help="from `list`: only if it is still this one")
        end.add_argument("--epoch", type=int, metavar="N", help="from `list`, with --producer-id")
        end.add_argument("--force", action="store_true", help="also when a job that runs holds the prefix")
        _add_connection(end)
    _add_connection(listing)


def _add_connection(parser: Any) -> None:
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="of the brokers")
    parser.add_argument("--config", metavar="FILE", help="properties of the connection (security.protocol=...)")
