"""Whether the workers of a gang are alive; and when to send them heartbeats."""

from __future__ import annotations

from tidegate.jobmanager.gang import Gang, Member
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
        """None as long as nobody has registered."""
        silent = self._gang.longest_silent()
        if silent is None:
            return None
        return min(self._next_heartbeat, self._silent_at(silent))

    def _silent_at(self, member: Member) -> float:
        """When it has not been heard of for too long. Worked out in one way only: what is due at a deadline has to be
        due when that is reached, whatever the rounding."""
        return member.last_heard_ms + self._settings.heartbeat_timeout_ms

    def heartbeat_due(self, now_ms: float) -> bool:
        """True once per interval: every member is then sent a heartbeat."""
        if now_ms < self._next_heartbeat:
            return False
        self._next_heartbeat = now_ms + self._settings.heartbeat_interval_ms
        return True

    def silence(self, now_ms: float) -> FailureInfo | None:
        """A worker that has not been heard of for too long, if there is one."""
        silent = self._gang.longest_silent()
        if silent is None or now_ms < self._silent_at(silent):
            return None
        silence = now_ms - silent.last_heard_ms
        return FailureInfo(summary=f"{silent.describe()} has not answered for {silence / 1000:.3g} s")
