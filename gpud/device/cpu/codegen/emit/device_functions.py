"""Code of device functions in which no thread waits: one LLVM function each.

``@"f.name"(ptr %b, i32 %thread, arguments...)``: scalars are passed by value, arrays (structs by
value) as ``ptr`` to the caller's copy, array results as ``ptr`` to their destination. A function
that may end the block returns an i1 for that after its scalar result; its caller tests it after
each call.

Local variables are on the stack of the OS thread, except where accesses are checked: there a call
takes a frame after the local memory of the block's threads, so that no legal address of the program
is on the stack. One such area is enough for a block, since no thread waits in a function. Functions
without local variables take a frame only if they may be recursive, directly or not: running out of
frames is what ends recursion before the OS thread's stack overflows. All functions get the number
of bytes in use as an argument, ``i32 %used``, so returning releases a frame. The caller checks that
the frame fits, so leaf calls cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpud.compiler.analysis.cfg import Block, ControlFlow
from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.analysis.effects import is_call
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import DataLayout, align_up
from gpud.device.cpu.codegen.analysis.canonical_nans import noncanonical_registers
from gpud.device.cpu.codegen.analysis.register_types import register_storage
from gpud.device.cpu.codegen.emit.call_checks import STACK_BYTES
from gpud.device.cpu.codegen.emit.check_code import stack_base
from gpud.device.cpu.codegen.emit.flush_to_zero import FLUSHING_ATTRIBUTES
from gpud.device.cpu.codegen.emit.kernel_context import KernelContext
from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
from gpud.device.cpu.codegen.preparation.inliner import possible_callees
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_check, is_target
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.thread import LLVM_TYPE, width, zero

__all__ = ["define_function", "failing_functions", "frame_sizes"]


def define_function(kernel: KernelContext, function: ptx.Function) -> None:
    """Define the code of ``function`` in the kernel's module."""
    _Writer(kernel, function).define()


_FRAME_ALIGNMENT = 64
_REGISTER_BYTES_PER_FRAME_BYTE = 8
"""Divisor: a frame is at least the size of the function's registers divided by this. All registers
may be on the OS thread's stack during a call, so recursion ends before it takes 8 * `STACK_BYTES`
of it."""


def frame_sizes(functions: Mapping[str, ptx.Function]) -> dict[str, int]:
    """Return the bytes of the frame of each function that takes one if accesses are checked.

    ``functions`` are those that the kernel can call. No path of calls passes a function without a
    frame twice.
    """
    return {name: _frame_bytes(functions[name]) for name in _framed(functions)}


def _frame_bytes(function: ptx.Function) -> int:
    body = function.body or ()
    least = max(
        _FRAME_ALIGNMENT, _registers_bytes(register_storage(body)) // _REGISTER_BYTES_PER_FRAME_BYTE
    )
    return align_up(max(_frame(body).size, least), _FRAME_ALIGNMENT)


def _frame(body: Iterable[ptx.Statement]) -> DataLayout:
    """Return the layout of a function's local variables in its frame."""
    frame = DataLayout()
    for statement in body:
        if isinstance(statement, ptx.Variable) and statement.space in ("local", "param"):
            frame.add(statement)
    return frame


def _framed(functions: Mapping[str, ptx.Function]) -> set[str]:
    total = sum(_registers_bytes(register_storage(f.body or ())) for f in functions.values())
    if total > _REGISTER_BYTES_PER_FRAME_BYTE * STACK_BYTES:
        return set(functions)
    calls = _calls(functions)
    framed = {
        name
        for name, function in functions.items()
        if any(
            isinstance(s, ptx.Variable) and s.space in ("local", "param")
            for s in function.body or ()
        )
    }
    for name in calls:
        reached: set[str] = set()
        work = [name]
        while work:
            more = calls[work.pop()] - reached
            reached |= more
            work += more
        if name in reached:
            framed.add(name)
    return framed


def failing_functions(
    functions: Mapping[str, ptx.Function], frame_sizes: Collection[str]
) -> frozenset[str]:
    """Return the functions in which a thread may end its block, of those that a kernel can call.

    Those in ``frame_sizes`` have frames: their callers may find no space for one.
    """
    calls = _calls(functions)
    failing = {name for name, called in calls.items() if called.intersection(frame_sizes)}
    for name, function in functions.items():
        if any(
            isinstance(s, ptx.Instruction) and (is_check(s) or is_target(s))
            for s in function.body or ()
        ):
            failing.add(name)
    changed = True
    while changed:
        more = {name for name, called in calls.items() if name not in failing and called & failing}
        failing |= more
        changed = bool(more)
    return frozenset(failing)


def _calls(functions: Mapping[str, ptx.Function]) -> dict[str, set[str]]:
    """Return which of ``functions`` each function may call."""
    calls: dict[str, set[str]] = {}
    for caller, function in functions.items():
        called = calls[caller] = set()
        for ins in function.body or ():
            if isinstance(ins, ptx.Instruction) and is_call(ins):
                called.update(possible_callees(ins, functions))
    return calls


