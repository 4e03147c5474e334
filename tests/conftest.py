"""Tiers of tests, a time limit for fixtures, settings of Hypothesis for all tests, and Ctrl-C.

Tests that take long for what they add to the rest are marked ``ci``: `make test` leaves them to
continuous integration. ``slow`` tests are for `make stress`, ``gpu`` tests for `make gpu-test`.

The same examples each time and no limits of time: a test fails because of what it tests, not
because other programs had the cores. ``make stress`` takes the profile ``search``, which looks for
new ones.

The time limit of a test ends with its first failure. What it leaves, such as a lane with a launch
that nobody lets go, could then hang its fixtures: they have a limit of their own.

A shell ignores SIGINT in what it runs in the background, and every child inherits that: tests that
send it would wait for ever.
"""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Generator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

_TEARDOWN_S = 120


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """End the process with its tracebacks if fixtures of a test do not end."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]  # the one that is not captured
    faulthandler.dump_traceback_later(_TEARDOWN_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


_SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=_SLOWNESS, print_blob=True
)
settings.register_profile("search", deadline=None, suppress_health_check=_SLOWNESS, print_blob=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
