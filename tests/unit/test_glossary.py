"""One name for one thing: the code, the documentation and the glossary use the same words.

docs/reference/glossary.md is the only list: which classes there are for launches, sequences, jobs
and runs, and which words are no longer used for what.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

# Words with another meaning as well: where they may stand for that. EVERYWHERE: not checked.
EVERYWHERE = ("",)
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "call": EVERYWHERE,  # what Python does
    "stage": EVERYWHERE,  # of code generation, and of a pipeline
    "a launch of a sequence": EVERYWHERE,
    "fence": (  # of PTX, in what reads, orders or emulates them
        "docs/explanation/cpu-device.md",
        "docs/explanation/memory-order.md",
        "docs/reference/ptx-support.md",
        "gpud/compiler/analysis/effects.py",
        "gpud/compiler/analysis/memory_accesses.py",
        "gpud/compiler/analysis/spin_loops.py",
        "gpud/compiler/analysis/waiting_cycles.py",
        "gpud/compiler/passes/safety/bounds_checks.py",
        "gpud/compiler/passes/safety/checking.py",
        "gpud/device/cpu/codegen/analysis/spin_loops.py",
        "gpud/device/cpu/lower/data_movement/atomics.py",
        "gpud/device/cpu/sm/lane_launches.py",
        "gpud/device/cpu/sm/next_block.py",
        "gpud/device/cuda/launch/gate.py",
        "gpud/device/cuda/program/heap.py",
    ),
    "chain": (  # of carries, of moves
        "gpud/compiler/analysis/definitions.py",
        "gpud/compiler/analysis/thread_indices.py",
        "gpud/device/cpu/codegen/preparation/pipeline.py",
        "gpud/device/cpu/lower/integers/integer_arithmetic.py",
    ),
}


def table(heading: str) -> Iterator[list[str]]:
    """The rows of the table under a heading: the cells' text."""
    section = GLOSSARY.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("|") and not line.startswith(("| word ", "| ---")):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return [name.strip(" `") for name in cell.split(",") if name.strip()]


def retired_words() -> list[str]:
    words = dict.fromkeys(word for row in table("Words") for word in names(row[2]))
    return [word for word in words if ELSEWHERE.get(word) != EVERYWHERE]


def product() -> dict[str, str]:
    files = [*(ROOT / "gpud").rglob("*.py"), *(ROOT / "client").rglob("*.py")]
    files += [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files if path != GLOSSARY}


def uses(word: str, texts: Mapping[str, str]) -> list[str]:
    """The lines with a retired word, as a word of its own, in the plural, or in an identifier."""
    stem = re.sub(r"[ _]", "[ _]?", re.escape(word).replace(r"\ ", " "))
    pattern = re.compile(rf"(?i:(?<![a-z]){stem})(?:e?s)?(?![a-z])|{word.title().replace(' ', '')}")
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        if name not in ELSEWHERE.get(word, ())
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line.replace("memory fence", ""))
        and not re.search(r"itertools|\bchain\(", line)
    ]


def classes(texts: Iterable[str]) -> Counter[str]:
    return Counter(name for text in texts for name in re.findall(r"(?m)^class (\w+)", text))


def test_the_glossary_is_read() -> None:
    words = {row[0] for row in table("Words")}
    assert {"launch", "sequence", "job", "run", "persistent block", "bounds check"} <= words
    assert {"chain", "gang", "worker", "fence"} <= set(retired_words())


@pytest.mark.parametrize("word", retired_words())
def test_no_retired_word_is_used(word: str) -> None:
    assert uses(word, product()) == []


def test_each_class_of_the_glossary_exists_once() -> None:
    there = classes(text for name, text in product().items() if name.endswith(".py"))
    listed = [name for row in table("Classes") for name in names(row[0])]
    assert listed
    assert {name: there[name] for name in listed if there[name] != 1} == {}


def test_no_class_has_a_retired_name() -> None:
    there = classes(text for name, text in product().items() if name.endswith(".py"))
    listed = {name for row in table("Classes") for name in names(row[0])}
    retired = {name for row in table("Classes") for name in names(row[2])} - listed
    retired -= {"Stage"}  # of code generation
    assert {"Gang", "Chain", "Call"} <= retired
    assert sorted(retired & set(there)) == []


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("gang", "def start(gang):"),
        ("gang", "# all gangs of a device"),
        ("gang", "class GangOfBlocks:"),
        ("chain", "self._chain_cache = {}"),
        ("worker", "workers = 4"),
        ("fence", "config.fences"),
        ("compile worker", "class CompileWorker:"),
        ("compile worker", "compile_workers: int"),
    ],
)
def test_the_checker_sees_a_retired_word(word: str, line: str) -> None:
    assert uses(word, {"a.py": line}) == [f"a.py:1: {line}"]


@pytest.mark.parametrize(
    ("word", "path", "line"),
    [
        ("gang", "a.py", "ganglion"),
        ("chain", "a.py", "from itertools import chain"),
        ("chain", "a.py", "for step in chain(first, rest):"),
        ("fence", "a.py", "a memory fence"),
        ("fence", "docs/explanation/memory-order.md", "a fence orders what stands before it"),
        ("worker", "a.py", "co-working"),
    ],
)
def test_other_words_and_meanings_pass(word: str, path: str, line: str) -> None:
    assert uses(word, {path: line}) == []


def test_each_file_with_another_meaning_has_it() -> None:
    texts = product()
    for word, paths in ELSEWHERE.items():
        for path in paths if paths != EVERYWHERE else ():
            assert uses(word, {"elsewhere": texts[path]}), f"{path} has no {word!r}"


TWO_SIDES = {
    "CancelRequested": "a user's wish, as an event of the cores of jobs and of tasks",
    "Device": "as the device host drives it, and as the front keeps it",
    "Kernel": "of a loaded program, and as the front keeps it",
    "Module": "PTX, and as the front keeps it",
    "Refuse": "a command of the cores of jobs, of workloads and of tasks",
    "Runner": "carries out what the core of jobs decides, and that of tasks",
    "SetTimer": "a command of the cores of jobs and of tasks",
    "Settings": "of the cores of jobs and of tasks",
    "TimerFired": "an event of the cores of jobs and of tasks",
}
"""Classes of one name that are the same thing on two sides."""


def public_classes(folder: Path) -> Iterator[tuple[str, Path]]:
    """The public classes of all files, with their file."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path.relative_to(folder)


def twice(found: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that more than one of them has, with the files."""
    where: dict[str, list[str]] = {}
    for name, path in found:
        where.setdefault(name, []).append(str(path))
    return {name: paths for name, paths in where.items() if len(paths) > 1}


def test_no_two_classes_have_one_name() -> None:
    found = twice(public_classes(ROOT / "gpud"))
    assert {name: paths for name, paths in found.items() if name not in TWO_SIDES} == {}
    assert [name for name in TWO_SIDES if name not in found] == [], "these are one again"


def test_a_name_that_is_used_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Lanes: ...\nclass _Own: ...\n")
    (tmp_path / "b.py").write_text("class Lanes: ...\nclass _Own: ...\n")
    assert twice(public_classes(tmp_path)) == {"Lanes": ["a.py", "b.py"]}
