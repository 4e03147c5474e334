"""The CPU device: virtual SMs that run PTX as native code.

Problem: run raw grids as a GPU does: several blocks resident on each SM, several launches at once,
blocks of the more urgent launch first, and nothing evicted.

Approach: every launch asks for slots; `_assign` gives room on the least loaded SM to the launch of
the highest priority that still has blocks to start, in order of arrival. A slot runs block after
block of its launch without coming back (`gpud.device.cpu.sm`), unless a launch of higher priority
waits for room: then it comes back at the end of its block.

Properties:
* what resides on an SM never exceeds its limits of threads, blocks and shared memory;
* a launch is done when its last block has left, and only then are those who wait told;
* memory of a resident block is used again only after it has left.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gpud.compiler.control_words import MAX_TASK_BLOCKS
from gpud.device.cpu import output
from gpud.device.cpu.codegen.driver import DEADLOCK
from gpud.device.cpu.codegen.layout import HEADER, WARP, Fresh, align_up
from gpud.device.cpu.launch import Launch
from gpud.device.cpu.module import CPUKernel, CPUModule
from gpud.device.cpu.occupancy import SM_LIMITS, SMLimits, occupancy
from gpud.device.cpu.sm import Resident, VirtualSM
from gpud.device.interface import as_dim3
from gpud.errors import KernelTrap, LaunchConfigError

__all__ = ["CPUDevice", "CPUMemory"]

_open: weakref.WeakSet[CPUDevice] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for device in list(_open):
        device.close()


_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)


class CPUMemory:
    """Host memory that kernels address directly; ``view`` is its bytes."""

    def __init__(self, size: int) -> None:
        raw = np.zeros(size + 256, np.uint8)
        skip = -raw.ctypes.data % 256
        self.view: npt.NDArray[np.uint8] = raw[skip : skip + size]
        self.address: int = raw.ctypes.data + skip


class CPUDevice:
    """Virtual SMs on the cores of this machine.

    Args:
        sms: how many; default one for each core that this process may use.
        capability: the compute capability, times ten, whose limits an SM has.
    """

    kind = "cpu"

    def __init__(self, sms: int | None = None, *, capability: int = 90) -> None:
        if sms is None:
            sms = len(os.sched_getaffinity(0))
        if sms < 1:
            raise ValueError(f"a CPU device has one SM or more, not {sms}; use cpu:1 or larger")
        if capability not in SM_LIMITS:
            known = ", ".join(str(c) for c in SM_LIMITS)
            raise ValueError(f"no limits known for compute capability {capability}; use {known}")
        self.name = f"CPU device, {sms} virtual SMs of compute capability {capability / 10}"
        self.sms = sms
        self.capability = capability
        self.limits: SMLimits = SM_LIMITS[capability]
        self._lock = threading.RLock()
        self._queue: list[Launch] = []
        self._pool: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._grids = 0
        self._closed = False
        self._sms = [VirtualSM(i, self._slot_finished, self._slot_failed) for i in range(sms)]
        # Native code must not outlive the memory that it works on.
        _open.add(self)

    # -- the interface

    def allocate(self, size: int) -> CPUMemory:
        """Zeroed memory of ``size`` bytes, aligned to 256."""
        return CPUMemory(size)

    def load(self, text: str) -> CPUModule:
        """Load a PTX program; see `CPUModule`."""
        return CPUModule(text)

    def occupancy(self, kernel: CPUKernel, block: Sequence[int], shared: int = 0) -> int:
        """M for a block shape and ``shared`` bytes of dynamic shared memory.

        Raises:
            LaunchConfigError: not even one block fits an SM.
        """
        shape = self._check_block(block)
        if shared < 0:
            raise LaunchConfigError("shared", shared, "shared memory cannot be negative")
        total = kernel.static_shared(shape) + shared
        return occupancy(self.limits, shape[0] * shape[1] * shape[2], total)

    def launch(
        self,
        kernel: CPUKernel,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: bytes,
        *,
        shared: int = 0,
        priority: int = 0,
        on_done: Callable[[Launch], None] | None = None,
    ) -> Launch:
        """Start a raw grid of blocks; returns at once.

        Args:
            kernel: of a module loaded on this device.
            grid: raw blocks in x, y, z.
            block: threads of a block in x, y, z.
            parameters: the kernel's parameter buffer.
            shared: dynamic shared memory of a block, in bytes.
            priority: larger is more urgent.
            on_done: called once, on an SM's thread, when the last block has left.

        Raises:
            LaunchConfigError: grid, block or shared memory is outside what the device allows.
            KernelRejected: the kernel uses something that the CPU device does not run.
        """
        extents = self._check_grid(grid)
        shape = self._check_block(block)
        self.occupancy(kernel, shape, shared)
        compiled = kernel.compiled(shape)
        launch = Launch(compiled, extents, parameters, shared, priority, on_done)
        with self._lock:
            if self._closed:
                raise RuntimeError("the device is closed")
            self._queue.append(launch)
            self._queue.sort(key=lambda one: -one.priority)
            self._grids += 1
            launch.number = self._grids
            over = self._assign()
        for ended in over:
            ended.finish()
        return launch

    def close(self) -> None:
        """End the SM threads. Launches that still run are dropped."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for sm in self._sms:
            sm.close()

    def __enter__(self) -> CPUDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- checks

    @staticmethod
    def _check_grid(grid: Sequence[int]) -> tuple[int, int, int]:
        x, y, z = as_dim3("grid", tuple(grid))
        for extent, limit in zip((x, y, z), _GRID_LIMITS, strict=True):
            if extent > limit:
                raise LaunchConfigError(
                    "grid", (x, y, z), f"an extent is over {limit}", limit=limit
                )
        if x * y * z > MAX_TASK_BLOCKS:
            raise LaunchConfigError(
                "grid",
                (x, y, z),
                f"{x * y * z} blocks are over {MAX_TASK_BLOCKS}; split the work into launches",
                limit=MAX_TASK_BLOCKS,
            )
        return x, y, z

    def _check_block(self, block: Sequence[int]) -> tuple[int, int, int]:
        x, y, z = as_dim3("block", tuple(block))
        for extent, limit in zip((x, y, z), _BLOCK_LIMITS, strict=True):
            if extent > limit:
                raise LaunchConfigError(
                    "block", (x, y, z), f"an extent is over {limit}", limit=limit
                )
        if x * y * z > self.limits.threads_per_block:
            raise LaunchConfigError(
                "block",
                (x, y, z),
                f"{x * y * z} threads are more than a block may have; launch more, smaller blocks",
                limit=self.limits.threads_per_block,
            )
        return x, y, z

    # -- slots

    def _assign(self) -> list[Launch]:
        """Give room to the launches that want it, most urgent first. Called with the lock held.

        Returns the launches that are over: `Launch.finish` is the caller's, without the lock,
        because it may call back into the device.
        """
        over: list[Launch] = []
        for launch in list(self._queue):
            while launch.wants > 0:
                sm = self._room_for(launch)
                if sm is None:
                    return over  # later launches must not overtake one that waits for room
                self._occupy(sm, launch)
            if launch.active == 0 and launch.wants == 0:
                self._queue.remove(launch)
                over.append(launch)
        return over

    def _room_for(self, launch: Launch) -> VirtualSM | None:
        threads = launch.compiled.shape.threads
        cost = self._shared_cost(launch)
        fitting = [
            sm
            for sm in self._sms
            if sm.blocks_used < self.limits.blocks
            and sm.threads_used + align_up(threads, 32) <= self.limits.threads
            and sm.shared_used + cost <= self.limits.shared
        ]
        return min(fitting, key=lambda sm: (sm.threads_used, sm.blocks_used), default=None)

    def _shared_cost(self, launch: Launch) -> int:
        total = launch.compiled.generated.static_shared_bytes + launch.shared
        return self.limits.shared_cost(total) if total else 0

    def _occupy(self, sm: VirtualSM, launch: Launch) -> None:
        sm.threads_used += align_up(launch.compiled.shape.threads, 32)
        sm.blocks_used += 1
        sm.shared_used += self._shared_cost(launch)
        launch.active += 1
        launch.started += 1
        sm.add(self._resident(sm, launch))

    def _vacate(self, sm: VirtualSM, resident: Resident) -> None:
        launch = resident.launch
        output.unregister(resident.address)
        with self._lock:
            sm.threads_used -= align_up(launch.compiled.shape.threads, 32)
            sm.blocks_used -= 1
            sm.shared_used -= self._shared_cost(launch)
            launch.active -= 1
            launch.started = launch.claimed
            self._pool.setdefault(len(resident.memory), []).append(resident.memory)
            over = self._assign()
        for ended in over:
            ended.finish()

    def _resident(self, sm: VirtualSM, launch: Launch) -> Resident:
        """A slot's memory: header and arrays, local memory, shared memory."""
        generated = launch.compiled.generated
        shared_at = align_up(generated.block_bytes + generated.local_bytes, 256)
        shared = generated.static_shared_bytes + launch.shared
        size = align_up(shared_at + shared + 512, 4096)
        pool = self._pool.get(size)
        memory = pool.pop() if pool else np.zeros(size, np.uint8)
        address = align_up(memory.ctypes.data, 256)
        header = memory[address - memory.ctypes.data :]
        fields = {
            "params": launch.parameters.ctypes.data,
            "shared": address + shared_at,
            "locals": address + generated.block_bytes,
            "data": launch.compiled.data.address,
            "launch": launch.address,
            "shared_size": shared,
            "grid_id": launch.number,
            "nctaid_x": launch.grid[0],
            "nctaid_y": launch.grid[1],
            "nctaid_z": launch.grid[2],
            "smid": sm.index,
            "nsmid": self.sms,
            "dynamic_shared": launch.shared,
            "threads": launch.compiled.shape.threads,
            "padded": align_up(launch.compiled.shape.threads, WARP),
            "start": 0 if generated.starts_together else 0xFFFFFFFF,
            "fresh": Fresh.COORDINATES,
            "error": 0,
            **launch.compiled.code.addresses,
        }
        for name, value in fields.items():
            offset, type_ = HEADER[name]
            width = 4 if type_ == "i32" else 8
            kind = np.uint32 if width == 4 else np.uint64
            header[offset : offset + width].view(kind)[0] = value

        def on_assert(thread: int, message: str) -> None:
            launch.failed_assertion = f"thread {thread}: {message}"

        output.register(address, launch.print, on_assert)
        return Resident(launch, memory, address)

    # -- events from the SMs

    def _slot_finished(self, sm: VirtualSM, resident: Resident) -> None:
        self._vacate(sm, resident)

    def _slot_failed(self, sm: VirtualSM, resident: Resident) -> None:
        launch = resident.launch
        start = resident.address - resident.memory.ctypes.data
        header = resident.memory[start:]

        def field(name: str) -> int:
            offset = HEADER[name][0]
            return int(header[offset : offset + 4].view(np.uint32)[0])

        place = (field("ctaid_x"), field("ctaid_y"), field("ctaid_z"))
        if field("error") == DEADLOCK:
            cause = (
                "deadlock: every thread of a block waits at a barrier or a warp collective that "
                "others of the block will never reach"
            )
            error = KernelTrap(cause, kernel=launch.compiled.name, task_block=place)
        else:
            error = KernelTrap(
                launch.failed_assertion or "trap",
                kernel=launch.compiled.name,
                line=field("error_line"),
                task_block=place,
            )
        launch.fail(error)
        self._vacate(sm, resident)
