"""Text that Hadoop's or Spark's SnappyCodec has compressed.

A file is a row of blocks: the length of a block's text, then parts of it, each with its compressed length in front,
until they make up the text. Lengths are of four bytes, the highest first.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO

MAX_PART = 256 << 20  # bytes; what says that it has more is not of this kind


class HadoopSnappyReader(io.RawIOBase):
    """Reads on demand, from its start to its end. OSError when the file is of another kind, or cut off."""

    def __init__(self, raw: BinaryIO) -> None:
        import pyarrow as pa

        self._raw = raw
        self._codec = pa.Codec("snappy")
        self._missing = 0  # of the text of the block that is being read
        self._text = memoryview(b"")  # decompressed, and not asked for yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            if not self._missing:
                length = self._length(at_end=True)
                if length is None:
                    return 0
                self._missing = length
                continue
            self._text = self._part()
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()

    def _part(self) -> memoryview:
        compressed = self._exactly(self._length() or 0)
        size = _text_size(compressed)
        if not 0 < size <= self._missing:
            raise OSError("not compressed by Hadoop's SnappyCodec: the lengths of a block do not fit")
        self._missing -= size
        return memoryview(self._codec.decompress(compressed, size)).cast("B")

    def _length(self, at_end: bool = False) -> int | None:
        """None at the end of the file, where that may be."""
        data = self._raw.read(4)
        if at_end and not data:
            return None
        length = int.from_bytes(data + self._exactly(4 - len(data)), "big")
        if length > MAX_PART:
            raise OSError(f"not compressed by Hadoop's SnappyCodec: it would have a part of {length} bytes")
        return length

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            data = self._raw.read(count)
            if not data:
                raise EOFError("the file ends in the middle of a block")
            parts.append(data)
            count -= len(data)
        return b"".join(parts)


def _text_size(compressed: bytes) -> int:
    """That is what Snappy begins with: seven bits a byte, the lowest first."""
    size = 0
    for place, byte in enumerate(compressed[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    return 0
