"""What pytest runs with while tests are recorded: a coverage context for each test.

The process was started by coverage itself (``COVERAGE_PROCESS_START``), as are the processes that
tests start; those take their context from ``PYTEST_CURRENT_TEST``. Each test's outcome and time go
to a file of JSON lines, named by ``MUTATION_OUTCOMES``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

_failed: set[str] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    coverage = Coverage.current()
    assert coverage is not None
    coverage.switch_context(item.nodeid)
    begin = time.monotonic()
    children = os.times().children_user
    try:
        return (yield)
    finally:
        coverage.switch_context("")
        outcome = {
            "test": item.nodeid,
            "seconds": round(time.monotonic() - begin, 4),
            "passed": item.nodeid not in _failed,
            "processes": os.times().children_user > children,
        }
        with Path(os.environ["MUTATION_OUTCOMES"]).open("a") as file:
            file.write(json.dumps(outcome) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _failed.add(report.nodeid)
