"""How the finished files of a file sink are called."""

from __future__ import annotations

from tidegate.common.errors import ConfigurationError


class OutputFileConfig:
    """Files are called `<prefix>-<subtask>-<writer>-<counter><suffix>`; the writer's part is new at every start, so no
    run ever meets the name of another one."""

    def __init__(self, part_prefix: str = "part", part_suffix: str = "") -> None:
        for name, value in (("part_prefix", part_prefix), ("part_suffix", part_suffix)):
            if not isinstance(value, str) or "/" in value or "\0" in value:
                raise ConfigurationError(f"OutputFileConfig({name}): has to be a piece of a file name, got {value!r}")
        if not part_prefix or part_prefix[0] in "._":
            raise ConfigurationError(
                f"OutputFileConfig(part_prefix): {part_prefix!r} is empty or begins with '.' or '_', which readers "
                "leave out"
            )
        self.part_prefix = part_prefix
        self.part_suffix = part_suffix

    def get_part_prefix(self) -> str:
        return self.part_prefix

    def get_part_suffix(self) -> str:
        return self.part_suffix

    @staticmethod
    def builder() -> OutputFileConfigBuilder:
        return OutputFileConfigBuilder()


class OutputFileConfigBuilder:
    def __init__(self) -> None:
        self._prefix = "part"
        self._suffix = ""

    def with_part_prefix(self, prefix: str) -> OutputFileConfigBuilder:
        self._prefix = prefix
        return self

    def with_part_suffix(self, suffix: str) -> OutputFileConfigBuilder:
        self._suffix = suffix
        return self

    def build(self) -> OutputFileConfig:
        return OutputFileConfig(self._prefix, self._suffix)
