"""An oracle for bounds checks: interprets one thread over a small model of memory.

It shares no code with the bounds check pass: `run` executes a kernel and records every access
outside the arena, the windows and the variables. Without bounds checks it continues after such an
access (a load returns 0, a store is ignored), so that all accesses that the program would make are
known; with bounds checks it ends at the first report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpud.compiler.ptx.model import (
    Address,
    Immediate,
    Initializer,
    Instruction,
    Module,
    Operand,
    Symbol,
    Tuple,
    Variable,
)
from tests.compiler.support.ptx_interpreter import MASK, Block, Frame, Machine, Place, Thread

ARENA = (0x10000, 0x2000)
SHARED = (0x7000_0000, 64)
LOCAL = (0x7100_0000, 64)
TABLE = (0x20004, 24)
"""The variable ``table``, aligned to 4."""
COEF = (0x28000, 32)
"""The constant ``coef``."""

RANGES = (0x40000, 1 << 16)
"""Where gpud's own variable of addresses and sizes lies, which the program must not access."""

_SYMBOLS = {"table": TABLE, "coef": COEF, "s": SHARED, "l": LOCAL, "gpud_ranges": RANGES}


@dataclass(slots=True)
class MemoryAccess:
    """One access: its PTX line, address, and what is wrong with it, if anything."""

    line: int
    address: int
    kind: int
    """0 legal, 1 outside, 5 misaligned."""


@dataclass(slots=True)
class Outcome:
    """The result of a run; ``memory`` by byte, ``fault`` as reported: (kind, site, address)."""

    touches: list[MemoryAccess] = field(default_factory=list)
    fault: tuple[int, int, int] | None = None
    memory: dict[int, int] = field(default_factory=dict)

    @property
    def illegal(self) -> list[MemoryAccess]:
        """The accesses that must not happen."""
        return [touch for touch in self.touches if touch.kind]


def run(
    module: Module,
    values: Mapping[str, int],
    registers: Mapping[str, int] | None = None,
    *,
    constants: bool = False,
) -> Outcome:
    """Run one thread of kernel ``k``, with these parameters; other registers begin with 0.

    Args:
        constants: whether generic loads may reach constants.
    """
    oracle = _Oracle(module, constants=constants)
    frame = Frame(module.entries()["k"], 0, defaultdict(int, registers or {}), dict(values))
    block = Block(0, (1, 1, 1), (1, 1, 1))
    block.threads.append(Thread(block, (0, 0, 0), [frame]))
    oracle.blocks.append(block)
    fault = None
    try:
        oracle.run()
    except _Reported as report:
        fault = report.fault
    return Outcome(oracle.touches, fault, oracle.memory)


class _Reported(Exception):
    """The program reported a fault."""

    def __init__(self, fault: tuple[int, int, int]) -> None:
        self.fault = fault


class _Oracle(Machine):
    def __init__(self, module: Module, *, constants: bool) -> None:
        super().__init__(module, 0)
        self.constants = constants
        self._items = module.items
        self.touches: list[MemoryAccess] = []

    def _get(self, thread: Thread, operand: Operand) -> int:
        if isinstance(operand, Symbol):
            return _SYMBOLS[operand.name][0]
        return super()._get(thread, operand)

    def _touch(self, ins: Instruction, address: int, span: int, align: int) -> bool:
        """Record an access; whether it is legal."""
        allowed = [ARENA, TABLE]
        if "global" not in ins.opcode.modifiers:
            allowed += [SHARED, LOCAL]
            if ins.opcode.base == "ld" and self.constants:
                allowed.append(COEF)
        inside = any(base <= address and address + span <= base + n for base, n in allowed)
        kind = (5 if address % align else 0) if inside else 1
        self.touches.append(MemoryAccess(ins.line, address, kind))
        return kind == 0

    def _place(self, thread: Thread, ins: Instruction, operand: Operand, size: int) -> Place | None:
        address = self._address(thread, operand)
        return (self.memory, address) if self._touch(ins, address, size, size) else None

    def _read(self, place: Place, size: int) -> int:
        memory, at = place
        return int.from_bytes(
            bytes(memory.get(n, n * 7 & 3) for n in range(at, at + size)), "little"
        )

    def _write(self, place: Place, size: int, value: int) -> None:
        memory, at = place
        memory.update(enumerate((value & MASK[8 * size]).to_bytes(size, "little"), at))

    def _do_ld(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        target, source = ins.operands
        if ins.opcode.has("const"):
            assert isinstance(source, Address)
            assert source.base == Symbol("gpud_arena")
            self._set(frame, target, ARENA[source.offset // 8])
            return
        offset = -1 if ins.opcode.has("param") else self._address(thread, source) - RANGES[0]
        if 0 <= offset < RANGES[1]:
            self._set(frame, target, self._range_word(offset))
        else:
            super()._do_ld(thread, frame, ins)

    def _range_word(self, offset: int) -> int:
        """Return a word of the table of variables, from its initial value."""
        (table,) = (one for one in self._items if getattr(one, "name", "") == "gpud_ranges")
        assert isinstance(table, Variable)
        assert isinstance(table.init, tuple)
        word = table.init[offset // 8]
        if isinstance(word, Initializer):
            return _SYMBOLS[word.name][0]
        assert isinstance(word, Immediate)
        return word.value

    def _do_wmma(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        """Rows of 16 elements of 2 bytes; what they hold does not matter here."""
        assert ins.opcode.text.startswith("wmma.load.a.sync.aligned.row.m16n16k16")
        assert ins.opcode.has("f16")
        address, stride = self._address(thread, ins.operands[1]), self._get(thread, ins.operands[2])
        for row in range(16):
            self._touch(ins, address + row * stride * 2 & MASK[64], 32, 16)

    def _do_isspacep(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        address = self._get(thread, ins.operands[1])
        base, size = {"shared": SHARED, "local": LOCAL}[ins.opcode.modifiers[0]]
        self._set(frame, ins.operands[0], base <= address < base + size)

    def _do_call(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        if ins.operands[0] == Symbol("gpud_fault"):
            given = ins.operands[1]
            assert isinstance(given, Tuple)
            kind, site, address = (self._get(thread, one) for one in given.items)
            raise _Reported((kind, site, address))
        super()._do_call(thread, frame, ins)
