"""Occupancy on a virtual SM, which has the limits of a real SM of some compute capability.

The CPU device has no limit on registers, so occupancy follows threads, blocks and shared memory, as
the CUDA occupancy calculator counts them: shared memory in whole granules, plus what the system
reserves for each block from compute capability 8.0 on.

Source: CUDA C++ Programming Guide 13.0, "Compute Capabilities", technical specifications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Final

from gpud.device.launch_checks import checked_block
from gpud.errors import LaunchConfigError

if TYPE_CHECKING:
    from gpud.device.cpu.program.module import CPUKernel

__all__ = ["SM_CAPACITY", "SM_LIMITS", "DeviceLimits", "SMLimits", "occupancy"]

SM_CAPACITY: Final = lcm(*range(1, 33))
"""Capacity of an SM, in units such that 1/M of it is a whole number for every M."""


@dataclass(frozen=True, slots=True)
class SMLimits:
    """The limits of one SM. Sizes are bytes."""

    threads: int
    blocks: int
    shared: int
    shared_per_block: int
    shared_reserved: int
    shared_granule: int
    threads_per_block: int = 1024

    def shared_cost(self, shared: int) -> int:
        """Return how many bytes of the SM's shared memory a block with ``shared`` bytes takes."""
        total = shared + self.shared_reserved
        return -(-total // self.shared_granule) * self.shared_granule


_KIB = 1024
SM_LIMITS = {
    75: SMLimits(1024, 16, 64 * _KIB, 64 * _KIB, 0, 256),
    80: SMLimits(2048, 32, 164 * _KIB, 163 * _KIB, _KIB, 128),
    86: SMLimits(1536, 16, 100 * _KIB, 99 * _KIB, _KIB, 128),
    87: SMLimits(1536, 16, 164 * _KIB, 163 * _KIB, _KIB, 128),
    89: SMLimits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB, 128),
    90: SMLimits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB, 128),
    100: SMLimits(2048, 32, 228 * _KIB, 227 * _KIB, _KIB, 128),
    120: SMLimits(1536, 24, 100 * _KIB, 99 * _KIB, _KIB, 128),
}
"""Limits by compute capability times ten."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a device allows: its number of SMs, and the limits of each."""

    sms: int
    sm: SMLimits

    def occupancy(self, kernel: CPUKernel, block: int | Sequence[int], shared: int) -> int:
        """Return M for a block shape and ``shared`` bytes of dynamic shared memory.

        Raises:
            LaunchConfigError: the block shape is malformed, or no block fits on an SM.
        """
        x, y, z = shape = checked_block(block, self.sm.threads_per_block)
        if shared < 0:
            raise LaunchConfigError("shared", shared, "shared memory cannot be negative")
        return occupancy(self.sm, x * y * z, kernel.static_shared(shape) + shared)


def occupancy(limits: SMLimits, threads: int, shared: int) -> int:
    """Return M: how many blocks of ``threads`` threads and ``shared`` bytes fit on one SM.

    Raises:
        LaunchConfigError: not even one fits; the message names the limit.
    """
    if threads > limits.threads_per_block:
        raise LaunchConfigError(
            "block",
            threads,
            f"{threads} threads are more than the {limits.threads_per_block} that a block may "
            "have; launch more, smaller blocks",
            limit=limits.threads_per_block,
        )
    if shared > limits.shared_per_block:
        raise LaunchConfigError(
            "shared",
            shared,
            f"static and dynamic shared memory of a block come to {shared} bytes, more than the "
            f"{limits.shared_per_block} that an SM gives one block; use smaller tiles",
            limit=limits.shared_per_block,
        )
    by_threads = (limits.threads // 32) // -(-threads // 32)
    by_shared = limits.shared // limits.shared_cost(shared) if shared else limits.blocks
    return min(limits.blocks, by_threads, by_shared)
