"""`tidegate kafka transactions` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import builder, open_writer, write
from tidegate.cli.main import main
from tidegate.connectors.kafka.lease import take_prefix

ENDED = {"commit": "committed", "abort": "aborted"}


def call(capsys: pytest.CaptureFixture[str], broker: Broker, verb: str, *arguments: str) -> tuple[int, Any]:
    servers = ["--bootstrap-servers", broker.bootstrap_servers]
    code = main(["kafka", "transactions", verb, "--json", *servers, *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_list_commit_and_abort(broker: Broker, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    broker.create_topic(name)
    sink = builder(broker, name).set_transactional_id_prefix(f"{name}-p").build()
    writers = [open_writer(sink, subtask, 2) for subtask in range(2)]
    for writer, value in zip(writers, ["kept", "thrown away"], strict=True):
        write(writer, [value])
        writer.flush(False)
    code, answer = call(capsys, broker, "list", "--prefix", f"{name}-p")
    assert code == 0
    kept, thrown = [found["transactional_id"] for found in answer["transactions"]]
    assert answer["transactions"][0]["partitions"] == [f"{name}-0"]
    assert call(capsys, broker, "commit", kept) == (0, {"transactional_id": kept, "result": "committed"})
    assert call(capsys, broker, "abort", thrown) == (0, {"transactional_id": thrown, "result": "aborted"})
    assert broker.values(name) == ["kept"]
    code, answer = call(capsys, broker, "commit", thrown)
    assert code == 1
    assert "is not open: CompleteAbort" in answer["error"]
    assert call(capsys, broker, "list", "--prefix", f"{name}-p") == (0, {"transactions": []})
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("verb", ["commit", "abort"])
@pytest.mark.parametrize("attempt", ["", f"{'0f' * 16}-3"])
def test_what_a_running_job_holds_is_ended_only_by_force(
    broker: Broker, name: str, capsys: pytest.CaptureFixture[str], verb: str, attempt: str
) -> None:
    broker.create_topic(name)
    sink = builder(broker, name).set_transactional_id_prefix(f"{name}-p").build()
    writer = open_writer(sink, attempt=attempt)
    write(writer, ["of a running job"])
    writer.flush(False)
    lease = take_prefix(f"{name}-p", name, {"bootstrap.servers": broker.bootstrap_servers})
    try:
        (found,) = call(capsys, broker, "list", "--prefix", f"{name}-p")[1]["transactions"]
        assert found["owner"] == lease.owner
        main(["kafka", "transactions", "list", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", name])
        assert f"of a running job: {lease.owner}" in capsys.readouterr().out
        code, answer = call(capsys, broker, verb, found["transactional_id"])
        assert code == 1
        assert lease.owner in answer["error"]
        assert call(capsys, broker, "list", "--prefix", f"{name}-p")[1]["transactions"]
        result = {"transactional_id": found["transactional_id"], "result": ENDED[verb]}
        assert call(capsys, broker, verb, found["transactional_id"], "--force") == (0, result)
    finally:
        lease.close()
        writer.close()


def test_only_the_transaction_that_was_looked_at_is_ended(
    broker: Broker, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic(name)
    writer = open_writer(builder(broker, name).set_transactional_id_prefix(f"{name}-p").build())
    write(writer, ["kept"])
    writer.flush(False)
    (found,) = call(capsys, broker, "list", "--prefix", f"{name}-p")[1]["transactions"]
    assert found["owner"] is None
    known = ["--producer-id", str(found["producer_id"]), "--epoch"]
    code, answer = call(capsys, broker, "abort", found["transactional_id"], *known, str(found["epoch"] + 1))
    assert code == 1
    assert f"producer {found['producer_id']} epoch {found['epoch']}" in answer["error"]
    assert "give both" in call(capsys, broker, "abort", found["transactional_id"], "--epoch", "1")[1]["error"]
    assert call(capsys, broker, "commit", found["transactional_id"], *known, str(found["epoch"]))[0] == 0
    assert broker.values(name) == ["kept"]
    writer.close()


def test_what_cannot_be_done_is_a_sentence(
    broker: Broker, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "unknown to the broker" in call(capsys, broker, "abort", name)[1]["error"]
    assert "--config" in call(capsys, broker, "list", "--config", str(tmp_path / "none"))[1]["error"]
    config = tmp_path / "client.properties"
    config.write_text("# a comment\nsecurity.protocol=PLAINTEXT\n")
    assert call(capsys, broker, "list", "--prefix", name, "--config", str(config))[0] == 0
    config.write_text("nonsense\n")
    assert "NAME=VALUE" in call(capsys, broker, "list", "--config", str(config))[1]["error"]
