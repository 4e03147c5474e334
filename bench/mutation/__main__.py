"""Plants faults and counts those that the tests notice: see the package's header.

    python -m bench.mutation run [--revision R] [--tests PATH ...] [--results FILE]
    python -m bench.mutation compare BEFORE AFTER
    python -m bench.mutation table FILE [--survivors]

``run`` copies the revision to a temporary folder, records the tests there unless they were, and
goes on where an earlier run with the same file of results stopped. With ``--like FILE
--like-revision R`` it tries, instead of a sample of its own, the mutants of R that are in that file
of results, as far as their code is still there. With ``--killers`` it tries those of them that a
test noticed, each with that test alone, and records nothing: whether what the tests noticed they
still notice.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.mutation.campaign import Campaign, key_of, read_results
from bench.mutation.matching import Matcher
from bench.mutation.recording import record
from bench.mutation.sample import PACKAGES, Located, located_of, sample
from bench.mutation.scratch import Scratch
from bench.mutation.table import by_package, compared, survivors
from bench.mutation.test_map import Killers, TestMap

ROOT = Path(__file__).resolve().parents[2]
SEED = "gpud"
TESTS = ("tests/unit", "tests/compiler", "tests/property")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    options = _parser().parse_args(arguments)
    if options.command == "run":
        _run(options)
        rows = read_results(options.results)
        print(by_package(rows))
    elif options.command == "table":
        rows = read_results(options.results)
        print(by_package(rows))
        if options.survivors:
            print("\n" + survivors(rows))
    else:
        print(compared(read_results(options.before), read_results(options.after)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="plant faults in a revision")
    run.add_argument("--revision", default="HEAD")
    run.add_argument("--folder", type=Path, help="of the copy and the recording")
    run.add_argument("--tests", nargs="+", default=list(TESTS), help="files or folders to record")
    run.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=list(PACKAGES))
    run.add_argument(
        "--modules", nargs="+", default=[""], help="how the mutated files' paths begin"
    )
    run.add_argument("--most", type=int, default=1000, help="mutants of a package")
    run.add_argument("--results", type=Path, required=True)
    run.add_argument("--like", type=Path, help="results of another revision: the same mutants")
    run.add_argument("--like-revision", help="the other revision")
    run.add_argument("--killers", action="store_true", help="try each with its killer alone")
    table = commands.add_parser("table", help="count what is in a file of results")
    table.add_argument("results", type=Path)
    table.add_argument("--survivors", action="store_true", help="list them")
    compare = commands.add_parser("compare", help="the same mutants in two files of results")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    return parser


def _run(options: argparse.Namespace) -> None:
    scratch, folder = _scratch(options.revision, options.folder)
    if options.killers:
        _run_killers(options, scratch, folder)
        return
    recording = folder / "recording"
    for path in options.tests:
        for name, tests in groups(scratch.folder, path):
            if not (recording / f"{name}.coverage").exists():
                print(f"recording {' '.join(tests)}", flush=True)
                record(scratch, recording, name, tests)
    if options.like is None:
        mutants = sample(scratch.folder, SEED, options.modules)
        mutants = {package: some[: options.most] for package, some in mutants.items()}
    else:
        other, _ = _scratch(options.like_revision, None)
        mutants = same_mutants(read_results(options.like), other.folder, scratch.folder)
    campaign = Campaign(scratch, TestMap(recording, scratch.folder), folder / "trials.log")
    _try(campaign, mutants, options)


def _run_killers(options: argparse.Namespace, scratch: Scratch, folder: Path) -> None:
    other, _ = _scratch(options.like_revision, None)
    rows = [row for row in read_results(options.like) if row["killer"] is not None]
    mutants = same_mutants(rows, other.folder, scratch.folder)
    killer_of = {key_of(row): row["killer"] for row in rows}
    killers = {
        (one.module, one.mutant): killer_of[one.origin]
        for found in mutants.values()
        for one in found
        if one.origin is not None
    }
    campaign = Campaign(scratch, Killers(killers), folder / "trials.log", slack_s=60)
    _try(campaign, mutants, options)


def _try(
    campaign: Campaign, mutants: dict[str, list[Located]], options: argparse.Namespace
) -> None:
    try:
        for package in options.packages:
            print(f"trying {len(mutants[package])} mutants of {package}", flush=True)
            campaign.run(package, mutants[package], options.results)
    finally:
        campaign.close()


def _scratch(revision: str, folder: Path | None) -> tuple[Scratch, Path]:
    command = ["git", "rev-parse", "--short", "--verify", revision + "^{commit}"]
    commit = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    commit_id = commit.stdout.strip()
    folder = folder or Path(tempfile.gettempdir()) / f"gpud-mutation-{commit_id}"
    site_packages = Path(sysconfig.get_path("purelib"))
    return Scratch(ROOT, commit_id, folder / "tree", site_packages), folder


def groups(tree: Path, path: str) -> list[tuple[str, list[str]]]:
    """What of ``path`` is recorded together, with a name: each folder in it, and its files."""
    place = tree / path
    if not place.is_dir():
        return [(path.replace("/", "-"), [path])]
    folders = sorted(p for p in place.iterdir() if p.is_dir() and any(p.rglob("test_*.py")))
    named = [(f"{path}/{p.name}".replace("/", "-"), [f"{path}/{p.name}"]) for p in folders]
    files = sorted(f"{path}/{p.name}" for p in place.glob("test_*.py"))
    return [*named, (path.replace("/", "-"), files)] if files else named


def same_mutants(rows: Sequence[dict[str, Any]], old: Path, new: Path) -> dict[str, list[Located]]:
    """The mutants of ``rows``, tried in the tree ``old``, as they are in the tree ``new``."""
    matcher = Matcher(old, new)
    mutants: dict[str, list[Located]] = {package: [] for package in PACKAGES}
    for row in rows:
        match = matcher.find(located_of(old, row))
        if match is not None:
            mutants[row["package"]].append(replace(match, origin=key_of(row)))
    return mutants


if __name__ == "__main__":
    sys.exit(main())
