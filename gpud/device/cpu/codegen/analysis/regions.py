"""A prepared kernel cut into regions: code that one thread runs without waiting.

Terms: a *cut* is a basic block at which a thread can be suspended and resumed (the entry, the block
after a wait, the header of a loop that waits); the *region* of a cut is every block that a thread
can run from there before it reaches a cut again. A block that is not a cut may belong to several
regions.

Properties:
* between two cuts a thread touches no other thread's registers;
* the registers spilled at a cut are exactly those live into its block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpud.compiler.analysis.cfg import Block, ControlFlow
from gpud.compiler.analysis.effects import BARRIER, COLLECTIVE, flags
from gpud.compiler.analysis.liveness import Liveness
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.rematerialization import Rematerializable
from gpud.device.cpu.codegen.analysis.spin_loops import spin_headers

__all__ = ["CodeRegion", "CodeRegions", "waits"]


def waits(ins: ptx.Instruction | None) -> bool:
    """Return whether the thread stops at ``ins`` until others arrive: a barrier or a collective."""
    if ins is None:
        return False
    bits = flags(ins.opcode)
    return bool(bits & COLLECTIVE or (bits & BARRIER and not ins.opcode.has("arrive")))


@dataclass(frozen=True, slots=True)
class CodeRegion:
    """``blocks`` in reverse post-order, the cut first."""

    cut: int
    blocks: tuple[int, ...]


class CodeRegions:
    """The cuts and regions of a prepared kernel."""

    def __init__(self, entry: ptx.Function) -> None:
        self.flow = ControlFlow(entry)
        self.liveness = Liveness(self.flow)
        self.polling = spin_headers(self.flow)
        self.recomputable: Rematerializable | None = None
        """Registers that need not be spilled; set once divergence has been analysed."""
        self._names: dict[int, tuple[str, ...]] = {}
        self._kept: dict[int, tuple[str, ...]] = {}
        cuts = {0, *self.polling}
        for block in self._reachable():
            if waits(block.last):
                cuts.update(block.successors)
        self.cuts = tuple(sorted(c for c in cuts if c != self.flow.exit))
        self._is_cut = frozenset(self.cuts)

    def _reachable(self) -> list[Block]:
        return [self.flow.blocks[b] for b in self.flow.order]

    def is_cut(self, block: int) -> bool:
        """Return whether a thread can be suspended before ``block`` (the virtual exit included)."""
        return block in self._is_cut or block == self.flow.exit

    def live_into(self, block: int) -> tuple[str, ...]:
        """Return the names of the registers that are live into ``block``, in a stable order."""
        names = self._names.get(block)
        if names is None:
            bits = self.liveness.live_in[block]
            names = tuple(r.name for r in self.liveness.registers(bits))
            self._names[block] = names
        return names

    def spilled_at(self, block: int) -> tuple[str, ...]:
        """Return the registers to spill for a thread that stops before ``block``.

        They are the live ones, with those that can be recomputed replaced by the leaves of their
        recipes.
        """
        spilled = self._kept.get(block)
        if spilled is None:
            names: dict[str, None] = {}
            recomputed = self.recomputed_at(block)
            for name in self.live_into(block):
                if name not in recomputed:
                    names[name] = None
            for name in self.live_into(block):
                if name in recomputed and self.recomputable is not None:
                    names.update(dict.fromkeys(self.recomputable.leaves(name)))
            spilled = self._kept[block] = tuple(names)
        return spilled

    def recomputed_at(self, block: int) -> frozenset[str]:
        """Return the live registers that are recomputed, not spilled, before ``block``."""
        if self.recomputable is None:
            return frozenset()
        available = self.recomputable.available.get(block, frozenset())
        return available.intersection(self.live_into(block))

    def to_spill(self, block: int, targets: Iterable[int]) -> list[str]:
        """Return the registers to recompute at ``block`` but to spill at one of ``targets``.

        Their operands change in between.
        """
        names: dict[str, None] = {}
        here = self.recomputed_at(block)
        for target in targets:
            if target != self.flow.exit:
                names.update(dict.fromkeys(n for n in self.spilled_at(target) if n in here))
        return list(names)

    def recipe(self, names: Iterable[str], block: int) -> list[ptx.Instruction]:
        """Return the instructions for those of ``names`` that are recomputed at ``block``."""
        if self.recomputable is None:
            return []
        here = self.recomputed_at(block)
        steps: dict[int, ptx.Instruction] = {}
        for name in names:
            if name in here:
                steps.update((id(step), step) for step in self.recomputable.recipe(name))
        return list(steps.values())

    def region(self, cut: int) -> CodeRegion:
        """Return the region that begins at ``cut``."""
        inside, stack = {cut}, [cut]
        while stack:
            for successor in self.flow.blocks[stack.pop()].successors:
                if not self.is_cut(successor) and successor not in inside:
                    inside.add(successor)
                    stack.append(successor)
        ordered = (cut, *(b for b in self.flow.order if b in inside and b != cut))
        return CodeRegion(cut, ordered)

    def parts(self, cuts: Iterable[int], own_length: int) -> list[tuple[int, ...]]:
        """Return ``cuts`` in groups.

        A region of at most ``own_length`` instructions is alone. Of all others, those that share
        blocks are in one group.
        """
        alone: list[tuple[int, ...]] = []
        shared: list[tuple[set[int], list[int]]] = []
        for cut in cuts:
            blocks, members = set(self.region(cut).blocks), [cut]
            if sum(len(self.flow.blocks[number].places) for number in blocks) <= own_length:
                alone.append((cut,))
                continue
            apart = []
            for part in shared:
                if part[0].isdisjoint(blocks):
                    apart.append(part)
                else:
                    blocks |= part[0]
                    members += part[1]
            shared = [*apart, (blocks, members)]
        return sorted([*alone, *(tuple(sorted(members)) for _, members in shared)])

    def yields(self, source: int, target: int) -> bool:
        """Return whether the edge is a back edge to the header of a loop that waits."""
        return target in self.polling and self.flow.dominates(target, source)
