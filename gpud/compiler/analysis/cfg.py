"""The control-flow graph of one function.

Problem: forms, uniformity, liveness and code generation need the possible paths of control, the
blocks that every path must pass, and the loops.

Approach: the flat body is split into basic blocks, with one virtual exit; dominators,
post-dominators and natural loops are computed on demand.

Terms: a *basic block* is entered at its first instruction and left after its last; the *virtual
exit* (`ControlFlow.exit`) follows every instruction at which a thread leaves the function; block
A *dominates* B if every path from the entry to B passes A, and *post-dominates* B if every path
from B to the virtual exit passes A; a *back edge* goes to a block that dominates its source, and
its *natural loop* is what can reach the source without passing the target.

Algorithm: immediate dominators by iteration in reverse post-order (Cooper, Harvey and Kennedy,
"A Simple, Fast Dominance Algorithm", 2001), on the reversed graph for post-dominators. Blocks from
which no path leaves (endless loops) get an artificial edge to the virtual exit, so that every
reachable block has a post-dominator. A trap ends the whole launch, so paths to a trap are left out
of post-dominance: by a failed ``assert``, no thread exits before the others.

Properties:
* every instruction is in exactly one block, in body order;
* a predicated branch, ``ret`` or ``exit`` has its fall-through as last successor;
* ``trap`` and calls that never return have the virtual exit as only successor, and so does
  falling off the end;
* dominators agree with a brute-force definition on random graphs;
* irreducible graphs are allowed: retreating edges that are not back edges form no loop in `loops`,
  but their cycles are in `components` (strongly connected components).

Source: PTX ISA 9.0, sections 9.7.12 (control flow) and 11.5 (``.branchtargets``); Aho, Lam, Sethi
and Ullman, "Compilers", section 9.6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from gpud.compiler.analysis.effects import BRANCH, CALL, FLAGS, TERMINATOR, TRAP, callee, flags
from gpud.compiler.analysis.graph import immediate_dominators, reverse_post_order, strong_components
from gpud.compiler.ptx.model import (
    BranchTargets,
    Function,
    Instruction,
    Label,
    Statement,
    Symbol,
)

__all__ = ["Block", "ControlFlow", "InstructionPlace", "Loop"]

NEVER_RETURN = frozenset(("__assertfail", "__cxa_pure_virtual"))
"""External functions that end the thread, declared ``.noreturn`` or not."""


@dataclass(slots=True)
class InstructionPlace:
    """One instruction and its position in the function's ``body`` list."""

    instruction: Instruction
    position: int


