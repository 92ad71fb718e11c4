"""A failure as the user should read it: operator, subtask, what it was doing, the record, the user's own traceback."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import traceback
from collections.abc import Iterable

import msgspec

from tidegate.common.errors import (
    ConfigurationError,
    InternalError,
    SerializationError,
    SnapshotDamagedError,
    SnapshotError,
    StorageUnavailableError,
    TidegateError,
)
from tidegate.common.ids import CheckpointId, SlotIndex
from tidegate.common.texts import encodable
from tidegate.common.value_conversion import shorten
from tidegate.network.transport import ConnectionLostError
from tidegate.protocol.messages import MAX_SUMMARY, MAX_TRACEBACK, FailureInfo
from tidegate.state.evolution import StateSchemaError

log = logging.getLogger("tidegate.worker")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NO_RECORD = object()
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # of objects in texts: another one in each process
_OF_THE_WORLD = re.compile(
    "Timeout|TimedOut|Connect|Network|Unavailable|Operational|Transient|Temporar|Throttl|TooMany|RateLimit|Busy|Retr"
)


# What a path that the program names is, or is not: the same at the next try. For a file that appears later the restart
# strategy can be told to go on.
_WRONG_PATHS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
# What the program asks for in vain each time: a name that is too long, a rename to another disk, a file of no program.
_WRONG_REQUESTS = frozenset(
    (
        errno.EINVAL,
        errno.EBADF,
        errno.E2BIG,
        errno.ENOEXEC,
        errno.EXDEV,
        errno.ENOTTY,
        errno.ESPIPE,
        errno.ENAMETOOLONG,
        errno.ENOTEMPTY,
        errno.ELOOP,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOTSOCK,
        errno.EMSGSIZE,
        errno.EDESTADDRREQ,
        errno.EAFNOSUPPORT,
        errno.EPROTONOSUPPORT,
    )
)
# OSErrors without a number are raised by libraries, and most often for what a file holds (h5py, pyarrow, gzip, Pillow):
# the same at the next try. Those of a library's own class tell so by its name, plain ones unless their text speaks of
# somebody else, and none of a library that talks to others.
_OF_CONTENT = re.compile(
    "BadGzip|Unidentified|Format|Decod|Corrupt|Invalid|Malformed|Unsupported|SameFile|SpecialFile|ReadError"
)
_OF_OTHERS = re.compile(
    "time.?out|timed|connect|network|host|server|service|socket|dns|resolv|http|curl|ssl|tls|status|aws|azure|gcs|hdfs|"
    "unavailable|unreachable|away|temporar|throttl|slow.?down|too many|busy|try again|retr|reset|refused|closed|"
    "broken|lost|interrupt|locked|quota|space|memory|errno|input/output",
    re.IGNORECASE,
)
_TALKS = re.compile(r"(requests|urllib3?|httpx?|aiohttp|ssl|socket|smtplib|ftplib|poplib|imaplib|docker)(\.|$)")
_BUGS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)


class OperatorFailure(TidegateError):
    """An exception in (or on behalf of) one operator. Raised once, at the innermost operator; passed up as it is."""

    def __init__(
        self, operator: str, subtask: int, doing: str, cause: BaseException, record: object = _NO_RECORD
    ) -> None:
        self.operator = operator
        self.subtask = subtask
        self.doing = doing
        self.cause = cause
        self.record = "" if record is _NO_RECORD else shorten(record)
        super().__init__(self.summary())

    def summary(self) -> str:
        at = f"operator '{self.operator}' (subtask {self.subtask}) failed in {self.doing}"
        on = f" on record {self.record}" if self.record else ""
        return f"{at}{on}: {type(self.cause).__name__}: {self.cause}"


class RestoreFailure(OperatorFailure):
    """An operator could not be restored. Only when the checkpoint is proved to be damaged may an older one be taken in
    its place; when the storage did not answer, or the local disk was full, a restart tries the same one again."""

    def __init__(self, operator: str, subtask: int, checkpoint_id: CheckpointId, cause: BaseException) -> None:
        super().__init__(operator, subtask, f"restoring checkpoint {checkpoint_id}", cause)
        self.checkpoint_id = checkpoint_id

    @property
    def proves_damage(self) -> bool:
        return isinstance(self.cause, SnapshotDamagedError)

    @property
    def is_permanent(self) -> bool:
        """An intact snapshot that does not fit this job or this version will not fit the next time either."""
        return isinstance(self.cause, SnapshotError) and not isinstance(
            self.cause, SnapshotDamagedError | StorageUnavailableError
        )


def may_pass(error: BaseException) -> bool:
    """Whether the exception tells of something outside the program, such as a service that does not answer, which may
    be over at the next try; told by its class, or that of an exception that it was raised from. One that was only being
    handled when a bug was met (`except ConnectionError: undefined_name`) does not count: the bug stays."""
    part: BaseException | None = error
    for _ in range(20):  # bounded: causes can form long chains
        if part is None:
            break
        if isinstance(part, OSError):
            if isinstance(error, TidegateError):
                return True  # of the storage that a connector of ours writes to or reads from: it may be mounted again
            if part.errno is not None or isinstance(part, _WRONG_PATHS) or not _comes_again(part):
                return not isinstance(part, _WRONG_PATHS) and part.errno not in _WRONG_REQUESTS
        elif isinstance(part, MemoryError) or any(_OF_THE_WORLD.search(c.__name__) for c in type(part).__mro__):
            return True
        part = part.__cause__ or (None if isinstance(part, _BUGS) or part.__suppress_context__ else part.__context__)
    return False


def _comes_again(error: OSError) -> bool:
    """Of one without a number: whether it tells of what a file holds, or of a wrong request."""
    classes = type(error).__mro__
    if any(_OF_THE_WORLD.search(c.__name__) for c in classes):
        return False
    if isinstance(error, _BUGS):  # io.UnsupportedOperation; an URL without a scheme
        return True
    if any(_TALKS.match(c.__module__) for c in classes):
        return False
    known = classes[0] is OSError or any(_OF_CONTENT.search(c.__name__) for c in classes)
    return known and not _OF_OTHERS.search(str(error))


def _identity(summary: str) -> str:
    """Of a failure, among others of the same job: the summary names operator, subtask, record and exception."""
    return hashlib.sha256(_ADDRESS.sub("", summary).encode("utf-8", "surrogatepass")).hexdigest()


def user_traceback(error: BaseException) -> str:
    """The traceback without the engine's own frames, unless they are all there is."""
    shown = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = shown
    for _ in range(20):  # bounded: causes can form long chains
        if part is None:
            break
        part.stack = traceback.StackSummary.from_list(list(_user_frames(part.stack)) or list(part.stack))
        part = part.__cause__ or part.__context__
    return "".join(shown.format())


