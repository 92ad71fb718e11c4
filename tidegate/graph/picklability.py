"""Finds what keeps a job from being sent to the workers, before anything is started."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

from tidegate.common.errors import SerializationError
from tidegate.graph.job_graph import JobGraph, OperatorNode
from tidegate.graph.operator_specs import AsyncSpec, BroadcastProcessSpec, SourceSpec, WindowSpec

_MAX_DEPTH = 12
_MAX_ITEMS = 1000  # of one container


def check_picklable(job_graph: JobGraph) -> None:
    """Raises SerializationError that names the operator, the user's function and the object it holds."""
    for vertex in job_graph.vertices:
        for node in vertex.operators:
            for what, value in _shipped(node):
                _check(f"operator '{node.name}'", what, value)
    for edge in job_graph.edges:
        source = job_graph.vertices[edge.source].operators[edge.source_operator].name
        where = f"partitioning from '{source}' to '{job_graph.vertices[edge.target].operators[0].name}'"
        for what, value in (("key selector", edge.partition.key_selector), ("partitioner", edge.partition.partitioner)):
            if value is not None:
                _check(where, what, value)


def _shipped(node: OperatorNode) -> Iterator[tuple[str, Any]]:
    spec = node.spec
    if isinstance(spec, SourceSpec):
        yield "source", spec.source
        yield "watermark strategy", spec.watermark_strategy
        yield "splits", spec.splits
    elif isinstance(spec, WindowSpec):
        yield "window assigner", spec.assigner
        yield "trigger", spec.trigger
        yield "aggregation", spec.aggregation
        yield "function", spec.function
    else:
        yield "function", spec.user_function
    if isinstance(spec, AsyncSpec):
        yield "retry strategy", spec.retry
    elif isinstance(spec, BroadcastProcessSpec):
        yield "broadcast state descriptors", spec.descriptors
    for selector in node.key_selectors:
        yield "key selector", selector


def _check(where: str, what: str, value: Any) -> None:
    error = _pickle_error(value)
    if error is None:
        return
    path, culprit = _culprit(value)
    owner = f"its {what} {_name_of(value)}"
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if path:
        story = f"{owner} holds {' -> '.join(path)}, of type {_type_name(culprit)}, which cannot be pickled ({reason})"
    else:
        story = f"{owner} (type {_type_name(culprit)}) cannot be pickled ({reason})"
    raise SerializationError(f"{where} cannot be sent to the workers: {story}. {_advice(value, culprit)}") from error


def _advice(value: Any, culprit: Any) -> str:
    if _is_sparks(culprit):
        return (
            "Sessions, contexts and DataFrames of Spark live in the driver program only, functions run on the workers. "
            "To read a DataFrame as a stream use env.from_spark(df); what a function needs of one, collect before "
            "(rows = df.collect()) and let the function hold that; results become a DataFrame with stream.to_spark()."
        )
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, functools.partial)):
        return (
            "Make the function a class (MapFunction, ProcessFunction, ...) and create the object in its open() method, "
            "which runs on the worker."
        )
    return "Create the object in open(), which runs on the worker, instead of in the constructor or as a global."


def _pickle_error(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # whatever the user's __reduce__ or __getstate__ raises
        return error
    return None


def _culprit(value: Any) -> tuple[list[str], Any]:
    """The innermost object that cannot be pickled, and the way to it."""
    path: list[str] = []
    seen = {id(value)}
    for _ in range(_MAX_DEPTH):
        if _is_sparks(value):
            break  # what is inside of it would tell nobody anything
        for label, child in _children(value):
            if id(child) not in seen and _pickle_error(child) is not None:
                seen.add(id(child))
                path.append(label)
                value = child
                break
        else:
            break
    return path, value


def _is_sparks(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pyspark"


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """What the pickle of an object would contain, with a name for each part."""
    if isinstance(value, types.MethodType):
        yield f"the object of the method {value.__func__.__qualname__}", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _captured(value)
    elif isinstance(value, functools.partial):
        yield "the function of the partial", value.func
        yield from ((f"argument {i}", arg) for i, arg in enumerate(value.args))
        yield from ((f"argument '{name}'", arg) for name, arg in value.keywords.items())
    elif isinstance(value, type):
        if _pickled_by_value(value):
            yield from ((f"class attribute '{name}'", item) for name, item in list(vars(value).items()))
    elif isinstance(value, dict):
        yield from ((f"item {key!r}", item) for key, item in list(value.items())[:_MAX_ITEMS])
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"item {i}", item) for i, item in enumerate(list(value)[:_MAX_ITEMS]))
    elif isinstance(value, (staticmethod, classmethod)):
        yield "the function", value.__func__
    else:
        yield from _attributes(value)


def _captured(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"the captured variable '{name}'", cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    yield from ((f"the default argument {i}", item) for i, item in enumerate(function.__defaults__ or ()))
    yield from ((f"the default of '{name}'", item) for name, item in (function.__kwdefaults__ or {}).items())
    if _pickled_by_value(function):
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield f"the global '{name}'", function.__globals__[name]


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name, item in list(getattr(value, "__dict__", {}).items()):
        yield f"the attribute '{name}'", item
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f"the attribute '{name}'", getattr(value, name)
    if _pickled_by_value(type(value)):
        yield f"its class {type(value).__qualname__}", type(value)


def _pickled_by_value(value: Any) -> bool:
    """Whether the workers get the definition itself, not just its name: defined in the script, or inside a function."""
    module = getattr(value, "__module__", None)
    return module in (None, "__main__") or "<" in getattr(value, "__qualname__", "") or module not in sys.modules


def _name_of(value: Any) -> str:
    if isinstance(value, types.MethodType):
        return f"'{value.__func__.__qualname__}'"
    name = getattr(value, "__qualname__", None)
    return f"'{name}'" if isinstance(name, str) else f"'{type(value).__qualname__}'"


def _type_name(value: Any) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
