"""How many files and connections this process may have open."""

from __future__ import annotations

import contextlib
import resource

_ENOUGH = 65_536  # some tables of the operating system and of libraries grow with the limit


def raise_file_limit() -> int:
    """Raise the limit on open files as far as the operating system allows without asking anybody, up to what is ever
    needed. Returns the limit that holds then. May be called again, and never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return soft
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
