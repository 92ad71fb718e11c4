"""`tidegate inspect`: what is in a checkpoint or savepoint."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.value_conversion import shorten
from tidegate.storage.files import open_files
from tidegate.storage.handles import KeyedSnapshot, KeyedStateInfo, OperatorMetadata, StateHandle, handle_size
from tidegate.storage.job_directory import METADATA_NAME, checkpoint_of_directory
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import LoadedMetadata, read_metadata
from tidegate.storage.worker_storage import file_source

if TYPE_CHECKING:
    from tidegate.storage.reader import StateSource


def inspect(arguments: Any) -> dict[str, Any]:
    loaded = _load(arguments.path)
    metadata = loaded.metadata
    source = file_source(str(loaded.root), dict(loaded.root.options))
    with _any_class():
        operators = [_operator(o, source, arguments.entries) for o in metadata.operators]
    problems = [problem for operator in operators for problem in operator.pop("problems")]
    problems += _damaged(source, (channel.handle for channel in metadata.channels))
    return {
        "path": loaded.path.removesuffix("/" + METADATA_NAME),
        "kind": "savepoint" if metadata.savepoint else "checkpoint",
        "format_version": metadata.format_version,
        "tidegate_version": metadata.tidegate_version,
        "job_id": metadata.job_id,
        "job_name": metadata.job_name,
        "checkpoint_id": metadata.checkpoint_id,
        "time": datetime.datetime.fromtimestamp(metadata.timestamp / 1000, datetime.UTC).isoformat(),
        "in_flight": {
            "records": sum(c.records for c in metadata.channels),
            "bytes": sum(handle_size(c.handle) for c in metadata.channels),
            "channels": len(metadata.channels),
        },
        "operators": operators,
        "problems": problems,
    }


def _load(path: str) -> LoadedMetadata:
    """Loads a checkpoint, a savepoint, or the latest checkpoint in a job's directory."""
    location = StorageLocation.parse(path)
    files = open_files(location)
    if location.name != METADATA_NAME and files.size(METADATA_NAME) is None:
        found = [n for n in map(checkpoint_of_directory, files.names("")) if n is not None]
        complete = [n for n in found if files.size(f"chk-{n}/{METADATA_NAME}") is not None]
        if complete:
            return read_metadata(str(location.child(f"chk-{max(complete)}")), dict(location.options))
    return read_metadata(path)


def _operator(operator: OperatorMetadata, source: StateSource, shown: int) -> dict[str, Any]:
    infos: dict[str, KeyedStateInfo] = {}
    for snapshot in operator.subtasks:
        for info in snapshot.keyed.states if snapshot.keyed is not None else ():
            infos[info.name] = info
    states: dict[str, dict[str, Any]] = {
        name: {
            "name": name,
            "kind": info.kind,
            "type": str(info.schema) if info.schema is not None else info.type_description or "ANY",
            "per_namespace": info.namespaced,
            "time_to_live": info.ttl,
            "entries": 0,
            "key_groups": {},
            "examples": [],
        }
        for name, info in infos.items()
    }
    groups: dict[str, Counter[int | None]] = {name: Counter() for name in infos}
    problems = _damaged(source, (state.handle for snapshot in operator.subtasks for state in snapshot.lists))
    for snapshot in operator.subtasks:
        if snapshot.keyed is None:
            continue
        try:
            for name, group, key, namespace, value in _entries(operator, snapshot.keyed, source):
                groups[name][group] += 1
                if len(states[name]["examples"]) < shown:
                    example = {"key": _shown(key), "value": _shown(value)}
                    states[name]["examples"].append(example | ({"namespace": shorten(namespace)} if namespace else {}))
        except SnapshotError as error:
            problems.append(str(error))
    for name, counts in groups.items():
        states[name]["entries"] = counts.total()
        states[name]["key_groups"] = _spread(counts, operator.max_parallelism)
    keyed = [s.keyed for s in operator.subtasks if s.keyed is not None]
    return {
        "name": operator.name,
        "uid": operator.uid,
        "id": operator.operator_id,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "backend": keyed[0].backend if keyed else None,
        "keyed_bytes": sum(handle_size(h) for k in keyed for h in k.handles()),
        "keyed_states": list(states.values()),
        "operator_states": _lists(operator),
        "problems": problems,
    }


