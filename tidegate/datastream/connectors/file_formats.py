"""What a format implements so that `FileSource` can read its files."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from tidegate.storage.input_files import InputFile

T = TypeVar("T")


class FileRecordReader(abc.ABC, Generic[T]):
    """Reads one part of one file in order. For a file of an object store the calls come from a helper thread, never
    two at a time."""

    @abc.abstractmethod
    def read(self, max_records: int) -> list[T] | None:
        """The next records, at most `max_records`; None at the end of the part. It reads a bounded number of bytes:
        [] means "ask again at once", for instance while it skips to its position."""

    @abc.abstractmethod
    def offset(self) -> Any:
        """Picklable position after the last record that `read` returned; a reader that is made with it goes on with
        the very next record."""

    def close(self) -> None:
        """Called once, also after a failure."""


class FileFormat(abc.ABC):
    """A kind of file. An instance is pickled to the workers."""

    def is_splittable(self, path: str) -> bool:
        """Whether parts of a file can be read on their own. When it is, any byte range may be asked for, and each
        record has to belong to exactly one of the ranges that a file is cut into."""
        return False

    @abc.abstractmethod
    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> FileRecordReader[Any]:
        """A reader of the records that belong to the bytes from `start` to before `end`, positioned at `offset`
        (None: the first one)."""

    def get_produced_type(self) -> Any:
        """The TypeInformation of the records, None when unknown."""
        return None


class StreamFormat(FileFormat):
    """Files that are read record by record."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8", errors: str = "strict") -> StreamFormat:
        """Lines as strings, without what ends them (a newline, or carriage return and newline), in any charset of
        Python. Files that are called `*.gz`, `*.bz2` or `*.xz` are decompressed. `errors` says what becomes of bytes
        that are not text in that charset: "strict" fails with file and line, "replace" puts U+FFFD, as Java does."""
        from tidegate.datastream.connectors.text_lines import TextLineFormat

        return TextLineFormat(charset_name, errors)


class BulkFormat(FileFormat):
    """Files that are read a batch of records at a time."""
