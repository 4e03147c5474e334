"""The size of the tree and its circles of imports, beside those of another revision.

    python bench/code_figures.py REVISION            # prints
    python bench/code_figures.py REVISION --write    # into bench/results/house.md

Lines are all lines of the Python files that git tracks. A circle is a set of files each of which
imports all others, directly or by way of others; see tests/unit/test_dependencies.py.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.markdown import markdown
from tests.unit.test_dependencies import CODEGEN, import_graph, within

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "bench" / "results" / "house.md"
BEGIN, END = "<!-- written by bench/code_figures.py -->\n", "<!-- end -->\n"
MOST_LINES = 400
_DEEPER = ("gpud/compiler", "gpud/device", "gpud/server", "tests/unit")
"""Folders whose subfolders are packages of their own."""
_ROOTS = {"gpud": "", "client/gpud_client": "client/", "contrib/ray/gpud_ray": "contrib/ray/"}
"""Where the product's packages lie, and what of that is no part of their names."""
_PARTS = {
    "the product": ("gpud", "client", "contrib/ray/gpud_ray"),
    "the tests": ("tests", "contrib/ray/tests"),
}


def main() -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", help="to compare with HEAD")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    names = [f"{one} ({_short(one)})" for one in (options.revision, "HEAD")]
    trees = [files(options.revision), files("HEAD")]
    text = "\n".join(markdown(["", *names], rows(trees), 1)) + "\n"
    if not options.write:
        print(text, end="")
        return 0
    page = PAGE.read_text()
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:before]}\n{text}\n{page[after:]}")
    return 0


def rows(trees: list[dict[str, str]]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table: sums, circles, packages."""
    sizes = [{path: text.count("\n") for path, text in tree.items()} for tree in trees]
    for name, roots in _PARTS.items():
        yield f"lines of {name}", *(sum(lines_below(one, root) for root in roots) for one in sizes)
    yield f"files of the product past {MOST_LINES} lines", *map(long_files, sizes)
    every = [circles(tree) for tree in trees]
    generator = [[one for one in found if within(one[0], CODEGEN)] for found in every]
    others = [
        [one for one in found if one not in mine]
        for found, mine in zip(every, generator, strict=True)
    ]
    yield "circles outside the CPU device's code generation: files of each", *map(_sizes, others)
    yield "circles in it", *map(_sizes, generator)
    totals = [by_package(one) for one in sizes]
    for package in sorted(set().union(*totals)):
        yield package, *(total[package] for total in totals)


def files(revision: str) -> dict[str, str]:
    """Return the text of each Python file by its path."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        return {
            member.name: content.read().decode()
            for member in archive
            if member.name.endswith(".py") and (content := archive.extractfile(member))
        }


def by_package(sizes: dict[str, int]) -> Counter[str]:
    """Return lines by folder."""
    totals: Counter[str] = Counter()
    for path, count in sizes.items():
        parts = PurePosixPath(path).parent.parts
        depth = 3 if "/".join(parts[:2]) in _DEEPER else 2
        totals["/".join(parts[:depth]) or "."] += count
    return totals


def lines_below(sizes: dict[str, int], folder: str) -> int:
    """Return the lines of all files below a folder."""
    return sum(count for path, count in sizes.items() if path.startswith(f"{folder}/"))


def long_files(sizes: dict[str, int]) -> int:
    """Return how many files of the product are longer than CONTRIBUTING.md wants."""
    ours = (n for path, n in sizes.items() if path.startswith(tuple(f"{one}/" for one in _ROOTS)))
    return sum(n > MOST_LINES for n in ours)


def circles(tree: dict[str, str]) -> list[list[str]]:
    """Return the circles of imports in the product, the files of each in order."""
    sources = []
    for folder, above in _ROOTS.items():
        for path, text in tree.items():
            if path.startswith(f"{folder}/"):
                parts = PurePosixPath(path.removeprefix(above)).with_suffix("").parts
                name = ".".join(part for part in parts if part != "__init__")
                sources.append((name, Path(path), text))
    graph = import_graph(sources, may_be_circular=())
    reached = {module: _reached(graph, module) for module in graph}
    found = {
        tuple(sorted(other for other in after if module in reached[other]))
        for module, after in reached.items()
        if module in after
    }
    return sorted(map(list, found))


def _reached(graph: dict[str, set[str]], module: str) -> set[str]:
    """Return what a module imports, directly or by way of others."""
    seen: set[str] = set()
    new = set(graph[module])
    while new:
        seen |= new
        new = {target for one in new for target in graph[one]} - seen
    return seen


def _sizes(found: list[list[str]]) -> str:
    return ", ".join(map(str, sorted(map(len, found), reverse=True))) or "none"


def _short(revision: str) -> str:
    command = ["git", "rev-parse", "--short", revision]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
