"""The Avro files below a path, as a source of its own."""

from __future__ import annotations

from tidegate.common.errors import ConfigurationError
from tidegate.connectors.files.source import FileEnumeratorProvider, FileSource
from tidegate.formats.avro import AvroFormat, AvroSchema
from tidegate.storage.location import StorageLocation


class AvroInputFormat(FileSource):
    """The Avro files below a path, as a source of its own: `env.from_source(AvroInputFormat(path, schema), ...)`."""

    def __init__(self, path: str, schema: AvroSchema) -> None:
        if not isinstance(path, str) or not path.strip():
            raise ConfigurationError(f"AvroInputFormat: takes a path or a URI, got {path!r}")
        whole_files = FileEnumeratorProvider.default_non_splittable_file_enumerator()
        super().__init__(AvroFormat(schema), [StorageLocation.parse(path)], whole_files, None)
