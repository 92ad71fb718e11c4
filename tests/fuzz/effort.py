"""How hard is tried: a little with the other tests, a lot with `make fuzz`, which sets TIDEGATE_FUZZ to a number."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("TIDEGATE_FUZZ", "0"))

fuzzed = settings(
    max_examples=EXAMPLES or 60,
    deadline=None,
    derandomize=not EXAMPLES,  # with the other tests always the same ones: what they find is not somebody else's change
    suppress_health_check=list(HealthCheck),
)
