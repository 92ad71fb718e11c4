"""Whether a gang comes up in time and stays alive; and when to send it heartbeats."""

from __future__ import annotations

from tidegate.jobmanager.gang import Gang, GangPhase
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.protocol.messages import FailureInfo


class GangMonitor:
    """Watches one gang from its submission until it is told to leave."""

    def __init__(self, gang: Gang, settings: JobSettings) -> None:
        self._gang = gang
        self._settings = settings
        self._next_heartbeat = gang.submitted_ms + settings.heartbeat_interval_ms
        self._last_seen_ms = gang.submitted_ms

    def see_time(self, now_ms: float) -> None:
        """To be called at every event. A JobManager that was stopped for a while (suspended, swapped out) must not
        blame the workers: but for that it would have been here to send its own heartbeats."""
        gap = now_ms - self._last_seen_ms
        self._last_seen_ms = now_ms
        if gap > 2 * self._settings.heartbeat_interval_ms:
            self._gang.excuse_silence(gap)

    def deadline(self) -> float | None:
        due: list[float] = []
        if self._gang.phase is GangPhase.REGISTERING:
            due.append(self._gang.submitted_ms + self._settings.start_timeout_ms)
        silent = self._gang.longest_silent()
        if silent is not None:
            due += [self._next_heartbeat, silent.last_heard_ms + self._settings.heartbeat_timeout_ms]
        return min(due, default=None)

    def failure(self, now_ms: float) -> FailureInfo | None:
        """What is wrong with the gang, None when all is well."""
        return self._start_failure(now_ms) or self._silence(now_ms)

    def heartbeat_due(self, now_ms: float) -> bool:
        """True once per interval: every member is then sent a heartbeat."""
        if now_ms < self._next_heartbeat:
            return False
        self._next_heartbeat = now_ms + self._settings.heartbeat_interval_ms
        return True

    def _start_failure(self, now_ms: float) -> FailureInfo | None:
        gang = self._gang
        waited = now_ms - gang.submitted_ms
        if gang.phase is not GangPhase.REGISTERING or waited < self._settings.start_timeout_ms:
            return None
        missing = ", ".join(str(slot) for slot in gang.missing[:10])
        return FailureInfo(
            summary=f"only {len(gang.members)} of {gang.num_slots} workers came up within {waited / 1000:g} s "
            f"(missing: slot {missing}); Spark may have no free cores: check its page, or set "
            "tidegate.slot.start-timeout higher"
        )

    def _silence(self, now_ms: float) -> FailureInfo | None:
        silent = self._gang.longest_silent()
        silence = 0.0 if silent is None else now_ms - silent.last_heard_ms
        if silent is None or silence < self._settings.heartbeat_timeout_ms:
            return None
        return FailureInfo(summary=f"{silent.describe()} has not answered for {silence / 1000:.3g} s")
