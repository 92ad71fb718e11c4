"""A stranger on the network cannot talk to a running job, and does it no harm by trying."""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import os
import pickle
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import zmq

from tidegate.common import JobStatus, Types, WatermarkStrategy
from tidegate.common.ids import AttemptNumber, ChannelAddress, EdgeId, SlotIndex, SubtaskIndex
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.network.serialization import ROWS
from tidegate.network.wire import Frame, encode_header
from tidegate.protocol.codec import encode
from tidegate.protocol.messages import FailureInfo, TaskFailed
from tidegate.web.registry import running_jobs

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


class Numbered(KeyedProcessFunction):
    """(key, 1), (key, 2), ...: a record that is lost or comes twice leaves a gap or a repetition."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.get_current_key(), count


_DEEP = b"[" * 30_000
_NO_REQUESTS = (
    b"",
    b"\r\n" * 50,
    b"\x16\x03\x01\x02\0\x01\0" + b"\xff" * 600,  # the beginning of TLS
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n",
    b"\0" * 5_000,
)


def test_junk_and_floods_at_the_rest_port_leave_the_output_of_the_job_exact(
    make_env: MakeEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From strangers, from those who may look, and from those who may change the job but do not say how."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    env = make_env(2, {"execution.checkpointing.interval": "200 ms"})
    numbers = env.from_source(
        DataGeneratorSource(lambda i: i, records_per_second=2000), WatermarkStrategy.no_watermarks(), "Endless"
    )
    counted = numbers.key_by(lambda i: i % 10, Types.LONG()).process(Numbered()).uid("numbered")
    from tidegate.jobmanager.running_jobs import running_jobs_of
    from tidegate.spark.streaming.job_manager import JobManager

    with counted.execute_and_collect() as results, contextlib.ExitStack() as open_ones:
        seen: dict[int, int] = {}

        def take(count: int) -> None:
            for key, number in itertools.islice(results, count):
                assert number == seen.get(key, 0) + 1
                seen[key] = number

        take(100)
        (job,) = running_jobs()
        place = urlsplit(job.url)
        here, path = (place.hostname or "", place.port or 0), f"/v1/jobs/{job.job_id}"

        def caller() -> socket.socket:
            return open_ones.enter_context(socket.create_connection(here, timeout=60))

        def ask(method: str, where: str, body: bytes | None = None, token: str = job.token, **headers: str) -> int:
            connection = http.client.HTTPConnection(*here, timeout=60)
            try:
                connection.request(method, where, body, {"Authorization": f"Bearer {token}", **headers})
                response = connection.getresponse()
                response.read()
                return response.status
            except (ConnectionError, http.client.RemoteDisconnected):
                return 0  # cut off
            finally:
                connection.close()

        bomb = base64.urlsafe_b64encode(pickle.dumps(Bomb(str(tmp_path / "bomb")))).decode()
        for noise in (*_NO_REQUESTS, os.urandom(5_000)):
            with contextlib.suppress(OSError):  # cut off
                caller().sendall(noise)
        for change in ("cancel", "stop", "savepoint"):
            where = f"{path}/{change}"
            assert ask("POST", where, b"{}", "") == ask("POST", where, b"{}", "wrong") == 401
            assert ask("POST", where, b"{}", job.read_token) == 403
            for body in (b"{", b"[]", _DEEP, b"\xff\xfe", b'{"why": 1}', b'{"drain": "no", "directory": 7}'):
                assert ask("POST", where, body) == 400
            assert ask("POST", where, **{"Content-Length": "-1"}) == 400
            assert ask("POST", where, **{"Content-Length": "9" * 30}) == 400
            assert ask("DELETE", where) == 405
        for wrong in ("/vertices/99999999999999999999", "/vertices/-1", "/checkpoints/x", "/../../etc/passwd", "/%00"):
            assert 400 <= ask("GET", f"{path}{wrong}") < 500
        for question in (
            "key=x",
            f"key={bomb}",
            "key=" + "9" * 400,
            "key=[[1]]",
            "level=x",
            "limit=-1",
            "key=1&window=[[]]",
        ):
            assert ask("GET", f"{path}/state/numbered/count?{question}") in (200, 400)
        assert ask("GET", f"{path}/state/numbered/nothing?key=1") == ask("GET", f"{path}/state/%3C/count") == 404
        take(500)

        idle = [caller() for _ in range(150)]  # more than a port has connections
        for stranger in idle[:50]:
            with contextlib.suppress(OSError):
                stranger.sendall(b"POST /v1/login HTTP/1.1\r\nContent-Length: 60000\r\n\r\n{")
        for _ in range(20):  # streams that nobody reads
            with contextlib.suppress(OSError):
                caller().sendall(f"GET {path}/events HTTP/1.1\r\nAuthorization: Bearer {job.token}\r\n\r\n".encode())
        calls = [f"{path}/view", f"{path}/checkpoints", "/metrics", f"{path}/state/numbered/count?key=3&key=4"]
        with ThreadPoolExecutor(48) as flood:
            answers = Counter(flood.map(lambda i: ask("GET", calls[i % 4]), range(400)))
        assert set(answers) <= {200, 503, 0}, answers
        assert answers[200] > 0
        take(500)

        assert not os.path.exists(tmp_path / "bomb")
        (view,) = [v for v in (m.client.view() for m in running_jobs_of(JobManager)) if v.job_id == job.job_id]
        assert (view.status, view.attempt, view.failures, view.checkpoints.failed) == (JobStatus.RUNNING, 0, (), 0)
        take(500)
    assert set(seen) == set(range(10))


def test_ports_are_only_on_the_loopback_in_local_mode(make_env: MakeEnv) -> None:
    from tidegate.jobmanager.running_jobs import running_jobs_of
    from tidegate.spark.streaming.job_manager import JobManager

    source = DataGeneratorSource(lambda i: i, records_per_second=100)
    with make_env(2).from_source(source, WatermarkStrategy.no_watermarks(), "E").execute_and_collect() as results:
        next(results)
        manager = next(m for m in running_jobs_of(JobManager) if m.master.status is JobStatus.RUNNING)
        addresses = [manager._address, *[m.data_address for m in manager.master.members]]
        assert all(a.startswith("tcp://127.0.0.1:") for a in addresses)
