"""Which tests run a line, from a recording, and which of them a mutant is tried with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

from bench.mutation.mutants import Mutant

__all__ = ["MOST_TESTS", "Killers", "Recorded", "TestMap", "chosen", "in_batches"]

MOST_TESTS = 60
_MOST_SECONDS = 60.0
_FIRST_FILES = 2
_PHASE = re.compile(r" \((setup|call|teardown)\)$")


@dataclass(frozen=True)
class Recorded:
    """One test as it was when it was recorded.

    Attributes:
        test: pytest's name of it.
        seconds: with coverage.
        processes: whether it started any.
    """

    test: str
    seconds: float
    processes: bool

    @property
    def function(self) -> str:
        """The test's name without its parameters."""
        return self.test.partition("[")[0]

    @property
    def file(self) -> str:
        """The test's file."""
        return self.test.partition("::")[0]


class Killers:
    """For each mutant the one test that noticed it at another revision.

    Args:
        killers: its name by module and mutant.
    """

    def __init__(self, killers: Mapping[tuple[str, Mutant], str]) -> None:
        self._killers = killers
        self.tests: dict[str, Recorded] = {}

    def choose(self, module: str, mutant: Mutant) -> list[Recorded]:
        """The test; nothing is known of how long it takes."""
        return [Recorded(self._killers[module, mutant], 0.0, processes=False)]


class TestMap:
    """What a recording says about which tests cover what.

    Args:
        folder: of the recording.
        tree: of the copy that was recorded.
    """

    __test__ = False

    def __init__(self, folder: Path, tree: Path) -> None:
        self._tree = tree
        self.tests: dict[str, Recorded] = {}
        self._by_file: dict[str, list[str]] = {}
        for outcomes in sorted(folder.glob("*.jsonl")):
            for line in outcomes.read_text().splitlines():
                outcome = json.loads(line)
                if outcome["passed"]:
                    test = Recorded(outcome["test"], outcome["seconds"], outcome["processes"])
                    self.tests[test.test] = test
                    self._by_file.setdefault(test.file, []).append(test.test)
        self._data = []
        for path in sorted(folder.glob("*.coverage")):
            data = CoverageData(str(path))
            data.read()
            self._data.append(data)
        self._lines: dict[str, dict[int, set[str]]] = {}

    def choose(self, module: str, mutant: Mutant) -> list[Recorded]:
        """Return the tests to try ``mutant`` with.

        A line that runs when its module is imported has no test of its own: any test that runs
        another line of the module may notice, and any in a file that imports the module.
        """
        lines = self._contexts(module)
        covering: set[str] = set()
        if mutant.at_import:
            covering = set().union(*lines.values(), self._importing(module))
        else:
            for line in range(mutant.first_line, mutant.last_line + 1):
                covering |= lines.get(line, set())
            covering = covering or lines.get(mutant.statement_line, set())
        return chosen(self.tests[test] for test in covering if test in self.tests)

    def _importing(self, module: str) -> list[str]:
        """The tests in files that import ``module``."""
        dotted = module.removeprefix("client/").removesuffix(".py").removesuffix("/__init__")
        package, _, name = dotted.replace("/", ".").rpartition(".")
        imported = re.compile(
            rf"^(from|import) {re.escape(package)}\.{name}\b"
            rf"|^from {re.escape(package)} import .*\b{name}\b",
            re.MULTILINE,
        )
        return [
            test
            for file, tests in self._by_file.items()
            if imported.search((self._tree / file).read_text())
            for test in tests
        ]

    def _contexts(self, module: str) -> dict[int, set[str]]:
        """For each line of ``module`` the tests that run it; "" for an import."""
        if module not in self._lines:
            lines: dict[int, set[str]] = {}
            for data in self._data:
                for line, contexts in data.contexts_by_lineno(str(self._tree / module)).items():
                    for context in contexts:
                        lines.setdefault(line, set()).update(self._tests_of(context))
            self._lines[module] = lines
        return self._lines[module]

    def _tests_of(self, context: str) -> Iterable[str]:
        """The tests that a context stands for.

        A process that a test's set-up started may serve the other tests of its file.
        """
        phase = _PHASE.search(context)
        if phase is None:
            return [context]
        test = context[: phase.start()]
        return self._by_file.get(test.partition("::")[0], []) if phase[1] == "setup" else [test]


def chosen(tests: Iterable[Recorded]) -> list[Recorded]:
    """At most `MOST_TESTS`, a test function's second variant only after all others' first one."""
    variants: dict[str, int] = {}
    ranked = []
    for test in sorted(tests, key=lambda test: (test.seconds, test.test)):
        variant = variants[test.function] = variants.get(test.function, -1) + 1
        ranked.append((variant, test.seconds, test))
    ranked.sort(key=lambda entry: entry[:2])
    taken: list[Recorded] = []
    for _, seconds, test in ranked[:MOST_TESTS]:
        if taken and sum(t.seconds for t in taken) + seconds > _MOST_SECONDS:
            continue
        taken.append(test)
    return taken


def in_batches(tests: Iterable[Recorded]) -> list[list[Recorded]]:
    """``tests`` in the order in which to run them: two files that have most of them, then the rest.

    Pytest imports all files before it runs the first test, and most mutants die early. A file's
    tests stay together, since their fixtures may share a daemon; quick files come first.
    """
    by_file: dict[str, list[Recorded]] = {}
    for test in sorted(tests, key=lambda test: (test.seconds, test.test)):
        by_file.setdefault(test.file, []).append(test)
    files = sorted(by_file, key=lambda file: (-len(by_file[file]), by_file[file][-1].seconds, file))
    parts = [files[:_FIRST_FILES], files[_FIRST_FILES:]]
    return [
        [
            test
            for file in sorted(part, key=lambda f: by_file[f][-1].seconds)
            for test in by_file[file]
        ]
        for part in parts
        if part
    ]
