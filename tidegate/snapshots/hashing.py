"""Key groups of many keys at once: the same as `state.key_groups.stable_hash`, ten times as fast for integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError
from tidegate.state.key_groups import _MIX_1, _MIX_2, stable_hash

if TYPE_CHECKING:
    import numpy as np

_HASH_MODULUS = (1 << 61) - 1  # below it Python's hash of an integer is the integer itself, except for -1


def hashes_of(keys: Sequence[Any]) -> np.ndarray[Any, Any]:
    """`stable_hash` of each, as uint64. ConfigurationError for one that cannot be a key."""
    import numpy as np

    numbers = _small_integers(keys)
    if numbers is None:
        return np.fromiter(map(stable_hash, keys), np.uint64, len(keys))
    x = np.where(numbers == -1, -2, numbers).astype(np.uint64)
    shift = np.uint64(33)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> shift)) * np.uint64(_MIX_1)
        x = (x ^ (x >> shift)) * np.uint64(_MIX_2)
        return x ^ (x >> shift)


def _small_integers(keys: Any) -> np.ndarray[Any, Any] | None:
    import numpy as np

    if isinstance(keys, np.ndarray):
        numbers = keys
    elif set(map(type, keys)) == {int}:
        try:
            numbers = np.array(keys, dtype=np.int64)
        except OverflowError:
            return None
    else:
        return None
    if len(numbers) and (numbers.min() <= -_HASH_MODULUS or numbers.max() >= _HASH_MODULUS):
        return None
    return numbers


def groups_of(keys: Sequence[Any], max_parallelism: int) -> Any:
    """Key groups as int32; None where a key's class is not here, so that it cannot be hashed."""
    import numpy as np

    try:
        return (hashes_of(keys) % np.uint64(max_parallelism)).astype(np.int32)
    except ConfigurationError:
        return [_group(key, max_parallelism) for key in keys]


def _group(key: Any, max_parallelism: int) -> int | None:
    try:
        return stable_hash(key) % max_parallelism
    except ConfigurationError:
        return None
