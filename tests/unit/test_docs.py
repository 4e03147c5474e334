"""The documentation is what the code says, and its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import DOCS, PAGES
from gpud.errors import REJECTIONS, error_classes

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
PYTHON_EXAMPLES = [
    pytest.param(example, id=f"{page.name}-{number}")
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    for number, example in enumerate(PYTHON.findall(page.read_text()))
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


def test_every_page_is_reached_from_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    for page in DOCS.rglob("*.md"):
        assert page.name == "index.md" or f"({page.relative_to(DOCS)})" in index


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
