"""PTX programs loaded on the GPU, with their kernels and variables.

Problem: the driver compiles PTX, and reports errors in a log; bounds checks must know the session's
range before the first kernel; and variables lie in device memory, which Python cannot access.

Approach: the program is parsed for what the driver does not report (the layout of parameters, the
variables and their sizes) and loaded with a buffer for the log. Bounds checks read `ARENA`, which
is written right after the load, and again when the arena's prefix grows (`CUDAModule.widen`).
`gpud.device.cuda.program.device_bytes` stands for a variable: slices of it are read and written by
copies.

Variables without linkage are made visible first: the driver gives the address of no others, and
the texts of assertions are such variables.

Properties:
* a program that cannot be loaded holds no resources;
* gpud's own variables are no symbols of the module.

A checked program that calls ``malloc`` has a heap of its own (`gpud.device.cuda.program.heap`);
without bounds checks it uses the driver's.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from gpud.compiler.abi.reserved_names import ARENA, HEAP, OWN_VARIABLES, PRINT, VARIABLES
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.dump_folder import DumpFolder
from gpud.compiler.forms.rules import SLOT_BYTES
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import Pool, out_of_memory
from gpud.device.cuda.program.by_value import is_values, pass_by_value
from gpud.device.cuda.program.device_bytes import DeviceBytes
from gpud.device.cuda.program.heap import BLOCK_BYTES, HEAP_BYTES, with_own_heap
from gpud.device.cuda.program.report_blocks import is_rewritten, report_blocks
from gpud.device.interface import PlacedParameter, parameters_of
from gpud.errors import CompileError, KernelNotFound

__all__ = ["CUDAKernel", "CUDAModule", "visible"]

_LOG_BYTES = 1 << 16
_REFUSALS = frozenset(
    (
        "INVALID_IMAGE",
        "INVALID_PTX",
        "INVALID_SOURCE",
        "NO_BINARY_FOR_GPU",
        "SHARED_OBJECT_SYMBOL_NOT_FOUND",
        "UNSUPPORTED_PTX_VERSION",
    )
)
"""Statuses of a load that mean that the program is at fault."""
_EVERYTHING = (0, 2**64 - 1)
_NOTHING = (0, 0)
_SPACES = ("global", "const")
_ATTRIBUTES = {
    "registers": "NUM_REGS",
    "shared_bytes": "SHARED_SIZE_BYTES",
    "local_bytes": "LOCAL_SIZE_BYTES",
    "max_threads": "MAX_THREADS_PER_BLOCK",
}


class CUDAKernel:
    """An entry of a loaded module.

    Attributes:
        module: it belongs to.
        parameters: with their offsets in the parameter buffer, without the structure of
            `gpud.device.cuda.program.by_value`.
        placed: all of them, as the driver takes them.
        by_value: whether it has that structure, in front of the last parameter.
        rewritten: whether it has a hidden parameter.
        prints: whether it may print to its run's output buffer.
        occupancies: cache of M by block shape and dynamic shared memory.
        block_ns: nanoseconds that a task block takes, by block shape, as last measured.
    """

    def __init__(
        self, module: CUDAModule, entry: ptx.Function, handle: Any, *, prints: bool
    ) -> None:
        self.module = module
        self.prints = prints
        self.rewritten = is_rewritten(entry)
        self.name = entry.name
        self.handle = handle
        self.placed: tuple[PlacedParameter, ...] = parameters_of(entry)
        known = tuple(one for one in entry.parameters if not is_values(one.name))
        self.parameters: tuple[PlacedParameter, ...] = parameters_of(
            replace(entry, parameters=known)
        )
        self.by_value = len(known) < len(self.placed)
        self.occupancies: dict[tuple[tuple[int, int, int], int], int] = {}
        self.block_ns: dict[tuple[int, int, int], float] = {}

    def attribute(self, name: str) -> int:
        """Read ``registers``, ``shared_bytes`` (static), ``local_bytes`` or ``max_threads``.

        Registers and local bytes are per thread.
        """
        driver = self.module.context.enter()
        which = getattr(driver.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{_ATTRIBUTES[name]}")
        return int(driver.call("cuFuncGetAttribute", which, self.handle))

    def set_attribute(self, name: str, value: int) -> None:
        """Set an attribute by its name without ``CU_FUNC_ATTRIBUTE_``; may wait for the device."""
        driver = self.module.context.enter()
        which = getattr(driver.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        with self.module.context.watchdog.blocking_call("cuFuncSetAttribute"):
            driver.call("cuFuncSetAttribute", self.handle, which, value)

    def share_sms(self) -> None:
        """Set the same split of SM memory into cache and shared memory as other kernels have.

        An SM's split is changed only when no block is on it, and persistent blocks stay: a kernel
        that needs more shared memory than those before it would wait for all of them to leave. So
        all kernels that use shared memory ask for the most of it. That leaves them less cache: 28
        of 256 KB on an H100. Kernels without any have no preference and keep their cache, and may
        make others wait: ``bench/gpu/waits.py`` and ``rewrite_cost.py`` measure both.

        Source: CUDA Driver API 13.0, ``cuFuncSetCacheConfig`` ("may insert a device-side
        synchronization point"), and ``CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT``.
        """
        api = self.module.context.driver.api
        most = int(api.CUshared_carveout.CU_SHAREDMEM_CARVEOUT_MAX_SHARED)
        self.set_attribute("PREFERRED_SHARED_MEMORY_CARVEOUT", most)

    @cached_property
    def shared_bytes(self) -> int:
        """Static shared memory of a block."""
        return self.attribute("shared_bytes")


class CUDAModule:
    """A PTX program loaded on the GPU.

    Args:
        text: PTX, rewritten or not.
        arena: address and size of its session's arena; None: it may access all memory.
        blocks: pool for its heap, which returns there when the module is garbage-collected; None:
            it may call ``malloc`` only without bounds checks.
        dump: writes what is loaded; None: nobody wants to see it.
        placed: address and size of the block of its variables; None: they are its own.

    Attributes:
        checked_arena: address and size of the range that its bounds checks pass; None: it has none.
        sizes: bytes of each variable by name, without gpud's own.

    Raises:
        CompileError: the PTX cannot be parsed, or the driver rejects it; with its log.
        OutOfMemory: there is none left for its heap.
    """

    def __init__(
        self,
        context: Context,
        text: str,
        arena: tuple[int, int] | None = None,
        blocks: Pool | None = None,
        *,
        dump: DumpFolder | None = None,
        placed: tuple[int, int] | None = None,
    ) -> None:
        program = visible(pass_by_value(report_blocks(flatten_module(parse(text)))))
        self.context = context
        self.arena = arena
        # Without bodies: the garbage collector stops all threads while it traverses objects.
        self._entries = {
            name: replace(entry, body=None) for name, entry in program.entries().items()
        }
        self._printing = _printing(program)
        self._kernels: dict[str, CUDAKernel] = {}
        self._addresses: dict[str, int | None] = {}
        variables = [
            item
            for item in program.items
            if isinstance(item, ptx.Variable) and item.space in _SPACES and item.linkage != "extern"
        ]
        self.sizes = {one.name: size_and_align(one)[0] for one in variables}
        own = {name for name in OWN_VARIABLES if self.sizes.pop(name, None) is not None}
        heap = _NOTHING if arena is not None else _EVERYTHING
        if HEAP in own and arena is not None and blocks is not None:
            program = with_own_heap(program)
            heap = self._take_heap(blocks)
        made = print_module(program)
        if dump is not None:
            dump.loaded(text, self._entries, made)
        self._handle = _loaded(context, made)
        self._owned = True
        try:
            if ARENA in own:
                self._write_range(ARENA, _EVERYTHING if arena is None else arena)
            if HEAP in own:
                self._write_range(HEAP, heap)
            if VARIABLES in own and placed is not None:
                self._write_range(VARIABLES, placed)
        except BaseException:
            self.close()
            raise
        self.checked_arena = arena if ARENA in own else None

    def kernel(self, name: str) -> CUDAKernel:
        """Return the entry ``name``.

        Raises:
            KernelNotFound: there is none.
        """
        kernel = self._kernels.get(name)
        if kernel is None:
            if name not in self._entries:
                raise KernelNotFound(name, available=tuple(self._entries))
            handle = self.context.enter().call("cuModuleGetFunction", self._handle, name.encode())
            entry = self._entries[name]
            kernel = CUDAKernel(self, entry, handle, prints=name in self._printing)
            if kernel.rewritten and kernel.shared_bytes > SLOT_BYTES:
                kernel.share_sms()
            self._kernels[name] = kernel
        return kernel

    def symbol(self, name: str) -> Any:
        """Return the bytes of a ``__device__`` or ``__constant__`` variable: `DeviceBytes`.

        Raises:
            KeyError: there is no such variable; the message lists the existing ones.
        """
        address = self._address(name) if name in self.sizes else None
        if address is None:
            known = ", ".join(sorted(self.sizes)) or "none"
            raise KeyError(f"no variable {name!r} in this program; it has: {known}")
        return DeviceBytes(self.context, address, self.sizes[name])

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return (address, size) of its variables, which may be read to report a failure."""
        placed = [(self._address(name), size) for name, size in self.sizes.items()]
        return tuple((address, size) for address, size in placed if address and size)

    def widen(self, size: int) -> None:
        """Have its checks pass the first ``size`` bytes of its arena from the next launch on.

        The driver copies 8 aligned bytes at once: no kernel reads half of an old size. A kernel
        that is running uses the old size or the new one.
        """
        if self.checked_arena is None or self.checked_arena[1] == size:
            return
        address = self._address(ARENA)
        if address is not None:
            raw = size.to_bytes(8, "little")
            DeviceBytes(self.context, address + 8, len(raw))[:] = raw
        self.checked_arena = self.checked_arena[0], size

    def close(self) -> None:
        """Unload it; may wait for the device. None of its kernels runs, or will."""
        if self._owned:
            self.context.enter().call("cuModuleUnload", self.release())

    def release(self) -> Any:
        """Give up the driver's handle, which the caller has to unload."""
        self._owned = False
        return self._handle

    def _take_heap(self, blocks: Pool) -> tuple[int, int]:
        """Allocate a zeroed heap with its records; its address and size.

        Zeroed by a copy: a memset needs room on an SM, and a full device may have none for hours.
        """
        block = blocks.take(BLOCK_BYTES)
        weakref.finalize(self, blocks.give, block).atexit = False
        zero = np.zeros(BLOCK_BYTES, np.uint8)
        self.context.copy_in(block.address, zero.ctypes.data, BLOCK_BYTES)
        return block.address, HEAP_BYTES

    def _address(self, name: str) -> int | None:
        """Return a variable's address; None if the driver has none, because no code uses it."""
        if name not in self._addresses:
            driver = self.context.enter()
            try:
                address, _ = driver.call("cuModuleGetGlobal", self._handle, name.encode())
                self._addresses[name] = int(address)
            except DriverError as error:
                if error.status != "NOT_FOUND":
                    raise
                self._addresses[name] = None
        return self._addresses[name]

    def _write_range(self, name: str, values: tuple[int, int]) -> None:
        address = self._address(name)
        if address is not None:
            raw = b"".join(value.to_bytes(8, "little") for value in values)
            DeviceBytes(self.context, address, len(raw))[:] = raw


def _printing(program: ptx.Module) -> frozenset[str]:
    """Return the entries of ``program`` that can reach `gpud.compiler.abi.reserved_names.PRINT`."""
    if not any(function.name == PRINT for function in program.functions()):
        return frozenset()
    graph = call_graph(program)
    return frozenset(
        name
        for name in program.entries()
        if any(uses.function.name == PRINT for uses in graph.closure(name))
    )


def visible(program: ptx.Module) -> ptx.Module:
    """Make every variable of ``program`` visible to the driver."""
    return replace(
        program,
        items=[
            replace(item, linkage="visible")
            if isinstance(item, ptx.Variable) and item.linkage is None and item.space in _SPACES
            else item
            for item in program.items
        ],
    )


def _loaded(context: Context, text: str) -> Any:
    """Load a program; the driver's handle of it.

    Raises:
        CompileError: the driver rejects it.
    """
    driver = context.enter()
    log = bytearray(_LOG_BYTES)
    option = driver.api.CUjit_option
    names = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    values: list[Any] = [log, _LOG_BYTES]
    image = text.encode() + b"\0"
    code = context.machine_code.of(driver, text)
    try:
        with context.watchdog.blocking_call("cuModuleLoadDataEx", len(code or image)):
            return driver.call("cuModuleLoadDataEx", code or image, len(names), names, values)
    except DriverError as error:
        said = log.partition(b"\0")[0].decode(errors="replace").strip()
        if not said and error.status not in _REFUSALS:
            raise out_of_memory(context, error, len(image)) from error
        first = said.splitlines()[0] if said else "it says nothing more"
        if error.status == "UNSUPPORTED_PTX_VERSION":
            version = int(driver.call("cuDriverGetVersion"))
            first = (
                f"the compiler is newer than the driver, which is for CUDA {version // 1000}."
                f"{version % 1000 // 10}: install NVRTC of that version, or a newer driver"
            )
        raise CompileError(f"the GPU's driver refuses the program ({error.status}): {first}",
                           log=said) from error  # fmt: skip
