from __future__ import annotations

from typing import Any

from gpud.core.events import LaunchShape
from gpud.errors import JobCancelled, KernelNotFound, KernelTrap
from gpud.server.scheduling.jobs import NAMES_KEPT, Chain, shortened


def chain(names: list[str]) -> Chain:
    shapes = tuple(LaunchShape(1, 1, True) for _ in names)
    needs: list[Any] = []
    return Chain(b"", shapes, needs, names, 0)


def test_the_names_of_a_jobs_kernels_take_little_room() -> None:
    """They are in every answer about the job, and kept when it has ended."""
    kernels = chain([f"{number}_" + "k" * 100_000 for number in range(1000)]).kernels
    assert len(kernels) == NAMES_KEPT
    assert kernels[1].startswith("1_kkk")
    assert sum(map(len, kernels)) < 8192


def test_each_kernel_is_named_once() -> None:
    assert chain(["b", "a", "b"]).kernels == ("b", "a")


def test_an_error_that_is_kept_takes_little_room() -> None:
    trap = KernelTrap("it failed", kernel="k" * 1_000_000, launch=3)
    kept = shortened(trap)
    assert isinstance(kept, KernelTrap)
    assert kept.launch == 3
    assert kept.cause == "it failed"
    assert "it failed" in kept.message
    assert len(str(kept.to_wire())) < 8192
    names = shortened(KernelNotFound("k", ["n" * 100_000] * 1000))
    assert len(str(names.to_wire())) < 100_000


def test_an_error_of_the_usual_length_is_kept_as_it_is() -> None:
    error = JobCancelled("job 1/1 was cancelled")
    assert shortened(error) is error
