"""What readers are fed with: any bytes, valid bytes that were damaged, and values that fit a declared type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

T = TypeVar("T")
_EDGES = [-(2**63), -1, 0, 1, 2, 255, 2**31, 2**32, 2**63 - 1]


@st.composite
def damaged(draw: st.DrawFn, originals: Sequence[bytes]) -> bytes:
    """One of these, cut, overwritten, doubled or joined with another; sometimes left as it is."""
    data = bytearray(draw(st.sampled_from(list(originals))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data))))
        match draw(st.sampled_from(["flip", "cut", "insert", "remove", "splice", "number"])):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=20))
            case "remove":
                del data[at : at + draw(st.integers(1, 20))]
            case "splice":
                other = draw(st.sampled_from(list(originals)))
                data[at:] = other[draw(st.integers(0, len(other))) :]
            case "number":  # as a length may be
                size = draw(st.sampled_from([1, 2, 4, 8]))
                data[at : at + size] = draw(st.sampled_from([b"\xff", b"\x00", b"\x7f"])) * size
            case _:
                pass
    return bytes(data)


def refusal(read: Callable[[], T], *errors: type[Exception]) -> tuple[T, None] | tuple[None, Exception]:
    """(what was read, None), or (None, the error) when it is one of these; others are raised."""
    try:
        return read(), None
    except errors as error:
        return None, error


def any_bytes(originals: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=200), damaged(originals), st.sampled_from([b"\x91" * 50_000, b"[" * 50_000]))


def encoded(kind: Any) -> st.SearchStrategy[bytes]:
    """msgpack of values that fit the type: they decode, and may mean nothing."""
    return fitting(kind).map(msgspec.msgpack.encode)


def fitting(kind: Any) -> st.SearchStrategy[Any]:
    """Plain values (dicts, lists, numbers, texts) that msgspec turns into `kind`."""
    return _values(inspect.type_info(kind), {})


def _values(info: inspect.Type, known: dict[type, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    match info:
        case inspect.IntType():
            return st.one_of(st.integers(-1, 3), st.sampled_from(_EDGES))
        case inspect.FloatType():
            return st.floats(allow_nan=True)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StrType():
            return st.one_of(st.sampled_from(["", "a", "../x", "/", "heap", "split"]), st.text(max_size=20))
        case inspect.BytesType():
            return st.binary(max_size=20)
        case inspect.EnumType(cls=cls):
            return st.sampled_from([member.value for member in cls])
        case inspect.LiteralType(values=values):
            return st.sampled_from(list(values))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return st.lists(_values(item, known), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*[_values(item, known) for item in items])
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key, known), _values(value, known), max_size=3)
        case inspect.UnionType(types=types):
            return st.one_of([_values(one, known) for one in types])
        case inspect.StructType():
            return _struct(info, known)
        case inspect.AnyType() | inspect.RawType():
            return st.one_of(st.none(), st.integers(0, 3), st.text(max_size=5))
        case _:
            raise NotImplementedError(f"no values for {info}")


def _struct(info: inspect.StructType, known: dict[type, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    if info.cls not in known:
        known[info.cls] = st.deferred(lambda: made)
        fields = {field.encode_name: _values(field.type, known) for field in info.fields}
        tag = {} if info.tag_field is None else {info.tag_field: st.just(info.tag)}
        if info.array_like:
            made = st.tuples(*tag.values(), *fields.values()).map(list)
        else:
            made = st.fixed_dictionaries({**tag, **fields})
        known[info.cls] = made
    return known[info.cls]
