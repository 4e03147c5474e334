"""Liveness: the registers whose values later instructions may still read.

Problem: code generation must know which registers to keep across a suspend point, and a pass which
registers it may reuse.

Approach: registers are numbered, and sets of them are Python integers, one bit each, so that a
block's transfer function is three bitwise operations.

Algorithm: the backward data-flow equations ``in = use | (out & ~def)``, visited in post-order
until nothing changes (Aho, Lam, Sethi and Ullman, "Compilers", section 9.2.5).

Properties:
* a predicated write leaves its destination live before it: if the guard fails, the old value
  survives;
* a register that no path reads before writing it is not live into the entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import read, written
from gpud.compiler.ptx.model import Instruction, Register

__all__ = ["Liveness"]


class Liveness:
    """Live registers of a function, from its `ControlFlow`.

    ``live_in[b]`` is the bit set of the registers live at the start of block b; `registers` decodes
    it. Unreachable blocks are included, since they are printed and assembled, too.
    """

    def __init__(self, flow: ControlFlow) -> None:
        self.flow = flow
        self.names: list[str] = []
        """Register name by bit."""
        self.bit: dict[str, int] = {}
        """Bit set holding just that register, by name."""
        self.live_in = self._solve()

    def registers(self, bits: int) -> list[Register]:
        """Return the registers of a bit set, in bit order."""
        registers = []
        while bits:
            low = bits & -bits
            registers.append(Register(self.names[low.bit_length() - 1]))
            bits ^= low
        return registers

    def _bits(self, registers: Iterable[Register]) -> int:
        result = 0
        for register in registers:
            name = register.name
            bit = self.bit.get(name)
            if bit is None:
                bit = self.bit[name] = 1 << len(self.names)
                self.names.append(name)
            result |= bit
        return result

    def _effect_of(self, ins: Instruction) -> tuple[int, int]:
        """Return (registers certainly overwritten, registers read) by an instruction."""
        kills = self._bits(written(ins))
        uses = self._bits(read(ins))
        if ins.guard is not None:
            kills = 0
        return kills, uses

    def _solve(self) -> list[int]:
        flow = self.flow
        kills, uses = [], []
        for one in flow.blocks:
            killed = used = 0
            for place in one.places:
                kill, use = self._effect_of(place.instruction)
                used |= use & ~killed
                killed |= kill
            kills.append(killed)
            uses.append(used)
        count = len(flow.blocks)
        live_in = [0] * (count + 1)
        unreached = [b for b in range(count - 1, -1, -1) if b not in flow.reachable]
        order = [*reversed(flow.order), *unreached]
        changed = True
        while changed:
            changed = False
            for block in order:
                out = 0
                for successor in flow.blocks[block].successors:
                    out |= live_in[successor]
                new = uses[block] | out & ~kills[block]
                if new != live_in[block]:
                    live_in[block] = new
                    changed = True
        return live_in[:count]
