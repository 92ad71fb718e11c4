"""The writer of the file sink: open part files per bucket, what becomes of them at a checkpoint and after a crash.

A part file lives under a hidden name from its first record on. The rolling policy closes it: then it is *pending*, a
committable, and the committer gives it its name when its checkpoint is complete. One that stays open over a checkpoint
(local disks only) is written through, and its length becomes part of the checkpoint. After a crash its beginning, up to
that length, is handed to the committer as a file of its own, and new records go into new files. Files of a bulk format
are closed at every checkpoint. With compaction, closed files wait in the writer's state to be merged.

Hidden files of a crashed attempt that the restored checkpoint does not speak of are deleted, and what stands behind the
checkpoint's length in a file that was open gives back its space, before anything is written: the disk may be full.
Names begin with operator and subtask, in a folder of the job's own, so that nobody else's file is touched. Files of the
same sink in folders of other jobs, in which nothing was written for a week, are deleted when a job starts afresh.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from tidegate.common.errors import ConfigurationError, InternalError, TidegateError
from tidegate.common.serialization import BulkWriter, BulkWriterFactory, Encoder
from tidegate.common.value_conversion import shorten
from tidegate.connectors.files.bucket_assigner import (
    BasePathBucketAssigner,
    BucketAssigner,
    BucketContext,
    check_bucket_id,
)
from tidegate.connectors.files.compaction import (
    CompactionQueue,
    CompactionSettings,
    FileCommittable,
    PendingFile,
)
from tidegate.connectors.files.output_file_config import OutputFileConfig
from tidegate.connectors.files.part_files import OutputFileError, PartFiles, PartStream, hidden_path
from tidegate.connectors.files.rolling_policy import PartFileInfo, RollingPolicy
from tidegate.contracts.connectors import SinkContext, SinkWriter

_BUFFER = 1 << 20  # bytes of a part file that are held back at the most
_ABANDONED_AFTER_MS = 7 * 24 * 3600 * 1000  # of a run that has ended without deleting its hidden files
_MAX_OPEN_FILES = 128  # per subtask; with more buckets than this the least recently written file is closed


@dataclass(frozen=True)
class FileWriterSettings:
    encoder: Encoder | BulkWriterFactory
    assigner: BucketAssigner
    policy: RollingPolicy
    names: OutputFileConfig
    check_interval_ms: int
    compaction: CompactionSettings | None = None


@dataclass(frozen=True)
class OpenFile:
    """A part file that stays open over a checkpoint: its first `length` bytes belong to the checkpoint."""

    hidden: str
    bucket_id: str
    length: int


@dataclass(frozen=True)
class FileWriterState:
    job_id: str
    parallelism: int
    open_files: tuple[OpenFile, ...]
    waiting: tuple[tuple[str, PendingFile, int], ...] = ()  # for compaction: bucket, file, checkpoints waited


class EncoderError(TidegateError):
    """The encoder raised; the message holds the record."""


class _Part:
    """An open part file. `buffer` holds what was not handed to the stream yet; `info.size` counts both."""

    def __init__(self, hidden: str, final: str, stream: PartStream, info: PartFileInfo) -> None:
        self.hidden = hidden
        self.final = final
        self.stream = stream
        self.info = info
        self.buffer = io.BytesIO()
        self.streamed = 0
        self.bulk: BulkWriter | None = None

    def write_through(self) -> None:
        data = self.buffer.getvalue()
        if data:
            self.stream.write(data)
            self.streamed += len(data)
            self.buffer = io.BytesIO()


class _PartOutput(io.RawIOBase):
    """What a bulk writer writes to: the buffer of its part file. Closing it has no effect, the file sink does that."""

    def __init__(self, part: _Part) -> None:
        super().__init__()
        self._part = part

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = self._part
        part.buffer.write(data)
        size = part.buffer.tell()
        part.info.size = part.streamed + size
        if size >= _BUFFER:
            part.write_through()
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._part.info.size

    def close(self) -> None:
        pass


class FileWriter(SinkWriter[Any, FileCommittable]):
    """See the module docstring. After an error every further call fails too: what was written is not known for sure."""

    def __init__(self, files: PartFiles, settings: FileWriterSettings, context: SinkContext) -> None:
        self._files = files
        self._settings = settings
        self._context = context
        self._compaction = None if settings.compaction is None else CompactionQueue(settings.compaction)
        self._ending = False  # the last flush was the one at the end of input
        self._one_bucket = type(settings.assigner) is BasePathBucketAssigner
        self._owner = f"{context.operator_id or 'sink'}-{context.subtask}-"
        self._writer_id = f"{context.subtask}-{uuid.uuid4().hex[:12]}"
        self._counter = 0  # of part files of this writer
        self._parts: dict[str, _Part] = {}  # bucket -> its open file
        self._pending: list[PendingFile] = []  # closed since the last `prepare_commit`
        self._unsaved: set[str] = set()  # hidden files that no snapshot speaks of
        self._next_check_ms = context.clock.now_ms() + settings.check_interval_ms
        self._broken: BaseException | None = None
        try:
            self._clean_up()  # first: on a full disk nothing can be written before it
        except OutputFileError:
            self._check_writable()  # says it better when it is the folder
            raise
        self._check_writable()
        for state in context.restored_state:
            self._salvage(state)

    # ------------------------------------------------------------ start
    def _check_writable(self) -> None:
        try:
            self._files.check_writable(self._context.job_id)
        except OutputFileError as error:
            if self._context.attempt > 0 or self._context.restored_checkpoint_id is not None:
                raise  # it worked before: worth another try
            raise ConfigurationError(
                f"the output folder {self._files.describe('')} cannot be written to: {error}; check that it exists or "
                "can be made, and that the user of Spark's workers has the rights to write there"
            ) from error

    def _clean_up(self) -> None:
        """Delete what earlier attempts of this subtask have left and the restored checkpoint does not need."""
        context = self._context
        states: list[FileWriterState] = context.restored_state
        for state in states:
            for file in state.open_files:
                if state.job_id == context.job_id:
                    self._files.trim(file.hidden, file.length)
        self._clean_up_after_other_jobs()
        if context.restored_checkpoint_id is not None and [s.parallelism for s in states] != [context.parallelism]:
            return  # rescaled: another subtask may have been given what is needed of these files
        needed = {name for committable in context.restored_committables for name in committable.hidden_names}
        needed |= {file.hidden for state in states for file in state.open_files}
        needed |= {file.hidden for state in states for _, file, _ in state.waiting}
        for name in self._files.hidden_names(context.job_id):
            path = hidden_path(context.job_id, name)
            if name.startswith(self._owner) and path not in needed:
                self._files.delete(path)

    def _clean_up_after_other_jobs(self) -> None:
        """Delete what runs of this sink that have ended long ago have left; a checkpoint of theirs that may still be
        wanted is the reason to wait so long. Not when something was restored: it may be theirs."""
        context = self._context
        if context.subtask or context.attempt or context.restored_checkpoint_id is not None:
            return
        before = (context.clock.now_ms() - _ABANDONED_AFTER_MS) / 1000
        for path in self._files.abandoned(context.job_id, f"{context.operator_id or 'sink'}-", before):
            self._files.delete(path)

    def _salvage(self, state: FileWriterState) -> None:
        """What was open at the checkpoint becomes a file of its own, up to its length at the checkpoint."""
        own = state.job_id == self._context.job_id
        for file in state.open_files:
            final = self._final_path(file.bucket_id)
            pending = PendingFile(file.hidden, final, file.length, copy=True, delete_source=own)
            self._closed(file.bucket_id, pending)
        for bucket_id, pending, waited in state.waiting:
            if not own:  # the files of another job are left as they are
                pending = PendingFile(pending.hidden, pending.final, pending.length, copy=True)
            self._closed(bucket_id, pending, waited)

    def _closed(self, bucket_id: str, pending: PendingFile, waited: int = 0) -> None:
        """A file is finished: it is committed with the next checkpoint, or waits to be merged with others."""
        if self._compaction is None:
            self._pending.append(pending)
        else:
            self._compaction.add(bucket_id, pending, waited)

    # ------------------------------------------------------------ records
    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._check_usable()
        try:
            if self._one_bucket:
                self._write("", values)
            else:
                self._write_to_buckets(values, timestamps)
            if self._context.clock.now_ms() >= self._next_check_ms:
                self._roll_by_time()
        except BaseException as error:
            self._broken = error
            raise

    def _write_to_buckets(self, values: list[Any], timestamps: list[int] | None) -> None:
        assigner = self._settings.assigner
        where = BucketContext(int(self._context.clock.now_ms()), None)
        groups: dict[str, list[Any]] = {}
        for i, value in enumerate(values):
            if timestamps is not None:
                where.timestamp = timestamps[i]
            bucket_id = assigner.get_bucket_id(value, where)
            group = groups.get(bucket_id)
            if group is None:
                check_bucket_id(bucket_id, type(assigner).__name__)
                groups[bucket_id] = group = []
            group.append(value)
        for bucket_id, group in groups.items():
            self._write(bucket_id, group)

    def _write(self, bucket_id: str, values: list[Any]) -> None:
        if isinstance(self._settings.encoder, BulkWriterFactory):
            self._write_bulk(bucket_id, values)
            return
        encode, should_roll = self._settings.encoder.encode, self._settings.policy.should_roll_on_event
        now = self._context.clock.now_ms()
        part = self._parts.get(bucket_id)
        for value in values:
            if part is not None and should_roll(part.info, value):
                self._roll(part)
                part = None
            if part is None:
                part = self._open(bucket_id, now)
            buffer = part.buffer
            try:
                encode(value, buffer)
            except Exception as error:
                raise EncoderError(
                    f"the encoder failed on record {shorten(value)}: {type(error).__name__}: {error}"
                ) from error
            size = buffer.tell()
            part.info.size = part.streamed + size
            if size >= _BUFFER:
                part.write_through()
        if part is not None:
            part.info.last_update_time = now

    def _write_bulk(self, bucket_id: str, values: list[Any]) -> None:
        should_roll = self._settings.policy.should_roll_on_event
        now = self._context.clock.now_ms()
        part = self._parts.get(bucket_id)
        for value in values:
            if part is not None and should_roll(part.info, value):
                self._roll(part)
                part = None
            if part is None:
                part = self._open(bucket_id, now)
            if part.bulk is None:  # here and not by a call: this is per record
                raise InternalError("a part file of a bulk format has no bulk writer")
            try:
                part.bulk.add_element(value)
            except Exception as error:
                raise EncoderError(
                    f"the bulk writer failed at record {shorten(value)} (or one not long before it): "
                    f"{type(error).__name__}: {error}"
                ) from error
        if part is not None:
            part.info.last_update_time = now

    def _open(self, bucket_id: str, now_ms: float) -> _Part:
        if len(self._parts) >= _MAX_OPEN_FILES:
            self._roll(min(self._parts.values(), key=lambda part: part.info.last_update_time))
        final = self._final_path(bucket_id)
        hidden = hidden_path(self._context.job_id, f"{self._owner}{self._context.attempt}-{final.rpartition('/')[2]}")
        part = _Part(hidden, final, self._files.create(hidden), PartFileInfo(bucket_id, now_ms, now_ms, 0))
        self._unsaved.add(hidden)
        self._parts[bucket_id] = part
        if isinstance(self._settings.encoder, BulkWriterFactory):
            part.bulk = self._settings.encoder.create(cast(BinaryIO, _PartOutput(part)))
        return part

    def _final_path(self, bucket_id: str) -> str:
        names = self._settings.names
        name = f"{names.part_prefix}-{self._writer_id}-{self._counter}{names.part_suffix}"
        self._counter += 1
        return f"{bucket_id}/{name}" if bucket_id else name

    def _roll(self, part: _Part) -> None:
        if part.bulk is not None:
            try:
                part.bulk.flush()
                part.bulk.finish()
            except Exception as error:
                raise EncoderError(
                    f"the bulk writer cannot finish {part.final}: {type(error).__name__}: {error}"
                ) from error
        del self._parts[part.info.bucket_id]
        part.write_through()
        part.stream.close()
        self._closed(part.info.bucket_id, PendingFile(part.hidden, part.final, part.info.size))

    def _roll_by_time(self) -> None:
        now = self._context.clock.now_ms()
        for part in list(self._parts.values()):
            if self._settings.policy.should_roll_on_processing_time(part.info, now):
                self._roll(part)
        self._next_check_ms = now + self._settings.check_interval_ms

    # ------------------------------------------------------------ checkpoints
    def flush(self, end_of_input: bool) -> None:
        self._check_usable()
        self._ending = end_of_input
        try:
            self._roll_by_time()
            for part in list(self._parts.values()):
                part.write_through()
                keep = self._files.keeps_open_files and not end_of_input and part.bulk is None
                if keep and not self._settings.policy.should_roll_on_checkpoint(part.info):
                    part.stream.sync()
                else:
                    self._roll(part)
        except BaseException as error:
            self._broken = error
            raise

    def prepare_commit(self) -> list[FileCommittable]:
        self._check_usable()
        pending: list[FileCommittable] = list(self._pending)
        self._pending = []
        if self._compaction is not None:
            pending += self._compaction.due(self._ending)
        return pending

    def snapshot_state(self, checkpoint_id: int) -> list[FileWriterState]:
        self._check_usable()
        self._unsaved.clear()
        open_files = tuple(OpenFile(p.hidden, p.info.bucket_id, p.info.size) for p in self._parts.values())
        waiting = () if self._compaction is None else self._compaction.waiting()
        return [FileWriterState(self._context.job_id, self._context.parallelism, open_files, waiting)]

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise TidegateError(f"the file sink has failed before: {self._broken}") from self._broken

    # ------------------------------------------------------------ end
    def close(self) -> None:
        """Leaves what a checkpoint may need, deletes the rest."""
        for part in self._parts.values():
            part.stream.abandon()
        self._parts.clear()
        for hidden in self._unsaved:
            with contextlib.suppress(TidegateError):  # the next attempt tries again
                self._files.delete(hidden)
        self._unsaved.clear()
        self._files.delete_folder_if_empty(self._context.job_id)
