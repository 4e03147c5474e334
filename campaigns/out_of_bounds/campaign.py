"""Many cases, one after the other, and what came of them in numbers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from campaigns.out_of_bounds.accesses import ACCESSES, Access
from campaigns.out_of_bounds.cases import cases_of, kernels_of
from campaigns.out_of_bounds.check import Outcome, load, run
from campaigns.out_of_bounds.kernels import KernelSpec
from campaigns.out_of_bounds.world import World

_MODULE = 8
"""Kernels of a module: they share its compilation, not their code generation."""


@dataclass
class Tally:
    """What came of cases.

    Attributes:
        counts: by (kind of access, side, outcome); a twin's side begins with "legal: ".
        failures: (case, problems), with everything that is needed to run it again.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """How many ran."""
        return self.counts.total()

    def add(self, kind: str, side: str, what: object, outcome: Outcome) -> None:
        """Count a case."""
        self.counts[kind, side, outcome.kind if not outcome.problems else "wrong"] += 1
        if outcome.problems:
            self.failures.append((str(what), outcome.problems))

    def fail(self, what: str, problems: Iterable[str]) -> None:
        """Note what is wrong with more than a case."""
        some = tuple(problems)
        if some:
            self.failures.append((what, some))


def generated(
    world: World,
    tally: Tally,
    seed: int,
    cases: int,
    *,
    most: int,
    accesses: Sequence[Access] = ACCESSES,
    progress: Callable[[int], object] = lambda done: None,
) -> None:
    """Run some ``cases`` of generated kernels, each with up to ``most`` kinds of access.

    Every kind has a case at least. Equal seeds give equal kernels and, with equal layouts, cases.
    """
    kernels = kernels_of(random.Random(seed), accesses, most=most)
    each = max(1, cases // len(kernels))
    pid = world.host_pid
    for some in _modules(kernels):
        for loaded in load(world, some):
            for case in itertools.islice(
                cases_of(random.Random(f"{seed}/{loaded.spec.name}"), loaded.spec, world.layout),
                max(each, len(loaded.spec.accesses)),
            ):
                side = f"legal: {case.side}" if case.twin else case.side
                tally.add(case.access.group, side, f"seed {seed} {case}", run(world, loaded, case))
            _after(world, tally, pid, f"seed {seed}: {loaded.spec}")
            pid = world.host_pid
        progress(tally.cases)


def _after(world: World, tally: Tally, pid: int, what: str) -> None:
    """What must hold after the cases of a kernel."""
    tally.fail(what, world.neighbour_faults())
    if world.host_pid != pid:
        tally.fail(what, ["the device host was replaced"])


def _modules(kernels: Sequence[KernelSpec]) -> Iterator[list[KernelSpec]]:
    """Kernels of one form together, some at a time."""
    forms: dict[str | None, list[KernelSpec]] = {}
    for kernel in kernels:
        forms.setdefault(kernel.form, []).append(kernel)
    for some in forms.values():
        for start in range(0, len(some), _MODULE):
            yield some[start : start + _MODULE]
