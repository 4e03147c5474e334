"""Fences: no access through a global or generic address leaves its session's arena.

Problem: kernels of different users run in one address space. A wrong index must cost its own job
and nothing else, and the user wants to hear which instruction it was.

Approach: before every access that could miss stands a check, `gpud.compiler.fences`; the plan of
which checks are needed, and where, is `gpud.compiler.passes.fence_plan`'s. This pass finds out
what an address of this module may mean besides the arena, collects the sites, and writes it down.

Terms: those of `gpud.compiler.fences` and `gpud.compiler.analysis.accesses`; a variable is
*addressed* if code or an initialiser takes its address: no pointer can legally mean another one.

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

from gpud.compiler import control_words as words
from gpud.compiler.analysis.accesses import ARITHMETIC
from gpud.compiler.analysis.effects import CLUSTER
from gpud.compiler.analysis.sizes import size_and_align
from gpud.compiler.analysis.survey import Survey, Uses
from gpud.compiler.analysis.survey import survey as survey_of
from gpud.compiler.fences import Fence, Range, declarations, emit, fence_register
from gpud.compiler.form_rules import GRID_REGISTERS
from gpud.compiler.forms import Decision, Reason
from gpud.compiler.names import ARENA, GRID_SYNC, HEAP
from gpud.compiler.passes.fence_checks import Surroundings, find_checks
from gpud.compiler.passes.fence_plan import Planned, plan_fences
from gpud.compiler.polls import with_job
from gpud.compiler.ptx.model import (
    Address,
    Conjunction,
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
    Tuple,
    Variable,
    Vector,
    opcode,
)
from gpud.compiler.reports import ends
from gpud.compiler.sites import SiteTable
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
    survey = survey_of(module)
    reached = {uses.function.name for uses in survey.closure(*plan)}
    if not reached:
        return module
    around = _surroundings(survey)
    arena = [Variable("const", "b64", ARENA, (2,), align=16)]
    if _HEAP_RANGE in around.variables:
        arena.append(Variable("const", "b64", HEAP, (2,), align=16))
    items: list[Function | Variable | Directive] = [*arena]
    for item in _variables_first(module.items):
        if isinstance(item, Function) and item.body is not None and item.name in reached:
            items.append(_fenced(survey.uses[item.name], survey, around, sites))
        else:
            items.append(item)
    return replace(module, items=items)


def unfenceable(module: Module, entry: str) -> Reason | None:
    """Why ``entry`` of a flat module cannot be fenced, if it cannot.

    Only kernels with unusual instructions are looked at: for others `pass_fence` tells.
    """
    survey = survey_of(module)
    around: Surroundings | None = None
    for uses in survey.closure(entry):
        if all(base in ARITHMETIC or base in _USUAL for base in uses.bases):
            continue
        around = _surroundings(survey) if around is None else around
        try:
            find_checks(uses.function, around, lambda _: 0)
        except KernelRejected as error:
            text = "uses an instruction of which nothing can check what memory it touches"
            return Reason(error.reason, text, error.instruction, error.line)
    return None


# -- one function ------------------------------------------------------------------------------


def _fenced(uses: Uses, survey: Survey, around: Surroundings, sites: SiteTable) -> Function:
    function = uses.function
    checks = find_checks(function, around, lambda ins: sites.add(function.name, ins))
    if not checks:
        return function
    planned = plan_fences(survey.flow(function.name), checks)
    body = function.body or []
    changed: dict[int, Instruction] = {}
    hot: dict[int, list[Statement]] = {}
    cold: list[Statement] = []
    for number, one in enumerate(planned):
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
    if not ends(made):
        made.append(Instruction(opcode("ret")))
    made = [*declarations(len(planned)), *made, *cold]
    return replace(function, body=with_job(made) if _GRID_RANGE in around.variables else made)


def _fence_of(number: int, one: Planned) -> tuple[Fence, list[Statement]]:
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


def _surroundings(survey: Survey) -> Surroundings:
    """What addresses of the module may mean besides the arena."""
    known: dict[str, tuple[Range, int]] = {}
    for item in survey.module.items:
        if isinstance(item, Variable) and item.space in ("global", "const"):
            size, align = size_and_align(item)
            if item.name in known:  # declared again: what both promise
                size = min(size, known[item.name][0].size)
                align = min(align, known[item.name][1])
            known[item.name] = (Range(item.name, item.space, size), align)
    addressed: dict[str, None] = {}
    spaces: dict[str, None] = {}
    for item in survey.module.items:
        if isinstance(item, Variable):
            for leaf in _leaves(item.init):
                addressed.setdefault(leaf.name)
                if leaf.generic and leaf.name in known:
                    spaces.setdefault(known[leaf.name][0].space)
    cluster = allocates = meets = False
    for uses in survey.uses.values():
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
    return Surroundings(
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
        elif isinstance(operand, Conjunction):
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
