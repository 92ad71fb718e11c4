"""Modules that have moved since state was stored: pickles that name them are read as before.

A finder at the end of Python's import path: it is asked only for modules that are nowhere else, so it costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_MOVED = {
    "common.record_batch": "contracts.batches",
    "datastream.connectors.bucket_assigner": "connectors.files.bucket_assigner",
    "datastream.connectors.collect": "contracts.collect_sink",
    "datastream.connectors.collection": "connectors.collection",
    "datastream.connectors.delta_checks": "connectors.delta.checks",
    "datastream.connectors.delta_files": "connectors.delta.data_files",
    "datastream.connectors.delta_table": "connectors.delta.table",
    "datastream.connectors.discard": "connectors.discard",
    "datastream.connectors.driver_side": "contracts.driver_side",
    "datastream.connectors.file_compaction": "connectors.files.compaction",
    "datastream.connectors.file_formats": "contracts.file_formats",
    "datastream.connectors.file_reading": "connectors.files.reading",
    "datastream.connectors.file_sink": "connectors.files.sink",
    "datastream.connectors.file_source": "connectors.files.source",
    "datastream.connectors.file_writer": "connectors.files.writer",
    "datastream.connectors.output_file_config": "connectors.files.output_file_config",
    "datastream.connectors.print_sink": "connectors.print_sink",
    "datastream.connectors.record_cache": "connectors.record_cache",
    "datastream.connectors.rolling_policy": "connectors.files.rolling_policy",
    "datastream.connectors.source_function": "connectors.source_function",
    "datastream.connectors.text_lines": "formats.text_lines",
    "datastream.formats.arrow_rows": "formats.arrow_rows",
    "datastream.formats.arrow_types": "formats.arrow_types",
    "datastream.formats.avro_types": "formats.avro_types",
    "datastream.formats.columnar": "formats.columnar",
    "datastream.formats.csv_files": "formats.csv_files",
    "datastream.formats.csv_messages": "formats.csv_messages",
    "datastream.formats.csv_schema": "formats.csv_schema",
    "datastream.formats.json_values": "formats.json_values",
    "datastream.formats.line_records": "formats.line_records",
    "datastream.formats.text_values": "formats.text_values",
    "datastream.state_ttl": "contracts.state_ttl",
    "datastream.window.assigners": "contracts.window.assigners",
    "datastream.window.contracts": "contracts.window.contracts",
    "datastream.window.sessions": "contracts.window.sessions",
    "datastream.window.triggers": "contracts.window.triggers",
    "datastream.window.windows": "contracts.window.windows",
    "storage.input_files": "connectors.files.input_files",
    "storage.part_files": "connectors.files.part_files",
}


class _FormerModules(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        moved = fullname.startswith("tidegate.") and fullname.removeprefix("tidegate.") in _MOVED
        return ModuleSpec(fullname, self) if moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(f"tidegate.{_MOVED[spec.name.removeprefix('tidegate.')]}")

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module was executed under its own name."""


def find_former_modules() -> None:
    """From now on, former modules are found in this process. May be called repeatedly."""
    if not any(isinstance(finder, _FormerModules) for finder in sys.meta_path):
        sys.meta_path.append(_FormerModules())
