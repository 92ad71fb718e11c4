"""A StateSink and StateSource over a dict."""

from __future__ import annotations

from tidegate.storage.checksums import checksum
from tidegate.storage.handles import FileRange, InlineBytes, StateHandle


class MemorySink:
    """Each write is a file of its own, so that a test can see which ones a snapshot needs."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._next = 0

    def write(self, data: bytes) -> StateHandle:
        path = f"shared/{self._next}"
        self._next += 1
        self.files[path] = data
        return FileRange(path, 0, len(data), checksum(data))

    def start_file(self) -> None: ...

    def read(self, handle: StateHandle) -> bytes:
        return handle.data if isinstance(handle, InlineBytes) else self.files[handle.path]
