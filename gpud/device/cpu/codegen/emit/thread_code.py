"""Code of the instructions of one thread, in order: guards, calls and computation.

`ThreadCode` is shared by regions, stages and functions. It emits device-specific instructions
(parameters, calls, pseudo-instructions) itself and delegates the rest to `gpud.device.cpu.lower`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gpud.compiler.abi.check_calls import CHECK_PREFIX
from gpud.compiler.abi.reserved_names import PRINT
from gpud.compiler.analysis.effects import callee
from gpud.compiler.analysis.signatures import call_parts
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.abi.layout import HEADER
from gpud.device.cpu.abi.linked_memory import LinkedMemory, heap_at
from gpud.device.cpu.codegen.analysis.canonical_nans import computes_with_floats
from gpud.device.cpu.codegen.analysis.register_types import pointer_base
from gpud.device.cpu.codegen.checking.calls import call_check
from gpud.device.cpu.codegen.emit.addresses import KernelAddresses, header_field
from gpud.device.cpu.codegen.emit.call_checks import (
    check_stack_room,
    check_target,
    return_if_failed,
    switch,
)
from gpud.device.cpu.codegen.emit.check_code import check, poll
from gpud.device.cpu.codegen.preparation.inliner import possible_callees
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread
from gpud.device.cpu.lower import lower
from gpud.device.cpu.lower.data_movement.load_store import Access
from gpud.errors import KernelRejected

__all__ = ["CallInfo", "ThreadCode"]


@dataclass(slots=True)
class CallInfo:
    """Facts about the module's functions that calls need."""

    functions: Mapping[str, ptx.Function] = field(default_factory=dict)
    pointers: Mapping[str, int] = field(default_factory=dict)
    failing_functions: Collection[str] = frozenset()
    """Functions that may end the block: on failure they, and then their callers, return at once."""
    frame_sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of functions' frames; if there are any, all functions get the bytes in use as an
    argument."""

    def returned(self, function: ptx.Function) -> str:
        """Return the LLVM return type of a function: its scalar, the failure flag, or both."""
        scalars = [LLVM_TYPE[one.type] for one in function.returns if not one.dims]
        if function.name in self.failing_functions:
            return f"{{ {scalars[0]}, i1 }}" if scalars else "i1"
        return scalars[0] if scalars else "void"


class ThreadCode(Thread):
    """A `Thread` that also emits whole instructions, guards included."""

    def __init__(
        self,
        emitter: Emitter,
        storage: Mapping[str, str],
        places: KernelAddresses,
        program: CallInfo,
        tags: str = "",
        ordered_tags: str = "",
    ) -> None:
        super().__init__(emitter, storage, places, tags, ordered_tags)
        self.places = places
        self.program = program
        self.varying: frozenset[str] | set[str] = frozenset()
        """Registers that differ between the iterations of a loop that LLVM may vectorise."""
        self.arena: LinkedMemory | None = None
        """(base, size) of the memory that global and generic accesses are checked against."""
        self.fail: Callable[[], None] = _no_failure_exit
        """Ends the current LLVM block, in which the thread has ended its block of threads."""
        self.heap: LinkedMemory | None = None
        """The program's own heap; None: the C library's is used."""

    def run(self, ins: ptx.Instruction) -> None:
        """Emit ``ins`` (no terminator, no wait), under its guard if it has one."""
        if ins.guard is None:
            self._bare(ins)
            return
        held = self.guard(ins.guard)
        with self.emitter.when(held):
            self._bare(ins)

    def guard(self, guard: ptx.Guard) -> str:
        """Return the guard as an i1."""
        value = self.read(guard.register, "pred")
        return self.emitter.value(f"xor i1 {value}, true") if guard.negated else value

    def _bare(self, ins: ptx.Instruction) -> None:
        base = ins.opcode.base
        self.exact = not computes_with_floats(ins) or self._moves_float_to_integer(ins)
        try:
            if base == "gpud":
                self._pseudo(ins)
            elif base == "call":
                self._call(ins)
            elif base == "ld" and self._is_kernel_parameter(ins):
                self._load_parameter(ins)
            elif self._emit_address(ins):
                pass
            elif base == "nanosleep":
                pass  # waiting loops yield at their back edge
            else:
                if _extracts_bits(ins):
                    self.opaque_registers = self.varying
                lower(self, ins)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            if isinstance(error, KernelRejected):
                raise
            message = f"the CPU device cannot run this form of {base} ({error})"
            raise _rejected(ins, message) from error
        finally:
            self.opaque_registers = frozenset()
            self.exact = True

    def _moves_float_to_integer(self, ins: ptx.Instruction) -> bool:
        """Return whether ``ins`` moves a float to an integer register: a NaN's bits are visible."""
        target = ins.operands[0]
        return ins.opcode.base in ("mov", "selp") and self.storage.get(
            getattr(target, "name", "")
        ) not in ("float", "double")

    # -- addresses

    def _emit_address(self, ins: ptx.Instruction) -> bool:
        """Emit ``ins`` if it is address arithmetic on a pointer register; return whether it is."""
        base = ins.opcode.base
        if base not in ("add", "sub", "mad", "mov", "cvta"):
            return False
        target = ins.operands[0]
        if not isinstance(target, ptx.Register) or self.storage[target.name] != "ptr":
            return False
        position = pointer_base(ins, self.storage)
        if position is None or (base == "cvta" and "shared" in ins.opcode.text):
            return False
        operand = ins.operands[position]
        assert isinstance(operand, ptx.Register)
        pointer = self.emitter.value(f"load ptr, ptr {self.slot(operand.name)}")
        if base in ("add", "sub"):
            offset = self.read(ins.operands[3 - position], "u64")
            if base == "sub":
                offset = self.emitter.value(f"sub i64 0, {offset}")
            pointer = self.emitter.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        elif base == "mad":
            factors = [self._widened(o, ins.opcode.modifiers) for o in ins.operands[1:3]]
            offset = self.emitter.value(f"mul i64 {factors[0]}, {factors[1]}")
            pointer = self.emitter.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        self.emitter.do(f"store ptr {pointer}, ptr {self.slot(target.name)}")
        return True

    def _widened(self, operand: ptx.Operand, modifiers: tuple[str, ...]) -> str:
        """Return a factor of ``mad.wide`` or ``mad.lo.s64`` as an i64."""
        type_ = modifiers[-1]
        value = self.read(operand, type_)
        return self.convert(value, LLVM_TYPE[type_], "i64", signed=type_[0] == "s")

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
        assert isinstance(address, ptx.Address)
        assert isinstance(address.base, ptx.Symbol)
        offset = self.places.parameters[address.base.name] + address.offset
        access = Access(ins)
        params = header_field(self.emitter, "params")
        for index, target in enumerate(access.elements(ins, ins.operands[0])):
            at = offset + index * access.bytes
            pointer = self.emitter.value(f"getelementptr i8, ptr {params}, i64 {at}")
            llvm = access.llvm
            is_pointer = isinstance(target, ptx.Register) and self.storage[target.name] == "ptr"
            if is_pointer and llvm == "i64":
                llvm = "ptr"
            value = self.emitter.value(f"load {llvm}, ptr {pointer}, align 1, !invariant.load !0")
            if llvm == "ptr":
                assert isinstance(target, ptx.Register)
                self.emitter.do(f"store ptr {value}, ptr {self.slot(target.name)}")
            else:
                self.write(target, access.type, value)

    # -- pseudo-instructions

    def _pseudo(self, ins: ptx.Instruction) -> None:
        what = ins.opcode.modifiers[0]
        if what == "move":
            type_ = ins.opcode.modifiers[1]
            self.write(ins.operands[0], type_, self.read(ins.operands[1], type_))
        elif what == "callee":
            pointer = self.read(ins.operands[1], "u64")
            function = ins.operands[2]
            assert isinstance(function, ptx.Symbol)
            number = self.program.pointers[function.name]
            self.write(
                ins.operands[0], "pred", self.emitter.value(f"icmp eq i64 {pointer}, {number}")
            )
        elif what == "bounds":
            check(self, ins)
        elif what == "poll":
            poll(self, ins)
        elif what == "target":
            check_target(self, ins)
        elif what == "claim":
            address = self.pointer(ins.operands[1], "shared")
            claim = self.emitter.value(f"load i32, ptr {address}, align 4{self.tags}")
            self.write(ins.operands[0], "u32", claim)
            note = self.emitter.value(f"getelementptr i8, ptr %b, i64 {HEADER['claim'][0]}")
            self.emitter.do(f"store i32 {claim}, ptr {note}")
        else:
            raise _rejected(ins, f"unknown pseudo-instruction {what}")

    # -- calls

    def _call(self, ins: ptx.Instruction) -> None:
        results, arguments = call_parts(ins)
        called = callee(ins)
        if isinstance(called, ptx.Symbol):
            self._call_by_name(ins, called.name, results, arguments)
            return
        done = self.emitter.label("called")
        names = possible_callees(ins, self.program.functions)
        arms = {name: self.emitter.label("is") for name in names}
        cases = [(self.program.pointers[name], arm) for name, arm in arms.items()]
        switch(self.emitter, self.read(called, "u64"), cases, done, cold=False)
        for name, arm in arms.items():
            self.emitter.place(arm)
            self._call_by_name(ins, name, results, arguments)
            self.emitter.jump(done)
        self.emitter.place(done)

    def _call_by_name(
        self,
        ins: ptx.Instruction,
        name: str,
        results: tuple[ptx.Operand, ...],
        arguments: tuple[ptx.Operand, ...],
    ) -> None:
        if name.startswith(CHECK_PREFIX):
            has_arena = self.arena is not None
            call_check(self, self.places.thread, name, results, arguments, has_arena=has_arena)
            return
        if name in ("malloc", "free", "vprintf", PRINT):
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
        if name in self.program.frame_sizes:
            check_stack_room(self, self.program.frame_sizes[name])
        passed = [f"ptr %b, i32 {self.places.thread}"]
        if self.program.frame_sizes:
            passed.append(f"i32 {self.places.used}")
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            passed.append(self._argument(parameter, argument))
        scalars = [p for p in function.returns if not p.dims]
        for parameter, result in zip(function.returns, results, strict=True):
            if parameter.dims:
                passed.append(self._argument(parameter, result))
        returned = self.program.returned(function)
        text = f'call {returned} @"f.{name}"({", ".join(passed)})'
        if returned == "void":
            self.emitter.do(text)
            return
        value = self.emitter.value(text)
        if name in self.program.failing_functions:
            failed = self.emitter.value(f"extractvalue {returned} {value}, 1") if scalars else value
            return_if_failed(self, failed)
            if scalars:
                value = self.emitter.value(f"extractvalue {returned} {value}, 0")
        if scalars:
            self.write(results[0], scalars[0].type, value)

    def _argument(self, parameter: ptx.Parameter, operand: ptx.Operand) -> str:
        if parameter.dims:
            assert isinstance(operand, ptx.Symbol)
            address = self.places.symbol(operand.name)
            return f"ptr {self.emitter.value(f'inttoptr i64 {address} to ptr')}"
        return f"{LLVM_TYPE[parameter.type]} {self.read(operand, parameter.type)}"

    def _call_external(
        self, name: str, results: tuple[ptx.Operand, ...], arguments: tuple[ptx.Operand, ...]
    ) -> None:
        emitter = self.emitter
        if name in ("malloc", "free") and self.heap is not None:
            self._use_heap(name, heap_at(self.heap.size), results, arguments)
        elif name == "malloc":
            emitter.module.declare("declare ptr @malloc(i64)")
            pointer = emitter.value(f"call ptr @malloc(i64 {self.read(arguments[0], 'u64')})")
            self.write(results[0], "u64", emitter.value(f"ptrtoint ptr {pointer} to i64"))
        elif name == "free":
            emitter.module.declare("declare void @free(ptr)")
            pointer = emitter.value(f"inttoptr i64 {self.read(arguments[0], 'u64')} to ptr")
            emitter.do(f"call void @free(ptr {pointer})")
        else:
            emitter.module.declare("declare i32 @gpud_print(ptr, i64, i64)")
            text, values = (self.read(a, "u64") for a in arguments[:2])
            count = emitter.value(f"call i32 @gpud_print(ptr %b, i64 {text}, i64 {values})")
            self.write(results[0], "s32", count)

    def _use_heap(
        self,
        name: str,
        records: str,
        results: tuple[ptx.Operand, ...],
        arguments: tuple[ptx.Operand, ...],
    ) -> None:
        """Emit ``malloc`` or ``free`` of `gpud.device.cpu.program.heap` with its records."""
        emitter = self.emitter
        value = self.read(arguments[0], "u64")
        if name == "malloc":
            emitter.module.declare("declare i64 @gpud_heap_malloc(i64, i64)")
            taken = emitter.value(f"call i64 @gpud_heap_malloc(i64 {records}, i64 {value})")
            self.write(results[0], "u64", taken)
        else:
            emitter.module.declare("declare void @gpud_heap_free(i64, i64)")
            emitter.do(f"call void @gpud_heap_free(i64 {records}, i64 {value})")


def _no_failure_exit() -> None:
    raise AssertionError("no check was expected here")


def _extracts_bits(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` extracts bits of an index: the result wraps (`Thread._opaque`)."""
    base, modifiers = ins.opcode.base, ins.opcode.modifiers
    if base == "cvt":
        to, of = modifiers[-2:] if len(modifiers) > 1 else ("", "")
        return to[:1] in ("u", "s", "b") and of[:1] in ("u", "s", "b") and to[1:] in ("8", "16")
    return base in ("and", "rem", "bfe", "bfi", "shr", "mul24", "mad24", "lop3", "prmt", "shf")


def _rejected(ins: ptx.Instruction, message: str) -> KernelRejected:
    return KernelRejected("unsupported-instruction", message, print_instruction(ins), ins.line)
