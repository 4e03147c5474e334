"""Settings of Hypothesis for all tests, and Ctrl-C.

The same examples each time and no limits of time: a test fails because of what it tests, not
because other programs had the cores. ``make stress`` takes the profile ``search``, which looks for
new ones.

A shell ignores SIGINT in what it runs in the background, and every child inherits that: tests that
send it would wait for ever.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

_SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=_SLOWNESS, print_blob=True
)
settings.register_profile("search", deadline=None, suppress_health_check=_SLOWNESS, print_blob=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
