"""`tidegate kafka transactions` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import builder, open_writer, write
from tidegate.cli.main import main


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
