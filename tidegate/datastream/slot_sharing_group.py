"""Slot sharing groups: which operators may run in the same slot, and the resources that a group asks for."""

from __future__ import annotations

from typing import Any

from tidegate.common.config_options import parse_memory
from tidegate.common.errors import ConfigurationError


class MemorySize:
    """A number of bytes: `MemorySize(1024)`, `MemorySize.of_mebi_bytes(4)` or `MemorySize.parse("4 mb")`."""

    __slots__ = ("_bytes",)

    def __init__(self, bytes_size: int) -> None:
        if isinstance(bytes_size, bool) or not isinstance(bytes_size, int):
            raise TypeError(f"MemorySize(bytes_size): expected an int, got {type(bytes_size).__name__}")
        if bytes_size < 0:
            raise ConfigurationError(f"MemorySize(bytes_size): a size is not negative, got {bytes_size}")
        self._bytes = bytes_size

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        return MemorySize(mebi_bytes << 20)

    @staticmethod
    def parse(text: str) -> MemorySize:
        try:
            return MemorySize(parse_memory(text))
        except (ValueError, TypeError):
            raise ConfigurationError(
                f"memory size {text!r} cannot be read; write for example '512 mb' or '4gb'"
            ) from None

    def get_bytes(self) -> int:
        return self._bytes

    def get_kibi_bytes(self) -> int:
        return self._bytes >> 10

    def get_mebi_bytes(self) -> int:
        return self._bytes >> 20

    def get_gibi_bytes(self) -> int:
        return self._bytes >> 30

    def get_tebi_bytes(self) -> int:
        return self._bytes >> 40

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemorySize) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __lt__(self, other: MemorySize) -> bool:
        return self._bytes < other._bytes

    def __le__(self, other: MemorySize) -> bool:
        return self._bytes <= other._bytes

    def __repr__(self) -> str:
        return f"{self._bytes} bytes"


class SlotSharingGroup:
    """A named group. Resources are recorded as information for the user: Spark decides what an executor gets."""

    def __init__(
        self,
        name: str,
        cpu_cores: float | None = None,
        task_heap_memory: MemorySize | None = None,
        task_off_heap_memory: MemorySize | None = None,
        managed_memory: MemorySize | None = None,
        external_resources: dict[str, float] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"slot sharing group: the name has to be a string, got {type(name).__name__}")
        if not name:
            raise ConfigurationError("slot sharing group: the name is empty")
        self._name = name
        self._cpu_cores = cpu_cores
        self._task_heap_memory = task_heap_memory
        self._task_off_heap_memory = task_off_heap_memory
        self._managed_memory = managed_memory
        self._external_resources = dict(external_resources or {})

    @staticmethod
    def builder(name: str) -> SlotSharingGroup.Builder:
        return SlotSharingGroup.Builder(name)

    def get_name(self) -> str:
        return self._name

    def get_cpu_cores(self) -> float | None:
        return self._cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        return self._task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        return self._task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        return self._managed_memory

    def get_external_resources(self) -> dict[str, float]:
        return dict(self._external_resources)

    def _identity(self) -> tuple[Any, ...]:
        return (
            self._name,
            self._cpu_cores,
            self._task_heap_memory,
            self._task_off_heap_memory,
            self._managed_memory,
            tuple(sorted(self._external_resources.items())),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlotSharingGroup) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"SlotSharingGroup({self._name!r})"

    class Builder:
        """Each setter returns the builder itself."""

        def __init__(self, name: str) -> None:
            self._name = name
            self._cpu_cores: float | None = None
            self._heap: MemorySize | None = None
            self._off_heap: MemorySize | None = None
            self._managed: MemorySize | None = None
            self._external: dict[str, float] = {}

        def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroup.Builder:
            if cpu_cores <= 0:
                raise ConfigurationError(f"slot sharing group '{self._name}': cpu cores must be > 0, got {cpu_cores}")
            self._cpu_cores = float(cpu_cores)
            return self

        def set_task_heap_memory(self, task_heap_memory: MemorySize | str) -> SlotSharingGroup.Builder:
            self._heap = _memory(task_heap_memory)
            return self

        def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            self._heap = MemorySize.of_mebi_bytes(task_heap_memory_mb)
            return self

        def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize | str) -> SlotSharingGroup.Builder:
            self._off_heap = _memory(task_off_heap_memory)
            return self

        def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            self._off_heap = MemorySize.of_mebi_bytes(task_off_heap_memory_mb)
            return self

        def set_managed_memory(self, managed_memory: MemorySize | str) -> SlotSharingGroup.Builder:
            self._managed = _memory(managed_memory)
            return self

        def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroup.Builder:
            self._managed = MemorySize.of_mebi_bytes(managed_memory_mb)
            return self

        def set_external_resource(self, name: str, value: float) -> SlotSharingGroup.Builder:
            if value <= 0:
                raise ConfigurationError(
                    f"slot sharing group '{self._name}': the external resource '{name}' must be > 0, got {value}"
                )
            self._external[name] = value
            return self

        def build(self) -> SlotSharingGroup:
            """As in Flink: a group asks for nothing, or at least for cpu cores and heap memory, neither of them 0."""
            where = f"slot sharing group '{self._name}'"
            asked = (self._cpu_cores, self._heap, self._off_heap, self._managed)
            if any(part is not None for part in asked) or self._external:
                if self._cpu_cores is None or self._heap is None:
                    missing = "cpu cores have" if self._cpu_cores is None else "the task heap memory has"
                    raise ConfigurationError(
                        f"{where}: {missing} to be set; a group that asks for resources has to ask for cpu cores and "
                        "task heap memory"
                    )
                if self._heap.get_bytes() == 0:
                    raise ConfigurationError(f"{where}: the task heap memory has to be > 0")
            return SlotSharingGroup(
                self._name, self._cpu_cores, self._heap, self._off_heap, self._managed, self._external
            )


def _memory(value: MemorySize | str) -> MemorySize:
    return MemorySize.parse(value) if isinstance(value, str) else value
