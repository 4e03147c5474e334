"""The size of the tree: lines of Python by package, and the files past the limit.

    python bench/code_figures.py [REVISION]

Prints a table in Markdown, with the lines at ``REVISION`` as well if one is given. Lines are all
lines of the Python files that git tracks.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.markdown import markdown

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 400
_DEEPER = ("gpud/compiler", "gpud/device", "gpud/server", "tests/unit")
"""Folders whose subfolders are packages of their own."""


def main() -> int:
    """Print the table."""
    revisions = [*sys.argv[1:2], "HEAD"]
    sizes = [lines(revision) for revision in revisions]
    totals = [by_package(one) for one in sizes]
    packages = sorted(set().union(*totals))
    rows = [(package, *(total[package] for total in totals)) for package in packages]
    for name, roots in (("the product", ("gpud", "client")), ("the tests", ("tests",))):
        rows.append((name, *(sum(one[p] for p in one if p.startswith(roots)) for one in totals)))
    rows.append((f"files of the product past {MOST_LINES}", *map(long_files, sizes)))
    print("\n".join(markdown(["package", *revisions], rows, 1)))
    return 0


def lines(revision: str) -> dict[str, int]:
    """Lines by path."""
    command = ["git", "grep", "-c", "", revision, "--", "*.py"]
    counted = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    rows = (line.rsplit(":", 2) for line in counted.stdout.splitlines())
    return {path: int(count) for _, path, count in rows}


def by_package(sizes: dict[str, int]) -> Counter[str]:
    """Lines by folder."""
    totals: Counter[str] = Counter()
    for path, count in sizes.items():
        parts = Path(path).parent.parts
        depth = 3 if "/".join(parts[:2]) in _DEEPER else 2
        totals["/".join(parts[:depth]) or "."] += count
    return totals


def long_files(sizes: dict[str, int]) -> int:
    """How many files of the product are longer than CONTRIBUTING.md wants."""
    ours = (n for path, n in sizes.items() if path.startswith(("gpud/", "client/")))
    return sum(n > MOST_LINES for n in ours)


if __name__ == "__main__":
    sys.exit(main())
