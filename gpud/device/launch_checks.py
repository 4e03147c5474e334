"""What every device checks of a launch before it prepares it, with the same errors on each.

The limits are a GPU's: those that CUDA has for every device, and what gpud's own counters hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpud.compiler.abi.control_words import MAX_TASK_BLOCKS
from gpud.device.interface import RESIZABLE, REWRITTEN, LaunchSpec, PlacedParameter, as_dim3
from gpud.errors import LaunchConfigError

__all__ = [
    "THREADS_PER_BLOCK",
    "checked_block",
    "checked_grid",
    "checked_occupancy",
    "checked_parameters",
    "own_parameters",
]

Dim3 = tuple[int, int, int]

THREADS_PER_BLOCK: Final = 1024
_GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS: Final = (1024, 1024, 64)


def checked_grid(spec: LaunchSpec) -> Dim3:
    """Return a launch's grid as (x, y, z).

    Raises:
        LaunchConfigError: it has too many task blocks, or an extent is over what the form allows:
            a resizable launch numbers its task blocks and has no limit on a single extent.
    """
    x, y, z = grid = as_dim3("grid", spec.grid)
    total = x * y * z
    if total > MAX_TASK_BLOCKS:
        raise LaunchConfigError(
            "grid",
            grid,
            f"{total} task blocks are over {MAX_TASK_BLOCKS}; split the work into launches",
            limit=MAX_TASK_BLOCKS,
        )
    if spec.form not in RESIZABLE:
        _check_extents("grid", grid, _GRID_LIMITS)
    return grid


def checked_block(block: int | Sequence[int], most_threads: int = THREADS_PER_BLOCK) -> Dim3:
    """Return a block shape as (x, y, z).

    Raises:
        LaunchConfigError: no block may be so large.
    """
    x, y, z = shape = as_dim3("block", block if isinstance(block, int) else tuple(block))
    _check_extents("block", shape, _BLOCK_LIMITS)
    if x * y * z > most_threads:
        raise LaunchConfigError(
            "block",
            shape,
            f"{x * y * z} threads are more than the {most_threads} that a block may have; launch "
            "more, smaller blocks",
            limit=most_threads,
        )
    return shape


def own_parameters(kernel: Any, form: str) -> tuple[PlacedParameter, ...]:
    """Return a kernel's parameters without the hidden one.

    Raises:
        ValueError: the form says that there is a hidden one, and there is none.
    """
    parameters: tuple[PlacedParameter, ...] = kernel.parameters
    if form not in REWRITTEN:
        return parameters
    if not parameters or parameters[-1].size != 8:
        raise ValueError(f"{kernel.name} is no rewritten kernel: it has no hidden parameter")
    return parameters[:-1]


def checked_parameters(spec: LaunchSpec, expected_bytes: int) -> bytes:
    """Return a launch's parameter buffer.

    Raises:
        ValueError: its size is not the kernel's.
    """
    if len(spec.parameters) != expected_bytes:
        raise ValueError(
            f"{spec.kernel.name} takes {expected_bytes} bytes of parameters, not "
            f"{len(spec.parameters)}"
        )
    return spec.parameters


def checked_occupancy(of_launches: Sequence[int], wanted: int | None) -> int:
    """Return M of a sequence: ``wanted``, or the least of its launches'.

    Raises:
        ValueError: ``wanted`` is more than that, or less than 1; or there is no launch.
    """
    if not of_launches:
        raise ValueError("a job has one launch or more")
    least = min(of_launches)
    occupancy = least if wanted is None else wanted
    if not 1 <= occupancy <= least:
        raise ValueError(
            f"M of a job is between 1 and the least of its launches', {least}, not {occupancy}"
        )
    return occupancy


def _check_extents(what: str, extents: Dim3, limits: Dim3) -> None:
    for extent, limit in zip(extents, limits, strict=True):
        if extent > limit:
            raise LaunchConfigError(what, extents, f"an extent is over {limit}", limit=limit)
