"""Pickled values whose classes are not here: read as far as possible, and written back as they were.

A class or function that cannot be imported is replaced by a *stand-in* that remembers how the value was made. Whatever
is around it stays readable, and `dumps` gives pickled bytes that name the original class: where that can be imported,
they give the original value.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

from tidegate.common.value_conversion import shorten
from tidegate.state.serialization import PROTOCOL
from tidegate.state.serialization import dumps as plain_dumps

_classes: dict[tuple[str, str], type] = {}  # (module, qualified name) -> its stand-in; one per class that was missed


class StandIn:
    """An instance of a class that cannot be imported. Equal when class, arguments and state are."""

    _why = ""  # of the class: why it cannot be imported
    _made_of: tuple[tuple[Any, ...], dict[str, Any], bool]  # arguments, and whether the class was called with them
    _state: tuple[Any] | None  # what `__setstate__` was given
    _items: tuple[list[Any], list[tuple[Any, Any]]]  # appended, and set by key: of subclasses of list and dict

    def __new__(cls, *arguments: Any, **keywords: Any) -> StandIn:
        made = object.__new__(cls)
        made.__dict__["_made_of"] = (arguments, keywords, False)
        made.__dict__["_state"] = None
        made.__dict__["_items"] = ([], [])
        return made

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.__dict__["_made_of"] = (arguments, keywords, True)

    def __setstate__(self, state: Any) -> None:
        self.__dict__["_state"] = (state,)

    def append(self, item: Any) -> None:
        self._items[0].append(item)

    def extend(self, items: Any) -> None:
        self._items[0].extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items[1].append((key, value))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        arguments, keywords, called = self._made_of
        if called:
            made: tuple[Any, ...] = (type(self), arguments)
        elif keywords:
            made = (copyreg.__newobj_ex__, (type(self), arguments, keywords))  # type: ignore[attr-defined]
        else:
            made = (copyreg.__newobj__, (type(self), *arguments))  # type: ignore[attr-defined]
        appended, by_key = self._items
        state = None if self._state is None else self._state[0]
        return (*made, state, iter(appended) if appended else None, iter(by_key) if by_key else None)

    def _made_as(self) -> str:
        """For people: the class, and what is in the value. (The names of methods must not be those of its items.)"""
        arguments, keywords, _ = self._made_of
        state = self._state[0] if self._state is not None else {}
        named = {**keywords, **(state if isinstance(state, dict) else {"state": state})}
        parts = [*map(shorten, arguments), *(f"{name}={shorten(part)}" for name, part in named.items())]
        return f"{type(self).__qualname__}({', '.join(parts)})"

    def _content(self) -> Any:
        return type(self).__module__, type(self).__qualname__, self._made_of, self._state, self._items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(repr(self._content()))

    def __repr__(self) -> str:
        return f"<cannot be read: {self._why}>"


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = _classes.get((module_name, global_name))
        if known is not None:
            return known
        try:
            return super().find_class(module_name, global_name)
        except Exception as error:  # importing somebody's module may raise anything
            return _stand_in(module_name, global_name, f"{module_name}.{global_name}: {error}")


def _stand_in(module: str, name: str, why: str) -> type:
    made = type(name.rpartition(".")[2], (StandIn,), {"_why": why, "__module__": module, "__qualname__": name})
    _classes[module, name] = made
    return made


def forget() -> None:
    """At the start of each read: what could not be imported a while ago may be importable now."""
    _classes.clear()


def loads(data: bytes) -> Any:
    """Never raises: what cannot be read at all becomes an `Unreadable`."""
    try:
        return pickle.loads(data)
    except Exception:
        try:
            return _Unpickler(io.BytesIO(data)).load()
        except Exception as error:
            # A class is there but refuses its old content: nothing of this value can be shown but the bytes.
            return Unreadable(data, f"{type(error).__name__}: {error}")


class Unreadable(StandIn):
    """A value that cannot be unpickled, kept as its bytes."""

    def __new__(cls, data: bytes, why: str) -> Unreadable:
        made = object.__new__(cls)
        made.__dict__.update(_data=data, _why=why, _made_of=((data,), {}, True), _state=None, _items=([], []))
        return made

    def __init__(self, data: bytes, why: str) -> None:
        """Filled by `__new__`."""


_PythonPickler: Any = vars(pickle)["_Pickler"]


class _Pickler(_PythonPickler):  # type: ignore[misc]
    """The one in Python: only that one can be told to write the name of a class that cannot be imported."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if isinstance(obj, type) and issubclass(obj, StandIn):
            self.save(obj.__module__)
            self.save(obj.__qualname__)
            self.write(pickle.STACK_GLOBAL)
            self.memoize(obj)
        else:
            super().save_global(obj, name)

    dispatch = {**_PythonPickler.dispatch, type: lambda self, obj: _save_type(self, obj)}


def _save_type(pickler: Any, obj: Any) -> None:
    if issubclass(obj, StandIn):
        pickler.save_global(obj)
    else:
        _PythonPickler.save_type(pickler, obj)


def dumps(value: Any) -> bytes:
    """The inverse of `loads`, also for what it could not read."""
    if isinstance(value, Unreadable):
        data: bytes = value._data  # type: ignore[attr-defined]
        return data
    if not _classes:
        return plain_dumps(value)
    try:
        return pickle.dumps(value, PROTOCOL)
    except Exception:
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, PROTOCOL).dump(value)
        except Exception:
            return plain_dumps(value)
        return buffer.getvalue()
