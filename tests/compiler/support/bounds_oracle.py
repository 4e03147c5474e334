"""An oracle for bounds checks: interprets one thread over a small model of memory.

It shares no code with the bounds check pass: `run` executes a flat function and records, byte by
byte, every access outside the arena, the windows and the variables. Without bounds checks it
continues after such an access (a load returns 0, a store is ignored), so that all accesses that the
program would make are known; with bounds checks it ends at the first report.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpud.compiler.ptx.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Not,
    Operand,
    Register,
    Symbol,
    Tuple,
    Vector,
)
from tests.compiler.support.integers import compute, is_computed, width

ARENA = (0x10000, 0x2000)
SHARED = (0x7000_0000, 64)
LOCAL = (0x7100_0000, 64)
TABLE = (0x20004, 24)
"""The variable ``table``, aligned to 4."""
COEF = (0x28000, 32)
"""The constant ``coef``."""

_MASK = (1 << 64) - 1
_STEPS = 5000


@dataclass(slots=True)
class MemoryAccess:
    """One access: its PTX line, address, and what is wrong with it, if anything."""

    line: int
    address: int
    kind: int
    """0 legal, 1 outside, 5 misaligned."""


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    touches: list[MemoryAccess] = field(default_factory=list)
    fault: tuple[int, int, int] | None = None
    memory: dict[int, int] = field(default_factory=dict)

    @property
    def illegal(self) -> list[MemoryAccess]:
        """The accesses that must not happen."""
        return [touch for touch in self.touches if touch.kind]


class MemoryModel:
    """Memory with an arena, two windows and two variables."""

    def __init__(self, *, generic: bool = True, constants: bool = False) -> None:
        self.memory: dict[int, int] = {}
        self.generic = generic
        self.constants = constants

    def fault_kind(self, ins: Instruction, address: int, span: int, align: int) -> int:
        """0 if ``ins`` may touch these bytes, else the kind of its fault."""
        allowed = [ARENA, TABLE]
        if "global" not in ins.opcode.modifiers and self.generic:
            allowed += [SHARED, LOCAL]
            if ins.opcode.base == "ld" and self.constants:
                allowed.append(COEF)
        for base, size in allowed:
            if base <= address and address + span <= base + size:
                return 5 if address % align else 0
        return 1

    def load(self, address: int, size: int) -> int:
        data = bytes(self.memory.get(address + n, (address + n) * 7 & 3) for n in range(size))
        return int.from_bytes(data, "little")

    def store(self, address: int, size: int, value: int) -> None:
        for n, byte in enumerate((value & ((1 << 8 * size) - 1)).to_bytes(size, "little")):
            self.memory[address + n] = byte


def run(
    function: Function,
    world: MemoryModel,
    values: dict[str, int],
    registers: dict[str, int] | None = None,
) -> Outcome:
    """Run ``function`` for one thread; ``values`` are its parameters."""
    return _Run(function, world, values, dict(registers or {})).run()


class _Run:
    def __init__(
        self,
        function: Function,
        world: MemoryModel,
        values: dict[str, int],
        registers: dict[str, int],
    ) -> None:
        self.body = function.body or []
        self.world = world
        self.values = values
        self.registers = registers
        self.labels = {s.name: n for n, s in enumerate(self.body) if isinstance(s, Label)}
        self.outcome = Outcome()

    def run(self) -> Outcome:
        at = 0
        for _ in range(_STEPS):
            if at >= len(self.body) or self.outcome.fault is not None:
                self.outcome.memory = self.world.memory
                return self.outcome
            statement = self.body[at]
            at += 1
            if not isinstance(statement, Instruction):
                continue
            guard = statement.guard
            if guard is not None and bool(self.get(guard.register)) is guard.negated:
                continue
            base = statement.opcode.base
            if base == "bra":
                target = statement.operands[0]
                assert isinstance(target, Symbol)
                at = self.labels[target.name]
            elif base in ("ret", "exit", "trap"):
                at = len(self.body)
            elif is_computed(statement):
                values = [self.get(operand) for operand in statement.operands[1:]]
                self.put(statement.operands[0], compute(statement, values))
            else:
                getattr(self, f"do_{base}")(statement)
        raise AssertionError("the program does not end")

    # -- values ------------------------------------------------------------------------------

    def get(self, operand: Operand) -> int:
        match operand:
            case Register(name):
                return self.registers.get(name, 0)
            case Not(register):
                return int(not self.registers.get(register.name, 0))
            case Immediate():
                return operand.value & _MASK
            case Symbol(name):
                return {"table": TABLE, "coef": COEF, "s": SHARED, "l": LOCAL}[name][0]
        raise AssertionError(operand)

    def put(self, operand: Operand, value: int) -> None:
        assert isinstance(operand, Register)
        self.registers[operand.name] = value

    # -- memory ------------------------------------------------------------------------------

    def touch(
        self, ins: Instruction, operand: Operand, span: int, *, behind: int = 0, align: int = 0
    ) -> int | None:
        """The address, None if the access must not happen; aligned to its ``span`` by default."""
        assert isinstance(operand, Address)
        base = 0 if operand.base is None else self.get(operand.base)
        address = base + operand.offset + behind & _MASK
        kind = self.world.fault_kind(ins, address, span, align or span)
        self.outcome.touches.append(MemoryAccess(ins.line, address, kind))
        return None if kind else address

    def do_ld(self, ins: Instruction) -> None:
        target, source = ins.operands
        assert isinstance(source, Address)
        if ins.opcode.has("param"):
            assert isinstance(source.base, Symbol)
            self.put(target, self.values[source.base.name])
            return
        if ins.opcode.has("const"):
            assert source.base == Symbol("gpud_arena")
            self.put(target, ARENA[source.offset // 8])
            return
        items = target.items if isinstance(target, Vector) else (target,)
        size = width(ins.opcode.modifiers[-1]) // 8
        address = self.touch(ins, source, size * len(items))
        found = [
            0 if address is None else self.world.load(address + n * size, size)
            for n in range(len(items))
        ]
        for item, value in zip(items, found, strict=True):
            self.put(item, value)

    def do_st(self, ins: Instruction) -> None:
        target, source = ins.operands
        items = source.items if isinstance(source, Vector) else (source,)
        size = width(ins.opcode.modifiers[-1]) // 8
        address = self.touch(ins, target, size * len(items))
        for n, item in enumerate(items):
            if address is not None:
                self.world.store(address + n * size, size, self.get(item))

    def do_atom(self, ins: Instruction) -> None:
        size = width(ins.opcode.modifiers[-1]) // 8
        address = self.touch(ins, ins.operands[1], size)
        old = 0 if address is None else self.world.load(address, size)
        if address is not None:
            self.world.store(address, size, old + self.get(ins.operands[2]))
        self.put(ins.operands[0], old)

    def do_wmma(self, ins: Instruction) -> None:
        """Rows of 16 elements of 2 bytes; what they hold does not matter here."""
        assert ins.opcode.text.startswith("wmma.load.a.sync.aligned.row.m16n16k16")
        assert ins.opcode.has("f16")
        stride = self.get(ins.operands[2])
        for row in range(16):
            self.touch(ins, ins.operands[1], 32, behind=row * stride * 2, align=16)

    def do_isspacep(self, ins: Instruction) -> None:
        address = self.get(ins.operands[1])
        base, size = {"shared": SHARED, "local": LOCAL}[ins.opcode.modifiers[0]]
        self.put(ins.operands[0], base <= address < base + size)

    def do_call(self, ins: Instruction) -> None:
        if ins.operands[0] == Symbol("nothing"):
            return
        assert ins.operands[0] == Symbol("gpud_fault")
        given = ins.operands[1]
        assert isinstance(given, Tuple)
        kind, site, address = map(self.get, given.items)
        self.outcome.fault = (kind, site, address)

    def do_membar(self, ins: Instruction) -> None:
        pass

    do_bar = do_membar
