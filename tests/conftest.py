"""Settings of Hypothesis for all tests.

The same examples each time and no limits of time: a test fails because of what it tests, not
because other programs had the cores. ``make stress`` takes the profile ``search``, which looks for
new ones.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=_SLOWNESS, print_blob=True
)
settings.register_profile("search", deadline=None, suppress_health_check=_SLOWNESS, print_blob=True)
settings.load_profile("same")
