"""How large the tree is, by package, and which files are past 400 lines.

    python bench/lines.py [--before REVISION] [--depth N]

Counts the lines of Python, C, CUDA and Markdown in what git has, working tree or ``REVISION``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = (".py", ".c", ".h", ".cu", ".cuh", ".md")
LONG = 400


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", help="a revision to compare with")
    parser.add_argument("--depth", type=int, default=1, help="folders that a package is named by")
    options = parser.parse_args()
    now = lines_now()
    then = lines_at(options.before) if options.before else {}
    tables = [by_package(lines, options.depth) for lines in (then, now)]
    print(f"{'package':<32}" + (f"{options.before[:9]:>10}" if then else "") + f"{'now':>10}")
    for name in sorted(tables[0] | tables[1]):
        print(
            f"{name:<32}" + (f"{tables[0][name]:>10,}" if then else "") + f"{tables[1][name]:>10,}"
        )
    print(f"\nfiles past {LONG} lines, without Markdown and tests:")
    for path, count in sorted(now.items(), key=lambda one: -one[1]):
        if count > LONG and not path.endswith(".md") and not path.startswith("tests/"):
            print(f"{count:>8,}  {path}")
    return 0


def lines_now() -> dict[str, int]:
    """Return the lines of each file that git has or would have, in the working tree."""
    names = _git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    paths = ((name, ROOT / name) for name in names if name.endswith(KINDS))
    return {name: path.read_bytes().count(b"\n") for name, path in paths if path.exists()}


def lines_at(revision: str) -> dict[str, int]:
    """Return the lines of each file of a revision."""
    empty = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's name of the tree without files
    rows = _git("diff", "--numstat", "--no-renames", empty, revision).splitlines()
    columns = (row.split("\t") for row in rows)
    return {name: int(added) for added, _, name in columns if name.endswith(KINDS)}


def by_package(lines: dict[str, int], depth: int) -> Counter[str]:
    """Return the sums by folder, and of all."""
    found: Counter[str] = Counter()
    for name, count in lines.items():
        folders = name.split("/")[:-1]
        found["/".join(folders[:depth]) or "(top)"] += count
        found["all"] += count
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
