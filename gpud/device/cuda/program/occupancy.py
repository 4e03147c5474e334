"""How many blocks of a kernel fit on an SM, with errors that name the broken limit.

Problem: the driver says how many blocks fit, and not why none does. Approach: a block's limits are
checked here first, so that an error names the one that is broken.
"""

from __future__ import annotations

from typing import Final

from gpud.device.cuda.program.module import CUDAKernel
from gpud.errors import LaunchConfigError

__all__ = ["check_shape", "measured"]

_FREE_SHARED_BYTES: Final = 48 << 10
"""A block may have this much shared memory; more must be requested for each kernel."""


def check_shape(
    kernel: CUDAKernel, shape: tuple[int, int, int], shared: int, shared_limit: int
) -> None:
    """Check that blocks of the kernel may have this shape.

    Args:
        kernel: to check.
        shape: threads in x, y, z.
        shared: bytes of dynamic shared memory.
        shared_limit: bytes of shared memory that a block may have on the device.

    Raises:
        LaunchConfigError: they may not, or not so much shared memory.
    """
    if shared < 0:
        raise LaunchConfigError("shared", shared, "shared memory cannot be negative")
    x, y, z = shape
    threads, most = x * y * z, kernel.attribute("max_threads")
    if threads > most:
        raise LaunchConfigError(
            "block",
            shape,
            f"{threads} threads are more than the {most} that a block of this kernel may have; "
            "launch more, smaller blocks",
            limit=most,
        )
    in_all = kernel.shared_bytes + shared
    if in_all > shared_limit:
        raise LaunchConfigError(
            "shared",
            in_all,
            f"static and dynamic shared memory of a block come to {in_all} bytes, more than the "
            f"{shared_limit} that an SM gives one block; use smaller tiles",
            limit=shared_limit,
        )


def measured(
    kernel: CUDAKernel, shape: tuple[int, int, int], shared: int, shared_limit: int
) -> int:
    """Ask the driver how many blocks fit on an SM; call after `check_shape`, with its arguments.

    Raises:
        LaunchConfigError: not even one block.
    """
    x, y, z = shape
    threads = x * y * z
    if shared > _FREE_SHARED_BYTES - kernel.shared_bytes:
        # The maximum for a block, so that a later, smaller launch does not lower it.
        room = shared_limit - kernel.shared_bytes
        kernel.set_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", room)
    if shared and kernel.rewritten:
        kernel.share_sms()
    driver = kernel.module.context.enter()
    what = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    occupancy = int(driver.call(what, kernel.handle, threads, shared))
    if not occupancy:
        registers = kernel.attribute("registers")
        raise LaunchConfigError(
            "block",
            shape,
            f"no block fits on an SM: {registers} registers a thread are too many for "
            f"{threads} threads; launch smaller blocks",
        )
    return occupancy
