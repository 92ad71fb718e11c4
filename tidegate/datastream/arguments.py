"""Checks of what the user passes to the API, at the call and with the method's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.typeinfo import TypeInformation, Types
from tidegate.common.types import Row
from tidegate.contracts.functions import (
    AggregateFunction,
    AllWindowFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapBatchesFunction,
    MapFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    SinkFunction,
    SourceFunction,
    WindowFunction,
)

_WHERE_IT_BELONGS: tuple[tuple[type, str], ...] = (
    (MapFunction, "use map()"),
    (MapBatchesFunction, "use map_batches()"),
    (FlatMapFunction, "use flat_map()"),
    (FilterFunction, "use filter()"),
    (ReduceFunction, "use key_by(...).reduce()"),
    (KeyedProcessFunction, "use key_by(...).process()"),
    (ProcessFunction, "use process() on a stream without keys"),
    (CoMapFunction, "use connect(...).map()"),
    (CoFlatMapFunction, "use connect(...).flat_map()"),
    (CoProcessFunction, "use connect(...).process()"),
    (KeyedCoProcessFunction, "use connect(...).key_by(...).process()"),
    (SinkFunction, "use add_sink()"),
    (AggregateFunction, "use key_by(...).window(...).aggregate()"),
    (WindowFunction, "use key_by(...).window(...).apply()"),
    (ProcessWindowFunction, "use key_by(...).window(...).process()"),
    (AllWindowFunction, "use window_all(...).apply()"),
    (ProcessAllWindowFunction, "use window_all(...).process()"),
    (BroadcastProcessFunction, "use connect(broadcast stream).process() on a stream without keys"),
    (KeyedBroadcastProcessFunction, "use key_by(...).connect(broadcast stream).process()"),
    (AsyncFunction, "use AsyncDataStream.unordered_wait() or ordered_wait()"),
    (SourceFunction, "use env.add_source()"),
)


_DECLARED = {
    str: "Types.STRING()",
    int: "Types.LONG()",
    float: "Types.DOUBLE()",
    bool: "Types.BOOLEAN()",
    tuple: "Types.TUPLE([...])",
    list: "Types.LIST(...)",
    dict: "Types.MAP(...)",
    Row: "Types.ROW([...])",
}


def checked_function(
    method: str, function: Any, kinds: type | tuple[type, ...], entry_points: tuple[str, ...], plain: bool
) -> Any:
    """The function, if the method can run it: an instance of `kinds`, or any callable when `plain`.

    `entry_points` are the methods of `kinds` that are called per record: they must not be coroutines."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    wanted = " or ".join([_article(kind.__name__) for kind in kinds] + (["a plain function"] if plain else []))
    if isinstance(function, type) and (not plain or issubclass(function, Function)):  # map(str) is fine
        raise TypeError(
            f"{method}: takes {wanted}, got the class {function.__qualname__} itself; pass an instance: "
            f"{function.__qualname__}(...)"
        )
    if isinstance(function, kinds):
        for name in entry_points:
            if inspect.iscoroutinefunction(getattr(function, name, None)):
                raise TypeError(
                    f"{method}: {type(function).__qualname__}.{name} is a coroutine function (async def), which would "
                    "never be awaited; define it with plain def"
                )
        return function
    if isinstance(function, Function):
        hint = next((f"; {hint}" for kind, hint in _WHERE_IT_BELONGS if isinstance(function, kind)), "")
        raise TypeError(f"{method}: takes {wanted}, got the {_kind_name(function)} {type(function).__qualname__}{hint}")
    if not plain or not callable(function):
        raise TypeError(f"{method}: takes {wanted}, got {type(function).__name__}: {_short(function)}")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise TypeError(
            f"{method}: {_callable_name(function)} is a coroutine function (async def), which would never be awaited; "
            "define it with plain def"
        )
    return function


def checked_selector(method: str, selector: Any, kind: type, entry_point: str) -> Callable[..., Any]:
    """A plain callable of a KeySelector or Partitioner (its bound method) or of a function."""
    if isinstance(selector, str | int) and kind is KeySelector:
        raise TypeError(
            f"{method}: takes a KeySelector or a plain function, got {type(selector).__name__}: {selector!r}; "
            f"to take the field of that name or index write lambda record: record[{selector!r}]"
        )
    selector = checked_function(method, selector, kind, (entry_point,), plain=True)
    return getattr(selector, entry_point) if isinstance(selector, kind) else selector  # type: ignore[no-any-return]


def checked_type_info(type_info: Any, what: str) -> TypeInformation | None:
    """A declared type; a list of types stands for a row of them, as in PyFlink. None stays None."""
    if isinstance(type_info, list):
        return Types.ROW(type_info)
    if type_info is None or isinstance(type_info, TypeInformation):
        return type_info
    if isinstance(type_info, type):
        hint = f"; for {type_info.__name__} use {_DECLARED[type_info]}" if type_info in _DECLARED else ""
    else:
        hint = "; call it, with parentheses" if callable(type_info) else ""
    raise TypeError(f"{what}: expected a type such as Types.STRING(), got {_short(type_info)}{hint}")


def checked_int(method: str, value: Any, minimum: int, meaning: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{method}: {meaning} has to be an int, got {type(value).__name__}: {_short(value)}")
    if value < minimum:
        raise ConfigurationError(f"{method}: {meaning} has to be at least {minimum}, got {value}")
    return value


def checked_text(method: str, value: Any, meaning: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{method}: {meaning} has to be a string, got {type(value).__name__}: {_short(value)}")
    if not value:
        raise ConfigurationError(f"{method}: {meaning} is empty")
    return value


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _kind_name(function: Function) -> str:
    return next((kind.__name__ for kind, _ in _WHERE_IT_BELONGS if isinstance(function, kind)), "Function")


def _callable_name(function: Any) -> str:
    return f"'{getattr(function, '__qualname__', type(function).__qualname__)}'"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_TABLES = {
    "pyspark": "from_spark(df)",
    "pandas": "from_collection(df.to_dict('records')), or df.itertuples(index=False)",
    "polars": "from_collection(df.to_dicts())",
    "pyarrow": "from_collection(table.to_pylist())",
}


def records_of_table(value: Any) -> str | None:
    """How to get at the records of something that iterates over its columns, or not at all; None for everything
    else."""
    package = type(value).__module__.partition(".")[0]
    tables = ("DataFrame", "Table", "RecordBatch", "LazyFrame")
    return _TABLES.get(package) if type(value).__name__ in tables else None


def checked_session(spark: Any) -> Any:
    """A SparkSession or None. It is known by its name: the API does not import pyspark."""
    if spark is None or any(kind.__name__ == "SparkSession" for kind in type(spark).__mro__):
        return spark
    if isinstance(spark, str):
        raise TypeError(
            f"get_execution_environment(spark): takes a SparkSession, got the string {spark!r}. For a session that is "
            f"made for the job, leave it out and name the master in the configuration: "
            f'Configuration.from_dict({{"spark.master": "{spark}"}})'
        )
    raise TypeError(f"get_execution_environment(spark): takes a SparkSession, got {type(spark).__name__}: {spark!r}")
