"""The CPU device: virtual SMs that run PTX as native code.

Problem: run raw grids as a GPU does: several blocks resident on each SM, several launches at once,
blocks of the more urgent launch first, and no eviction.

Approach: each run (`gpud.device.cpu.scheduling.run`) has persistent blocks on the SMs;
`gpud.device.cpu.scheduling.block_scheduler` decides which run gets room on an SM. A persistent
block runs task block after task block and launch after launch without returning to Python
(`gpud.device.cpu.sm.loop`).
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from gpud.device.cpu.arena import CPUArena
from gpud.device.cpu.memory_limit import memory_limit_bytes
from gpud.device.cpu.occupancy import SM_LIMITS, DeviceLimits
from gpud.device.cpu.program.compile_request import KernelCompiler
from gpud.device.cpu.program.module import CPUKernel, CPUModule
from gpud.device.cpu.scheduling.block_scheduler import BlockScheduler
from gpud.device.cpu.scheduling.lane import CPULane
from gpud.device.cpu.scheduling.native_launch import NativeLaunch
from gpud.device.cpu.scheduling.run import CPURun
from gpud.device.cpu.scheduling.sequence import CPUSequence
from gpud.device.interface import Arrays, LaunchSpec, as_dim3
from gpud.device.lane_reports import LaneObserver
from gpud.units import Partitions

__all__ = ["CPUDevice", "CPUMemory"]

_open: weakref.WeakSet[CPUDevice] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for device in list(_open):
        device.close()


class CPUMemory:
    """Host memory that kernels address directly; a `gpud.device.interface.Memory`."""

    def __init__(self, size: int) -> None:
        raw = np.zeros(size + 256, np.uint8)
        skip = -raw.ctypes.data % 256
        self.view: npt.NDArray[np.uint8] = raw[skip : skip + size]
        self.address: int = raw.ctypes.data + skip


class CPUDevice:
    """Virtual SMs on the cores of this machine.

    Args:
        sms: number of virtual SMs; default one for each core that this process may use.
        capability: the compute capability, times ten, whose limits an SM has.
        compiler: compiles kernels to machine code; by default this process does.

    Attributes:
        scheduler: places persistent blocks on the SMs.
    """

    kind = "cpu"
    arrays: Arrays = "shared"
    uuid = ""

    def __init__(
        self,
        sms: int | None = None,
        *,
        capability: int = 90,
        compiler: KernelCompiler | None = None,
    ) -> None:
        if sms is None:
            sms = len(os.sched_getaffinity(0))
        if sms < 1:
            raise ValueError(f"a CPU device has one SM or more, not {sms}; use cpu:1 or larger")
        if capability not in SM_LIMITS:
            known = ", ".join(str(c) for c in SM_LIMITS)
            raise ValueError(f"no limits known for compute capability {capability}; use {known}")
        self.name = (
            f"CPU device, {sms} virtual SM{'s' * (sms > 1)} of compute capability {capability / 10}"
        )
        self.sms = sms
        self.capability = capability
        self._limits = DeviceLimits(sms, SM_LIMITS[capability])
        self.memory_bytes = memory_limit_bytes()
        self.partitions = Partitions(1, sms)
        self._grids = 0
        self._compiler = compiler
        self.scheduler = BlockScheduler(sms)
        # Closed at exit: native code must not outlive the memory that it works on.
        _open.add(self)

    # -- the interface

    def allocate(self, size: int) -> CPUMemory:
        """Return zeroed memory of ``size`` bytes, aligned to 256."""
        return CPUMemory(size)

    def map_arena(self, descriptor: int, size: int, base: int = 0) -> CPUArena:
        """Map a session's memory file, so that kernels can address it. See `CPUArena`."""
        return CPUArena(descriptor, size, base)

    def load(
        self,
        text: str,
        arena: tuple[int, int] | None = None,
        *,
        variables: tuple[int, int] | None = None,
    ) -> CPUModule:
        """Load a PTX program; see `CPUModule`."""
        return CPUModule(text, arena, self._compiler, variables=variables)

    def occupancy(self, kernel: CPUKernel, block: Sequence[int], shared: int = 0) -> int:
        """Return M for a block shape and ``shared`` bytes of dynamic shared memory.

        Raises:
            LaunchConfigError: the block shape is malformed, or no block fits on an SM.
        """
        return self._limits.occupancy(kernel, block, shared)

    def launch(
        self,
        kernel: CPUKernel,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: bytes,
        *,
        shared: int = 0,
        sms: Collection[int] | None = None,
        on_done: Callable[[NativeLaunch], None] | None = None,
    ) -> NativeLaunch:
        """Launch a kernel that is not rewritten, as one grid; returns at once.

        Args:
            kernel: a kernel of a module loaded on this device.
            grid: blocks in x, y, z.
            block: threads of a block in x, y, z.
            parameters: the kernel's parameter buffer.
            shared: dynamic shared memory of a block, in bytes.
            sms: the SMs on which its blocks may run; default: all.
            on_done: called once, on an SM's thread, when the last block has left.

        Raises:
            LaunchConfigError: grid, block or shared memory is outside what the device allows.
            KernelRejected: the kernel uses something that the CPU device does not support.
        """
        spec = LaunchSpec(
            kernel, "unmodified", as_dim3("grid", tuple(grid)), as_dim3("block", tuple(block)),
            parameters, shared,
        )  # fmt: skip
        cleared = () if sms is None else set(range(self.sms)) - set(sms)
        return NativeLaunch(self.new_run, self.prepare([spec]), on_done, cleared)

    def prepare(self, launches: Sequence[LaunchSpec], occupancy: int | None = None) -> CPUSequence:
        """Prepare a sequence of launches; it may run any number of times. See `CPUSequence`."""
        return CPUSequence(self._limits, launches, occupancy)

    def new_run(
        self,
        sequence: CPUSequence,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> CPURun:
        """Create a run of a sequence, which begins with its first `CPURun.resize`. See `CPURun`."""
        with self.scheduler.lock:
            number = self._grids + 1
            self._grids += len(sequence.launches)
            run = CPURun(self.scheduler, sequence, priority, number, on_left, on_over, exclusive)
            if exclusive:
                self.scheduler.assign_partition(run, exclusive)
        return run

    def open_lane(
        self,
        descriptor: int,
        occupancy: int,
        priority: int,
        observer: LaneObserver,
        exclusive: int = 0,
    ) -> CPULane:
        """Open a lane whose ring is in a file, without slices; see `CPULane`."""
        return CPULane(
            self.scheduler, self._limits, descriptor, occupancy, priority, observer, exclusive
        )

    def close(self) -> None:
        """End the SM threads. Launches that still run are dropped."""
        self.scheduler.close()

    def __enter__(self) -> CPUDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
