"""Fences: no access through a global or generic address leaves its session's arena.

Problem: kernels of different users run in one address space. A wrong index must cost its own job
and nothing else, and the user wants to hear which instruction it was.

Approach: before every access that could miss stands a check,
`gpud.compiler.instrumentation.fences`; the plan of which checks are needed, and where, is
`gpud.compiler.passes.safety.fence_placement`'s. This pass finds out what an address of this module
may mean besides the arena, collects the sites, and writes it down.

Terms: those of `gpud.compiler.instrumentation.fences` and `gpud.compiler.analysis.memory_accesses`;
a variable is *addressed* if code or an initialiser takes its address: no pointer can legally mean
another one.

Properties:
* every access of every function that an entry of the plan can reach is checked before it happens,
  or proven to lie in one of the module's variables;
* what is legal stays legal: the module's variables, generic addresses of shared, local and
  parameter space, where the module makes such addresses, and where the blocks of a grid meet, in a
  module that asks for that;
* an access whose address is not in a 64-bit register goes through the very register that was
  checked;
* the code of gpud's own that later passes add is not fenced.

Source: design, section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.abi.reserved_names import ARENA, GRID_SYNC, HEAP
from gpud.compiler.analysis.call_graph import CallGraph, FunctionSummary
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.analysis.effects import CLUSTER
from gpud.compiler.analysis.memory_accesses import ARITHMETIC
from gpud.compiler.forms.classifier import Decision, Reason
from gpud.compiler.forms.rules import GRID_REGISTERS
from gpud.compiler.instrumentation.fault_reports import ends_in_terminator
from gpud.compiler.instrumentation.fences import Fence, Range, declarations, emit, fence_register
from gpud.compiler.instrumentation.kill_polls import with_job
from gpud.compiler.passes.safety.access_checks import AllowedMemory, find_checks
from gpud.compiler.passes.safety.fence_placement import PlacedFence, place_fences
from gpud.compiler.ptx.model import (
    Address,
    Directive,
    Function,
    Guard,
    Immediate,
    Initializer,
    InitialValue,
    Instruction,
    Module,
    Operand,
    Register,
    Statement,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
    opcode,
)
from gpud.errors import KernelRejected

__all__ = ["pass_fence", "unfenceable"]

_USUAL = frozenset(("ld", "ldu", "st", "atom", "red", "fence", "membar", "brx"))
_HEAP_RANGE = Range(HEAP, "global", 0)
_GRID_RANGE = Range(GRID_SYNC, "global", words.GRID_SYNC_BYTES)


def pass_fence(module: Module, plan: Mapping[str, Decision], sites: SiteTable) -> Module:
    """A module in which every access that the entries of ``plan`` can make is checked.

    Args:
        module: flat; not changed.
        plan: the entries that will run; functions that none of them can reach stay as they are.
        sites: gets the instructions that a fence can report.

    Raises:
        KernelRejected: nothing can check an access, or the program defines a name of gpud's.
    """
    call_graph = call_graph_of(module)
    reached = {uses.function.name for uses in call_graph.closure(*plan)}
    if not reached:
        return module
    allowed = _allowed_memory(call_graph)
    arena = [Variable("const", "b64", ARENA, (2,), align=16)]
    if _HEAP_RANGE in allowed.variables:
        arena.append(Variable("const", "b64", HEAP, (2,), align=16))
    items: list[Function | Variable | Directive] = [*arena]
    for item in _variables_first(module.items):
        if isinstance(item, Function) and item.body is not None and item.name in reached:
            items.append(_fenced(call_graph.uses[item.name], call_graph, allowed, sites))
        else:
            items.append(item)
    return replace(module, items=items)


def unfenceable(module: Module, entry: str) -> Reason | None:
    """Why ``entry`` of a flat module cannot be fenced, if it cannot.

    Only kernels with unusual instructions are looked at: for others `pass_fence` tells.
    """
    call_graph = call_graph_of(module)
    allowed: AllowedMemory | None = None
    for uses in call_graph.closure(entry):
        if all(base in ARITHMETIC or base in _USUAL for base in uses.bases):
            continue
        allowed = _allowed_memory(call_graph) if allowed is None else allowed
        try:
            find_checks(uses.function, allowed, lambda _: 0)
        except KernelRejected as error:
            text = "uses an instruction of which nothing can check what memory it touches"
            return Reason(error.reason, text, error.instruction, error.line)
    return None


# -- one function ------------------------------------------------------------------------------


def _fenced(
    uses: FunctionSummary, call_graph: CallGraph, allowed: AllowedMemory, sites: SiteTable
) -> Function:
    function = uses.function
    checks = find_checks(function, allowed, lambda ins: sites.add(function.name, ins))
    if not checks:
        return function
    placed = place_fences(call_graph.flow(function.name), checks)
    body = function.body or []
    changed: dict[int, Instruction] = {}
    hot: dict[int, list[Statement]] = {}
    cold: list[Statement] = []
    for number, one in enumerate(placed):
        first = one.first
        fence, before = _fence_of(number, one)
        for statement in before:
            statement.line = first.line
        if first.through is not None:
            old = body[first.position]
            assert isinstance(old, Instruction)
            ins = changed.get(first.position, old)
            changed[first.position] = _through(ins, first.through, fence.register)
        warm, rest = emit(fence, first.line)
        hot.setdefault(first.position, []).extend([*before, *warm])
        cold += rest
    made: list[Statement] = []
    for position, statement in enumerate(body):
        if position in hot:
            made += hot[position]
        made.append(changed.get(position, statement))
    if not ends_in_terminator(made):
        made.append(Instruction(opcode("ret")))
    made = [*declarations(len(placed)), *made, *cold]
    return replace(function, body=with_job(made) if _GRID_RANGE in allowed.variables else made)


def _fence_of(number: int, one: PlacedFence) -> tuple[Fence, list[Statement]]:
    """The fence, and what must stand in front of it."""
    first = one.first
    register, guard = first.register, first.guard
    before: list[Statement] = []
    if first.making is not None:
        register = fence_register("at", number)
        before += first.making(register)
    if first.condition is not None:
        guard = Guard(fence_register("may", number))
        before += first.condition(guard.register)
    assert register is not None
    least = min(member.span for member in one.members)
    variables = tuple(r for r in first.variables if r.size >= least or r == _HEAP_RANGE)
    fence = Fence(number, register, tuple(one.members), guard, first.windows, variables)
    return fence, before


def _through(ins: Instruction, operand: int, register: Register) -> Instruction:
    """``ins`` with the address in ``register`` in place of a number, variable or other register."""
    old = ins.operands[operand]
    assert isinstance(old, Address)
    new = Address(register, 0 if old.base is None else old.offset)
    return replace(ins, operands=(*ins.operands[:operand], new, *ins.operands[operand + 1 :]))


# -- the module --------------------------------------------------------------------------------


def _allowed_memory(call_graph: CallGraph) -> AllowedMemory:
    """What addresses of the module may mean besides the arena."""
    known: dict[str, tuple[Range, int]] = {}
    for item in call_graph.module.items:
        if isinstance(item, Variable) and item.space in ("global", "const"):
            size, align = size_and_align(item)
            if item.name in known:  # declared again: what both promise
                size = min(size, known[item.name][0].size)
                align = min(align, known[item.name][1])
            known[item.name] = (Range(item.name, item.space, size), align)
    addressed: dict[str, None] = {}
    spaces: dict[str, None] = {}
    for item in call_graph.module.items:
        if isinstance(item, Variable):
            for leaf in _leaves(item.init):
                addressed.setdefault(leaf.name)
                if leaf.generic and leaf.name in known:
                    spaces.setdefault(known[leaf.name][0].space)
    cluster = allocates = meets = False
    for uses in call_graph.uses.values():
        allocates = allocates or "malloc" in uses.calls or "free" in uses.calls
        cluster = cluster or bool(uses.bits & CLUSTER)
        meets = meets or any(name in uses.specials for name in GRID_REGISTERS)
        if not known and "cvta" not in uses.bases:
            continue
        for statement in uses.function.body or ():
            kind = type(statement)
            if kind is Instruction:
                op = statement.opcode  # type: ignore[union-attr]
                if op.base == "cvta" and not op.has("to"):
                    spaces.setdefault(op.modifiers[0].partition("::")[0])
                if known:
                    _note_named(statement.operands, addressed)  # type: ignore[union-attr]
            elif kind is Variable:
                addressed.update((leaf.name, None) for leaf in _leaves(statement.init))  # type: ignore[union-attr]
    ranges = [known[name][0] for name in known if name in addressed]
    constants = [r for r in ranges if r.space == "const"]
    shared = "shared::cluster" if cluster else "shared"
    windows = [shared] if "shared" in spaces else []
    windows += ["local"] if "local" in spaces else []
    return AllowedMemory(
        tuple(windows),
        ("param",) if "param" in spaces else (),
        (
            *(r for r in ranges if r.space == "global" and r.size),
            *([_HEAP_RANGE] if allocates else []),
            *([_GRID_RANGE] if meets else []),
        ),
        tuple(constants) if "const" in spaces else (),
        known,
    )


def _leaves(value: InitialValue | None) -> Iterator[Initializer]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, Initializer):
        yield value


def _note_named(operands: Iterable[Operand], found: dict[str, None]) -> None:
    """Add the names whose addresses ``operands`` take: all that do not stand in brackets."""
    for operand in operands:
        kind = type(operand)
        if kind is Register or kind is Address or kind is Immediate:
            continue
        if isinstance(operand, Symbol):
            found[operand.name] = None
        elif isinstance(operand, SymbolOffset):
            found[operand.symbol.name] = None
        elif isinstance(operand, Tuple | Vector):
            _note_named(operand.items, found)


def _variables_first(
    items: list[Function | Variable | Directive],
) -> list[Function | Variable | Directive]:
    """``items`` with variables that only follow functions moved up: fences name them."""
    first = next((n for n, item in enumerate(items) if isinstance(item, Function)), len(items))
    late = [
        item
        for item in items[first:]
        if isinstance(item, Variable)
        and item.space in ("global", "const")
        and next(_leaves(item.init), None) is None
    ]
    if not late:
        return items
    moved = set(map(id, late))
    return [*items[:first], *late, *(item for item in items[first:] if id(item) not in moved)]
