"""One RocksDB database: opening it with our settings, and errors that say where it lies.

The write-ahead log is off: what survives a crash is the checkpoint, never the working state.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import StateBackendError
from tidegate.state.rocksdb.resources import SlotResources, new_cache
from tidegate.state.rocksdb.settings import MB, RocksDBSettings

if TYPE_CHECKING:
    from rocksdict import Options, Rdict, WriteBatch

_MERGE_AT = 1.2
_MOSTLY_NEW = 0.75


class Database:
    """Written by one thread at a time, read by any. `raw` is the rocksdict object: for the hot path, which catches
    errors itself."""

    def __init__(
        self, operator_name: str, path: Path, resources: SlotResources | None = None, *, read_only: bool = False
    ) -> None:
        """`resources`: None for a short look into a database with little memory."""
        from rocksdict import AccessType, Rdict, WriteOptions

        self._operator_name = operator_name
        self.path = path
        self._closing = False  # set once, by the thread that closes; read by all
        self._closed = False
        self._merging = threading.Lock()  # held by `merge_new_files`
        settings = resources.settings if resources is not None else RocksDBSettings(memory_per_slot=16 * MB)
        access = AccessType.read_only() if read_only else AccessType.read_write()
        try:
            self.raw: Rdict = Rdict(str(path), _options(settings, resources), access_type=access)
        except Exception as error:
            raise self.failure("cannot be opened", error) from error
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]

    def batch(self) -> WriteBatch:
        from rocksdict import WriteBatch

        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        try:
            self.raw.write(batch, self._write_options)
        except Exception as error:
            raise self.failure("cannot be written", error) from error

    def delete_range(self, first: bytes, end: bytes) -> None:
        batch = self.batch()
        batch.delete_range(first, end)
        self.write(batch)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            return self.raw.get(keys)  # type: ignore[arg-type,return-value]
        except Exception as error:
            raise self.failure("cannot be read", error) from error

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The records whose keys are in [first, end), in order."""
        from rocksdict import ReadOptions

        read = ReadOptions()
        read.set_iterate_upper_bound(end)
        try:
            yield from self.raw.items(from_key=first, read_opt=read)
        except (GeneratorExit, StateBackendError):
            raise
        except Exception as error:
            raise self.failure("cannot be read", error) from error

    def scan_keys(self, first: bytes, end: bytes) -> list[bytes]:
        from rocksdict import ReadOptions

        read = ReadOptions()
        read.set_iterate_upper_bound(end)
        try:
            return list(self.raw.keys(from_key=first, read_opt=read))  # type: ignore[arg-type]
        except Exception as error:
            raise self.failure("cannot be read", error) from error

    def estimates(self) -> tuple[int, int]:
        """About how many records there are, and how many bytes they take."""
        count = self.raw.property_int_value("rocksdb.estimate-num-keys") or 0
        size = self.raw.property_int_value("rocksdb.estimate-live-data-size") or 0
        return count, size + (self.raw.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)

    def sequence(self) -> int:
        """Grows with every record written, also across checkpoint and restore."""
        return self.raw.latest_sequence_number()

    def checkpoint(self, path: Path) -> None:
        """A consistent copy in a new folder `path`, made of hard links. Writes what is in memory to disk first."""
        from rocksdict import Checkpoint

        try:
            self.raw.flush()  # lets other threads run, which the same inside of `create_checkpoint` does not
            Checkpoint(self.raw).create_checkpoint(str(path))
        except Exception as error:
            raise self.failure(f"cannot make the checkpoint {path}", error) from error

    def merge_new_files(self, known: Collection[str]) -> None:
        """Merge all files if most of them are not `known` (names) and they hold much twice: if they are larger than the
        largest run of files without overlaps, which is about the size of the whole. On any thread, while others read
        and write. `interrupt` ends it early, which is no error."""
        with self._merging:
            if self._closing:
                return
            try:
                files = self.raw.live_files()
                runs: dict[Any, int] = {}
                for file in files:  # a level is a run, but at level 0, where each file is one
                    run = file["level"] or file["name"]
                    runs[run] = runs.get(run, 0) + file["size"]
                new = sum(file["size"] for file in files if file["name"].lstrip("/") not in known)
                if new > _MERGE_AT * max(runs.values(), default=0) and new > _MOSTLY_NEW * sum(runs.values()):
                    self.raw.compact_range(None, None)
            except Exception as error:
                if not self._closing:
                    raise self.failure("cannot be compacted", error) from error

    def interrupt(self) -> None:
        """To be called before those who use the database are waited for, and it is closed: a flush or compaction ends
        at once, now and ever after, since nothing of it is needed any more. From any thread; may be called twice."""
        if not self._closed:
            self._closing = True
            with contextlib.suppress(Exception):
                self.raw.cancel_all_background(False)

    def close(self) -> None:
        """May be called twice. Nobody else may be using it, but for `merge_new_files`."""
        if self._closed:
            return
        self.interrupt()
        # It is closed also when it then complains that it could not write its memory to disk.
        with self._merging, contextlib.suppress(Exception):
            self._closed = True
            self.raw.close()

    def failure(self, what: str, error: Exception) -> StateBackendError:
        if self._closing:
            return StateBackendError(
                f"operator '{self._operator_name}': the task was closed while its RocksDB database in {self.path} was "
                f"in use: {error}"
            )
        return StateBackendError(
            f"operator '{self._operator_name}': the RocksDB database in {self.path} {what}: {error}; see that the disk "
            "is not full and the folder is writable, or choose another one with state.backend.rocksdb.localdir"
        )


def _options(settings: RocksDBSettings, resources: SlotResources | None) -> Options:
    from rocksdict import BlockBasedOptions, DBCompactionStyle, Options, UniversalCompactOptions

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    if resources is None:
        cache = new_cache(settings.native_bytes, settings.block_size)
    else:
        cache, manager = resources.native()
        options.set_write_buffer_manager(manager)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(settings.block_size)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)  # so that they count as memory in use
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    buffer = settings.write_buffer_size or max(MB, min(64 * MB, settings.write_buffer_bytes // 2))
    options.set_write_buffer_size(buffer)
    options.set_memtable_prefix_bloom_ratio(0.1)  # most keys are not in there, and looking takes longer than in a file
    options.set_memtable_whole_key_filtering(True)
    options.set_target_file_size_base(settings.target_file_size)
    options.set_max_background_jobs(settings.background_threads)
    options.set_max_open_files(settings.max_open_files)
    types = [_compression(name) for name in settings.compression]
    if len(types) == 1:
        options.set_compression_type(types[0])
    else:
        options.set_compression_per_level(types)
    if settings.compaction_style == "level":
        options.set_compaction_style(DBCompactionStyle.level())
    else:
        # Merges runs of like size, so that a small change is rewritten with other small ones and not with the whole
        # state: what an incremental checkpoint uploads stays near to what has changed.
        options.set_compaction_style(DBCompactionStyle.universal())
        universal = UniversalCompactOptions()
        universal.size_ratio = 10
        universal.min_merge_width = 4
        universal.max_size_amplification_percent = 100
        options.set_universal_compaction_options(universal)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(MB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_max_manifest_file_size(16 * MB)
    return options


def _compression(name: str) -> Any:
    from rocksdict import DBCompressionType

    return getattr(DBCompressionType, name)()
