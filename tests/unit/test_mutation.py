"""Planted faults: the runner kills what a test notices, and reports what none does."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from bench.mutation.campaign import Campaign, key_of, read_results
from bench.mutation.matching import Matcher
from bench.mutation.mutants import Mutant, mutants_of
from bench.mutation.recording import record
from bench.mutation.sample import Located, located_of, package_of, sample
from bench.mutation.scratch import Scratch
from bench.mutation.table import by_package, compared, survivors
from bench.mutation.test_map import MOST_TESTS, Killers, Recorded, TestMap, chosen, in_batches

pytestmark = pytest.mark.ci

MODULE = '''\
"""A ledger."""
def room(capacity, taken):
    if taken > capacity:
        raise ValueError(f"{taken} of {capacity}")
    return capacity - taken
def first(items):
    index = 0
    while index < len(items):
        if items[index]:
            return index
        index += 1
    return None
def unused(a):
    return a + 1
MOST = 64
'''
TESTS = """\
import subprocess, sys
from gpud.core.ledger import first, room
def test_room():
    assert room(3, 1) == 2
def test_first():
    assert first([0, 0, 5]) == 2
def test_nothing_else():
    first([7])
def test_most():
    from gpud.core import ledger
    assert ledger.MOST == 64
def test_process():
    code = "from gpud.core.ledger import room; print(room(9, 9))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\\n"
