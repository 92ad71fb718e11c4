"""The checkpoint location of a micro-batch job: Spark's own files, and beside them a folder of ours, `tidegate`.

    tidegate/job.json        whose it is: job id, operators, the savepoint that it began with, about the latest batch
                             that was seen, and which splits are known; written when these change, and not for every
                             batch
    tidegate/commits/<n>     what the sinks have prepared in batch n, the splits that it has taken, and the attempt that
                             has run it, until it is committed

Spark writes `commits/<n>` when batch n is done with all its state. What the sinks have prepared is written before that
(`prepared`), committed after it (`committed`), and then forgotten. So after a crash it is known what to do: a batch
that Spark has committed is committed by the sinks too, again if need be; one that Spark has not is run again, and what
was prepared in it counts for nothing.

Spark syncs nothing of what it writes. `keep_commit` does it for what says that a batch counts: after a power failure a
batch whose sinks have committed would otherwise be run again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from tidegate.common import options
from tidegate.common.decoding import UNREADABLE
from tidegate.common.errors import ConfigurationError, InternalError, TidegateError
from tidegate.common.ids import OperatorId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.spark.micro_batch.prepared import DamagedError, Prepared
from tidegate.storage.files import OWNER, PERMISSIONS, make_directories, sync_directory
from tidegate.storage.handles import EnumeratorState
from tidegate.storage.job_lock import LocalJobLock
from tidegate.storage.location import StorageLocation

log = logging.getLogger("tidegate.micro_batch")

_FORMAT = 1
_SHOWN_S, _LOOK_S = 60.0, 0.1  # in which a file of another machine is seen here, in a folder that is shared
_NOTED = 64  # batches after which the latest one is written down, if nothing else is
States = Mapping[OperatorId, EnumeratorState]


class LocationError(TidegateError):
    """The checkpoint location is not what it was: a restart cannot help."""


class Beginning(msgspec.Struct, frozen=True):
    """The state that the first batch begins with: a savepoint, or nothing."""

    snapshot: str = ""  # what tells it from all others, wherever it lies
    path: str = ""  # without keys, for people

    @staticmethod
    def of(point: RestorePoint | None) -> Beginning:
        if point is None:
            return Beginning()
        taken = point.metadata
        path = point.root if taken.self_contained else f"checkpoint {taken.checkpoint_id} in {point.root}"
        return Beginning(f"{taken.job_id}/{taken.epoch}/{taken.checkpoint_id}/{taken.timestamp}", path)

    def __str__(self) -> str:
        return f"with {self.path}" if self.snapshot else "with nothing"


NOTHING = Beginning()


class _JobFile(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    job_id: str
    job_name: str
    program: dict[str, str]  # plan.fingerprint
    key_groups: dict[str, int] = {}  # operator id -> how many
    beginning: Beginning | None = None  # None: a version before has begun it, and not noted with what
    latest: int = -1  # a batch that Spark has committed, one of the latest that the job has seen
    attempts: int = 0  # how often the query was started, by all runs of the program
    known: dict[str, EnumeratorState] | None = None  # splits of sources that find them, as of batch `latest`


class CheckpointLocation:
    """Used by one thread at a time. Call `open` first, `close` last."""

    def __init__(self, path: str, permissions: str = OWNER) -> None:
        """`permissions`: see `files.PERMISSIONS`. They are of what is made here; a folder that is there already keeps
        its own, except ours in it, which gets no more than these."""
        location = StorageLocation.parse(path)
        if not location.is_local:
            raise ConfigurationError(
                f"{options.MICRO_BATCH_LOCATION.key}: {path} is not a folder that this machine sees as a file system; "
                "this version of MICRO_BATCH keeps the list of what its sinks have prepared there, so give it a local "
                "or a mounted folder"
            )
        self.path = location.local_path
        self._own = os.path.join(self.path, "tidegate")
        self._pending = os.path.join(self._own, "commits")
        self._job_path = os.path.join(self._own, "job.json")
        self._permissions = PERMISSIONS[permissions]
        self._lock = LocalJobLock(self._own, self._permissions)
        self._job: _JobFile | None = None
        self._noted = -1  # `latest` as it was written

    def key_groups(self) -> Mapping[str, int]:
        """Of a job that is there: operator id -> how many. For before `open`, which says what is wrong."""
        with contextlib.suppress(TidegateError):
            job = self._read_job()
            return {} if job is None else job.key_groups
        return {}

    def open(
        self,
        job_id: str,
        job_name: str,
        program: dict[str, str],
        now_ms: float,
        *,
        must_exist: bool = False,
        id_is_fixed: bool = False,
        beginning: Beginning = NOTHING,
        key_groups: Mapping[str, int] | None = None,
    ) -> str:
        """Take it into possession. Returns the id of the job that it belongs to, which is `job_id` when it is new.
        Raises, with a reason, when it is another's, when it has batches and began with something else than a
        `beginning` that is given, or when it is new although it `must_exist`. `id_is_fixed`: the user has chosen it."""
        if must_exist and not os.path.exists(self._job_path):
            raise ConfigurationError(
                f"there is no job in the checkpoint location {self.path}, and "
                f"{options.MICRO_BATCH_LOCATION_MUST_EXIST.key} is set: the path is another one than before, its disk "
                "is not mounted, or it was deleted. Restore the folder, or unset that and start the job anew, perhaps "
                "from a savepoint"
            )
        if not os.path.exists(self._job_path) and os.path.isdir(os.path.join(self.path, "offsets")):
            raise ConfigurationError(
                f"{self.path} is the checkpoint location of another Spark query, which is not a Tidegate job; name "
                f"another folder with {options.MICRO_BATCH_LOCATION.key}"
            )
        try:
            make_directories(self._pending, self.path, self._permissions.directory)
            for folder in (self._own, self._pending):
                _narrow(folder, self._permissions.directory)
        except OSError as error:
            raise ConfigurationError(f"{options.MICRO_BATCH_LOCATION.key}: {self.path}: {error}") from error
        mine = _JobFile(
            format=_FORMAT,
            job_id=job_id,
            job_name=job_name,
            program=program,
            key_groups=dict(key_groups or {}),
            beginning=beginning,
        )
        self._lock.acquire(now_ms)
        try:
            self._job = self._read_job()
            if self._job is None:
                self._write_job(mine)
            else:
                self._noted = self._job.latest
                self._check_same(self._job, mine, id_is_fixed)
                self.check()
                self._go_on(self._job, mine)
        except BaseException:
            self.close()
            raise
        return self._opened().job_id

    def _go_on(self, there: _JobFile, mine: _JobFile) -> None:
        """Raises when the job would go on from another state than this start names: what other jobs have done from
        there on would be done once more."""
        beginning, wanted = there.beginning, mine.beginning or NOTHING
        if not self.next_batch:
            beginning = wanted
        elif wanted != NOTHING and (beginning is None or beginning.snapshot != wanted.snapshot):
            told = "with what an older version of Tidegate has not noted" if beginning is None else str(beginning)
            raise ConfigurationError(
                f"{options.RECOVERY_PATH.key} names {wanted.path}, but job '{there.job_name}' in the "
                f"checkpoint location {self.path} began {told}, and has come to batch {self.next_batch - 1}: it would "
                "go on from there, and not from that savepoint. To start from the savepoint, name a new location "
                f"({options.MICRO_BATCH_LOCATION.key}). To go on after that batch, unset {options.RECOVERY_PATH.key}; "
                "what was done elsewhere since then would be done once more"
            )
        if there.job_name != mine.job_name:
            log.warning(
                "job '%s' goes on in %s, where it was called '%s'. If that is another job, with the same operators, it "
                "needs a location of its own (%s); jobs with a pipeline.job-id each are told apart",
                mine.job_name,
                self.path,
                there.job_name,
                options.MICRO_BATCH_LOCATION.key,
            )
        noted = msgspec.structs.replace(there, job_name=mine.job_name, key_groups=mine.key_groups, beginning=beginning)
        if noted != there:
            self._write_job(noted)

    def close(self) -> None:
        job = self._job
        if job is not None and job.latest > self._noted and os.path.exists(self._job_path):
            with contextlib.suppress(OSError):  # the next driver knows a little less of what it should find
                self._write_job(job)
        self._lock.release()

    @property
    def next_batch(self) -> int:
        """The first that Spark has not committed."""
        return max(self._numbers(os.path.join(self.path, "commits")), default=-1) + 1

    def check(self) -> None:
        """Raises LocationError when it was deleted, or Spark's part of it."""
        job = self._job
        if job is None or not os.path.exists(self._job_path):
            raise LocationError(
                f"the checkpoint location {self.path} was deleted while the job ran, and the job's state with it; "
                "start it from a savepoint, or from nothing, in another folder"
            )
        if job.latest >= self.next_batch:
            raise LocationError(
                f"the checkpoint location {self.path} has lost batches: the job had come to batch {job.latest}, and "
                f"Spark's commits there end with {self.next_batch - 1}. {self.what_to_do}"
            )
        if self.next_batch:
            self._check_spark(self.next_batch - 1)
            self._check_whole(self.next_batch - 1)

    def _check_spark(self, latest: int) -> None:
        """Spark begins anew, with batch 0 and nothing in its state, where the offsets are missing; where the state is,
        each attempt would end when it is looked for."""
        for folder, name, missing in (("offsets", str(latest), f"offsets/{latest}"), ("state", "", "state")):
            if not os.path.exists(os.path.join(self.path, folder, name)):
                raise LocationError(
                    f"the checkpoint location {self.path} has lost a part of what Spark keeps there: batch {latest} is "
                    f"committed, and {missing} is not there. {self.what_to_do}"
                )

    def _check_whole(self, latest: int) -> None:
        """Spark cannot go on after a commit without content, and the sinks have not committed such a batch."""
        path = self._of_spark("commits", latest)
        if os.path.getsize(path) == 0:
            raise LocationError(
                f"{path} is empty, as a power failure leaves it before the sinks have committed the batch. Delete the "
                "file, and start the job again: it runs the batch once more"
            )

    def check_shared(self, partitions: int) -> None:
        """To be asked when a batch has run: raises LocationError when the executors have written their state into some
        other folder than this, one of the same name on a machine of their own. A shared folder may show it late."""
        deadline = time.monotonic() + _SHOWN_S
        while missing := self._missing_state(partitions):
            if time.monotonic() > deadline:
                raise LocationError(
                    f"the executors have run a batch, and their state ({missing}) is not in {self.path}, as the driver "
                    "sees it: this is not one folder for all of them. Name one that the driver and all executors see "
                    f"at the same path ({options.MICRO_BATCH_LOCATION.key})"
                )
            time.sleep(_LOOK_S)

    def _missing_state(self, partitions: int) -> str:
        """A folder that each operator of Spark has when all its tasks have run; "" when none is missing."""
        state = os.path.join(self.path, "state")
        for operator in sorted(self._numbers(state)):
            folder = os.path.join(state, str(operator))
            for partition in range(partitions if os.path.isdir(folder) else 0):
                if not os.path.exists(os.path.join(folder, str(partition))):
                    return f"state/{operator}/{partition}"
        return ""

    @property
    def what_to_do(self) -> str:
        """The end of a sentence about a location that cannot be gone on with."""
        return (
            f"Restore the folder, or start the job from a savepoint in another one ({options.MICRO_BATCH_LOCATION.key})"
        )

    def begin_attempt(self) -> int:
        """A number for the query that is about to be started: no other has had it here."""
        job = self._opened()
        self._write_job(msgspec.structs.replace(job, attempts=job.attempts + 1))
        return job.attempts

    def known_splits(self, at_first: Callable[[], States]) -> States:
        """Of sources that find splits while the job runs. `at_first`: asked when no batch is done yet."""
        job = self._opened()
        if job.known is None or not self.next_batch:
            job = msgspec.structs.replace(job, known={str(o): state for o, state in at_first().items()})
            self._write_job(job)
        return {OperatorId(operator): state for operator, state in (job.known or {}).items()}

    def _opened(self) -> _JobFile:
        if self._job is None:
            raise InternalError("the checkpoint location is not open")
        return self._job

    def spark_committed(self, batch: int) -> bool:
        return os.path.exists(self._of_spark("commits", batch))

    def keep_commit(self, batch: int) -> None:
        """Call it when Spark has committed the batch, before anybody else does: from then on it has done so after a
        power failure too, with the order that it was run with."""
        for folder in ("offsets", "commits"):
            path = os.path.join(self.path, folder)
            for name in os.listdir(path):
                if str(batch) in name.split("."):  # also `.<n>.crc`, which has to fit
                    _sync_file(os.path.join(path, name))
            sync_directory(path)
        _sync_file(os.path.join(self.path, "metadata"))  # the id of the query
        sync_directory(self.path)

    def _of_spark(self, folder: str, batch: int) -> str:
        return os.path.join(self.path, folder, str(batch))

    # ------------------------------------------------------------ what the sinks have prepared
    def prepared(self, batch: int, prepared: Prepared) -> None:
        """In the place of what an earlier run of the batch has prepared."""
        path = os.path.join(self._pending, str(batch))
        if prepared.committables or prepared.taken or prepared.savepoint:
            _write(path, prepared.encode(), self._permissions.file)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def to_commit(self) -> Iterator[tuple[int, Prepared]]:
        """The batches that Spark has committed and the job has not, oldest first. LocationError when it cannot be known
        what is to be committed."""
        for batch in sorted(self._numbers(self._pending)):
            if self.spark_committed(batch):
                yield batch, self._read_prepared(batch)

    def _read_prepared(self, batch: int) -> Prepared:
        path = os.path.join(self._pending, str(batch))
        with open(path, "rb") as file:
            data = file.read()
        try:
            return Prepared.decode(data)
        except DamagedError as error:
            raise LocationError(
                f"{path} is damaged ({error}): it says what the sinks have to commit of batch {batch}, which Spark has "
                f"committed. {self.what_to_do}. Or delete the file: the job goes on after that batch then, and of its "
                "output is missing what was not committed before"
            ) from error

    def committed(self, batch: int, known: States) -> None:
        """`known`: the splits as of this batch."""
        job = self._job
        if job is not None and batch > job.latest:
            states = {str(operator): state for operator, state in known.items()}
            same = job.known == states and batch < self._noted + _NOTED
            job = self._job = msgspec.structs.replace(job, latest=batch, known=states)
            if not same:
                self._write_job(job)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._pending, str(batch)))

    # ------------------------------------------------------------ files
    def _read_job(self) -> _JobFile | None:
        try:
            with open(self._job_path, "rb") as file:
                found = msgspec.json.decode(file.read(), type=_JobFile)
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise LocationError(f"{self._job_path} cannot be read: {error}") from error
        if found.format != _FORMAT:
            raise ConfigurationError(
                f"{self.path} was written by another version of Tidegate (format {found.format}, this one has "
                f"{_FORMAT}); go on from a savepoint in another folder"
            )
        return found

    def _write_job(self, job: _JobFile) -> None:
        _write(self._job_path, msgspec.json.encode(job), self._permissions.file)
        self._job = job
        self._noted = job.latest

    def _check_same(self, job: _JobFile, mine: _JobFile, id_is_fixed: bool) -> None:
        if id_is_fixed and job.job_id != mine.job_id:
            raise ConfigurationError(
                f"{self.path} is the checkpoint location of job '{job.job_name}' ({job.job_id}), and this one is "
                f"{mine.job_id} ({options.JOB_ID.key}): name another folder ({options.MICRO_BATCH_LOCATION.key}), or, "
                f"to go on with the job that is there, set {options.JOB_ID.key} to its id or unset it"
            )
        program = mine.program
        if job.program == program:
            return
        gone = sorted(job.program.keys() - program.keys())
        new = sorted(program.keys() - job.program.keys())
        other = sorted(k for k in job.program.keys() & program.keys() if job.program[k] != program[k])
        parts = [f"{what}: {', '.join(names)}" for what, names in (("only there", gone), ("only here", new)) if names]
        parts += [f"{name}: {job.program[name]} there, {program[name]} here" for name in other]
        raise ConfigurationError(
            f"{self.path} is the checkpoint location of job '{job.job_name}' ({job.job_id}), which is another job or "
            f"an older version of this one ({'; '.join(parts)}). A changed program goes on from a savepoint of the old "
            f"one (execution.state-recovery.path) in a new folder ({options.MICRO_BATCH_LOCATION.key})"
        )

    def _numbers(self, folder: str) -> list[int]:
        try:
            return [int(name) for name in os.listdir(folder) if name.isdigit()]
        except FileNotFoundError:
            return []


def _write(path: str, data: bytes, mode: int) -> None:
    """All of it or nothing, also when the machine fails; when this returns, all of it."""
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def _narrow(folder: str, mode: int) -> None:
    """Take away what others may do there beyond that: what lies in the folder is unpickled."""
    found = stat.S_IMODE(os.stat(folder).st_mode)
    if too_much := found & 0o777 & ~mode:
        with contextlib.suppress(PermissionError):  # another user's, who has given it to us
            os.chmod(folder, found & ~too_much)


def _sync_file(path: str) -> None:
    """What another process has written, and may just be renaming."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        os.fsync(file.fileno())
