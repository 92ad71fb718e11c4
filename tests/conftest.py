"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is: it never fails a test.
settings.register_profile("at any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any load")

# A shell that runs the tests in the background has SIGINT ignored, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
