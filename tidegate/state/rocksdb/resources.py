"""What the databases of one slot share: the memory, bounded as a whole, and the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.state.rocksdb.folders import SlotFolder
from tidegate.state.rocksdb.settings import RocksDBSettings

MIN_TABLE_BYTES = 64 * 1024


class SlotResources:
    """Costs nothing until the first database is opened."""

    def __init__(self, settings: RocksDBSettings | None = None) -> None:
        self.settings = settings or RocksDBSettings()
        self.folder = SlotFolder(self.settings.local_directories)
        self.table_bytes = self.settings.object_cache_bytes  # how much one table may keep as Python objects
        self._tables = 0
        self._native: tuple[Any, Any] | None = None  # (block cache, write buffer manager)

    def native(self) -> tuple[Any, Any]:
        """The block cache and the write buffer manager; write buffers are charged to the cache, so it bounds both."""
        if self._native is None:
            from rocksdict import WriteBufferManager

            cache = new_cache(self.settings.native_bytes, self.settings.block_size)
            manager = WriteBufferManager.new_write_buffer_manager_with_cache(
                self.settings.write_buffer_bytes, False, cache
            )
            self._native = cache, manager
        return self._native

    def new_folder(self, purpose: str) -> Path:
        return self.folder.new_folder(purpose)

    def tables_changed(self, by: int) -> None:
        """The tables of the slot's operators have equal shares, once they hold more than a few entries."""
        self._tables += by
        self.table_bytes = max(MIN_TABLE_BYTES, self.settings.object_cache_bytes // max(1, self._tables))


def new_cache(size: int, block_size: int) -> Any:
    """Not RocksDB's LRU cache: that is cut into up to 64 pieces, and a file's filter that is larger than a piece (from
    about two million keys on) would be read from disk again at every access."""
    from rocksdict import Cache

    return Cache.new_hyper_clock_cache(size, block_size)
