"""The instructions of one thread, one after another: guards, calls and everything that computes.

`ThreadCode` is what regions and functions share. It does what depends on this device (parameters,
calls, pseudo-instructions) itself and hands the rest to `gpud.device.cpu.lower`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpud.compiler.analysis.effects import callee
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.codegen.emitter import Emitter
from gpud.device.cpu.codegen.layout import type_size
from gpud.device.cpu.codegen.places import KernelPlaces, header_field
from gpud.device.cpu.codegen.thread import LLVM_TYPE, Thread
from gpud.device.cpu.lower import LOWERINGS
try:
    from gpud.device.cpu.lower import refusal
except ImportError:
    refusal = lambda ins: None
from gpud.errors import KernelRejected

__all__ = ["Program", "ThreadCode"]


@dataclass(slots=True)
class Program:
    """What calls need to know of the module: its functions and which can be called indirectly."""

    functions: Mapping[str, ptx.Function] = field(default_factory=dict)
    addressed: tuple[str, ...] = ()
    pointers: Mapping[str, int] = field(default_factory=dict)


class ThreadCode(Thread):
    """A `Thread` that also runs whole instructions, guards included."""

    def __init__(
        self,
        emitter: Emitter,
        storage: Mapping[str, str],
        places: KernelPlaces,
        program: Program,
        tags: str = "",
        ordered_tags: str = "",
    ) -> None:
        super().__init__(emitter, storage, places, tags, ordered_tags)
        self.places = places
        self.program = program

    def run(self, ins: ptx.Instruction) -> None:
        """Emit ``ins`` (no terminator, no wait), under its guard if it has one."""
        if ins.guard is None:
            self._bare(ins)
            return
        held = self.guard(ins.guard)
        with self.e.when(held):
            self._bare(ins)

    def guard(self, guard: ptx.Guard) -> str:
        """The guard as an i1."""
        value = self.read(guard.register, "pred")
        return self.e.value(f"xor i1 {value}, true") if guard.negated else value

    def _bare(self, ins: ptx.Instruction) -> None:
        base = ins.opcode.base
        try:
            if base == "gpud":
                self._pseudo(ins)
            elif base == "call":
                self._call(ins)
            elif base == "ld" and self._is_kernel_parameter(ins):
                self._load_parameter(ins)
            elif base == "nanosleep":
                pass  # loops that wait give way at their back edge
            else:
                lower = LOWERINGS.get(base)
                if lower is None:
                    raise _rejected(ins, refusal(ins) or f"{ins.opcode.text} is not supported")
                reason = refusal(ins)
                if reason is not None:
                    raise _rejected(ins, reason)
                lower(self, ins)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            if isinstance(error, KernelRejected):
                raise
            message = f"the CPU device cannot run this form of {base} ({error})"
            raise _rejected(ins, message) from error

    # -- parameters

    def _is_kernel_parameter(self, ins: ptx.Instruction) -> bool:
        address = ins.operands[1]
        return (
            ins.opcode.modifiers[0].startswith("param")
            and isinstance(address, ptx.Address)
            and isinstance(address.base, ptx.Symbol)
            and address.base.name in self.places.parameters
        )

    def _load_parameter(self, ins: ptx.Instruction) -> None:
        address = ins.operands[1]
        assert isinstance(address, ptx.Address) and isinstance(address.base, ptx.Symbol)
        offset = self.places.parameters[address.base.name] + address.offset
        type_ = ins.opcode.modifiers[-1]
        targets = ins.operands[0]
        items = targets.items if isinstance(targets, ptx.Vector) else (targets,)
        params = header_field(self.e, "params")
        for index, target in enumerate(items):
            at = offset + index * type_size(type_)
            pointer = self.e.value(f"getelementptr i8, ptr {params}, i64 {at}")
            llvm = LLVM_TYPE[type_]
            value = self.e.value(f"load {llvm}, ptr {pointer}, align 1, !invariant.load !0")
            self.write(target, type_, value)

    # -- pseudo-instructions

    def _pseudo(self, ins: ptx.Instruction) -> None:
        what = ins.opcode.modifiers[0]
        if what == "move":
            type_ = ins.opcode.modifiers[1]
            self.write(ins.operands[0], type_, self.read(ins.operands[1], type_))
        elif what == "callee":
            pointer = self.read(ins.operands[1], "u64")
            target = ins.operands[2]
            assert isinstance(target, ptx.Symbol)
            number = self.program.pointers[target.name]
            self.write(ins.operands[0], "pred", self.e.value(f"icmp eq i64 {pointer}, {number}"))
        else:
            raise _rejected(ins, f"unknown pseudo-instruction {what}")

    # -- calls

    def _call(self, ins: ptx.Instruction) -> None:
        operands = list(ins.operands)
        results: tuple[ptx.Operand, ...] = ()
        if isinstance(operands[0], ptx.Tuple):
            results = operands.pop(0).items  # type: ignore[union-attr]
        arguments: tuple[ptx.Operand, ...] = ()
        if len(operands) > 1 and isinstance(operands[1], ptx.Tuple):
            arguments = operands[1].items
        target = callee(ins)
        if isinstance(target, ptx.Symbol):
            self._call_by_name(ins, target.name, results, arguments)
            return
        pointer = self.read(target, "u64")
        done = self.e.label("called")
        for name in self.program.addressed:
            function = self.program.functions.get(name)
            if function is None or len(function.parameters) != len(arguments):
                continue
            if len(function.returns) != len(results):
                continue
            number = self.program.pointers[name]
            found, after = self.e.label("is"), self.e.label("not")
            self.e.branch(self.e.value(f"icmp eq i64 {pointer}, {number}"), found, after)
            self.e.place(found)
            self._call_by_name(ins, name, results, arguments)
            self.e.jump(done)
            self.e.place(after)
        self.e.place(done)

    def _call_by_name(
        self,
        ins: ptx.Instruction,
        name: str,
        results: tuple[ptx.Operand, ...],
        arguments: tuple[ptx.Operand, ...],
    ) -> None:
        if name in ("malloc", "free", "vprintf"):
            self._call_external(name, results, arguments)
            return
        function = self.program.functions.get(name)
        if function is None:
            raise KernelRejected(
                "unresolved-external",
                f"the program calls {name}, which it does not define",
                print_instruction(ins),
                ins.line,
            )
        passed = [f"ptr %b, i32 {self.places.thread}"]
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            passed.append(self._argument(parameter, argument))
        scalars = [p for p in function.returns if not p.dims]
        for parameter, result in zip(function.returns, results, strict=True):
            if parameter.dims:
                passed.append(self._argument(parameter, result))
        returned = LLVM_TYPE[scalars[0].type] if scalars else "void"
        text = f'call {returned} @"f.{name}"({", ".join(passed)})'
        if scalars:
            self.write(results[0], scalars[0].type, self.e.value(text))
        else:
            self.e.do(text)

    def _argument(self, parameter: ptx.Parameter, operand: ptx.Operand) -> str:
        if parameter.dims:
            assert isinstance(operand, ptx.Symbol)
            address = self.places.symbol(operand.name)
            return f"ptr {self.e.value(f'inttoptr i64 {address} to ptr')}"
        return f"{LLVM_TYPE[parameter.type]} {self.read(operand, parameter.type)}"

    def _call_external(
        self, name: str, results: tuple[ptx.Operand, ...], arguments: tuple[ptx.Operand, ...]
    ) -> None:
        e = self.e
        if name == "malloc":
            e.module.declare("malloc", "declare ptr @malloc(i64)")
            pointer = e.value(f"call ptr @malloc(i64 {self.read(arguments[0], 'u64')})")
            self.write(results[0], "u64", e.value(f"ptrtoint ptr {pointer} to i64"))
        elif name == "free":
            e.module.declare("free", "declare void @free(ptr)")
            pointer = e.value(f"inttoptr i64 {self.read(arguments[0], 'u64')} to ptr")
            e.do(f"call void @free(ptr {pointer})")
        else:
            e.module.declare("print", "declare i32 @gpud_print(ptr, i64, i64)")
            text, values = (self.read(a, "u64") for a in arguments)
            count = e.value(f"call i32 @gpud_print(ptr %b, i64 {text}, i64 {values})")
            self.write(results[0], "s32", count)


def _rejected(ins: ptx.Instruction, message: str) -> KernelRejected:
    return KernelRejected("unsupported-instruction", message, print_instruction(ins), ins.line)
