"""1 MB NumPy arrays from one worker to another, as a ratio to a bare socket between two processes with pickle's
protocol 5. What Tidegate adds is its framing, credits and the encryption of every byte."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import struct
import time
from typing import Any

import numpy as np

from benchmarks.report import Figure
from benchmarks.workloads import best_slope, environment, numbers
from tidegate.connectors.discard import DiscardingSink

MB = 1 << 20
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


def run(quick: bool) -> list[Figure]:
    small, large, repeats = (200, 1000, 1) if quick else (500, 3000, 3)
    run_exchange(10)  # start Spark and its workers
    bare = best_slope(bare_socket, small, large, repeats)
    moved = best_slope(run_exchange, small, large, repeats)
    ratio = moved / bare
    return [
        Figure("1 MB arrays, bare socket and pickle 5", f"{bare:,.0f} MB/s"),
        Figure("1 MB arrays through an exchange", f"{moved:,.0f} MB/s"),
        Figure("1 MB arrays: exchange / bare socket", f"{ratio:.2f}", ">= 0.5", ratio >= 0.5),
    ]
