"""Generates the LLVM IR of one kernel for one block shape.

The generated module exports the entry points that a resident block's header refers to:
``run_lockstep`` (run all threads in lockstep), ``run_region`` (run a range of threads from one
cut), ``begin_diverged`` (before that), ``exchange`` (complete a warp collective) and
``uniform_table`` (which registers are uniform at which block).
`gpud.device.cpu.codegen.runtime.thread_scheduler` calls them. All data of a block is reached
through ``%b``, so one compiled kernel serves any number of blocks.
"""

from __future__ import annotations

from gpud.compiler.abi.reserved_names import GRID_SYNC, is_slots
from gpud.compiler.analysis.data_layout import offsets
from gpud.compiler.analysis.effects import is_call, special_registers
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import (
    DataLayout,
    ModuleLayout,
    Shape,
    align_up,
    is_dynamic_shared,
)
from gpud.device.cpu.abi.linked_memory import ARENA_SYMBOL, HEAP_SYMBOL, LinkedMemory
from gpud.device.cpu.codegen.analysis.convergence import Convergence
from gpud.device.cpu.codegen.analysis.regions import CodeRegions
from gpud.device.cpu.codegen.analysis.register_types import register_storage
from gpud.device.cpu.codegen.analysis.rematerialization import Rematerializable
from gpud.device.cpu.codegen.analysis.stage_plan import StagePlan
from gpud.device.cpu.codegen.artifact import GeneratedKernel
from gpud.device.cpu.codegen.checking.define import define_checking, is_checked
from gpud.device.cpu.codegen.emit.addresses import RESERVED, RESERVED_BYTES
from gpud.device.cpu.codegen.emit.call_checks import STACK_BYTES, define_reports
from gpud.device.cpu.codegen.emit.check_code import define_exact_check
from gpud.device.cpu.codegen.emit.check_code import metadata as checks_metadata
from gpud.device.cpu.codegen.emit.device_functions import (
    define_function,
    failing_functions,
    frame_sizes,
)
from gpud.device.cpu.codegen.emit.flush_to_zero import (
    wants_flushing,
)
from gpud.device.cpu.codegen.emit.kernel_context import KernelContext
from gpud.device.cpu.codegen.emit.lockstep import define_lockstep
from gpud.device.cpu.codegen.emit.region_writer import define_regions
from gpud.device.cpu.codegen.emit.thread_code import CallInfo
from gpud.device.cpu.codegen.preparation.induction import split_inductions
from gpud.device.cpu.codegen.preparation.inliner import possible_callees
from gpud.device.cpu.codegen.preparation.pipeline import Prepared, prepare
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["generate_kernel"]

_CLOCKS = ("%clock", "%globaltimer")
_DYNAMIC_ALIGNMENT = 16


def generate_kernel(
    module: ptx.Module,
    name: str,
    shape: Shape,
    data: ModuleLayout,
    arena: LinkedMemory | None = None,
    heap: LinkedMemory | None = None,
) -> GeneratedKernel:
    """Generate code for kernel ``name`` of a flattened module with blocks of ``shape``.

    Args:
        module: flattened.
        name: of the kernel.
        shape: of its blocks.
        data: layout of the module's variables.
        arena: the memory that accesses are checked against; None: no checks.
        heap: the ``malloc`` heap of a program whose accesses are checked.

    Raises:
        KernelRejected: the kernel uses something that the CPU device does not support.
    """
    prepared = prepare(module, module.entries()[name], shape, checked=arena is not None)
    functions = _reachable(prepared)
    layout = _shared_layout(module, prepared, functions, data)
    body = prepared.entry.body or []
    locals_ = DataLayout()
    for statement in body:
        if isinstance(statement, ptx.Variable) and statement.space in ("local", "param"):
            locals_.add(statement)
    private = frozenset(locals_.offsets)
    regions = CodeRegions(prepared.entry)
    convergence = Convergence(regions, private)
    split = split_inductions(prepared.entry, regions.flow, convergence.varying, convergence.inner)
    if split is not None:
        body = split.body or []
        regions = CodeRegions(split)
        convergence = Convergence(regions, private)
    regions.recomputable = Rematerializable(regions.flow, convergence.varying, convergence.inner)
    starts, parameter_bytes = offsets(prepared.entry.parameters)
    names = [parameter.name for parameter in prepared.entry.parameters]
    called = {function.name: function for function in functions}
    in_frames = frame_sizes(called) if arena is not None else {}
    ir = IRModule()
    ir.flushes = wants_flushing([body, *(f.body or [] for f in functions)])
    kernel = KernelContext(
        ir,
        regions,
        register_storage(body),
        shape,
        layout,
        CallInfo(
            prepared.functions,
            data.functions,
            failing_functions(called, in_frames),
            in_frames,
        ),
        (dict(zip(names, starts, strict=True)), parameter_bytes),
        locals_.offsets,
        align_up(locals_.size, 16),
    )
    kernel.arena, kernel.heap = arena, heap
    if heap is not None:
        ir.declare(heap.declaration(HEAP_SYMBOL))
    if arena is not None:
        ir.declare(arena.declaration(ARENA_SYMBOL))
        # Parameters that gpud adds come last; the program must not access them.
        hidden = (at for name, at in zip(names, starts, strict=True) if name.startswith("gpud_"))
        kernel.parameter_window = min(hidden, default=parameter_bytes)
        kernel.syncs_grid = any(
            isinstance(s, ptx.RegisterDeclaration) and GRID_SYNC in s.name
            for statements in (body, *(function.body or () for function in functions))
            for s in statements
        )
    if in_frames:
        kernel.frames = STACK_BYTES
    plan = StagePlan(convergence, shape)
    kernel.region_cuts = tuple(sorted({*kernel.regions.cuts, *plan.divergence_points}))
    if define_lockstep(kernel, plan):
        define_regions(kernel)
    else:
        _define_nothing_for_diverged(ir)
    for function in functions:
        define_function(kernel, function)
    _define_exchange(kernel)
    define_reports(ir)
    if arena is not None:
        define_exact_check(kernel)
        if is_checked([body, *(f.body or [] for f in functions)]):
            define_checking(kernel, body)
    _metadata(ir)
    return GeneratedKernel(
        ir.text(),
        dict(kernel.parameters),
        kernel.parameter_size,
        kernel.layout.size,
        kernel.local_size * kernel.layout.padded + kernel.frames,
        layout.shared.size,
        layout.dynamic_shared,
        layout.hidden.size,
        0 in plan.entries,
        any(
            name.startswith(_CLOCKS)
            for statements in (body, *(function.body or () for function in functions))
            for s in statements
            if isinstance(s, ptx.Instruction)
            for name in special_registers(s)
        ),
    )


