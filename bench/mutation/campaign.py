"""Tries mutants one after the other and keeps what happened, one line of JSON for each."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.mutation.sample import Located
from bench.mutation.scratch import Scratch
from bench.mutation.test_map import Killers, Recorded, TestMap, in_batches

__all__ = ["Campaign"]

_HERE = Path(__file__).parent
_SLOW_S = 1.0
_PASSED = 0
_FAILED = (1, 2)
"""Pytest's exit statuses: a test failed; a test's file could not be imported."""


class Campaign:
    """Trials in a scratch copy.

    Args:
        scratch: the copy that was recorded.
        tests: which to try a mutant with: its recording's, or those that noticed it before.
        log: where what the tests print goes.
        slack_s: processor time that a trial may take beyond five times what was recorded.
    """

    def __init__(
        self, scratch: Scratch, tests: TestMap | Killers, log: Path, slack_s: float = 8
    ) -> None:
        self._slack_s = slack_s
        self._scratch = scratch
        self._tests = tests
        server = scratch.install("fork_server.py", (_HERE / "fork_server.py").read_text())
        scratch.compile()
        self._log = log.open("w")
        self._server = subprocess.Popen(
            [str(scratch.python), str(server)],
            cwd=scratch.folder,
            env={**scratch.environment, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def close(self) -> None:
        """End the fork server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
        self._log.close()

    def run(self, package: str, mutants: Iterable[Located], results: Path) -> None:
        """Try ``mutants`` and append what happened to ``results``, where not there already."""
        done = {key_of(row) for row in read_results(results)}
        for located in mutants:
            row = row_of(package, located)
            if key_of(row) not in done:
                row |= self.trial(located)
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")

    def trial(self, located: Located) -> dict[str, Any]:
        """Try one mutant: ``outcome``, ``killer``, ``reason``, ``tests``, ``seconds``."""
        begin = time.monotonic()
        tests = self._tests.choose(located.module, located.mutant)
        source = (self._scratch.folder / located.module).read_bytes()
        answer: dict[str, Any] = {"killer": None, "reason": "", "ran": 0}
        outcome = "uncovered"
        if tests:
            with self._scratch.mutated(located.module, located.mutant.applied(source)):
                for batch in in_batches(tests):
                    answer = self._ask(batch)
                    if answer["status"] != _PASSED:
                        break
                killer = self._tests.tests.get(answer["killer"] or "")
                if killer is not None and (killer.processes or killer.seconds > _SLOW_S):
                    again = self._ask([killer])
                    if again["status"] == _PASSED:  # a busy machine failed it, not the mutant
                        rest = [test for test in tests if test != killer]
                        answer = self._ask(rest) if rest else again
            outcome = _outcome(answer["status"])
        return {
            "outcome": outcome,
            "killer": answer["killer"],
            "reason": answer["reason"],
            "chosen": len(tests),
            "ran": answer["ran"],
            "seconds": round(time.monotonic() - begin, 2),
        }

    def _ask(self, tests: list[Recorded]) -> dict[str, Any]:
        expected_s = sum(test.seconds for test in tests)
        request = {
            "tests": [test.test for test in tests],
            # An endless trial ends by the processor time that it takes, unless it only waits:
            # other programs on the machine may make any trial long.
            "wall_s": 10 * (self._slack_s + expected_s),
            "cpu_s": self._slack_s + 5 * expected_s,
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server ended; it said: {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _outcome(status: int | str) -> str:
    if status == _PASSED:
        return "survived"
    if status == "timed out":
        return "timed out"
    return "killed" if status in _FAILED else "error"


def row_of(package: str, located: Located) -> dict[str, Any]:
    """What a line of the results says about the mutant itself."""
    mutant = located.mutant
    origin = {} if located.origin is None else {"origin": located.origin}
    return {
        **origin,
        "package": package,
        "module": located.module,
        "line": mutant.first_line,
        "function": mutant.function,
        "kind": mutant.kind,
        "node": mutant.node,
        "replacement": mutant.replacement,
        "occurrence": mutant.occurrence,
    }


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What names the mutant of a line of the results."""
    names = ("module", "function", "kind", "node", "replacement", "occurrence")
    return tuple(row[name] for name in names)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results; none if it is not there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
