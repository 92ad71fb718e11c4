"""Who may do what at a port: two tokens, and sessions of browsers.

The full token allows everything, the other one only to look. A browser hands a token over once and gets a session in a
cookie that scripts cannot read. Browsers send cookies along with requests that other sites make them send (`SameSite`
keeps most of these back) and to all ports of a host: so a session is worth nothing to change a job without a header
that only a script of the same origin can set, and the cookie's name tells the port.
"""

from __future__ import annotations

import enum
import hmac
import secrets
import threading
from collections.abc import Mapping

CSRF_HEADER = "X-Tidegate-Request"
_MAX_SESSIONS = 64


class Access(enum.IntEnum):
    NONE = 0
    READ = 1
    FULL = 2


class Gate:
    """Thread-safe."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.read_token = secrets.token_urlsafe(32)
        self.cookie = "tidegate"
        self.attributes = "HttpOnly; SameSite=Strict; Path=/"  # of the cookie
        self._sessions: dict[str, Access] = {}  # oldest first, at most _MAX_SESSIONS
        self._lock = threading.Lock()

    def access(self, headers: Mapping[str, str], changes: bool) -> Access:
        """What a request is allowed. `changes`: it is one that changes something."""
        authorization = headers.get("Authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            return self.of_token(token.strip()) if scheme.lower() == "bearer" else Access.NONE
        found = self._session(headers.get("Cookie", ""))
        if changes and headers.get(CSRF_HEADER) is None:
            return min(found, Access.READ)
        return found

    def of_token(self, token: str) -> Access:
        given = token.encode("utf-8", "surrogateescape")
        full = hmac.compare_digest(given, self.token.encode())
        read = hmac.compare_digest(given, self.read_token.encode())
        return Access.FULL if full else Access.READ if read else Access.NONE

    def login(self, token: str) -> tuple[Access, str]:
        """The access, and the header that sets the cookie ("" without access)."""
        access = self.of_token(token)
        if access is Access.NONE:
            return access, ""
        session = secrets.token_urlsafe(32)
        with self._lock:
            while len(self._sessions) >= _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[session] = access
        return access, f"{self.cookie}={session}; {self.attributes}"

    def logout(self, headers: Mapping[str, str]) -> str:
        """The header that removes the cookie."""
        with self._lock:
            self._sessions.pop(self._cookie_of(headers.get("Cookie", "")), None)
        return f"{self.cookie}=; {self.attributes}; Max-Age=0"

    def _session(self, cookies: str) -> Access:
        with self._lock:
            return self._sessions.get(self._cookie_of(cookies), Access.NONE)

    def _cookie_of(self, cookies: str) -> str:
        for part in cookies.split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie:
                return value
        return ""
