"""Savepoints made from data, or from other snapshots with changes.

The calls only note what is to be done (and check what can be checked); `write` does it. A builder writes once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tidegate
from tidegate.common import options as settings
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.common.typeinfo import TypeInformation
from tidegate.common.value_conversion import shorten
from tidegate.contracts.state import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from tidegate.datastream.spark_bridge import spark_module
from tidegate.graph.operator_ids import id_of_uid
from tidegate.snapshots.bootstrap import (
    DataBatch,
    PartTarget,
    Shape,
    StateSpec,
    checked_keys,
    spec_of,
    timers_spec,
    write_part,
)
from tidegate.snapshots.catalog import Snapshot, open_snapshot, states_of
from tidegate.snapshots.hashing import hashes_of
from tidegate.snapshots.operator_draft import AddedItems, AddedState, OperatorDraft
from tidegate.state.operator_state import BROADCAST, SPLIT, UNION
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.state.serialization import dumps_item
from tidegate.storage.files import Files, open_files
from tidegate.storage.handles import CheckpointMetadata, EnumeratorState, FileRange, KeyedSnapshot, OperatorMetadata
from tidegate.storage.job_directory import METADATA_NAME
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import FORMAT_VERSION
from tidegate.storage.worker_storage import file_source

Selector = str | Sequence[str] | Callable[[Any], Any]
"""Of the rows of a DataFrame: a column, several (which make a tuple), or a function of the row (a `Row`)."""

_MAX_PARALLELISM = 1 << 15
_MODES = {"list": SPLIT, "union": UNION, "broadcast": BROADCAST}
_TIMERS = {False: "_timers/event", True: "_timers/processing"}


class SavepointBuilder:
    """Make one with `new_savepoint` or `from_existing_savepoint`; methods can be chained."""

    def __init__(self, base: Snapshot | None, max_parallelism: int, job_name: str) -> None:
        self._base = base
        self._max_parallelism = max_parallelism
        self._job_name = job_name
        self._written = False
        operators = base.metadata.operators if base is not None else []
        self._drafts: dict[str, OperatorDraft] = {o.operator_id: _draft_of(o) for o in operators}

    @staticmethod
    def new_savepoint(max_parallelism: int = 128, job_name: str = "bootstrap") -> SavepointBuilder:
        """`max_parallelism`: the number of key groups, which the job that starts from it takes over for good."""
        return SavepointBuilder(None, _checked_max_parallelism(max_parallelism), job_name)

    @staticmethod
    def from_existing_savepoint(
        path: str, max_parallelism: int | None = None, options: Mapping[str, str] | None = None
    ) -> SavepointBuilder:
        """From a savepoint, or a checkpoint, which is not changed itself. `max_parallelism`: for operators that are
        added; None: that of the others. SnapshotError for a checkpoint with records in flight."""
        base = open_snapshot(path, options)
        if base.metadata.channels:
            raise SnapshotError(
                f"{base.path} is a checkpoint that holds records in flight, which a savepoint cannot: take a savepoint "
                "of the job, or use a checkpoint without (tidegate inspect shows them)"
            )
        known = {o.max_parallelism for o in base.metadata.operators if any(s.keyed is not None for s in o.subtasks)}
        found = max_parallelism if max_parallelism is not None else max(known, default=128)
        return SavepointBuilder(base, _checked_max_parallelism(found), base.metadata.job_name)

    # ------------------------------------------------------------ operators

    def remove_operator(self, operator: str) -> SavepointBuilder:
        """By uid, name or operator id, with all its state."""
        del self._drafts[self._existing(operator).operator_id]
        return self

    def change_operator_identifier(self, operator: str, new_uid: str) -> SavepointBuilder:
        """The state of this operator goes to the one with the new uid."""
        draft = self._existing(operator)
        _check_text("the new uid", new_uid)
        new_id = id_of_uid(new_uid)
        if new_id in self._drafts:
            raise ConfigurationError(f"the savepoint has an operator with the uid '{new_uid}' already; remove it first")
        del self._drafts[draft.operator_id]
        draft.operator_id, draft.uid = new_id, new_uid
        self._drafts[new_id] = draft
        return self

    def remove_state(self, operator: str, state: str) -> SavepointBuilder:
        draft = self._existing(operator)
        kept = {s.name for s in states_of(draft.base)} - draft.dropped if draft.base is not None else set()
        there = kept | set(draft.states) | set(draft.items)
        if state not in there:
            raise ConfigurationError(
                f"operator '{draft.uid or draft.name}' has no state '{state}'; it has: {', '.join(sorted(there))}"
            )
        draft.states.pop(state, None)
        draft.items.pop(state, None)
        draft.dropped.add(state)
        return self

    def _existing(self, operator: str) -> OperatorDraft:
        drafts = list(self._drafts.values())
        for matches in (
            [d for d in drafts if d.uid == operator],
            [d for d in drafts if operator in (d.operator_id, d.name)],
        ):
            if len(matches) == 1:
                return matches[0]
        there = ", ".join(f"'{d.uid or d.name}'" for d in drafts) or "none at all"
        raise ConfigurationError(f"the savepoint has no operator '{operator}', or several; it has: {there}")

    def _draft(self, uid: str) -> OperatorDraft:
        """The operator with this uid, new when there is none."""
        _check_text("the uid of the operator", uid)
        operator_id = id_of_uid(uid)
        if operator_id not in self._drafts:
            self._drafts[operator_id] = OperatorDraft(operator_id, uid, uid, self._max_parallelism)
        return self._drafts[operator_id]

    # ------------------------------------------------------------ state

    def with_keyed_state(
        self,
        uid: str,
        descriptor: StateDescriptor,
        data: Any,
        *,
        key: Selector | None = None,
        value: Selector | None = None,
        element: Selector | None = None,
        map_key: Selector | None = None,
        map_value: Selector | None = None,
        last_access: str | None = None,
        order_by: str | None = None,
        key_type: TypeInformation | None = None,
    ) -> SavepointBuilder:
        """A keyed state of the operator with this uid. Replaces the one that it has under the descriptor's name.

        `data` is a Spark DataFrame, or (key, value) pairs or a mapping, which have to fit into memory. Of a
        DataFrame's rows `key` gives the key, as the job's key selector gives it, and one of these the content:
        - `value`: all of a key's state, one row per key (the value, an array for a list, a map; the accumulator of
          aggregating state);
        - `element`: one element of a list per row, in the order of the column `order_by`;
        - `map_key` and `map_value`: one entry of a map per row.
        With a time to live `last_access` (a column: a timestamp, or ms since the epoch) says when it was last used;
        without it that is now."""
        if not isinstance(descriptor, StateDescriptor):
            raise ConfigurationError(f"with_keyed_state wants a state descriptor, got {descriptor!r}")
        content: dict[str, Selector | None]
        content = {"value": value, "element": element, "map_key": map_key, "map_value": map_value}
        shape = _shape(descriptor, {n for n, s in content.items() if s is not None})
        draft = self._draft(uid)
        spec = spec_of(draft.uid, descriptor, shape, key_type)
        if last_access is not None and not spec.info.ttl:
            raise ConfigurationError(
                f"state '{spec.info.name}' has no time to live, so last_access means nothing; call "
                "enable_time_to_live() on its descriptor, as in the job"
            )
        if _is_dataframe(data):
            wanted: Any = (map_key, map_value) if shape is Shape.ENTRIES else element if element is not None else value
            return self._add_dataframe(draft, spec, data, key, wanted, last_access, order_by)
        self._no_selectors(key, last_access, order_by, *content.values())
        return self._add_pairs(draft, spec, data)

    def with_timers(
        self,
        uid: str,
        data: Any,
        *,
        key: Selector | None = None,
        timestamp: Selector | None = None,
        processing_time: bool = False,
        key_type: TypeInformation | None = None,
    ) -> SavepointBuilder:
        """Timers of a keyed process function; of event time unless `processing_time`. Replaces those that it has.

        `data`: (key, timestamp in ms) pairs, or a DataFrame with `key` and `timestamp`. A key may have several."""
        draft = self._draft(uid)
        spec = timers_spec(draft.uid, _TIMERS[processing_time], key_type)
        if _is_dataframe(data):
            if timestamp is None:
                raise ConfigurationError("with_timers needs timestamp=..., the column with the time in ms")
            return self._add_dataframe(draft, spec, data, key, timestamp, None, None)
        self._no_selectors(key, timestamp)
        return self._add_pairs(draft, spec, data)

    def with_operator_state(
        self, uid: str, descriptor: StateDescriptor, items: Iterable[Any] | Mapping[Any, Any], mode: str = "list"
    ) -> SavepointBuilder:
        """Operator state: `mode` list (dealt out evenly), union, or broadcast (`items` is then a mapping)."""
        if mode not in _MODES:
            raise ConfigurationError(f"the mode of operator state is one of {', '.join(_MODES)}, got '{mode}'")
        expected = MapStateDescriptor if mode == "broadcast" else ListStateDescriptor
        if not isinstance(descriptor, expected):
            raise ConfigurationError(f"{mode} state takes a {expected.__name__}, got {descriptor!r}")
        wanted: Any = Mapping if mode == "broadcast" else Iterable
        if not isinstance(items, wanted) or isinstance(items, str | bytes):
            kind = "a mapping" if mode == "broadcast" else "an iterable of items"
            raise ConfigurationError(f"{mode} state '{descriptor.get_name()}' is made of {kind}, got {shorten(items)}")
        draft, name = self._draft(uid), descriptor.get_name()
        found = list(items.items() if isinstance(items, Mapping) else items)
        pickled = [dumps_item(draft.uid, name, item, f"item {i}") for i, item in enumerate(found)]
        draft.items[name] = AddedItems(name, _MODES[mode], pickled)
        return self

    def _add_dataframe(
        self, draft: OperatorDraft, spec: StateSpec, data: Any, key: Any, content: Any, last_access: Any, order_by: Any
    ) -> SavepointBuilder:
        if key is None:
            raise ConfigurationError("a DataFrame needs key=...: a column, several, or a function of the row")
        if content is None:
            raise ConfigurationError("a DataFrame needs value=..., element=..., or map_key=... and map_value=...")
        parts = spark_module("state_tables.dataframe_parts").DataFrameParts(
            data, spec, key, content, last_access, order_by
        )
        draft.states[spec.info.name] = AddedState(parts.spec, parts.write, parts.preferred)
        return self

    def _add_pairs(self, draft: OperatorDraft, spec: StateSpec, data: Any) -> SavepointBuilder:
        if not isinstance(data, Iterable):
            raise ConfigurationError(
                f"state '{spec.info.name}' is made of a Spark DataFrame, a mapping or (key, value) pairs, got "
                f"{shorten(data)}"
            )
        pairs = list(data.items() if isinstance(data, Mapping) else data)
        wrong = next((p for p in pairs if not isinstance(p, tuple | list) or len(p) != 2), None)
        if wrong is not None:
            raise ConfigurationError(f"state '{spec.info.name}' is made of (key, value) pairs, got {wrong!r}")
        draft.states[spec.info.name] = AddedState(spec, lambda target: _write_pairs(spec, target, pairs), 1)
        return self

    @staticmethod
    def _no_selectors(*selectors: Any) -> None:
        if any(s is not None for s in selectors):
            raise ConfigurationError("key=, value= and the like choose columns of a DataFrame; give (key, value) pairs")

    # ------------------------------------------------------------ writing

    def write(self, path: str, options: Mapping[str, str] | None = None) -> str:
        """Into a folder that does not exist or is empty; returns its path, from which a job can be started. Leaves
        nothing behind when it fails. `options`: of the storage (endpoint, region, keys), and on local and shared disks
        `tidegate.storage.permissions`: who may read it."""
        if self._written:
            raise ConfigurationError("this builder has written its savepoint already; make a new one")
        if not self._drafts:
            raise ConfigurationError("the savepoint would be empty; add the state of an operator first")
        given = dict(options or {})
        chosen = {key: given.pop(key) for key in [settings.STORAGE_PERMISSIONS.key] if key in given}
        permissions = settings.read(Configuration.from_dict(chosen), settings.STORAGE_PERMISSIONS)
        location = StorageLocation.parse(path, given).with_permissions(permissions)
        files = open_files(location)
        if files.size(METADATA_NAME) is not None or files.names(""):
            raise SnapshotError(f"{files.describe('')} is not empty; write the savepoint to a new folder")
        self._written = True
        try:
            metadata = self._write_operators(location)
            _delete_unused(files, metadata)
            write_savepoint_metadata(files, metadata)
        except BaseException:
            files.delete_directory("")
            raise
        return str(location)

    def _write_operators(self, location: StorageLocation) -> CheckpointMetadata:
        base = self._base
        source = None if base is None else file_source(str(base.root), dict(base.root.options))
        checkpoint_id = CheckpointId(1) if base is None else base.metadata.checkpoint_id
        return CheckpointMetadata(
            format_version=FORMAT_VERSION,
            job_id=secrets.token_hex(16) if base is None else base.metadata.job_id,
            job_name=self._job_name,
            checkpoint_id=checkpoint_id,
            timestamp=int(time.time() * 1000),
            savepoint=True,
            unaligned=False,
            operators=[draft.write(location, checkpoint_id, source) for draft in self._drafts.values()],
            channels=[],
            tidegate_version=tidegate.__version__,
            enumerators={} if base is None else self._enumerators(base.metadata),
        )

    def _enumerators(self, base: CheckpointMetadata) -> dict[OperatorId, EnumeratorState]:
        """Of the sources that are kept, under the ids that they have now."""
        kept = [
            (draft.operator_id, draft.base.operator_id) for draft in self._drafts.values() if draft.base is not None
        ]
        return {new: base.enumerators[old] for new, old in kept if old in base.enumerators}


def _draft_of(operator: OperatorMetadata) -> OperatorDraft:
    return OperatorDraft(operator.operator_id, operator.uid, operator.name, operator.max_parallelism, operator)


def _checked_max_parallelism(number: int) -> int:
    if type(number) is not int or not 1 <= number <= _MAX_PARALLELISM:
        raise ConfigurationError(f"the max parallelism is a number from 1 to {_MAX_PARALLELISM}, got {number!r}")
    return number


def _check_text(what: str, text: Any) -> None:
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"{what} has to be a text, got {text!r}")


def _is_dataframe(data: Any) -> bool:
    """Without importing pyspark."""
    return type(data).__module__.split(".")[0] == "pyspark" and hasattr(data, "mapInArrow")


def _shape(descriptor: StateDescriptor, given: set[str]) -> Shape:
    allowed: list[tuple[set[str], Shape]] = [(set(), Shape.WHOLE), ({"value"}, Shape.WHOLE)]
    if descriptor.kind == "list":
        allowed.append(({"element"}, Shape.ELEMENTS))
    if descriptor.kind == "map":
        allowed.append(({"map_key", "map_value"}, Shape.ENTRIES))
    for names, shape in allowed:
        if names == given:
            return shape
    ways = " or ".join(" and ".join(f"{n}=" for n in sorted(names)) for names, _ in allowed if names)
    raise ConfigurationError(
        f"{descriptor.kind} state '{descriptor.get_name()}' is made with {ways}, got "
        f"{', '.join(f'{n}=' for n in sorted(given))}"
    )


def _write_pairs(spec: StateSpec, target: PartTarget, pairs: list[tuple[Any, Any]]) -> list[KeyedSnapshot]:
    import numpy as np

    now = int(time.time() * 1000)
    keys = checked_keys(spec, [k for k, _ in pairs])
    hashes = hashes_of(keys)
    order = np.argsort(hashes, kind="stable")  # rows of a key keep their order
    parts = target.parts_of(hashes)
    written = []
    for part in range(target.parts):
        chosen = order[parts[order] == part]
        rows = [(keys[i], pairs[i][1]) for i in chosen]
        batch = DataBatch(hashes[chosen], [k for k, _ in rows], [v for _, v in rows], [now] * len(rows))
        written.append(write_part(spec, target, part, [batch]))
    return written


def _delete_unused(files: Files, metadata: CheckpointMetadata) -> None:
    """Spark may have run the writing of a part twice: tools that read a table's folder must find each part once."""
    used = {
        handle.path
        for operator in metadata.operators
        for snapshot in operator.subtasks
        for handle in [
            *(snapshot.keyed.handles() if snapshot.keyed is not None else ()),
            *(state.handle for state in snapshot.lists),
        ]
        if isinstance(handle, FileRange)
    }
    for folder in {path.rpartition("/")[0] for path in used}:
        for name in files.names(folder):
            if f"{folder}/{name}" not in used:
                files.delete_file(f"{folder}/{name}")
