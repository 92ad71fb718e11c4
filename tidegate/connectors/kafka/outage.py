"""A broker that is away for a while: it is waited for, up to a limit, and the log says so once."""

from __future__ import annotations

import logging
import threading
import time

from tidegate.common.texts import bounded

OUTAGE = "tidegate.outage.timeout.ms"
OUTAGE_MS = 300_000
_log = logging.getLogger(__name__)


class BrokerWait:
    """One wait. `goes_on` after each question that was not answered; `over` after the one that was.

    Nothing is asked any more once `ended` is set: a worker that leaves does not stay behind for a broker."""

    def __init__(
        self, connector: str, servers: str, seconds: float, ended: threading.Event, setting: str = OUTAGE
    ) -> None:
        self._where = f"{connector}, bootstrap servers {servers}"
        self._seconds = seconds
        self._setting = setting
        self._ended = ended
        self._began = time.monotonic()
        self._said = False

    def goes_on(self, doing: str, error: object, pause: float = 0.5) -> bool:
        """False: no longer. Otherwise after a pause."""
        left = self._began + self._seconds - time.monotonic()
        if left <= 0 or self._ended.is_set():
            return False
        if not self._said:
            self._said = True
            _log.warning(
                "%s: no broker answers (%s: %s); it is waited for, for at most %.0f s (%s), and nothing is lost",
                self._where,
                doing,
                bounded(str(error), 300),
                self._seconds,
                self._setting,
            )
        return not self._ended.wait(min(pause, left))

    def over(self) -> None:
        if self._said:
            _log.warning("%s: the broker answers again, after %.0f s", self._where, time.monotonic() - self._began)

    @property
    def waited(self) -> str:
        """For the text of an error."""
        return f" It was waited for {self._seconds:.0f} s ({self._setting})." if self._said else ""
