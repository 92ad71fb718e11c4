"""A stranger on the network cannot talk to a running job, and does it no harm by trying."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.common.ids import AttemptNumber, ChannelAddress, EdgeId, SlotIndex, SubtaskIndex
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.network.serialization import ROWS
from tidegate.network.wire import Frame, encode_header
from tidegate.protocol.codec import encode
from tidegate.protocol.messages import FailureInfo, TaskFailed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def no_curve(socket: Any, server_key: bytes) -> None:
    """Speaks plain ZeroMQ."""


def own_key(socket: Any, server_key: bytes) -> None:
    """Knows the public key of the server, but is not the job's client."""
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_serverkey = server_key


def wrong_server_key(socket: Any, server_key: bytes) -> None:
    own_key(socket, server_key)
    socket.curve_serverkey = zmq.curve_keypair()[0]


def as_server(socket: Any, server_key: bytes) -> None:
    """Claims to be a server itself."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()


@pytest.mark.parametrize("disguise", [no_curve, own_key, wrong_server_key, as_server])
def test_a_stranger_is_not_heard(make_env: MakeEnv, tmp_path: Path, disguise: Callable[[Any, bytes], None]) -> None:
    from tidegate.jobmanager.running_jobs import running_jobs_of
    from tidegate.spark.streaming.job_manager import JobManager

    source = DataGeneratorSource(lambda i: i, records_per_second=2000)
    stream = make_env(2).from_source(source, WatermarkStrategy.no_watermarks(), "Endless").rebalance().map(str)
    with stream.execute_and_collect() as results, zmq.Context() as context:
        next(results)
        manager = next(m for m in running_jobs_of(JobManager) if m.master.status is JobStatus.RUNNING)
        control, data = manager._address, [m.data_address for m in manager.master.members]
        fail = encode(TaskFailed(attempt=AttemptNumber(0), slot=SlotIndex(0), failure=FailureInfo(summary="intruder")))
        channel = ChannelAddress(EdgeId(0), SubtaskIndex(0), SubtaskIndex(1))
        bomb = str(tmp_path / "bomb")
        payload = pickle.dumps([Bomb(bomb)])
        strangers = []
        for address in [control, *data]:
            for kind in (zmq.DEALER, zmq.PUSH):
                stranger = context.socket(kind)
                stranger.linger = 0
                disguise(stranger, manager._keys.server_public)
                stranger.connect(address)
                strangers.append(stranger)
                for sequence in range(3):
                    frame = Frame(ROWS, AttemptNumber(0), SlotIndex(0), sequence, channel, 1, payload)
                    with_header = (fail,) if address == control else (encode_header(frame), payload)
                    try:
                        stranger.send_multipart(with_header, zmq.NOBLOCK)
                    except zmq.Again:  # no connection came about: nothing to send it on
                        break
        answers = [stranger for stranger in strangers if stranger.type == zmq.DEALER and stranger.poll(300)]
        assert answers == []
        seen = list(itertools.islice(results, 2000))
        assert len(set(seen)) == 2000
        assert manager.master.status is JobStatus.RUNNING
        assert manager.master.attempt == 0
        assert not os.path.exists(bomb)
        for stranger in strangers:
            stranger.close()


def test_garbage_on_the_ports_does_no_harm(make_env: MakeEnv) -> None:
    from tidegate.jobmanager.running_jobs import running_jobs_of
    from tidegate.spark.streaming.job_manager import JobManager

    source = DataGeneratorSource(lambda i: i, records_per_second=2000)
    stream = make_env(2).from_source(source, WatermarkStrategy.no_watermarks(), "Endless").rebalance().map(str)
    with stream.execute_and_collect() as results:
        next(results)
        manager = next(m for m in running_jobs_of(JobManager) if m.master.status is JobStatus.RUNNING)
        held = []
        for address in [manager._address, *[m.data_address for m in manager.master.members]]:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            for noise in (
                b"",
                b"GET / HTTP/1.1\r\n\r\n",
                b"\xff" * 100,
                os.urandom(5000),
                b"\xff\0\0\0\0\0\0\0\1\x7f\3",
            ):
                plain = socket.create_connection((host, int(port)))
                plain.sendall(noise)
                held.append(plain)
        assert len(list(itertools.islice(results, 2000))) == 2000
        assert manager.master.status is JobStatus.RUNNING
        for plain in held:
            plain.close()
        assert len(list(itertools.islice(results, 500))) == 500


def test_ports_are_only_on_the_loopback_in_local_mode(make_env: MakeEnv) -> None:
    from tidegate.jobmanager.running_jobs import running_jobs_of
    from tidegate.spark.streaming.job_manager import JobManager

    source = DataGeneratorSource(lambda i: i, records_per_second=100)
    with make_env(2).from_source(source, WatermarkStrategy.no_watermarks(), "E").execute_and_collect() as results:
        next(results)
        manager = next(m for m in running_jobs_of(JobManager) if m.master.status is JobStatus.RUNNING)
        addresses = [manager._address, *[m.data_address for m in manager.master.members]]
        assert all(a.startswith("tcp://127.0.0.1:") for a in addresses)
