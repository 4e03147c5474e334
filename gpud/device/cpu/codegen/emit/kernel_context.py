"""What the writers of one kernel's code share: layouts, metadata of accesses, and their makers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpud.device.cpu.abi.layout import STATE_STATUS_SHIFT, BlockLayout, ModuleLayout, Shape
from gpud.device.cpu.abi.linked_memory import LinkedMemory
from gpud.device.cpu.codegen.analysis.canonical_nans import noncanonical_registers
from gpud.device.cpu.codegen.analysis.regions import CodeRegions
from gpud.device.cpu.codegen.emit.addresses import KernelAddresses
from gpud.device.cpu.codegen.emit.strip_mining import strip_mined_loops
from gpud.device.cpu.codegen.emit.thread_code import CallInfo, ThreadCode
from gpud.device.cpu.codegen.runtime.collectives import Collectives
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["KernelContext", "state_word"]


def state_word(status: int, block: int) -> int:
    """Return the state word of a thread that will resume at ``block``."""
    return status << STATE_STATUS_SHIFT | block


class KernelContext:
    """State shared by the writers of one kernel's code."""

    def __init__(
        self,
        ir: IRModule,
        regions: CodeRegions,
        storage: Mapping[str, str],
        shape: Shape,
        module: ModuleLayout,
        program: CallInfo,
        parameters: tuple[Mapping[str, int], int],
        locals_: Mapping[str, int],
        local_size: int,
    ) -> None:
        self.ir = ir
        self.regions = regions
        self.storage = storage
        self.noncanonical = noncanonical_registers(regions.flow.function.body or (), dict(storage))
        self.shape = shape
        self.module = module
        self.program = program
        self.parameters, self.parameter_size = parameters
        self.parameter_window = self.parameter_size
        """Bytes of the parameters that the program may read by computed addresses."""
        self.locals = locals_
        self.local_size = local_size
        self.layout = BlockLayout(shape.threads)
        self.spill_tags = ", !alias.scope !2, !noalias !3, !llvm.access.group !4"
        self.user_tags = ", !alias.scope !3, !noalias !2, !llvm.access.group !4"
        self.ordered_tags = ", !alias.scope !3, !noalias !2"
        self.collectives = Collectives(self.layout, self.spill_tags)
        self.region_cuts: tuple[int, ...] = regions.cuts
        """Blocks at which a diverged thread can resume."""
        self.arena: LinkedMemory | None = None
        """Base and size of the memory that accesses are checked against; None: no checks."""
        self.heap: LinkedMemory | None = None
        """The program's own heap."""
        self.syncs_grid = False
        """Whether the kernel synchronises its grid: then accesses to the job record's words for
        that are legal."""
        self.strip_mined_loops = strip_mined_loops(regions.flow, regions.cuts)
        """Loops of diverged threads that poll once in many iterations."""
        self.frames = 0
        """Bytes for the frames of functions; 0: local variables are on the stack of the OS thread.
        """
        self._loops = 0

    def parallel_loop(self) -> str:
        """Return the metadata for the back edge of a loop whose iterations are different threads.

        LLVM attaches it to the branch of the back edge, and may transfer it to loops of the
        program, whose iterations depend on each other. An outer loop that ends in the same branch
        gets it with the loop over threads, and keeps it when that is unrolled or deleted: so a
        non-parallel `emit_side_effect` is placed at the start of those. An inner loop gets it when
        nothing is left between its end and the branch: so a parallel `emit_side_effect` is placed
        there.
        """
        self._loops += 1
        number = 100 + self._loops
        parallel = '!{!"llvm.loop.parallel_accesses", !4}'
        self.ir.metadata(f"!{number}", f"!{number} = distinct !{{!{number}, {parallel}}}")
        return f", !llvm.loop !{number}"

    def emit_side_effect(self, emitter: Emitter, tags: str = "") -> None:
        """Emit a pseudo-access that LLVM does not move or remove; it generates no machine code."""
        self.ir.declare("declare void @llvm.sideeffect()")
        emitter.do(f"call void @llvm.sideeffect(){tags}")

    def places(
        self, emitter: Emitter, thread: str, tid: tuple[str, str, str] | None = None
    ) -> KernelAddresses:
        """Return the special registers and symbols of ``thread`` in the function being written."""

        def local(name: str) -> str | None:
            offset = self.locals.get(name)
            if offset is None:
                return None
            base, _ = places.local_range()
            index = emitter.value(f"zext i32 {thread} to i64")
            mine = emitter.value(f"mul i64 {index}, {self.local_size}")
            start = emitter.value(f"add i64 {base}, {mine}")
            return emitter.value(f"add i64 {start}, {offset}")

        places = KernelAddresses(
            emitter,
            self.shape,
            self.module,
            self.layout,
            thread,
            tid,
            self.parameters,
            self.parameter_window,
            local,
        )
        places.local_size = str(self.local_size * self.layout.padded)
        places.own_local_size = self.local_size
        return places

    def code(
        self, emitter: Emitter, places: KernelAddresses, fail: Callable[[], None]
    ) -> ThreadCode:
        """Return a thread of the kernel's own body; ``fail`` as in `ThreadCode`."""
        code = ThreadCode(
            emitter, self.storage, places, self.program, self.user_tags, self.ordered_tags
        )
        code.noncanonical = self.noncanonical
        code.arena = self.arena
        code.wraps_shared = self.arena is not None
        code.heap = self.heap
        code.fail = fail
        return code
