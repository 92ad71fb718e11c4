"""What a format implements so that `FileSource` can read its files."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from tidegate.common.errors import TidegateError

T = TypeVar("T")


class InputFileError(TidegateError):
    """A file cannot be read, has changed or is gone; the message has its path."""


@contextlib.contextmanager
def input_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except TidegateError:
        raise
    except FileNotFoundError as cause:
        raise InputFileError(f"cannot {action} {path}: there is no such file or folder") from cause
    except Exception as cause:  # pyarrow raises OSError, ValueError and NotImplementedError; a torn archive EOFError
        raise InputFileError(f"cannot {action} {path}: {type(cause).__name__}: {cause}") from cause


class InputFile(Protocol):
    """One file as a format sees it."""

    path: str
    size: int  # in bytes, when the file was listed

    def open(self) -> BinaryIO:
        """Opens the file for reading at any position, without a buffer."""

    def open_arrow(self) -> Any:
        """Opens the file as a `pyarrow.NativeFile`."""


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
        """Release what the reader holds. Called once, also after a failure."""


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


class BulkFormat(FileFormat):
    """Files that are read a batch of records at a time."""
