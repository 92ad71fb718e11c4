"""Where a source starts and stops. All of it becomes plain offsets on the driver, when the job is submitted: a job that
restarts asks nobody again."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.connectors.kafka.admin import ClusterAdmin
from tidegate.connectors.kafka.settings import KafkaError

Place = tuple[str, int]
"""Topic and number of the partition."""


@dataclass(frozen=True)
class KafkaTopicPartition:
    topic: str
    partition: int

    def __post_init__(self) -> None:
        number = self.partition
        if not isinstance(self.topic, str) or not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ConfigurationError(
                f"KafkaTopicPartition: takes the name of a topic and the number of a partition, got {self.topic!r} and "
                f"{number!r}"
            )


class KafkaOffsetResetStrategy(enum.Enum):
    """What is done where no offset is known."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class KafkaOffsetsInitializer:
    """Made by the five static methods."""

    def __init__(
        self,
        kind: str,
        reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
        timestamp: int = -1,
        offsets: dict[Place, int] | None = None,
    ) -> None:
        self._kind = kind
        self._reset = reset
        self._timestamp = timestamp
        self._offsets = offsets or {}

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """Those of the consumer group; where it has none, the strategy says."""
        return KafkaOffsetsInitializer("committed", _strategy("committed_offsets", offset_reset_strategy))

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """The first record at or after this time (ms), the end where there is none."""
        if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
            raise ConfigurationError(f"KafkaOffsetsInitializer.timestamp: milliseconds since 1970, got {timestamp!r}")
        return KafkaOffsetsInitializer("timestamp", timestamp=timestamp)

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        return KafkaOffsetsInitializer("earliest")

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """The end as it is when the job is submitted; with `read_committed` in front of open transactions."""
        return KafkaOffsetsInitializer("latest")

    @staticmethod
    def offsets(
        offsets: dict[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """These; for partitions that are not named, the strategy says."""
        found: dict[Place, int] = {}
        for place, offset in offsets.items():
            if not isinstance(place, KafkaTopicPartition) or isinstance(offset, bool) or not isinstance(offset, int):
                raise ConfigurationError(
                    "KafkaOffsetsInitializer.offsets: takes a dict of KafkaTopicPartition to an offset, got "
                    f"{place!r}: {offset!r}"
                )
            found[place.topic, place.partition] = offset
        return KafkaOffsetsInitializer("offsets", _strategy("offsets", offset_reset_strategy), offsets=found)

    @property
    def needs_group(self) -> bool:
        return self._kind == "committed"

    def resolve(
        self, admin: ClusterAdmin, places: Iterable[Place], group: str | None, committed_only: bool
    ) -> dict[Place, int]:
        """The offset of each partition."""
        from confluent_kafka.admin import OffsetSpec

        wanted = list(places)
        match self._kind:
            case "earliest":
                return admin.offsets(dict.fromkeys(wanted, OffsetSpec.earliest()), committed_only)
            case "latest":
                return admin.offsets(dict.fromkeys(wanted, OffsetSpec.latest()), committed_only)
            case "timestamp":
                found = admin.offsets(dict.fromkeys(wanted, OffsetSpec.for_timestamp(self._timestamp)), committed_only)
                later = [place for place in wanted if found[place] < 0]
                return found | admin.offsets(dict.fromkeys(later, OffsetSpec.latest()), committed_only)
            case "committed":
                return self._or_reset(admin, wanted, admin.group_offsets(str(group), wanted), committed_only, group)
            case _:
                known = {place: offset for place, offset in self._offsets.items() if place in set(wanted)}
                return self._or_reset(admin, wanted, known, committed_only, group)

    def _or_reset(
        self, admin: ClusterAdmin, wanted: list[Place], known: dict[Place, int], committed_only: bool, group: str | None
    ) -> dict[Place, int]:
        from confluent_kafka.admin import OffsetSpec

        unknown = [place for place in wanted if place not in known]
        if unknown and self._reset is KafkaOffsetResetStrategy.NONE:
            whose = f"group '{group}' has committed none" if self._kind == "committed" else "none was given"
            raise KafkaError(
                f"KafkaSource: no offset to start from for partition {unknown[0][1]} of topic '{unknown[0][0]}': "
                f"{whose}. Give a KafkaOffsetResetStrategy: EARLIEST or LATEST"
            )
        spec: Any = OffsetSpec.earliest()
        if self._reset is KafkaOffsetResetStrategy.LATEST:
            spec = OffsetSpec.latest()
        return known | admin.offsets(dict.fromkeys(unknown, spec), committed_only)


def _strategy(where: str, strategy: object) -> KafkaOffsetResetStrategy:
    if not isinstance(strategy, KafkaOffsetResetStrategy):
        raise TypeError(f"KafkaOffsetsInitializer.{where}: takes a KafkaOffsetResetStrategy, got {strategy!r}")
    return strategy