# -- parts of the module -----------------------------------------------------------------------


def _define_nothing_for_diverged(ir: IRModule) -> None:
    """Define what is called only when threads have diverged, which they cannot: half of the code.

    It takes LLVM a third of its time.
    """
    for header in (
        "void @run_region(ptr %b, i32 %cut, i32 %t0, i32 %t1)",
        "void @begin_diverged(ptr %b)",
    ):
        emitter = Emitter(ir, f"define {header} nounwind")
        emitter.do("call void @llvm.trap()")
        emitter.end("unreachable")
        emitter.finish()
    ir.declare("declare void @llvm.trap()")


def _define_exchange(kernel: KernelContext) -> None:
    header = "define void @exchange(ptr %b, i32 %first, i32 %group, i32 %key) nounwind"
    emitter = Emitter(kernel.ir, header)
    kernel.collectives.define_exchange(emitter)
    emitter.finish()


def _metadata(ir: IRModule) -> None:
    """Define the metadata that the tags refer to.

    !2 and !3: the block's own arrays and the program's memory never overlap. !4: accesses that
    threads of a block make between two cuts do not depend on each other's order. !7: a loop that is
    not worth optimising for speed.
    """
    ir.metadata("!0", "!0 = !{}")
    ir.metadata("!1", '!1 = distinct !{!1, !"block"}')
    ir.metadata("!2", "!2 = !{!5}")
    ir.metadata("!3", "!3 = !{!6}")
    ir.metadata("!4", "!4 = distinct !{}")
    ir.metadata("!7", "!7 = distinct !{!7, !8, !9}")
    ir.metadata("!8", '!8 = !{!"llvm.loop.vectorize.enable", i1 false}')
    ir.metadata("!9", '!9 = !{!"llvm.loop.unroll.disable"}')
    ir.metadata("!5", '!5 = distinct !{!5, !1, !"kept registers"}')
    ir.metadata("!6", '!6 = distinct !{!6, !1, !"program memory"}')
    checks_metadata(ir)


def _reachable(prepared: Prepared) -> list[ptx.Function]:
    """Return the functions that the kernel may call, directly or indirectly, in a stable order."""
    reached: dict[str, None] = {}
    work = [prepared.entry]
    while work:
        for statement in work.pop().body or ():
            if isinstance(statement, ptx.Instruction) and is_call(statement):
                for name in possible_callees(statement, prepared.functions):
                    if name not in reached:
                        reached[name] = None
                        work.append(prepared.functions[name])
    return [prepared.functions[name] for name in reached]


def _shared_layout(
    module: ptx.Module,
    prepared: Prepared,
    functions: list[ptx.Function],
    data: ModuleLayout,
) -> ModuleLayout:
    """Return ``data`` plus the shared variables that this kernel uses."""
    bodies = [prepared.entry.body or [], *(f.body or [] for f in functions)]
    used = {
        name
        for body in bodies
        for statement in body
        if isinstance(statement, ptx.Instruction)
        for name in _symbols(statement)
    }
    variables = [i for i in module.items if isinstance(i, ptx.Variable)]
    variables += [s for body in bodies for s in body if isinstance(s, ptx.Variable)]
    shared, hidden = DataLayout(), DataLayout()
    dynamic, alignment = set[str](), _DYNAMIC_ALIGNMENT
    for variable in variables:
        if variable.space != "shared" or variable.name not in used:
            continue
        if is_dynamic_shared(variable):
            dynamic.add(variable.name)
            alignment = max(alignment, variable.align or 1)
        else:
            (hidden if is_slots(variable.name) else shared).add(variable)
    if any(
        name.startswith(RESERVED)
        for body in bodies
        for statement in body
        if isinstance(statement, ptx.Instruction)
        for name in special_registers(statement)
    ):
        shared.add(ptx.Variable("shared", "b8", RESERVED, (RESERVED_BYTES,), align=16))
    return ModuleLayout(
        data.data,
        data.const_size,
        shared,
        frozenset(dynamic),
        align_up(shared.size, alignment),
        hidden,
        data.functions,
    )


def _symbols(ins: ptx.Instruction) -> list[str]:
    names = []
    for operand in ins.operands:
        if isinstance(operand, ptx.Symbol):
            names.append(operand.name)
        elif isinstance(operand, ptx.Address) and isinstance(operand.base, ptx.Symbol):
            names.append(operand.base.name)
        elif isinstance(operand, ptx.SymbolOffset):
            names.append(operand.symbol.name)
    return names