def _damaged(source: StateSource, handles: Iterable[StateHandle]) -> list[str]:
    """What cannot be read: one sentence each."""
    problems = []
    for handle in handles:
        try:
            source.read(handle)
        except SnapshotError as error:
            problems.append(str(error))
    return problems


@contextlib.contextmanager
def _any_class() -> Iterator[None]:
    """Read values also when their classes cannot be imported here: those of a script never can."""
    from tidegate.snapshots import stand_ins
    from tidegate.state import serialization

    def loads(data: bytes) -> Any:
        value = stand_ins.loads(data)
        if isinstance(value, stand_ins.Unreadable):
            raise ValueError(repr(value))
        return value

    stand_ins.forget()
    before = serialization.unpickle
    serialization.unpickle = loads
    try:
        yield
    finally:
        serialization.unpickle = before


def _shown(value: Any) -> str:
    from tidegate.snapshots.stand_ins import StandIn

    return value._made_as() if isinstance(value, StandIn) else shorten(value)


def _entries(operator: OperatorMetadata, snapshot: KeyedSnapshot, source: StateSource) -> Iterator[tuple[Any, ...]]:
    """Yields (state, key group, key, namespace, value). The group of a key whose class is not here is not known:
    None."""
    from tidegate.state.entries import iterate_snapshot
    from tidegate.state.key_groups import stable_hash

    for state, namespace, key, value in iterate_snapshot(operator.name, snapshot, source):
        try:
            group = stable_hash(key) % operator.max_parallelism
        except ConfigurationError:
            group = None
        yield state, group, key, namespace, value


def _spread(counts: Counter[int | None], max_parallelism: int) -> dict[str, Any]:
    sizes = [counts.get(group, 0) for group in range(max_parallelism)]
    return {
        "groups": max_parallelism,
        "fewest": min(sizes),
        "average": round(sum(sizes) / max_parallelism, 1),
        "most": max(sizes),
        "unknown": counts.get(None, 0),
    }


def _lists(operator: OperatorMetadata) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for snapshot in operator.subtasks:
        for state in snapshot.lists:
            entry = found.setdefault(state.name, {"name": state.name, "mode": state.mode, "items": 0, "bytes": 0})
            entry["items"] += state.count
            entry["bytes"] += handle_size(state.handle)
    return list(found.values())


def print_snapshot(answer: dict[str, Any]) -> None:
    print(f"{answer['kind']} {answer['checkpoint_id']} of job '{answer['job_name']}' ({answer['job_id']})")
    print(f"  {answer['path']}")
    print(f"  taken {answer['time']} by Tidegate {answer['tidegate_version']}, format {answer['format_version']}")
    flight = answer["in_flight"]
    if flight["channels"]:
        print(f"  in flight: {flight['records']} records, {flight['bytes']:,} bytes, {flight['channels']} channels")
    for operator in answer["operators"]:
        uid = f"uid {operator['uid']}" if operator["uid"] else f"no uid, id {operator['id']}"
        parallelism = f"parallelism {operator['parallelism']} of {operator['max_parallelism']}"
        print(f"\n{operator['name']} ({uid}; {parallelism})")
        if operator["backend"]:
            print(f"  keyed state: {operator['keyed_bytes']:,} bytes, written as '{operator['backend']}'")
        for state in operator["keyed_states"]:
            spread = state["key_groups"]
            print(f"  {state['name']}: {state['kind']} of {state['type']}, {state['entries']:,} entries")
            if state["entries"] and not spread["unknown"]:
                print(f"    per key group: {spread['fewest']} to {spread['most']}, on average {spread['average']}")
            for example in state["examples"]:
                namespace = f" in {example['namespace']}" if "namespace" in example else ""
                print(f"    {example['key']}{namespace}: {example['value']}")
        for state in operator["operator_states"]:
            print(f"  {state['name']}: {state['mode']} list, {state['items']} items, {state['bytes']:,} bytes")
