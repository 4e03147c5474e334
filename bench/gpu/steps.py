"""The steps of testing and measuring on a GPU, the most informative first, with their time limits.

They are those of ``make gpu-test`` and ``make gpu-bench``, and two selections of them: `smoke`
shows within a minute or two whether anything works at all, `cell` is the first row of the
co-location. The first eight are for the first ten minutes on a GPU: what a later step depends on is
known when it begins. Settings are smaller than the targets' own; how long steps take on a GPU is a
guess.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field

__all__ = ["NO_AUTOLOAD", "OPTIONS", "SELECTIONS", "STEPS", "Step"]

SELECTIONS = ("smoke", "cell")
"""Steps without a target of their own: parts of others."""

OPTIONS = (
    *("-v", "-o", "faulthandler_timeout=45"),  # so that the log names a test that hangs
    *("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout"),
)
NO_AUTOLOAD = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Environment that limits pytest to the named plugins. Others that a machine has installed may
warn, and warnings are errors."""

_WORKERS = 8
_TELLING = ("saxpy", "lookback_scan", "generations", "no_parameters")


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        name: of its log; that of the target without ``gpu-``.
        first_s: time limit of its first turn.
        script: run with Python; empty: pytest.
        target: the arguments that the target gives it.
        more: settings that replace the target's.
        trial: settings that replace these over the model of the driver; None: it does not run
            there.
        environment: added for this step.
        several: whether pytest may run it in several processes.
    """

    name: str
    first_s: float
    script: str = ""
    target: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    trial: tuple[str, ...] | None = ()
    environment: dict[str, str] = field(default_factory=dict)
    several: bool = False

    def arguments(self, *, trial: bool = False) -> list[str]:
        """Return the arguments for Python."""
        settings = self.trial or () if trial else self.more
        if self.script:
            return [self.script, *self.target, *settings]
        options = list(OPTIONS)
        if self.several and not trial and importlib.util.find_spec("xdist"):
            options += ["-p", "xdist.plugin", "-n", str(_WORKERS)]
        return ["-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *options, *self.target,
                *settings]  # fmt: skip

    def variables(self) -> dict[str, str]:
        """Return what to add to the environment."""
        return self.environment if self.script else {**NO_AUTOLOAD, **self.environment}


def _test(name: str, first_s: float, trial: str = "", *, several: bool = False) -> Step:
    return Step(
        f"test-{name}", first_s, target=(f"tests/gpu/test_{name}.py",),
        trial=("-k", trial) if trial else None,
        environment={"GPUD_RECORD": name}, several=several,
    )  # fmt: skip


def _bench(name: str, first_s: float, more: str = "", trial: str = "") -> Step:
    return Step(
        f"bench-{name}", first_s, f"bench/gpu/{name}.py",
        more=tuple(more.split()), trial=tuple(trial.split()),
    )  # fmt: skip


def _colocation(system: str, first_s: float) -> Step:
    return Step(
        f"bench-colocation-{system}", first_s, "bench/gpu/colocation.py", ("--system", system),
        trial=("--seconds", "0.05", "--requests", "3", "--short"),
    )  # fmt: skip


def _sanitize(tool: str, part: int) -> Step:
    return Step(
        f"sanitize-{tool}-{part}", 60, "bench/gpu/sanitize.py", (tool, "--part", f"{part}/2"),
        trial=("--only", "saxpy or lookback_scan"),  # one of each part
    )  # fmt: skip


STEPS: tuple[Step, ...] = (
    # The first ten minutes, in this order; each leaves its results if it is interrupted.
    _bench("machine", 20),
    _bench("waits", 40, trial="--ms 30"),
    _bench("rewrite_cost", 90, "--rounds 11", "--rounds 1 --tiny --first 4"),
    _bench("release_latency", 90, "--events 50", "--events 1 --scale 0.2 --block-us 10"),
    Step(
        "smoke", 90,
        target=("tests/gpu/test_faults.py", "tests/gpu/test_conformance.py"),
        more=("-k", " or ".join(("trap", "store", *_TELLING))),
        trial=("-k", "trap or saxpy"),
    ),
    Step(
        "cell", 120, "bench/gpu/colocation.py", ("--system", "gpud", "--short"), trial=None,
    ),
    _test("partitions", 45, "partition"),
    _test("endless", 45, "end"),
    # Then the rest, the most informative first.
    _bench("launch_cost", 40, trial="--rounds 2 --kernels 1 --kernels 18"),
    _colocation("gpud", 100),
    _colocation("streams", 80),
    _test("resizing", 90, "under_resizes and 3", several=True),
    _bench("resize", 40, trial="--seconds 0.05"),
    _bench("shares", 60, trial="--seconds 0.2"),
    _bench("lanes", 120, trial="--wakes 3 --seconds 0.03 --short"),
    _test("conformance", 200, "saxpy or no_parameters", several=True),
    _colocation("gpud_floor", 80),
    _colocation("green", 80),
    _colocation("processes", 80),
    _test("work_shares", 60),
    _test("faults", 60, "trap"),
    # No trial: frameworks have drivers of their own, which the model does not replace.
    _test("adapters", 120),
    _test("mapped_arrays", 60),
    # No trial: its programs are processes of their own, without the model.
    Step("bench-turns", 150, "bench/gpu/turns.py", more=("--rounds", "1"), trial=None),
    _bench("region_moves", 40, trial="--mib 16 --rounds 1"),
    # No trial: the model does not know the task block of a fault, which these tests check.
    _test("bounds_checks", 120, several=True),
    _bench("random_resizes", 120, "--seconds 100", "--events 50 --seconds 6"),
    *(_sanitize(tool, part) for tool in ("memcheck", "racecheck", "synccheck") for part in (1, 2)),
    # It may hang, or have all that follows hang.
    _bench("load_beside", 20, trial="--seconds 0.1"),
)  # fmt: skip
