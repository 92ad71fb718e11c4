"""What can be set for the RocksDB backend: plain data, resolved on the driver and pickled into the job's plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError

MB = 1 << 20
COMPRESSIONS = ("none", "snappy", "lz4", "lz4hc", "zlib", "bz2", "zstd")


@dataclass(frozen=True)
class RocksDBSettings:
    local_directories: tuple[str, ...] = ()  # one is taken per slot; (): below the system's folder for temporary files
    memory_per_slot: int = 256 * MB  # half for Python objects (the write-back cache), half for RocksDB itself
    write_buffer_ratio: float = 0.5  # share of RocksDB's half that write buffers may take
    block_cache_size: int | None = None  # of the slot, instead of RocksDB's half of the memory
    write_buffer_size: int | None = None  # of one operator, instead of a quarter of the slot's write buffers
    block_size: int = 4096
    compression: tuple[str, ...] = ("snappy",)  # one for all levels, or one per level
    compaction_style: str = "universal"
    background_threads: int = 2
    max_open_files: int = -1
    target_file_size: int = 64 * MB

    @property
    def object_cache_bytes(self) -> int:
        return self.memory_per_slot // 2

    @property
    def native_bytes(self) -> int:
        """The size of the block cache, write buffers included."""
        return self.block_cache_size or self.memory_per_slot - self.object_cache_bytes

    @property
    def write_buffer_bytes(self) -> int:
        return max(MB, int(self.native_bytes * self.write_buffer_ratio))

    @staticmethod
    def from_configuration(configuration: Configuration) -> RocksDBSettings:
        settings = _predefined(options.read(configuration, options.ROCKSDB_PREDEFINED_OPTIONS))
        given = {
            "local_directories": tuple(options.read(configuration, options.ROCKSDB_LOCAL_DIRECTORIES) or ()),
            "memory_per_slot": options.read(configuration, options.ROCKSDB_MEMORY_PER_SLOT),
            "write_buffer_ratio": options.read(configuration, options.ROCKSDB_WRITE_BUFFER_RATIO),
            "block_cache_size": options.read(configuration, options.ROCKSDB_BLOCK_CACHE_SIZE),
            "write_buffer_size": options.read(configuration, options.ROCKSDB_WRITE_BUFFER_SIZE),
            "block_size": options.read(configuration, options.ROCKSDB_BLOCK_SIZE),
            "compression": tuple(map(_compression, options.read(configuration, options.ROCKSDB_COMPRESSION) or ())),
            "compaction_style": options.read(configuration, options.ROCKSDB_COMPACTION_STYLE),
            "background_threads": options.read(configuration, options.ROCKSDB_THREADS),
        }
        return replace(settings, **{name: value for name, value in given.items() if value not in (None, ())})


def _compression(name: str) -> str:
    """Our name for a compression, given ours or Flink's (LZ4_COMPRESSION, NO_COMPRESSION, BZLIB2_COMPRESSION)."""
    plain = name.strip().lower().removesuffix("_compression")
    plain = {"no": "none", "bzlib2": "bz2"}.get(plain, plain)
    if plain not in COMPRESSIONS:
        raise ConfigurationError(
            f"{options.ROCKSDB_COMPRESSION.key}: there is no compression '{name}'; use one of {', '.join(COMPRESSIONS)}"
        )
    return plain


def _predefined(name: str) -> RocksDBSettings:
    """The sets by the disk that they suit; what is configured beside them wins."""
    if name == "SPINNING_DISK_OPTIMIZED":
        return RocksDBSettings(background_threads=4, block_size=32 * 1024)
    if name == "SPINNING_DISK_OPTIMIZED_HIGH_MEM":
        return RocksDBSettings(
            background_threads=4, block_size=128 * 1024, memory_per_slot=1024 * MB, target_file_size=256 * MB
        )
    if name == "FLASH_SSD_OPTIMIZED":
        return RocksDBSettings(background_threads=4)
    return RocksDBSettings()
