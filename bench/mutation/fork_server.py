"""Runs chosen tests in forked processes, with the heavy imports done once.

    python fork_server.py     (in the folder of the tree that is tested)

Reads one request a line, ``{"tests": [...], "wall_s": ..., "cpu_s": ...}``, and answers each with
one line: what `TrialPlugin` noted, the exit status and the time. No module of the product is
imported before the fork, so each trial imports them as the files are then. When a trial ends, all
processes that it left are killed: this process adopts them (``PR_SET_CHILD_SUBREAPER``).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_PRELOADED = ("asyncio", "llvmlite.binding", "msgpack", "numpy", "hypothesis.stateful")
_PR_SET_CHILD_SUBREAPER = 36
_DATA_BYTES = 6 << 30  # a mutant that allocates without end takes no more from the machine


def main() -> int:
    """Answer requests until the input ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print must not look like an answer
    for line in sys.stdin:
        answers.write(json.dumps(_trial(json.loads(line))) + "\n")
        answers.flush()
    return 0


def _trial(request: dict[str, Any]) -> dict[str, Any]:
    """Run one request in a child; a trial past its limit answers with status "timed out"."""
    begin = time.monotonic()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _run_child(request, write_end)
    os.close(write_end)
    data = b""
    try:
        while (left_s := begin + request["wall_s"] - time.monotonic()) > 0:
            if not select.select([read_end], [], [], left_s)[0]:
                break
            if not (part := os.read(read_end, 1 << 16)):
                break
            data += part
            if data.endswith(b"\n"):
                break
        late = time.monotonic() - begin >= request["wall_s"]
    finally:
        os.close(read_end)
        cpu_out = _end(child)
    answer: dict[str, Any] = {"status": None, "killer": None, "reason": "", "ran": None}
    if data.endswith(b"\n"):
        answer = json.loads(data)
    elif late or cpu_out:
        answer["status"] = "timed out"
    else:
        answer |= {"status": int(pytest.ExitCode.TESTS_FAILED), "reason": "the process ended"}
    return {**answer, "seconds": round(time.monotonic() - begin, 2)}


def _run_child(request: dict[str, Any], write_end: int) -> None:
    """Run pytest and write what happened to ``write_end``; does not return."""
    plugin = TrialPlugin(request["tests"])
    status = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        limit = int(request["cpu_s"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
        files = list(dict.fromkeys(test.partition("::")[0] for test in request["tests"]))
        options = ["-x", "-q", "--timeout=0", "--no-header", "--no-summary"]
        options += ["-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is preloaded
        status = int(pytest.main([*options, *files], plugins=[plugin]))
    except BaseException:  # noqa: BLE001 - whatever it was, the server must hear of it
        traceback.print_exc()
        # What a failed test left open can make pytest itself fail at its end.
        if plugin.killer is not None:
            status = int(pytest.ExitCode.TESTS_FAILED)
    finally:
        answer = {
            "status": status,
            "killer": plugin.killer,
            "reason": plugin.reason,
            "ran": plugin.ran,
        }
        os.write(write_end, json.dumps(answer).encode() + b"\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _end(child: int) -> bool:
    """End the child and all that it started; whether its processor time was used up."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while descendants := _children():
        for process in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU


def _children() -> list[int]:
    tasks = Path(f"/proc/{os.getpid()}/task")
    return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


class TrialPlugin:
    """Keeps the chosen tests of those collected, and notes the first failure.

    Attributes:
        ran: how many tests began.
        killer: the test or module that failed first.
        reason: the last line of what it said.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        self.ran = 0
        self.killer: str | None = None
        self.reason = ""
        self._rank = {test: rank for rank, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._rank),
            key=lambda item: self._rank[item.nodeid],
        )

    def pytest_runtest_logstart(self) -> None:
        self.ran += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and self.killer is None:
            self.killer = report.nodeid
            lines = [line for line in report.longreprtext.splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("E  ")]
            self.reason = (errors or lines or [""])[0][:200]


if __name__ == "__main__":
    sys.exit(main())
