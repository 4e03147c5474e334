"""The coverage of the last `make coverage`, as a table by package.

    python bench/coverage_by_package.py

Lines and branches that a test ran at all; whether a test looked at what they did is what
`bench.mutation` measures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.markdown import markdown

ROOT = Path(__file__).resolve().parents[1]
COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def main() -> int:
    """Print the table."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "coverage", "json", "-q", "-o", report.name]
        subprocess.run(command, cwd=ROOT, check=True)
        files = json.loads(Path(report.name).read_text())["files"]
    print("\n".join(table(files)))
    return 0


def table(files: dict[str, Any]) -> list[str]:
    """Lines of the table: each package of gpud, the client, and all.

    Args:
        files: `coverage json`'s: for each path a ``summary``.
    """
    packages: dict[str, Counter[str]] = {}
    for path, file in files.items():
        counts = {name: file["summary"][name] for name in COUNTS}
        packages.setdefault(_package(path), Counter()).update(counts)
    lines = [*sorted(packages.items()), ("all", sum(packages.values(), Counter()))]
    rows = [
        (name, counts["num_statements"], _share(counts, *COUNTS[1::-1]),
         counts["num_branches"], _share(counts, *COUNTS[:1:-1]))
        for name, counts in lines
    ]  # fmt: skip
    return markdown(["package", "lines", "run, %", "branches", "taken, %"], rows, texts=1)


def _package(path: str) -> str:
    """``gpud/device/cpu`` for a file below it, ``gpud`` for one directly in it."""
    parents = Path(path).parts[:-1]
    depth = 3 if parents[:2] in {("gpud", "device"), ("gpud", "compiler")} else 2
    return "/".join(parents[:depth])


def _share(counts: Counter[str], part: str, whole: str) -> str:
    return f"{100 * counts[part] / counts[whole]:.1f}" if counts[whole] else ""


if __name__ == "__main__":
    sys.exit(main())
