"""Which mutants are tried: for each package the same ones, whatever happens to other code."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.mutation.mutants import Mutant, mutants_of

__all__ = ["PACKAGES", "Located", "located_of", "modules", "package_of", "sample"]

PACKAGES: dict[str, tuple[str, int]] = {
    "units, errors, config": ("gpud/units.py gpud/errors gpud/config", 30),
    "wire": ("gpud/wire", 40),
    "core": ("gpud/core", 60),
    "client": ("client/gpud_client", 60),
    "compiler: ptx": ("gpud/compiler/ptx", 60),
    "compiler: analysis": ("gpud/compiler/analysis", 40),
    "compiler: passes": (
        "gpud/compiler/passes gpud/compiler/forms gpud/compiler/instrumentation", 50
    ),
    "compiler: rest": ("gpud/compiler", 60),
    "server": ("gpud/server", 50),
    "device host": ("gpud/device/host", 60),
    "CPU device": ("gpud/device/cpu", 60),
    "CUDA device": ("gpud/device/cuda", 20),
}  # fmt: skip
"""By name: the folders and how many mutants. The first entry that fits a module counts."""


@dataclass(frozen=True)
class Located:
    """A mutant and its module's path in the tree.

    Attributes:
        module: the path.
        mutant: the mutant.
        origin: what names the same mutant in another tree, if it was looked for (`matching`).
    """

    module: str
    mutant: Mutant
    origin: tuple[Any, ...] | None = None


def package_of(module: str) -> str | None:
    """The package of `PACKAGES` that ``module`` belongs to."""
    for name, (places, _) in PACKAGES.items():
        for place in places.split():
            if module == place or module.startswith(place + "/"):
                return name
    return None


def sample(tree: Path, seed: str, within: Sequence[str] = ("",)) -> dict[str, list[Located]]:
    """The mutants to try, by package, in the order of their ranks.

    Kinds of change take turns, since there are many more constants than returns.

    Args:
        tree: the folder.
        seed: others give other mutants.
        within: how the paths of modules begin that are mutated.
    """
    found: dict[str, list[Located]] = defaultdict(list)
    for module in modules(tree):
        package = package_of(module)
        if package is not None and module.startswith(tuple(within)):
            found[package] += [Located(module, m) for m in mutants_of((tree / module).read_bytes())]
    return {
        package: _ranked(found[package], seed)[:count] for package, (_, count) in PACKAGES.items()
    }


def located_of(tree: Path, row: dict[str, Any]) -> Located:
    """The mutant that a line of the results is about.

    Raises:
        KeyError: ``tree`` has no such mutant.
    """
    names = ("function", "kind", "node", "replacement", "occurrence")
    identity = tuple(row[name] for name in names)
    for mutant in mutants_of((tree / row["module"]).read_bytes()):
        if mutant.identity == identity:
            return Located(row["module"], mutant)
    raise KeyError(identity)


def modules(tree: Path) -> list[str]:
    """The paths of the product's modules."""
    return sorted(
        str(path.relative_to(tree))
        for root in ("gpud", "client")
        for path in (tree / root).rglob("*.py")
    )


def _ranked(mutants: Iterable[Located], seed: str) -> list[Located]:
    kinds: dict[str, int] = defaultdict(int)
    ranked = []
    for located in sorted(mutants, key=lambda located: _hash(located, seed)):
        kinds[located.mutant.kind] += 1
        ranked.append((kinds[located.mutant.kind], _hash(located, seed), located))
    return [located for *_, located in sorted(ranked, key=lambda entry: entry[:2])]


def _hash(located: Located, seed: str) -> bytes:
    text = repr((seed, located.module, located.mutant.identity))
    return hashlib.sha256(text.encode()).digest()
