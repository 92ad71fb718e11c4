"""1 MB NumPy arrays from one worker to another, as a ratio to a bare socket between two processes with pickle's
protocol 5. What Tidegate adds is its framing, credits and the encryption of every byte; what the last of these costs by
itself is measured with a ZeroMQ socket that does nothing else, with CURVE and without."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import struct
import time
from typing import Any

import numpy as np
import zmq

from benchmarks.report import Figure
from benchmarks.workloads import best_slope, environment, numbers
from tidegate.connectors.discard import DiscardingSink
from tidegate.network.zmq_transport import JobKeys, authenticate

MB = 1 << 20
_UNDER_WAY = 8  # messages that ZeroMQ may hold on either side
_LENGTHS = struct.Struct("!II")


class Arrays:
    """Each with its number, so that no two are the same."""

    def __init__(self) -> None:
        self._array: Any = None

    def __call__(self, i: int) -> Any:
        if self._array is None:
            self._array = np.zeros(MB // 8)
        made = self._array.copy()
        made[0] = i
        return made


def run_exchange(count: int) -> float:
    """Seconds for arrays that are made in one slot and read in the other."""
    env = environment(2)
    arrays = numbers(env, count).set_parallelism(1).map(Arrays()).set_parallelism(1)
    moved = arrays.partition_custom(lambda key, n: n - 1, lambda array: 0)
    moved.map(lambda array: float(array[0])).sink_to(DiscardingSink())
    started = time.perf_counter()
    env.execute("arrays")
    return time.perf_counter() - started


def _send(port: int, count: int) -> None:
    make = Arrays()
    with socket.create_connection(("127.0.0.1", port)) as out:
        for i in range(count):
            buffers: list[pickle.PickleBuffer] = []
            payload = pickle.dumps(make(i), 5, buffer_callback=buffers.append)
            raw = buffers[0].raw()
            out.sendall(_LENGTHS.pack(len(payload), raw.nbytes) + payload)
            out.sendall(raw)


def _read(sender: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = sender.recv_into(view[at:])
        if got == 0:
            raise EOFError
        at += got
    return data


def bare_socket(count: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_send, args=(server.getsockname()[1], count))
        process.start()
        sender, _ = server.accept()
        started = time.perf_counter()
        with sender:
            for i in range(count):
                payload, size = _LENGTHS.unpack(_read(sender, _LENGTHS.size))
                head = _read(sender, payload)
                array = pickle.loads(head, buffers=[_read(sender, size)])
                assert array[0] == i
        took = time.perf_counter() - started
        process.join()
    return took


def _push(address: str, count: int, keys: JobKeys | None) -> None:
    make = Arrays()
    with zmq.Context() as context, context.socket(zmq.PUSH) as out:
        out.setsockopt(zmq.SNDHWM, _UNDER_WAY)
        if keys is not None:
            keys.secure_client(out)
        out.connect(address)
        for i in range(count):
            buffers: list[pickle.PickleBuffer] = []
            payload = pickle.dumps(make(i), 5, buffer_callback=buffers.append)
            out.send(payload, zmq.SNDMORE)
            out.send(buffers[0].raw())


def zeromq_socket(count: int, encrypted: bool) -> float:
    """As `bare_socket`, through ZeroMQ: no credits, no batches, nobody else on either side."""
    keys = JobKeys.generate() if encrypted else None
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.setsockopt(zmq.RCVHWM, _UNDER_WAY)
        authenticator = None
        if keys is not None:
            authenticator = authenticate(context, keys)
            keys.secure_server(pull)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        sender = multiprocessing.get_context("spawn").Process(
            target=_push, args=(f"tcp://127.0.0.1:{port}", count, keys)
        )
        sender.start()
        started = 0.0
        for i in range(count):
            head, raw = pull.recv_multipart(copy=False)
            started = started or time.perf_counter()
            assert pickle.loads(head.buffer, buffers=[raw.buffer])[0] == i
        took = time.perf_counter() - started
        sender.join()
        if authenticator is not None:
            authenticator.stop()
    return took


def run(quick: bool) -> list[Figure]:
    small, large, repeats = (200, 1000, 1) if quick else (500, 3000, 3)
    run_exchange(10)  # start Spark and its workers
    bare = best_slope(bare_socket, small, large, repeats)
    moved = best_slope(run_exchange, small, large, repeats)
    plain = best_slope(lambda n: zeromq_socket(n, False), small, large, repeats)
    encrypted = best_slope(lambda n: zeromq_socket(n, True), small, large, repeats)
    ratio = moved / bare
    return [
        Figure("1 MB arrays, bare socket and pickle 5", f"{bare:,.0f} MB/s"),
        Figure("1 MB arrays, ZeroMQ without encryption", f"{plain:,.0f} MB/s ({plain / bare:.2f} of the bare socket)"),
        Figure("1 MB arrays, ZeroMQ with CURVE", f"{encrypted:,.0f} MB/s ({encrypted / bare:.2f} of the bare socket)"),
        Figure("1 MB arrays through an exchange", f"{moved:,.0f} MB/s"),
        Figure("1 MB arrays: exchange / bare socket", f"{ratio:.2f}", ">= 0.5", ratio >= 0.5),
    ]
