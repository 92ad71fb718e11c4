"""Classes that have moved since state was stored: found under their new names when it is read.

Set once per deployment of a slot, before anything is restored: worker processes are used again by other jobs.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.state import serialization


def use_class_mapping(mapping: Mapping[str, str]) -> None:
    """Old name to new name, each `module.Class` or a whole `module`. An empty one takes back the one before."""
    for old, new in mapping.items():
        if not old or not new:
            raise ConfigurationError(f"state.class-mapping: '{old}:{new}' names no class; write old.Class:new.Class")
    loads: Callable[[bytes], Any] = pickle.loads
    if mapping:
        renamed = dict(mapping)

        class Unpickler(pickle.Unpickler):
            def find_class(self, module_name: str, global_name: str, /) -> Any:
                return super().find_class(*_new_name(renamed, module_name, global_name))

        def loads(data: bytes) -> Any:
            return Unpickler(io.BytesIO(data)).load()

    serialization.unpickle = loads


def _new_name(mapping: dict[str, str], module: str, name: str) -> tuple[str, str]:
    new = mapping.get(f"{module}.{name}")
    if new is not None:
        new_module, _, new_name = new.rpartition(".")
        return new_module or module, new_name
    outer, dot, inner = name.partition(".")  # a class inside of a class moves with it
    if dot and f"{module}.{outer}" in mapping:
        new_module, new_outer = _new_name(mapping, module, outer)
        return new_module, f"{new_outer}.{inner}"
    return mapping.get(module, module), name