"""
PROJECT = """\
[tool.pytest.ini_options]
pythonpath = ["."]
addopts = ["--import-mode=importlib", "--strict-markers"]
filterwarnings = ["error"]
markers = ["gpu: a", "slow: b"]
asyncio_default_fixture_loop_scope = "function"
"""


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("a < b", "comparison", ["(a <= b)"]),
        ("a < b == c", "comparison", ["(a <= b == c)", "(a < b != c)"]),
        ("a is b", "comparison", ["(a is not b)"]),
        ("if a:\n    b", "condition", ["if (not a):\n    b"]),
        ("if not a:\n    b", "condition", []),
        ("if not a:\n    b", "negation", ["if (a):\n    b"]),
        ("a and b or c", "connective", ["((a and b) and c)", "(a or b) or c"]),
        ("a + 1", "arithmetic", ["(a - 1)"]),
        ("a += 1", "arithmetic", ["a -= 1"]),
        ("a + 'text'", "arithmetic", []),
        ("a = 'key'", "constant", ["a = ('XXkey')"]),
        ("a = 'a message'", "constant", []),
        ("a = True", "constant", ["a = (False)"]),
        ("a = 7", "constant", ["a = (8)"]),
        ("def f():\n    return a", "return", ["def f():\n    return None"]),
        ("def f():\n    return None", "return", []),
        ("a.b(c)", "deletion", ["pass"]),
        ("a.b = c", "deletion", ["pass"]),
        ("raise E(1)", "deletion", ["pass"]),
        ("raise E(1)", "constant", []),
        ("f(a, b, *c)", "argument swap", ["(f(b, a, *c))"]),
        ("f(a, a)", "argument swap", []),
        ("min(a, b)", "function", ["(max(a, b))"]),
        ("log.info('word')", "deletion", []),
        ("a: Literal['b'] = 1", "constant", ["a: Literal['b'] = (2)"]),
        ("assert a == 1", "comparison", []),
        ("@d(1)\ndef f():\n    pass", "constant", []),
        ("__all__ = ['f']", "constant", []),
    ],
)
def test_changes(source: str, kind: str, expected: list[str]) -> None:
    changed = [
        m.applied(source.encode()).decode() for m in mutants_of(source.encode()) if m.kind == kind
    ]
    assert changed == expected


def test_mutants_have_distinct_identities_and_know_when_they_run() -> None:
    source = b"A = 1\nclass C:\n    b = 2\n    def f(self, c=3):\n        return 4, 4, lambda: 5\n"
    mutants = [m for m in mutants_of(source) if m.kind == "constant"]
    assert [(m.function, m.node, m.occurrence, m.at_import) for m in mutants] == [
        ("", "1", 0, True), ("C", "2", 0, True), ("C.f", "3", 0, True),
        ("C.f", "4", 0, False), ("C.f", "4", 1, False), ("C.f", "5", 0, False),
    ]  # fmt: skip
    assert len({m.identity for m in mutants}) == len(mutants)


def test_names_outside_ascii_do_not_move_a_mutant() -> None:
    (mutant,) = mutants_of("x = f('µ µ') and 1".encode())[-1:]
    assert mutant.applied("x = f('µ µ') and 1".encode()).decode() == "x = f('µ µ') and (2)"


def tree_with(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "client").mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scratch, list[dict[str, Any]]]:
    """A scratch copy of `MODULE` and `TESTS`, and what a campaign says about its mutants."""
    folder = tmp_path_factory.mktemp("mutation")
    repository = tree_with(
        folder / "repository",
        {
            "pyproject.toml": PROJECT,
            "gpud/core/ledger.py": MODULE,
            "tests/test_ledger.py": TESTS,
            "client/empty.py": "",
            "bench/empty.py": "",
        },
    )
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    site_packages = Path(sysconfig.get_path("purelib"))
    scratch = Scratch(repository, "HEAD", folder / "tree", site_packages)
    (scratch.folder / "gpud/core/ledger.py").write_text("left by a run that was killed")
    scratch = Scratch(repository, "HEAD", folder / "tree", site_packages)
    record(scratch, folder / "recording", "tests", ["tests"])
    tests = TestMap(folder / "recording", scratch.folder)
    campaign = Campaign(scratch, tests, folder / "log", slack_s=3)
    results = folder / "results.jsonl"
    mutants = mutants_of(MODULE.encode())
    # A limit of time long enough for a busy machine makes one endless trial enough.
    endless = [m for m in mutants if m.node == "index += 1" and m.kind == "deletion"]
    quick = [m for m in mutants if m.function != "first"]
    for part in (quick, [*quick, *endless]):  # the second goes on where the first stopped
        campaign.run("core", [Located("gpud/core/ledger.py", m) for m in part], results)
    campaign.close()
    assert (scratch.folder / "gpud/core/ledger.py").read_text() == MODULE
    rows = read_results(results)
    assert len(rows) == len(quick) + len(endless)
    return scratch, rows


@pytest.fixture
def rows(tried: tuple[Scratch, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [dict(row) for row in tried[1]]


def test_what_was_noticed_is_tried_with_the_test_that_noticed_it(
    tried: tuple[Scratch, list[dict[str, Any]]], tmp_path: Path
) -> None:
    scratch, rows = tried
    row = next(row for row in rows if row["killer"] is not None)
    located = located_of(scratch.folder, row)
    killers = Killers({(located.module, located.mutant): row["killer"]})
    campaign = Campaign(scratch, killers, tmp_path / "log")
    found = campaign.trial(located)
    campaign.close()
    assert (found["outcome"], found["killer"], found["ran"]) == ("killed", row["killer"], 1)


def outcome(rows: list[dict[str, Any]], node: str, replacement: str) -> dict[str, Any]:
    (row,) = [r for r in rows if (r["node"], r["replacement"]) == (node, replacement)]
    return row


def test_a_planted_fault_is_killed_by_the_test_that_looks_at_it(rows: list[dict[str, Any]]) -> None:
    row = outcome(rows, "capacity - taken", "(capacity + taken)")
    assert row["outcome"] == "killed"
    assert row["killer"] == "tests/test_ledger.py::test_room"
    assert "assert 4 == 2" in row["reason"]


def test_a_fault_that_only_a_process_shows_is_killed(rows: list[dict[str, Any]]) -> None:
    row = outcome(rows, "taken > capacity", "(taken >= capacity)")
    assert row["outcome"] == "killed"
    assert row["killer"] == "tests/test_ledger.py::test_process"


def test_what_no_test_looks_at_survives(rows: list[dict[str, Any]]) -> None:
    assert outcome(rows, "a + 1", "(a - 1)")["outcome"] == "uncovered"
    raised = outcome(rows, "raise ValueError(f'{taken} of {capacity}')", "pass")
    assert raised["outcome"] == "uncovered"
    assert "unused" in survivors(rows)
    assert "capacity - taken" not in survivors(rows)


def test_a_constant_of_a_module_is_killed(rows: list[dict[str, Any]]) -> None:
    assert outcome(rows, "64", "(65)")["killer"] == "tests/test_ledger.py::test_most"


def test_an_endless_trial_is_ended(rows: list[dict[str, Any]]) -> None:
    assert outcome(rows, "index += 1", "pass")["outcome"] == "timed out"


def test_the_table_counts_by_package(rows: list[dict[str, Any]]) -> None:
    header, _, core, everything = by_package(rows).splitlines()
    assert [cell.strip() for cell in header.split("|")][1:3] == ["package", "mutants"]
    counts = [int(cell) for cell in core.split("|")[2:8]]
    assert counts[0] == len(rows) == sum(counts[1:])
    assert counts[2] == 1
    assert core.split("|")[2:] == everything.split("|")[2:]


def test_a_comparison_lists_what_is_noticed_no_longer(rows: list[dict[str, Any]]) -> None:
    after = [{**row, "origin": key_of(row)} for row in rows[1:]]
    (lost,) = [row for row in after if row["node"] == "capacity - taken"]
    lost["outcome"] = "survived"
    assert compared(rows, rows).splitlines()[2].endswith("| 0 | 0 |")  # of one seed
    lines = compared(rows, after).splitlines()
    assert lines[2].split(" | ")[1:3] == [str(len(rows)), str(len(rows) - 1)]
    assert lines[2].endswith("| 1 | 0 |")
    assert "killed -> survived" in lines[-1]
    assert "test_room" in lines[-1]


def test_at_most_so_many_tests_and_each_function_before_a_second_variant() -> None:
    variants = [Recorded(f"a.py::test_x[{n}]", 0.001 * n, processes=False) for n in range(100)]
    other = Recorded("b.py::test_y", 5.0, processes=False)
    taken = chosen([*variants, other])
    assert len(taken) == MOST_TESTS
    assert taken[:3] == [variants[0], other, variants[1]]


def test_files_with_many_of_the_tests_are_tried_first() -> None:
    def tests(file: str, *seconds: float) -> list[Recorded]:
        return [Recorded(f"{file}::test_{s}", s, processes=False) for s in seconds]

    slow, quick = tests("slow.py", 1.0, 3.0), tests("quick.py", 0.1, 0.2)
    few = [*tests("a.py", 0.01), *tests("b.py", 0.5)]
    assert in_batches([*few, *slow, *quick]) == [[*quick, *slow], few]


def test_a_slow_test_is_tried_only_alone() -> None:
    slow = [Recorded(f"a.py::test_{n}", 50.0, processes=False) for n in range(3)]
    assert chosen(slow) == slow[:1]


def test_the_sample_is_the_same_when_other_code_goes(tmp_path: Path) -> None:
    kept = {"gpud/core/a.py": MODULE, "gpud/errors/b.py": "LIMIT = 5\n"}
    gone = {"gpud/core/c.py": MODULE.replace("room", "space"), "gpud/demo/d.py": MODULE}
    whole = sample(tree_with(tmp_path / "whole", kept | gone), "seed")
    part = sample(tree_with(tmp_path / "part", kept), "seed")
    assert {located.module for located in whole["core"]} == {"gpud/core/a.py", "gpud/core/c.py"}
    by_kind = [
        [m for m in mutants if m.module == "gpud/core/a.py" and m.mutant.kind == "constant"]
        for mutants in (whole["core"], part["core"])
    ]
    assert by_kind[0] == by_kind[1]
    assert [m.module for m in part["units, errors, config"]] == ["gpud/errors/b.py"]


def test_packages() -> None:
    assert package_of("gpud/compiler/ptx/parser.py") == "compiler: ptx"
    assert package_of("gpud/compiler/pipeline.py") == "compiler: rest"
    assert package_of("gpud/units.py") == "units, errors, config"
    assert package_of("gpud/demo/report.py") is None


def matched(tmp_path: Path, old: str, new: str, node: str, kind: str) -> list[tuple[str, Mutant]]:
    trees = [
        tree_with(tmp_path / "old", {"gpud/core/a.py": old}),
        tree_with(tmp_path / "new", {"gpud/core/b/c.py": new}),
    ]
    matcher = Matcher(*trees)
    mutants = [m for m in mutants_of(old.encode()) if (m.node, m.kind) == (node, kind)]
    places = [matcher.find(Located("gpud/core/a.py", m)) for m in mutants]
    return [(place.module, place.mutant) for place in places if place is not None]


def test_a_mutant_is_found_again_under_other_names(tmp_path: Path) -> None:
    renamed = (
        MODULE.replace("room", "free_slices").replace("taken", "used").replace("first", "lead")
    )
    ((module, mutant),) = matched(tmp_path, MODULE, renamed, "capacity - taken", "arithmetic")
    assert module == "gpud/core/b/c.py"
    assert (mutant.function, mutant.replacement) == ("free_slices", "(capacity + used)")


def test_of_equal_nodes_the_one_in_the_same_order_is_found(tmp_path: Path) -> None:
    old = "def f(a, b):\n    a.x = b + 1\n    a.y = b + 1\n"
    new = old.replace("def f", "def g")
    found = matched(tmp_path, old, new, "b + 1", "arithmetic")
    assert [mutant.occurrence for _, mutant in found] == [0, 1]


def test_a_mutant_whose_code_is_gone_is_not_found(tmp_path: Path) -> None:
    new = MODULE[: MODULE.index("def first")] + MODULE[MODULE.index("def unused") :]
    assert matched(tmp_path, MODULE, new, "index < len(items)", "comparison") == []


def test_results_name_a_mutant(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    tree = tree_with(tmp_path, {"gpud/core/ledger.py": MODULE})
    for row in rows:
        assert located_of(tree, row).mutant.first_line == row["line"]
    with pytest.raises(KeyError):
        located_of(tree, {**rows[0], "node": "nothing"})
