"""What `print` sinks write and functions log, on its way from the workers to the program: to its standard output and
error, and to its loggers.

It takes the control connection, as messages of two parts: the mark below and the text. The JobMaster is not concerned.
A worker has a bounded number of bytes under way; a program that does not let its output go holds the sink up, as a pipe
would, and nothing else: the driver writes on a thread of its own. Lines of logs never hold anything up: those that find
too much under way are dropped, and counted in the next one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
from collections.abc import Callable

import msgspec

from tidegate.common.log_lines import LogLine, show_line
from tidegate.common.terminal_line import LINE

log = logging.getLogger("tidegate.jobmanager")

PRINTED = b"printed"
_OUT, _ERROR, _LOGGED = b"1", b"2", b"3"
_MAX_UNDER_WAY = 1024 * 1024
_PIECE = 64 * 1024  # characters
_LAST_S = 5.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogLine).decode


class WorkerPrinter:
    """The worker's end. `write` from the mailbox thread, the others from any thread."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._changed = threading.Condition()  # guards the two below
        self._under_way = 0  # bytes that the driver has not written yet
        self._closed = False
        self._dropped = 0  # lines of logs, since the last one that went

    def write(self, text: str, to_stderr: bool) -> None:
        """Waits while too much is under way; what comes after `close` is dropped."""
        mark = _ERROR if to_stderr else _OUT
        for start in range(0, len(text), _PIECE):
            payload = mark + text[start : start + _PIECE].encode("utf-8", "backslashreplace")
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._under_way < _MAX_UNDER_WAY)
                if self._closed:
                    return
                self._under_way += len(payload)
            self._send(payload)

    def log(self, line: LogLine) -> bool:
        """From any thread, never waits. False: the worker leaves, nobody takes it any more."""
        with self._changed:
            if self._closed:
                return False
            if self._under_way >= _MAX_UNDER_WAY:
                self._dropped += 1
                return True
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line = msgspec.structs.replace(line, text=f"{line.text} [{dropped} lines before it were dropped]")
            payload = _LOGGED + _encode(line)
            self._under_way += len(payload)
        self._send(payload)
        return True

    def written(self, count: bytes) -> None:
        """The driver has written so many bytes."""
        with self._changed:
            self._under_way -= int(count)
            self._changed.notify()

    def close(self) -> None:
        """The worker leaves: nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()


class DriverPrinter:
    """The driver's end: writes in the order of `take`, and tells the sender of each piece when it is written.
    `acknowledge` is called on the writing thread."""

    def __init__(self, acknowledge: Callable[[bytes, bytes], None]) -> None:
        self._acknowledge = acknowledge
        # Bounded by the senders: each waits for its acknowledgements.
        self._pieces: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # made by the first piece: most jobs print nothing

    def take(self, sender: bytes, payload: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidegate-print", daemon=True)
            self._thread.start()
        self._pieces.put((sender, payload))

    def close(self) -> None:
        """When what was taken is written; a program whose output hangs is waited for only for a while."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            sender, payload = piece
            if payload[:1] == _LOGGED:
                self._show(payload[1:])
            else:
                self._print(payload)
            with contextlib.suppress(Exception):  # the job has just ended
                self._acknowledge(sender, str(len(payload)).encode())

    @staticmethod
    def _print(payload: bytes) -> None:
        stream = sys.stderr if payload[:1] == _ERROR else sys.stdout  # as they are now: notebooks replace them
        LINE.erase()
        try:
            stream.write(payload[1:].decode("utf-8", "replace"))
            stream.flush()
        except Exception as error:  # closed, or of an encoding that lacks a character
            log.debug("what a job has printed could not be written: %s", error)

    @staticmethod
    def _show(payload: bytes) -> None:
        LINE.erase()
        try:
            show_line(_decode(payload))
        except Exception as error:  # a handler of the program's
            log.debug("a line of a worker's log could not be shown: %s", error)
