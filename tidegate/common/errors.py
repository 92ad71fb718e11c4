"""The errors a user meets. Each carries its story: which operator and subtask, what it was doing, what to do next."""

from __future__ import annotations


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""


class ConfigurationError(TidegateError, ValueError):
    """A setting or argument is wrong; the message names it and says what is allowed."""


class JobGraphError(TidegateError):
    """The program cannot be turned into a job (empty graph, duplicate uid, wrong parallelism, ...)."""


class SerializationError(TidegateError):
    """Something that has to be shipped or stored cannot be pickled; the message names the owner and the object."""


class ResourceError(TidegateError):
    """Spark cannot run as many tasks at once as the job needs."""


class SnapshotError(TidegateError):
    """A checkpoint or savepoint is missing, incomplete, corrupt or does not fit the job."""


class SnapshotDamagedError(SnapshotError):
    """A checkpoint or savepoint is proved to be damaged: a checksum or the format is wrong, a file belongs to another
    snapshot, or the storage answers and says that it is gone. Reading it again cannot help; an older one may do."""


class StorageUnavailableError(SnapshotError):
    """The storage cannot be read or written now. What it holds may be intact, so it is tried again and nothing older is
    taken in its place."""


class StateBackendError(TidegateError):
    """Working state cannot be read or written (disk full, folder gone); the message names the folder."""


class JobExecutionError(TidegateError):
    """The job ended in FAILED. The message holds the operator, subtask, record and the user's own traceback."""


class JobCancelledError(TidegateError):
    """The job was cancelled while somebody waited for its result."""


class InternalError(TidegateError):
    """A broken invariant of Tidegate itself, never the user's fault: please file a bug with the message."""


def check_internal(condition: bool, message: str) -> None:
    """Assert an invariant. Stays on in production (unlike `assert`)."""
    if not condition:
        raise InternalError(message)