def _registers_bytes(storage: Mapping[str, str]) -> int:
    """Return the bytes that a function's registers may take on the OS thread's stack."""
    return sum(max(8, width(type_) // 8) for type_ in storage.values())


class _Writer:
    def __init__(self, kernel: KernelContext, function: ptx.Function) -> None:
        self.kernel = kernel
        self.function = function
        self.flow = ControlFlow(function)
        self.scalars = [p for p in function.returns if not p.dims]
        self.returned = kernel.program.returned(function)
        self.may_fail = function.name in kernel.program.failing_functions
        arguments = ["ptr %b", "i32 %thread"]
        if kernel.program.frame_sizes:
            arguments.append("i32 %used")
        for index, parameter in enumerate(function.parameters):
            type_ = "ptr" if parameter.dims else LLVM_TYPE[parameter.type]
            arguments.append(f"{type_} %p{index}")
        for index, parameter in enumerate(function.returns):
            if parameter.dims:
                arguments.append(f"ptr %r{index}")
        name = f'@"f.{function.name}"'
        header = f"define internal {self.returned} {name}({', '.join(arguments)}) nounwind"
        if kernel.ir.flushes:
            header += f" {FLUSHING_ATTRIBUTES}"
        self.emitter = Emitter(kernel.ir, header)
        self.locals: dict[str, str] = {}

    def define(self) -> None:
        emitter, function, kernel = self.emitter, self.function, self.kernel
        storage = register_storage(function.body or ())
        places = kernel.places(emitter, "%thread")
        places.local = self.locals.get
        if kernel.program.frame_sizes:
            places.used = "%used"
        code = ThreadCode(emitter, storage, places, kernel.program)
        code.wraps_shared = kernel.arena is not None
        code.noncanonical = noncanonical_registers(function.body or (), storage)
        code.arena = kernel.arena
        code.heap = kernel.heap
        code.fail = self._fail
        self.code = code
        self._place_variables()
        for name, type_ in storage.items():
            if type_ == "i1" or name.startswith("%P."):
                emitter.do(f"store {type_} {zero(type_)}, ptr {code.slot(name)}")
        for index, parameter in enumerate(function.parameters):
            if not parameter.dims:
                name = f"%P.{parameter.name}" if parameter.space == "param" else parameter.name
                code.write(ptx.Register(name), parameter.type, f"%p{index}")
        self.labels = {b: emitter.label(f"b{b}") for b in self.flow.order}
        for number in self.flow.order:
            emitter.place(self.labels[number])
            self._block(self.flow.blocks[number])
        emitter.finish()

    def _place_variables(self) -> None:
        function, emitter = self.function, self.emitter
        pointers: dict[str, str] = {}
        if function.name in self.kernel.program.frame_sizes:
            pointers.update(self._take_frame())
        else:
            for statement in function.body or ():
                if isinstance(statement, ptx.Variable) and statement.space in ("local", "param"):
                    size, alignment = size_and_align(statement)
                    slot = emitter.alloca(
                        f"[{max(size, 1)} x i8], align {max(alignment, 8)}", "local"
                    )
                    pointers[statement.name] = slot
        for index, parameter in enumerate(function.parameters):
            if parameter.dims:
                pointers[parameter.name] = f"%p{index}"
        for index, parameter in enumerate(function.returns):
            if parameter.dims:
                pointers[parameter.name] = f"%r{index}"
        for name, pointer in pointers.items():
            self.locals[name] = emitter.value(f"ptrtoint ptr {pointer} to i64")

    def _take_frame(self) -> dict[str, str]:
        """Take a frame, whose size is checked before; return pointers to its variables."""
        emitter, kernel = self.emitter, self.kernel
        size = kernel.program.frame_sizes[self.function.name]
        first = stack_base(kernel, emitter)
        mine = emitter.value(f"add i64 {first}, {emitter.value('zext i32 %used to i64')}")
        self.code.places.used = emitter.value(f"add i32 %used, {size}")
        self.code.places.frame = (mine, str(size))
        start = emitter.value(f"inttoptr i64 {mine} to ptr")
        return {
            name: emitter.value(f"getelementptr i8, ptr {start}, i64 {offset}")
            for name, offset in _frame(self.function.body or ()).offsets.items()
        }

    def _fail(self) -> None:
        """Return to the caller, which tests whether the thread has ended its block."""
        if self.scalars:
            type_ = LLVM_TYPE[self.scalars[0].type]
            self.emitter.end(f"ret {self.returned} {{ {type_} {zero(type_)}, i1 true }}")
        else:
            self.emitter.end("ret i1 true")

    def _block(self, block: Block) -> None:
        emitter, last = self.emitter, block.last
        for place in block.places[:-1]:
            self.code.run(place.instruction)
        if last is None:
            self._go(block.successors[0])
            return
        base = last.opcode.base
        if base in ("ret", "bra"):
            if last.guard is None:
                self._go(block.successors[0])
                return
            taken, falls = emitter.label("taken"), emitter.label("falls")
            emitter.branch(self.code.guard(last.guard), taken, falls)
            emitter.place(taken)
            self._go(block.successors[0])
            emitter.place(falls)
            self._go(block.successors[-1])
        elif base == "brx":
            self._indexed(block, last)
        else:
            self.code.run(last)
            self._go(block.successors[0])

    def _indexed(self, block: Block, ins: ptx.Instruction) -> None:
        index = self.code.read(ins.operands[0], "u32")
        targets = [self.labels[number] for number in self.flow.table(ins)]
        cases = " ".join(f"i32 {n}, label %{target}" for n, target in enumerate(targets))
        self.emitter.end(f"switch i32 {index}, label %{targets[-1]} [{cases}]")

    def _go(self, target: int) -> None:
        if target != self.flow.exit:
            self.emitter.jump(self.labels[target])
            return
        if not self.scalars:
            self.emitter.end("ret i1 false" if self.may_fail else "ret void")
            return
        result = self.scalars[0]
        name = f"%P.{result.name}" if result.space == "param" else result.name
        value = self.code.read(ptx.Register(name), result.type)
        if self.may_fail:
            type_ = LLVM_TYPE[result.type]
            whole = f"{self.returned} {{ {type_} {zero(type_)}, i1 false }}"
            value = self.emitter.value(f"insertvalue {whole}, {type_} {value}, 0")
        self.emitter.end(f"ret {self.returned} {value}")
