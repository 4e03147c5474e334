from __future__ import annotations

from typing import Any

from gpud.core.events import LaunchShape
from gpud.server.state.sequence import NAMES_KEPT, ValidatedSequence


def sequence(names: list[str]) -> ValidatedSequence:
    shapes = tuple(LaunchShape(1, 1, True) for _ in names)
    needs: list[Any] = []
    return ValidatedSequence(b"", shapes, needs, names, 0)


def test_the_names_of_a_jobs_kernels_take_little_room() -> None:
    """They are in every answer about the job, and kept when it has ended."""
    kernels = sequence([f"{number}_" + "k" * 100_000 for number in range(1000)]).kernels
    assert len(kernels) == NAMES_KEPT
    assert kernels[1].startswith("1_kkk")
    assert sum(map(len, kernels)) < 8192


def test_each_kernel_is_named_once() -> None:
    assert sequence(["b", "a", "b"]).kernels == ("b", "a")