@dataclass(slots=True)
class Block:
    """A basic block; ``start`` and ``stop`` bound its statements in ``body``, labels included."""

    index: int
    labels: tuple[str, ...] = ()
    places: list[InstructionPlace] = field(default_factory=list)
    successors: tuple[int, ...] = ()
    predecessors: list[int] = field(default_factory=list)
    start: int = 0
    stop: int = 0
    traps: bool = False
    """Ends in an unconditional ``trap`` or in a call that never returns."""

    @property
    def last(self) -> Instruction | None:
        """The block's last instruction."""
        return self.places[-1].instruction if self.places else None


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: its header, the sources of its back edges, and all its blocks (sorted)."""

    header: int
    latches: tuple[int, ...]
    blocks: tuple[int, ...]


class ControlFlow:
    """The control-flow graph of ``function``, whose body is flat (no `Scope`).

    ``blocks[0]`` is the entry; ``exit`` is the number of the virtual exit, one past the last block,
    and has no `Block`. The function is not changed and must not change while the graph is in use.

    Args:
        function: a function with a body.
        noreturn: names of functions that never return, besides the known externals.

    Raises:
        ValueError: there is no body, or a branch goes to a label that does not exist.
    """

    def __init__(self, function: Function, noreturn: Collection[str] = ()) -> None:
        if function.body is None:
            raise ValueError(f"{function.name} has no body")
        self.function = function
        self._noreturn = NEVER_RETURN | frozenset(noreturn)
        self.blocks = self._cut(function.body)
        self.exit = len(self.blocks)
        self.exits: list[int] = []
        """Blocks with an edge to the virtual exit."""
        self._connect()

    # -- construction --------------------------------------------------------------------------

    def _ends_block(self, ins: Instruction) -> bool:
        bits = FLAGS[ins.opcode.text]
        if not bits & CALL:
            return bool(bits & TERMINATOR)
        target = callee(ins)
        return isinstance(target, Symbol) and target.name in self._noreturn

    def _cut(self, body: list[Statement]) -> list[Block]:
        blocks = [Block(0)]
        block = blocks[0]
        ended = False
        labels: dict[str, int] = {}
        for position, statement in enumerate(body):
            kind = type(statement)
            if kind is Instruction:
                ins: Instruction = statement  # type: ignore[assignment]
                if ended:
                    block.stop = position
                    block = Block(len(blocks), start=position)
                    blocks.append(block)
                block.places.append(InstructionPlace(ins, position))
                ended = FLAGS[ins.opcode.text] & (TERMINATOR | CALL) != 0 and self._ends_block(ins)
            elif kind is Label:
                name = statement.name  # type: ignore[union-attr]
                if block.places:
                    block.stop = position
                    block = Block(len(blocks), start=position)
                    blocks.append(block)
                    ended = False
                block.labels += (name,)
                labels[name] = block.index
        block.stop = len(body)
        self.labels = labels
        """Block number by label."""
        return blocks

    def _connect(self) -> None:
        count = len(self.blocks)
        for block in self.blocks:
            following = block.index + 1  # the virtual exit, after the last block
            last = block.last
            if last is None or not self._ends_block(last):
                out: Iterable[int] = (following,)
            else:
                if flags(last.opcode) & BRANCH:
                    if last.opcode.base == "bra":
                        targets: tuple[str, ...] = (_label(last),)
                    else:
                        targets = _table(last, self._tables)
                    try:
                        out = [self.labels[name] for name in targets]
                    except KeyError as error:
                        raise ValueError(
                            f"{self.function.name}: line {last.line}: no label {error.args[0]!r}"
                        ) from None
                else:
                    out = [count]
                    block.traps = last.guard is None and bool(flags(last.opcode) & (TRAP | CALL))
                if last.guard is not None:
                    out = [*out, following]
            block.successors = tuple(dict.fromkeys(out))
            for successor in block.successors:
                if successor < count:
                    self.blocks[successor].predecessors.append(block.index)
                else:
                    self.exits.append(block.index)

    @cached_property
    def _tables(self) -> dict[str, BranchTargets]:
        body = self.function.body or ()
        return {s.name: s for s in body if isinstance(s, BranchTargets)}

    def table(self, ins: Instruction) -> tuple[int, ...]:
        """Return the blocks that a ``brx.idx`` goes to, by index.

        Raises:
            ValueError: it names no ``.branchtargets`` of the function.
        """
        return tuple(self.labels[name] for name in _table(ins, self._tables))

    # -- orders and reachability ---------------------------------------------------------------

    @cached_property
    def successors(self) -> list[tuple[int, ...]]:
        """Successor numbers by block, the virtual exit (no successors) last."""
        return [block.successors for block in self.blocks] + [()]

    @cached_property
    def order(self) -> list[int]:
        """The reachable blocks in reverse post-order, without the virtual exit."""
        return [b for b in reverse_post_order(self.successors, 0) if b != self.exit]

    @cached_property
    def reachable(self) -> frozenset[int]:
        """The blocks that control can reach from the entry."""
        return frozenset(self.order)

    def reachable_from(self, start: Iterable[int], without: int | None = None) -> set[int]:
        """Return the blocks (and virtual exit) that paths from ``start`` around ``without`` reach.

        The blocks of ``start`` are included unless they are ``without``.
        """
        successors = self.successors
        stack = [b for b in start if b != without]
        reached = set(stack)
        while stack:
            for successor in successors[stack.pop()]:
                if successor != without and successor not in reached:
                    reached.add(successor)
                    stack.append(successor)
        return reached

    # -- dominance -----------------------------------------------------------------------------

    @cached_property
    def dominators(self) -> list[int | None]:
        """The immediate dominator by block; ``None`` for the entry and unreachable blocks."""
        return immediate_dominators(self.successors, 0)

    @cached_property
    def post_dominators(self) -> list[int | None]:
        """The immediate post-dominator by block; ``None`` for the exit and unreachable blocks.

        Blocks that only lead to a trap have the virtual exit.
        """
        backward: list[list[int]] = [[] for _ in range(self.exit + 1)]
        traps = []
        for block in self.order:
            if self.blocks[block].traps:
                traps.append(block)
            for successor in self.successors[block]:
                if successor != self.exit or not self.blocks[block].traps:
                    backward[successor].append(block)
        leaves = set(reverse_post_order(backward, self.exit))
        doomed: list[int] = []
        for trap in traps:
            doomed += [b for b in reverse_post_order(backward, trap) if b not in leaves]
        leaves.update(doomed)
        # Endless loops reach no exit: give each an artificial edge, latest block first.
        for block in reversed(self.order):
            if block not in leaves:
                backward[self.exit].append(block)
                leaves.update(reverse_post_order(backward, block))
        parents = immediate_dominators(backward, self.exit)
        for block in doomed:
            parents[block] = self.exit
        return parents

    def dominates(self, first: int, second: int) -> bool:
        """Return whether each path from the entry to ``second`` passes ``first`` (or is it)."""
        return _above(self.dominators, first, second)

    def influence(self, block: int) -> set[int]:
        """Return the blocks whose execution can depend on the direction of ``block``'s branch.

        These are the blocks that its successors reach without passing its immediate post-dominator;
        ``block`` itself is among them if it is in a loop there. The virtual exit is not included.
        """
        join = self.post_dominators[block]
        region = self.reachable_from(self.successors[block], without=join)
        region.discard(self.exit)
        return region

    # -- loops ---------------------------------------------------------------------------------

    @cached_property
    def back_edges(self) -> list[tuple[int, int]]:
        """Edges (source, target) whose target dominates their source, in block order."""
        # A dominator comes first in the order, so that dominance is tested for few edges only.
        place = {block: number for number, block in enumerate(self.order)}
        return [
            (block, successor)
            for block in sorted(self.order)
            for successor in self.successors[block]
            if successor != self.exit
            and place[successor] <= place[block]
            and self.dominates(successor, block)
        ]

    @cached_property
    def loops(self) -> list[Loop]:
        """The natural loops, one per header, by header number."""
        latches: dict[int, list[int]] = {}
        for source, target in self.back_edges:
            latches.setdefault(target, []).append(source)
        loops = []
        for header in sorted(latches):
            inside = {header}
            stack = [latch for latch in latches[header] if latch != header]
            while stack:
                block = stack.pop()
                if block not in inside:
                    inside.add(block)
                    stack.extend(p for p in self.blocks[block].predecessors if p in self.reachable)
            loops.append(Loop(header, tuple(latches[header]), tuple(sorted(inside))))
        return loops

    @cached_property
    def components(self) -> list[tuple[int, ...]]:
        """The strongly connected components of reachable blocks that contain a cycle."""
        return sorted(
            tuple(sorted(component))
            for component in strong_components(self.successors, 0)
            if len(component) > 1 or component[0] in self.successors[component[0]]
        )


# -- helpers -----------------------------------------------------------------------------------


def _label(ins: Instruction) -> str:
    target = ins.operands[0] if ins.operands else None
    if isinstance(target, Symbol):
        return target.name
    raise ValueError(f"line {ins.line}: {ins.opcode.text} without a label")


def _table(ins: Instruction, tables: dict[str, BranchTargets]) -> tuple[str, ...]:
    target = ins.operands[-1] if ins.operands else None
    if not isinstance(target, Symbol) or target.name not in tables:
        raise ValueError(f"line {ins.line}: {ins.opcode.text} without its .branchtargets")
    return tables[target.name].targets


def _above(parents: list[int | None], first: int, second: int) -> bool:
    at: int | None = second
    while at is not None:
        if at == first:
            return True
        at = parents[at]
    return False
