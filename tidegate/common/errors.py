"""The errors a user meets. Each carries its story: which operator and subtask, what it was doing, what to do next."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""


class ConfigurationError(TidegateError, ValueError):
    """A setting or argument is wrong; the message names it and says what is allowed."""


class MutationError(ConfigurationError):
    """User code has changed state in place and not written it back (`tidegate.debug.check-mutations`)."""


class OrderNotComparedWarning(UserWarning):
    """A test under faults holds the records of a job to no order: they have none that faults alone could break."""


class MutatedInputWarning(UserWarning):
    """User code changes the records that it is given in place (`tidegate.debug.check-mutations`)."""


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


class StateReadError(TidegateError):
    """The state of a job cannot be read from outside as it was asked for; the job goes on. Base of the next four."""


class UnknownStateError(StateReadError):
    """There is no such operator or state; the message names those that there are."""


class WrongKeyError(StateReadError, TypeError):
    """The key cannot be a key of the state; the message says which type its keys have."""


class StateHiddenError(StateReadError):
    """Looking at state is switched off, or this state is hidden."""


class StateNotReadableError(StateReadError):
    """The state cannot be read now, but perhaps later: the job restarts, or does not answer in time, or too many
    questions are open."""

    retry_after_s = 1.0


class JobExecutionError(TidegateError):
    """The job ended in FAILED. The message holds the operator, subtask, record and the user's own traceback."""


class JobSuspendedError(JobExecutionError):
    """High availability: this program does not lead the job any more. The job itself goes on under another one, or when
    this one is started again."""


class JobCancelledError(TidegateError):
    """The job was cancelled while somebody waited for its result."""


class InternalError(TidegateError):
    """A broken invariant of Tidegate itself, never the user's fault: please file a bug with the message."""


def check_internal(condition: bool, message: str) -> None:
    """Assert an invariant. Stays on in production (unlike `assert`)."""
    if not condition:
        raise InternalError(message)


def present(value: T | None, what: str) -> T:
    """The value, which the caller knows to be there; `what` names it in the InternalError when it is not."""
    if value is None:
        raise InternalError(f"{what} is missing")
    return value


def of_type(kind: type[T], value: object) -> T:
    """The value, which the caller knows to be a `kind`; InternalError when it is something else."""
    if not isinstance(value, kind):
        raise InternalError(f"a {kind.__name__} was expected, not {value!r}")
    return value
