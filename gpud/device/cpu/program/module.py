"""A loaded program on the CPU device: its variables, and its kernels, compiled by block shape.

Code is generated for one block shape at a time, because LLVM vectorises only loops over a known
number of threads. The first launch with a new shape has to wait for that, unless
`CPUKernel.compiled` was called before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.compiler.abi.check_calls import CHECK_PREFIX
from gpud.compiler.abi.reserved_names import ARENA, HEAP, VARIABLES
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.parser import parse
from gpud.device import jit
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.abi.linked_memory import LinkedMemory, symbols
from gpud.device.cpu.codegen.artifact import ENTRY_POINTS, GeneratedKernel
from gpud.device.cpu.codegen.preparation.module_layout import layout_module
from gpud.device.cpu.program import printf
from gpud.device.cpu.program.compile_request import CompileRequest, CompileResult, KernelCompiler
from gpud.device.cpu.program.heap import Heap
from gpud.device.cpu.program.heap import install as install_heap
from gpud.device.cpu.program.module_data import ModuleData
from gpud.device.faults import without_line
from gpud.device.interface import PlacedParameter, parameters_of
from gpud.device.readable import EVERYTHING
from gpud.errors import KernelNotFound, KernelRejected

__all__ = ["CPUKernel", "CPUModule", "CompiledKernel"]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel compiled for one block shape.

    Attributes:
        generated: sizes and offsets that its blocks need.
        code: the functions that a block's header points to.
    """

    name: str
    shape: Shape
    generated: GeneratedKernel
    code: jit.NativeCode
    data: ModuleData


class CPUKernel:
    """A kernel (entry) of a loaded module."""

    def __init__(self, module: CPUModule, entry: ptx.Function) -> None:
        self.module = module
        self.name = entry.name
        self.parameters: tuple[PlacedParameter, ...] = parameters_of(entry)
        self.plans: dict[tuple[tuple[int, int, int], int, bool], Any] = {}
        """Cache of `gpud.device.cpu.scheduling.layout`, by block shape and shared memory."""
        self._compiled: dict[Shape, CompiledKernel] = {}
        self._lock = threading.Lock()

    def compiled(self, block: tuple[int, int, int]) -> CompiledKernel:
        """Return the kernel for a block shape, compiled on first use.

        Raises:
            KernelRejected: it uses something that the CPU device does not support.
            CompileError: the module's compiler exceeded its limits.
        """
        shape = Shape(*block)
        with self._lock:
            compiled = self._compiled.get(shape)
            if compiled is None:
                try:
                    native = self._native(block)
                except KernelRejected as error:
                    raise without_line(error, self.module.text) from error
                printf.install()
                linked = symbols(self.module.checked_arena, self.module.heap_range)
                code = jit.link(native.code, ENTRY_POINTS, linked)
                compiled = CompiledKernel(
                    self.name, shape, native.generated, code, self.module.data
                )
                self._compiled[shape] = compiled
        return compiled

    def _native(self, block: tuple[int, int, int]) -> CompileResult:
        module = self.module
        if module.compiler is None:
            generated = self.generate(Shape(*block))
            return CompileResult(generated, jit.object_code(generated.ir))
        wanted = CompileRequest(module.text, self.name, block, *module.linked_memory)
        return module.compiler(wanted)

    def generate(self, shape: Shape) -> GeneratedKernel:
        """LLVM assembly for a block shape, not compiled."""
        # Imported late: a device that compiles in another process starts faster without it.
        from gpud.device.cpu.codegen.kernel import generate_kernel

        module = self.module
        return generate_kernel(
            module.program, self.name, shape, module.layout, *module.linked_memory
        )

    def static_shared(self, block: tuple[int, int, int]) -> int:
        """Return the bytes of a block's shared memory without the dynamic part; gpud's included."""
        generated = self.compiled(block).generated
        return generated.dynamic_shared_at + generated.hidden_shared_bytes


class CPUModule:
    """A PTX program loaded on the CPU device.

    Args:
        text: PTX, rewritten or not.
        arena: address and size of its session's memory; None: accesses are not checked.
        compiler: compiles its kernels to machine code; by default this process does.
        variables: address and size of the block of its variables; None: they are its own.

    Raises:
        CompileError: the text is not valid PTX.
    """

    def __init__(
        self,
        text: str,
        arena: tuple[int, int] | None = None,
        compiler: KernelCompiler | None = None,
        *,
        variables: tuple[int, int] | None = None,
    ) -> None:
        if compiler is not None:
            compiler.warm_up()
        program = flatten_module(parse(text))
        self.text = text
        self.compiler = compiler
        self.arena = arena
        self.program = program
        self.layout = layout_module(program)
        has_checks = ARENA in self.layout.data.offsets
        self.checked_arena = arena if has_checks else None
        """The arena if the program has bounds checks, else None: its accesses are not checked."""
        self.announces = CHECK_PREFIX in text
        """Whether it was compiled for the checking mode."""
        self.heap: Heap | None = None
        if self.checked_arena is not None and HEAP in self.layout.data.offsets:
            install_heap()
            self.heap = Heap()
        ranges = {ARENA: arena, HEAP: self.heap_range, VARIABLES: variables}
        self.data = ModuleData(program, self.layout, ranges)
        self.layouts: dict[tuple[Any, ...], Any] = {}
        """Cache of `gpud.device.cpu.scheduling.layout`."""
        self._kernels: dict[str, CPUKernel] = {}

    @property
    def heap_range(self) -> tuple[int, int] | None:
        """Address and size of the heap of ``malloc``, if it has one."""
        return None if self.heap is None else self.heap.range

    @property
    def linked_memory(self) -> tuple[LinkedMemory | None, LinkedMemory | None]:
        """What its code knows of the arena and of the heap before it is loaded."""
        return LinkedMemory.of(self.checked_arena), LinkedMemory.of(self.heap_range)

    @property
    def readable(self) -> tuple[tuple[int, int], ...]:
        """(address, size) of the memory that its kernels may read beside their blocks' own."""
        arena = EVERYTHING if self.checked_arena is None else self.checked_arena
        heap = () if self.heap is None else (self.heap.range,)
        return ((self.data.address, self.data.memory.size), arena, *heap)

    def kernel(self, name: str) -> CPUKernel:
        """Return the entry ``name``.

        Raises:
            KernelNotFound: there is none.
        """
        kernel = self._kernels.get(name)
        if kernel is None:
            entries = self.program.entries()
            if name not in entries:
                raise KernelNotFound(name, available=tuple(entries))
            kernel = self._kernels[name] = CPUKernel(self, entries[name])
        return kernel

    def symbol(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a ``__device__`` or ``__constant__`` variable, writable, uint8.

        Raises:
            KeyError: there is no such variable; the message lists the existing ones.
        """
        if name not in self.data.sizes:
            known = ", ".join(sorted(self.data.sizes)) or "none"
            raise KeyError(f"no variable {name!r} in this program; it has: {known}")
        return self.data.symbol(name)
