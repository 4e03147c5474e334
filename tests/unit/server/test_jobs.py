from __future__ import annotations

from typing import Any

from gpud.core.events import LaunchShape
from gpud.server.state.submitted_job import NAMES_KEPT, Chain


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
