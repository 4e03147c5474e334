"""The model in which everything happens at once, and kernels run on the CPU device.

It tests the code around the driver, not whether the driver behaves as expected. Bounds checks are
the CPU device's, for the range that a program has when a launch begins: a kernel is compiled again
if that has changed. So are kill polls, which see a kill word that is written on a stream. A fault
is written into the job record when the launch is over, without the number of the task block: only
the rewritten program knows that, and the CPU device found the fault.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi import fault_record as fault
from gpud.compiler.abi.reserved_names import ARENA, CONTROL, HEAP, PRINT
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.scheduling.native_launch import NativeLaunch as OnDevice
from gpud.device.cuda.program.report_blocks import is_persistent
from gpud.errors import CompileError, GpudError, IllegalAddress
from tests.driver_model.model_driver import ModelDriver
from tests.driver_model.modules import Entry, Launch, Loaded, RefusedError

TIMEOUT_S = 60.0
_EVERYTHING = 2**64 - 1  # the size of an unlimited range


class CPUDriver(ModelDriver):
    """The model over a CPU device.

    Args:
        device: that runs kernels.
        memory_bytes: of the model's device.
        initialised: whether ``cuInit`` was called before.
    """

    def __init__(
        self, device: CPUDevice, memory_bytes: int = 1 << 30, *, initialised: bool = True
    ) -> None:
        self.device = device
        attributes = {
            "MULTIPROCESSOR_COUNT": device.sms,
            "NUM_REGS": 8,
            "LOCAL_SIZE_BYTES": 0,
        }
        super().__init__(
            self, attributes, memory_bytes=memory_bytes, name=b"Fake GPU", initialised=initialised
        )
        self._idle = threading.Condition(self.lock)
        self._running: list[_Running] = []

    # -- time

    def moved(self, stream: Any) -> None:
        """Begin the next item of a stream, and wake waiting threads."""
        self.streams.go_on(stream)
        with self._idle:
            self._idle.notify_all()

    def wait(self, done: Callable[[], bool], only: Any = None) -> None:
        """Wait until ``done``."""
        with self._idle:
            assert self._idle.wait_for(done, TIMEOUT_S), "waits for ever"

    def wait_for_all(self) -> None:
        """Wait until nothing runs."""
        self.wait(self.streams.are_idle)

    @property
    def resident(self) -> int:
        """How many kernels are running."""
        return len(self._running)

    # -- programs

    def load(self, text: str) -> Loaded:
        """Load a program on the CPU device."""
        try:
            # The CPU device replaces this function; under another name it runs the GPU's version.
            found = self.device.load(text.replace(PRINT, "written_down"))
        except CompileError as error:
            raise RefusedError(str(error)) from error
        data = found.layout.data
        entries = {name: Entry.of(entry) for name, entry in found.program.entries().items()}
        places = {
            name: (found.data.address + at, found.data.sizes.get(name, 16))
            for name, at in data.offsets.items()
        }
        return Loaded(found, entries, places)

    def unload(self, loaded: Loaded) -> None:
        """Do nothing: the CPU device frees programs by itself."""

    def fits(self, threads: int) -> int:
        """Blocks that fit on an SM with room for 2048 threads."""
        return 2048 // threads

    def start(self, launch: Launch, over: Callable[[], None]) -> None:
        """Start a kernel on the CPU device."""
        kernel = launch.function.loaded.own.kernel(launch.function.name)
        control = job = 0
        if kernel.parameters and kernel.parameters[-1].name.endswith(CONTROL):
            control = launch.values()[-1]
            job = ctypes.c_uint64.from_address(control + cw.JOB).value
        running = _Running(job)

        def ended(done: OnDevice) -> None:
            if done.output:  # as a GPU's driver does, before a waiting thread continues
                os.write(1, done.output)
            if control and done.error is not None:
                _failed(done.error, job)
                if is_persistent(kernel.module.program.entries()[kernel.name]):
                    _left(control, launch.grid[0])
            with self.lock:
                self._running.remove(running)
            over()

        _bounds_check(kernel)
        with self.lock:
            self._running.append(running)
        running.launch = self.device.launch(
            kernel, launch.grid, launch.block, launch.raw,
            shared=launch.shared, sms=launch.stream.sms, on_done=ended,
        )  # fmt: skip
        running.look()  # it may have been killed before there was anything to kill

    def written(self, address: int) -> None:
        """Check for a kill after a stream wrote a word."""
        with self.lock:
            killed = [one for one in self._running if one.job + cw.KILL == address]
        for one in killed:
            one.look()


class _Running:
    """A launch on the device, with the address of its job record; 0: it has none."""

    def __init__(self, job: int) -> None:
        self.job = job
        self.launch: OnDevice | None = None

    def look(self) -> None:
        """Kill the launch, if its kill word is set."""
        if self.job and self.launch and ctypes.c_uint32.from_address(self.job + cw.KILL).value:
            self.launch.kill()


def _bounds_check(kernel: Any) -> None:
    """Have a kernel's accesses checked from now on, if its program has a range."""
    loaded = kernel.module
    arena, heap = _range(loaded, ARENA), _range(loaded, HEAP)
    if heap is not None and heap[1]:
        loaded.heap = SimpleNamespace(range=heap)
    if arena is None:
        return
    loaded.checked_arena = None if arena[1] == _EVERYTHING else arena
    with kernel._lock:
        if getattr(kernel, "checked_arena", loaded.checked_arena) != loaded.checked_arena:
            # The range is in the code, which blocks of earlier launches may be in yet.
            kernel.outdated = [*getattr(kernel, "outdated", ()), kernel._compiled.copy()]
            kernel._compiled.clear()
            kernel.plans.clear()
        kernel.checked_arena = loaded.checked_arena


def _range(loaded: Any, name: str) -> tuple[int, int] | None:
    """The value of one of gpud's variables, if the program has it."""
    offset = loaded.layout.data.offsets.get(name)
    if offset is None:
        return None
    raw = loaded.data.memory[offset : offset + 16].tobytes()
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


def _left(control: int, count: int) -> None:
    """Write what ``count`` blocks report when they leave: they were ended early."""
    status = ctypes.c_uint64.from_address(control + cw.STATUS).value
    ctypes.memset(status + cw.left_at(count), 1, count)


def _failed(error: GpudError, job: int) -> None:
    """Write the fault of a launch into its job record."""

    def put(at: int, value: int) -> None:
        ctypes.c_uint32.from_address(job + at).value = value & 0xFFFFFFFF

    fields: Any = error
    if isinstance(error, IllegalAddress):
        kind = fault.FaultKind.MISALIGNED if fields.misaligned else fault.FaultKind.ADDRESS
        ctypes.c_uint64.from_address(job + fault.ADDRESS).value = fields.address
    else:
        kind = fault.FaultKind.TRAP
    put(fault.KIND, kind)
    put(fault.SITE, -1 if fields.site is None else fields.site)
    put(fault.CLAIM, 0)
    for index, extent in enumerate(fields.thread or (0, 0, 0)):
        put(fault.THREAD + 4 * index, extent)
    put(cw.NEXT, ctypes.c_uint32.from_address(job + cw.TOTAL).value)
    put(fault.STATE, fault.COMPLETE)
