"""Functions in which no thread waits: compiled once each, called by any thread.

``@"f.name"(ptr %b, i32 %thread, arguments...)``: scalars by value, arrays (structs by value) as
``ptr`` to the caller's copy, array results as ``ptr`` to where they go. Local variables are on the
stack of the OS thread.
"""

from __future__ import annotations

from gpud.compiler.analysis.cfg import Block, ControlFlow
from gpud.compiler.analysis.sizes import size_and_align
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.body import ThreadCode
from gpud.device.cpu.codegen.emitter import Emitter
from gpud.device.cpu.codegen.flushing import FLUSHING_ATTRIBUTES
from gpud.device.cpu.codegen.nans import uncertain_registers
from gpud.device.cpu.codegen.pieces import KernelCode
from gpud.device.cpu.codegen.storage import register_storage
from gpud.device.cpu.codegen.thread import LLVM_TYPE, zero

__all__ = ["define_function"]


def define_function(kernel: KernelCode, function: ptx.Function) -> None:
    """Add ``function`` to the kernel's module."""
    _Writer(kernel, function).define()


class _Writer:
    def __init__(self, kernel: KernelCode, function: ptx.Function) -> None:
        self.kernel = kernel
        self.function = function
        self.flow = ControlFlow(function)
        self.scalars = [p for p in function.returns if not p.dims]
        returned = LLVM_TYPE[self.scalars[0].type] if self.scalars else "void"
        arguments = ["ptr %b", "i32 %thread"]
        for index, parameter in enumerate(function.parameters):
            type_ = "ptr" if parameter.dims else LLVM_TYPE[parameter.type]
            arguments.append(f"{type_} %p{index}")
        for index, parameter in enumerate(function.returns):
            if parameter.dims:
                arguments.append(f"ptr %r{index}")
        header = f'define internal {returned} @"f.{function.name}"({", ".join(arguments)}) nounwind'
        if kernel.ir.flushes:
            header += f" {FLUSHING_ATTRIBUTES}"
        self.e = Emitter(kernel.ir, header)
        self.locals: dict[str, str] = {}

    def define(self) -> None:
        e, function, kernel = self.e, self.function, self.kernel
        storage = register_storage(function.body or ())
        places = kernel.places(e, "%thread")
        places.local = self._local
        code = ThreadCode(e, storage, places, kernel.program)
        code.uncertain = uncertain_registers(function.body or (), storage)
        self.code = code
        self._place_variables()
        for name, type_ in storage.items():
            if type_ == "i1" or name.startswith("%P."):
                e.do(f"store {type_} {zero(type_)}, ptr {code.slot(name)}")
        for index, parameter in enumerate(function.parameters):
            if not parameter.dims:
                name = f"%P.{parameter.name}" if parameter.space == "param" else parameter.name
                code.write(ptx.Register(name), parameter.type, f"%p{index}")
        self.labels = {b: e.label(f"b{b}") for b in self.flow.order}
        for number in self.flow.order:
            e.place(self.labels[number])
            self._block(self.flow.blocks[number])
        e.finish()

    def _place_variables(self) -> None:
        function, e = self.function, self.e
        pointers: dict[str, str] = {}
        for statement in function.body or ():
            if isinstance(statement, ptx.Variable) and statement.space in ("local", "param"):
                size, alignment = size_and_align(statement)
                slot = e.alloca(f"[{max(size, 1)} x i8], align {max(alignment, 8)}", "local")
                pointers[statement.name] = slot
        for index, parameter in enumerate(function.parameters):
            if parameter.dims:
                pointers[parameter.name] = f"%p{index}"
        for index, parameter in enumerate(function.returns):
            if parameter.dims:
                pointers[parameter.name] = f"%r{index}"
        for name, pointer in pointers.items():
            self.locals[name] = e.value(f"ptrtoint ptr {pointer} to i64")

    def _local(self, name: str) -> str | None:
        return self.locals.get(name)

    def _block(self, block: Block) -> None:
        e, last = self.e, block.last
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
            taken, falls = e.label("taken"), e.label("falls")
            e.branch(self.code.guard(last.guard), taken, falls)
            e.place(taken)
            self._go(block.successors[0])
            e.place(falls)
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
        self.e.end(f"switch i32 {index}, label %{targets[-1]} [{cases}]")

    def _go(self, target: int) -> None:
        if target != self.flow.exit:
            self.e.jump(self.labels[target])
        elif self.scalars:
            result = self.scalars[0]
            name = f"%P.{result.name}" if result.space == "param" else result.name
            value = self.code.read(ptx.Register(name), result.type)
            self.e.end(f"ret {LLVM_TYPE[result.type]} {value}")
        else:
            self.e.end("ret void")
