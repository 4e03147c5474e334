"""One kernel and one block shape in, LLVM IR with its entry points out.

The generated module exports ``i32 @step(ptr %b)``: run a resident block until it is done, gives
way, or fails (`gpud.device.cpu.codegen.driver` names the results). Everything that a block needs is
reached from ``%b``, so one compiled kernel serves any number of blocks, launches and threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.body import Program, ThreadCode
from gpud.device.cpu.codegen.collectives import array_slot
from gpud.device.cpu.codegen.convergence import Convergence
from gpud.device.cpu.codegen.driver import TOGETHER, define_apart
from gpud.device.cpu.codegen.emitter import Emitter, IRModule
from gpud.device.cpu.codegen.functions import define_function
from gpud.device.cpu.codegen.layout import (
    HEADER,
    DataLayout,
    Status,
    align_up,
    parameter_layout,
)
from gpud.device.cpu.codegen.pieces import KernelCode, PieceWriter, state_word
from gpud.device.cpu.codegen.places import ModuleLayout, Shape
from gpud.device.cpu.codegen.prepare import Prepared, addressed_functions, prepare
from gpud.device.cpu.codegen.regions import Regions
from gpud.device.cpu.codegen.stages import APART, StagePlan, define_together
from gpud.device.cpu.codegen.storage import register_storage

__all__ = ["GeneratedKernel", "generate_kernel", "layout_module"]

_DYNAMIC_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """Generated code and what a launch must provide.

    Attributes:
        ir: LLVM assembly that defines ``step``.
        parameters: offset in bytes by name in the parameter buffer.
        parameter_bytes: size of the parameter buffer.
        block_bytes: size of a resident block's header and arrays.
        local_bytes: local memory of all its threads.
        static_shared_bytes: where dynamic shared memory begins.
    """

    ir: str
    parameters: dict[str, int]
    parameter_bytes: int
    block_bytes: int
    local_bytes: int
    static_shared_bytes: int


def layout_module(module: ptx.Module) -> ModuleLayout:
    """Place a flattened module's ``.const`` and ``.global`` variables; number its functions."""
    variables = [i for i in module.items if isinstance(i, ptx.Variable)]
    for function in module.functions():
        variables += [s for s in function.body or () if isinstance(s, ptx.Variable)]
    layout = ModuleLayout()
    for space in ("const", "global"):
        for variable in variables:
            if variable.space == space and variable.linkage != "extern":
                layout.data.add(variable)
        if space == "const":
            layout.const_size = layout.data.size
    layout.functions = {name: n + 1 for n, name in enumerate(addressed_functions(module))}
    return layout


def generate_kernel(
    module: ptx.Module, name: str, shape: Shape, data: ModuleLayout
) -> GeneratedKernel:
    """Generate code for kernel ``name`` of a flattened module with blocks of ``shape``.

    Raises:
        KernelRejected: the kernel uses something that the CPU device does not run.
    """
    prepared = prepare(module, module.entries()[name])
    functions = _reachable(prepared)
    layout = _shared_layout(module, prepared, functions, data)
    body = prepared.entry.body or []
    locals_ = DataLayout()
    for statement in body:
        if isinstance(statement, ptx.Variable) and statement.space in ("local", "param"):
            locals_.add(statement)
    ir = IRModule()
    kernel = KernelCode(
        ir,
        Regions(prepared.entry),
        register_storage(body),
        shape,
        layout,
        Program(prepared.functions, prepared.addressed, data.functions),
        parameter_layout(prepared.entry.parameters),
        locals_.offsets,
        align_up(locals_.size, 16),
    )
    plan = StagePlan(Convergence(kernel.regions, frozenset(locals_.offsets)))
    kernel.pieces = tuple(sorted({*kernel.regions.cuts, *plan.parting}))
    define_together(kernel, plan)
    for cut in kernel.pieces:
        _define_piece(kernel, cut)
    for function in functions:
        define_function(kernel, function)
    define_apart(kernel)
    _define_step(kernel, starts_together=0 in plan.entries)
    _metadata(ir)
    return GeneratedKernel(
        ir.text(),
        dict(kernel.parameters),
        kernel.parameter_size,
        kernel.layout.size,
        kernel.local_size * kernel.layout.padded,
        layout.dynamic_shared,
    )


# -- parts of the module -----------------------------------------------------------------------


def _define_piece(kernel: KernelCode, cut: int) -> None:
    header = f"define internal void @piece.{cut}(ptr %b, i32 %t0, i32 %t1) nounwind"
    e = Emitter(kernel.ir, header)
    with e.count("%t0", "%t1") as thread:
        places = kernel.places(e, thread)
        code = ThreadCode(
            e, kernel.storage, places, kernel.program, kernel.user_tags, kernel.ordered_tags
        )
        after = e.label("next")
        PieceWriter(kernel, e, code, kernel.regions.region(cut), after).write()
        e.place(after)
    e.end("ret void")
    e.finish()


