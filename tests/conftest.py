"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is: it never fails a test.
settings.register_profile("at any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any load")
