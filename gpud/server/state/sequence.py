"""A validated sequence: what the front keeps of the launches that a job runs.

Services submit the same launches again and again, so their validation is kept with the session and
shared by all jobs that submit the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from gpud.core.events import LaunchShape
from gpud.errors.base import shorten
from gpud.server.state.modules import Module, Shape
from gpud.server.state.quota import LAUNCH_BYTES

__all__ = ["NAMES_KEPT", "ValidatedSequence"]

NAMES_KEPT = 16
"""Kernels of a job that are named in tables and errors."""

_NAME_LENGTH = 256


class ValidatedSequence:
    """The validated launches of a job, shared by all jobs that submit the same bytes.

    Attributes:
        launches: encoded for `gpud.device.host.messages.StartRun`.
        shapes: as the scheduler gets them.
        needs: (module, shape) of every launch, each once: what a host must have compiled.
        modules: the module of each launch.
        killable: whether the launches use the kernels' variants with kill polls, where there are.
        kernels: the kernels' names, each once, in the order of the launches; the first `NAMES_KEPT`
            of them, shortened, because they are kept long after the job has ended.
        ready: the registry of the last host known to have compiled all of ``needs``; None: none.
        ran: the registry of the last host that a job of this sequence was started on; None: none.
        memory_checked: with what its use of a workload's memory was checked last; None: never.
        total: task blocks of all launches.
        charged_bytes: what is charged for it while it has jobs, beside the jobs themselves.
        jobs: how many jobs of this sequence have not ended.
    """

    __slots__ = (
        "charged_bytes",
        "jobs",
        "kernels",
        "killable",
        "launches",
        "memory_checked",
        "modules",
        "needs",
        "occupancy",
        "ran",
        "ready",
        "shapes",
        "size_bytes",
        "total",
    )

    def __init__(
        self,
        launches: bytes,
        shapes: tuple[LaunchShape, ...],
        needs: Iterable[tuple[Module, Shape]],
        kernels: Iterable[str],
        size_bytes: int,
        *,
        killable: bool = False,
    ) -> None:
        self.launches = launches
        self.shapes = shapes
        needs = tuple(needs)
        self.needs = tuple(dict.fromkeys(needs))
        self.modules = tuple(module for module, _ in needs)
        self.killable = killable
        names = islice(dict.fromkeys(kernels), NAMES_KEPT)
        self.kernels = tuple(shorten(name, _NAME_LENGTH) for name in names)
        self.occupancy = min((shape.occupancy for shape in shapes), default=1)  # a lane has none
        self.total = sum(shape.task_blocks for shape in shapes)
        self.size_bytes = size_bytes
        self.charged_bytes = size_bytes + LAUNCH_BYTES * len(shapes)
        self.ready: object = None
        self.ran: object = None
        self.memory_checked: object = None
        self.jobs = 0
