"""Record keys of many entries at once: what `EntryCodec.encode` gives for each, at a fraction of its cost.

The hot path of prefetching and of writing back: keys that are all ints go through NumPy (0.2 us each instead of 0.9),
those that are all str through a loop that is spelled out.
"""

from __future__ import annotations

import struct
from typing import Any

from xxhash import xxh3_64_intdigest

from tidegate.state.rocksdb.keys import EntryCodec

_MANY = 20  # so many keys are worth NumPy's cost per call
_STR_HEADER = struct.Struct(">HHIc")
_HASH_MODULUS = (1 << 61) - 1  # of Python's hash of an int
_MIX_1, _MIX_2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53  # see key_groups.stable_hash


def encode_all(codec: EntryCodec, entries: list[Any]) -> list[bytes]:
    """The record keys, in the order of the entries."""
    keys, _ = _encode(codec, entries, in_order=False)
    return keys


def encode_in_order(codec: EntryCodec, entries: list[Any]) -> tuple[list[bytes], list[int]]:
    """The record keys in their own order, and for each the position of its entry."""
    keys, positions = _encode(codec, entries, in_order=True)
    if positions is None:
        positions = sorted(range(len(keys)), key=keys.__getitem__)
        keys = [keys[i] for i in positions]
    return keys, positions


def _encode(codec: EntryCodec, entries: list[Any], in_order: bool) -> tuple[list[bytes], list[int] | None]:
    if len(entries) >= _MANY and not codec.namespaced:
        kinds = set(map(type, entries))
        if kinds == {int}:
            found = _encode_ints(codec, entries, in_order)
            if found is not None:
                return found
        elif kinds == {str}:
            return _encode_strings(codec, entries), None
    encode = codec.encode
    return [encode(entry) for entry in entries], None


def _encode_ints(codec: EntryCodec, entries: list[int], in_order: bool) -> tuple[list[bytes], list[int] | None] | None:
    """The encoded integers; None when one of them has more than 64 bits."""
    import numpy as np

    try:
        numbers = np.array(entries, dtype=np.int64)
    except OverflowError:
        return None
    hashes = np.fmod(numbers, _HASH_MODULUS)
    hashes[hashes == -1] = -2
    x = hashes.view(np.uint64)
    half = np.uint64(33)
    x = (x ^ (x >> half)) * np.uint64(_MIX_1)
    x = (x ^ (x >> half)) * np.uint64(_MIX_2)
    groups = ((x ^ (x >> half)) % np.uint64(codec.max_parallelism)).astype(np.uint16)
    positions: list[int] | None = None
    if in_order:
        order = np.lexsort((numbers.view(np.uint64), groups))
        numbers, groups, positions = numbers[order], groups[order], order.tolist()
    keys = np.empty(
        len(entries), dtype=[("group", ">u2"), ("state", ">u2"), ("length", ">u4"), ("tag", "S1"), ("key", ">i8")]
    )
    keys["group"], keys["state"], keys["length"], keys["tag"], keys["key"] = groups, codec.state, 9, b"i", numbers
    return keys.view("V17").tolist(), positions


def _encode_strings(codec: EntryCodec, entries: list[str]) -> list[bytes]:
    pack, state, groups = _STR_HEADER.pack, codec.state, codec.max_parallelism
    encoded = [entry.encode("utf-8", "surrogatepass") for entry in entries]
    return [pack(xxh3_64_intdigest(data) % groups, state, len(data) + 1, b"s") + data for data in encoded]