def _user_frames(stack: Iterable[traceback.FrameSummary]) -> Iterable[traceback.FrameSummary]:
    return (f for f in stack if not os.path.abspath(f.filename).startswith(_PACKAGE))


def describe_lost_connection(slot: SlotIndex, error: ConnectionLostError) -> FailureInfo:
    """Of a slot whose connection to another one broke: a better cause, when there is one, takes its place."""
    return msgspec.structs.replace(describe(error), summary=f"slot {slot}: {error}", consequence=True)


def describe(error: BaseException) -> FailureInfo:
    """What is reported to the JobManager. That is bounded: what is longer goes to the log of this process in full."""
    if isinstance(error, OperatorFailure):
        cause = error.cause
        # An error of ours that carries a full explanation needs no stack.
        ours = isinstance(cause, (ConfigurationError, SerializationError, SnapshotError))
        summary, story = error.summary(), "" if ours else user_traceback(cause)
        failure = FailureInfo(
            summary=summary,
            traceback=story,
            cause="" if may_pass(cause) else _identity(summary),
            operator=error.operator,
            subtask=error.subtask,
            # State that does not fit what the job declares will not fit the next time either.
            permanent=isinstance(cause, ConfigurationError | StateSchemaError)
            or (isinstance(error, RestoreFailure) and error.is_permanent),
            corrupt_checkpoint=error.checkpoint_id if isinstance(error, RestoreFailure) and error.proves_damage else 0,
        )
    else:
        explained = isinstance(error, TidegateError) and not isinstance(error, InternalError)
        summary = f"{type(error).__name__}: {error}"
        story = "" if explained else "".join(traceback.format_exception(error))
        failure = FailureInfo(summary=summary, traceback=story)
    if len(summary) > MAX_SUMMARY or len(story) > MAX_TRACEBACK:
        log.error("in full, since it is too long to be sent: %s\n%s", encodable(summary), encodable(story))
    return failure