def _define_step(kernel: KernelCode, *, starts_together: bool) -> None:
    e = Emitter(kernel.ir, "define i32 @step(ptr %b)")

    def field(name: str) -> str:
        return e.value(f"getelementptr i8, ptr %b, i64 {HEADER[name][0]}")

    fresh, together = field("fresh"), field("together")
    with e.when(e.value(f"icmp ne i32 {e.value(f'load i32, ptr {fresh}')}, 0")):
        e.do(f"store i32 0, ptr {fresh}")
        e.do(f"store i32 {0 if starts_together else -1}, ptr {together}")
        e.do(f"store i32 0, ptr {field('error')}")
        e.do(f"store [16 x i32] zeroinitializer, ptr {field('arrived')}")
        with e.count("0", str(kernel.layout.padded)) as thread:
            lives = e.value(f"icmp slt i32 {thread}, {kernel.layout.threads}")
            runs, ended = state_word(Status.RUN, 0), state_word(Status.DONE, 0)
            word = e.value(f"select i1 {lives}, i32 {runs}, i32 {ended}")
            e.do(f"store i32 {word}, ptr {array_slot(e, kernel.layout, 'state', thread)}")
    with e.loop() as (again, _):
        apart, one, leave = e.label("apart"), e.label("one"), e.label("leave")
        at = e.value(f"load i32, ptr {together}")
        e.branch(e.value(f"icmp slt i32 {at}, 0"), apart, one)
        e.place(one)
        result = e.value("call i32 @together(ptr %b)")
        parted = e.label("parted")
        e.branch(e.value(f"icmp eq i32 {result}, {APART}"), parted, leave)
        e.place(parted)
        e.do(f"store i32 -1, ptr {together}")
        e.jump(apart)
        e.place(apart)
        other = e.value("call i32 @apart(ptr %b)")
        e.branch(e.value(f"icmp eq i32 {other}, {TOGETHER}"), again, leave)
        e.place(leave)
        final = e.value(f"phi i32 [ {result}, %{one} ], [ {other}, %{apart} ]")
        e.end(f"ret i32 {final}")
    e.end("unreachable")
    e.finish()


def _metadata(ir: IRModule) -> None:
    """!2 and !3: the block's own arrays and the program's memory never overlap; !4: accesses that
    threads of a block make between two cuts do not depend on each other's order."""
    ir.metadata("!0", "!0 = !{}")
    ir.metadata("!1", '!1 = distinct !{!1, !"block"}')
    ir.metadata("!2", "!2 = !{!5}")
    ir.metadata("!3", "!3 = !{!6}")
    ir.metadata("!4", "!4 = distinct !{}")
    ir.metadata("!5", '!5 = distinct !{!5, !1, !"kept registers"}')
    ir.metadata("!6", '!6 = distinct !{!6, !1, !"program memory"}')


def _reachable(prepared: Prepared) -> list[ptx.Function]:
    """The functions that the kernel may call, in a stable order."""
    found: dict[str, None] = {}
    work = [prepared.entry]
    while work:
        for statement in work.pop().body or ():
            if isinstance(statement, ptx.Instruction) and is_call(statement):
                target = callee(statement)
                names = (
                    (target.name,) if isinstance(target, ptx.Symbol) else prepared.addressed
                )
                for name in names:
                    if name in prepared.functions and name not in found:
                        found[name] = None
                        work.append(prepared.functions[name])
    return [prepared.functions[name] for name in found]


def _shared_layout(
    module: ptx.Module,
    prepared: Prepared,
    functions: list[ptx.Function],
    data: ModuleLayout,
) -> ModuleLayout:
    """``data`` plus the shared variables that this kernel uses."""
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
    shared, dynamic, alignment = DataLayout(), set[str](), _DYNAMIC_ALIGNMENT
    for variable in variables:
        if variable.space != "shared" or variable.name not in used:
            continue
        if variable.linkage == "extern" or None in variable.dims:
            dynamic.add(variable.name)
            alignment = max(alignment, variable.align or 1)
        else:
            shared.add(variable)
    return ModuleLayout(
        data.data,
        data.const_size,
        shared,
        frozenset(dynamic),
        align_up(shared.size, alignment),
        data.functions,
    )


def _symbols(ins: ptx.Instruction) -> list[str]:
    found = []
    for operand in ins.operands:
        if isinstance(operand, ptx.Symbol):
            found.append(operand.name)
        elif isinstance(operand, ptx.Address) and isinstance(operand.base, ptx.Symbol):
            found.append(operand.base.name)
        elif isinstance(operand, ptx.Conjunction):
            found.append(operand.symbol.name)
    return found
