"""The documentation is what the code says, and its examples run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from codeop import compile_command
from pathlib import Path

import pytest

from bench import summary
from docs.generate import DOCS, PAGES
from docs.generate_tables import CODE_GENERATOR
from gpud.device.cpu.lower import LOWERINGS
from gpud.errors import REJECTIONS, error_classes
from gpud.errors.findings import FindingKind
from tests.conformance.common_opcodes import WITHOUT_TYPES

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def examples_of(page: Path) -> list[str]:
    """The Python examples of a page; those of a tutorial build on each other and are one."""
    examples = PYTHON.findall(page.read_text())
    return ["\n".join(examples)] if page.parent.name == "tutorial" else examples


PYTHON_EXAMPLES = [
    pytest.param(
        example,
        id=f"{page.name}-{number}",
        # A page's examples start a daemon each: only README's run for every change.
        marks=() if page.name == "README.md" else pytest.mark.ci,
    )
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    for number, example in enumerate(examples_of(page))
    if "import gpud_ray" not in example  # contrib/ray/tests runs these: Ray is not installed here
]


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run `make docs`"


def test_the_errors_page_has_every_error_and_every_field() -> None:
    page = (DOCS / "reference/errors.md").read_text()
    for cls in error_classes():
        assert cls.__name__ in page
        assert all(f"| `{name}` | {meaning} |" in page for name, meaning in cls.fields.items())
    assert all(f"| `{code}` |" in page for code in REJECTIONS)


def test_the_ptx_page_has_every_opcode_of_real_programs() -> None:
    page = (DOCS / "reference/ptx-support.md").read_text()
    bases = {spelling.partition(".")[0] for spelling in WITHOUT_TYPES}
    assert {base for base in bases if f"| `{base}` |" not in page} == set()
    assert set(CODE_GENERATOR).isdisjoint(LOWERINGS)


def test_the_page_on_checking_has_every_kind_of_finding() -> None:
    page = (ROOT / "docs/howto/check-a-kernel.md").read_text()
    table = page.partition("| `kind` |")[2].partition("\n\n")[0]
    assert re.findall(r"(?m)^\| `([a-z-]+)` \|", table) == [kind.word for kind in FindingKind]


def test_the_reasons_page_has_every_code() -> None:
    page = (DOCS / "reference/reason-codes.md").read_text()
    source = "".join(
        (ROOT / "gpud/compiler" / name).read_text()
        for name in ("forms/classifier.py", "forms/rules.py")
    )
    codes = re.findall(r"\breason\(\s*\"([a-z-]+)\"", source)
    assert len(codes) > 15
    assert {code for code in codes if f"`{code}`" not in page} == set()


def test_the_figures_are_those_of_the_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert summary.PAGE.read_text() == summary.page(), "run `python bench/summary.py`"
    assert summary.readme(text) == text, "run `python bench/summary.py`"


def test_figures_that_are_not_there_have_no_row(tmp_path: Path) -> None:
    empty = summary.BEGIN + summary.END
    assert summary.page(tmp_path) == summary.HEAD
    assert summary.readme(empty, tmp_path) == empty
    result = {
        "machine": {"cores": 2, "cpu": "a CPU"}, "events": 1000, "kernels_run": 3,
        "task_blocks": 70, "wrong": ["one"],
    }  # fmt: skip
    (tmp_path / "resizes.json").write_text(json.dumps(result))
    page = summary.page(tmp_path)
    assert "2 cores of a CPU" in page
    assert "| 1 problems | `python -m campaigns.run resizes` |" in page
    assert "PoCL's" not in page
    row = "| 1,000 random resizes while kernels ran: task blocks lost or run twice | 1 | 0 |"
    assert row in summary.readme(empty, tmp_path)


def test_every_page_is_reached_from_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    for page in DOCS.rglob("*.md"):
        assert page.name == "index.md" or f"({page.relative_to(DOCS)})" in index


@pytest.mark.parametrize(
    "page", sorted((DOCS / "tutorial").glob("*.md")), ids=lambda page: page.name
)
def test_tutorials_can_be_typed_into_the_interpreter(page: Path) -> None:
    for example in PYTHON.findall(page.read_text()):
        typed: list[str] = []
        for line in [*example.splitlines(), ""]:
            typed.append(line)
            # None: it waits for more lines. A blank one ends a loop or a function, and only that.
            if compile_command("\n".join(typed)) is not None:
                typed = []
        assert not typed, example


@pytest.mark.parametrize("example", PYTHON_EXAMPLES)
def test_examples_run(example: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line in example.splitlines():
        if "print(" in line and "  # " in line:
            assert line.partition("  # ")[2] in done.stdout
