"""The bounds-checks pass: keeps global and generic accesses in their session's arena.

Problem: kernels of different users run in one address space. A wrong index must fail only its own
job, and the user needs to know which instruction it was.

Approach: a check (`gpud.compiler.instrumentation.bounds_checks`) stands before every access that
may be out of bounds; `gpud.compiler.passes.safety.check_placement` decides which checks are needed,
and where. This pass determines the memory that is legal in the module besides the arena, collects
the sites, and inserts the checks.

Terms: those of `gpud.compiler.instrumentation.bounds_checks` and
`gpud.compiler.analysis.memory_accesses`; a variable is *addressed* if code or an initialiser takes
its address: pointers can legally point to addressed variables only.

Properties:
* every access of every function that an entry of the plan can reach is checked before it happens,
  or proven to lie in one of the module's variables;
* what is legal stays legal: the module's variables; generic addresses of shared, local and
  parameter space, where the module makes such addresses; the ``grid.sync()`` workspace, in a
  module that uses it;
* an access whose address is not in a 64-bit register uses the very register that was checked;
* code that later passes add is not checked.

Source: docs/explanation/decisions.md, "Addresses are checked, not masked".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.abi.reserved_names import ARENA, GRID_SYNC, HEAP, RANGES
from gpud.compiler.analysis.bodies import ends_in_terminator
from gpud.compiler.analysis.call_graph import CallGraph, FunctionSummary, summarize
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.effects import CLUSTER
from gpud.compiler.analysis.memory_accesses import ARITHMETIC
from gpud.compiler.forms.classifier import Decision, Reason
from gpud.compiler.forms.rules import GRID_REGISTERS
from gpud.compiler.instrumentation.bounds_checks import (
    BoundsCheck,
    Member,
    Range,
    check_register,
    declarations,
    emit,
)
from gpud.compiler.instrumentation.kill_polls import JOB_REGISTER, with_job
from gpud.compiler.passes.safety.access_checks import AllowedMemory, declared_range, find_checks
from gpud.compiler.passes.safety.check_placement import PlacedCheck, place_checks
from gpud.compiler.ptx.model import (
    Address,
    Directive,
    Function,
    Guard,
    Initializer,
    InitialValue,
    Instruction,
    Module,
    Register,
    Statement,
    Variable,
    immediate,
    opcode,
)
from gpud.errors import KernelRejected

__all__ = ["pass_bounds_checks", "uncheckable"]

_USUAL = frozenset(("ld", "ldu", "st", "atom", "red", "fence", "membar", "brx"))
_HEAP_RANGE = Range(HEAP, "global", 0)
_GRID_RANGE = Range(GRID_SYNC, "global", words.GRID_SYNC_BYTES)


def pass_bounds_checks(module: Module, plan: Mapping[str, Decision], sites: SiteTable) -> Module:
    """Insert bounds checks before the accesses that the entries of ``plan`` can make.

    Args:
        module: flat; not changed.
        plan: the entries that will run; functions that none of them can reach are not changed.
        sites: the table to which the instructions that a bounds check can report are added.

    Raises:
        KernelRejected: an access cannot be checked; reason code ``unsupported-instruction``.
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
    table = [_table(allowed.table)] if allowed.table else []
    for item in _variables_first(module.items, table):
        if isinstance(item, Function) and item.body is not None and item.name in reached:
            items.append(_checked(call_graph.uses[item.name], call_graph, allowed, sites))
        else:
            items.append(item)
    return replace(module, items=items)


def uncheckable(module: Module, entry: str) -> Reason | None:
    """Return the reason why ``entry`` of a flat module cannot be checked, None if it can.

    Only functions with unusual instructions are examined; all others can be checked.
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


def _checked(
    uses: FunctionSummary, call_graph: CallGraph, allowed: AllowedMemory, sites: SiteTable
) -> Function:
    function = uses.function
    checks = find_checks(function, allowed, lambda ins: sites.add(function.name, ins))
    if not checks:
        return function
    placed = place_checks(call_graph.flow(function.name), checks)
    body = function.body or []
    changed: dict[int, Instruction] = {}
    hot: dict[int, list[Statement]] = {}
    cold: list[Statement] = []
    for number, one in enumerate(placed):
        first = one.first
        check, before = _check_of(number, one, allowed)
        for statement in before:
            statement.line = first.line
        if first.through is not None:
            old = body[first.position]
            assert isinstance(old, Instruction)
            ins = changed.get(first.position, old)
            changed[first.position] = _through(ins, first.through, check.register)
        warm, rest = emit(check, first.line)
        hot.setdefault(first.position, []).extend([*before, *warm])
        cold += rest
    made: list[Statement] = []
    for position, statement in enumerate(body):
        if position in hot:
            made += hot[position]
        made.append(changed.get(position, statement))
    if not ends_in_terminator(made):
        made.append(Instruction(opcode("ret")))
    rows = any(one.first.rows > 1 for one in placed)
    known = declarations(len(placed), rows=rows, table=bool(allowed.table))
    body = [*known, *made, *cold]
    checked = replace(function, body=with_job(body) if _GRID_RANGE in allowed.variables else body)
    return call_graph.extend(function, checked, _uses_of_checks())


@cache
def _uses_of_checks() -> FunctionSummary:
    """Return what bounds checks of any kind use."""
    member = Member(1, 2, 2, 0)
    variables = _HEAP_RANGE, _GRID_RANGE, Range("", "global", 2), Range("", "const", 2)
    windows = ("shared", "local", "param")
    everything = BoundsCheck(0, JOB_REGISTER, (member,), None, windows, variables, rows=2, table=1)
    hot, cold = emit(everything)
    # The cold part goes back to the hot one, but nothing goes from there to it again.
    return replace(summarize([*hot, *cold]), may_cycle=False)


def _check_of(
    number: int, one: PlacedCheck, allowed: AllowedMemory
) -> tuple[BoundsCheck, list[Statement]]:
    """Return the bounds check, and the statements that must precede it."""
    first = one.first
    register, guard = first.register, first.guard
    before: list[Statement] = []
    if first.making is not None:
        register = check_register("at", number)
        before += first.making(register)
    if first.condition is not None:
        guard = Guard(check_register("may", number))
        before += first.condition(guard.register)
    if first.step is not None:
        before += first.step(check_register("step", number))
    assert register is not None
    least = min(member.span for member in one.members)
    variables = tuple(r for r in first.variables if r.size >= least or r == _HEAP_RANGE)
    table = first.table
    while table and allowed.table[table - 1].size < least:
        table -= 1
    members = tuple(one.members)
    check = BoundsCheck(
        number, register, members, guard, first.windows, variables, first.rows, table
    )
    return check, before


def _through(ins: Instruction, operand: int, register: Register) -> Instruction:
    """Return ``ins`` with ``register`` as the address of ``operand``."""
    old = ins.operands[operand]
    assert isinstance(old, Address)
    new = Address(register, 0 if old.base is None else old.offset)
    return replace(ins, operands=(*ins.operands[:operand], new, *ins.operands[operand + 1 :]))


# -- the module --------------------------------------------------------------------------------


def _allowed_memory(call_graph: CallGraph) -> AllowedMemory:
    """Return the memory besides the arena that is legal for the accesses of the module."""
    variables = [item for item in call_graph.module.items if isinstance(item, Variable)]
    known: dict[str, list[Variable]] = {}
    for one in variables:
        if one.space in ("global", "const"):
            known.setdefault(one.name, []).append(one)
    spaces = {
        known[leaf.name][0].space
        for one in variables
        for leaf in _leaves(one.init)
        if leaf.generic and leaf.name in known
    }
    cluster = allocates = syncs_grid = False
    for uses in call_graph.uses.values():
        allocates = allocates or "malloc" in uses.calls or "free" in uses.calls
        cluster = cluster or bool(uses.bits & CLUSTER)
        syncs_grid = syncs_grid or any(name in uses.specials for name in GRID_REGISTERS)
        if "cvta" in uses.bases:
            makes = [op for op in uses.opcodes.values() if op.base == "cvta" and not op.has("to")]
            spaces.update(op.modifiers[0].partition("::")[0] for op in makes)
    addressed = [name for name in known if name in call_graph.named]
    ranges = [declared_range(known[name])[0] for name in addressed]
    writable = [r for r in ranges if r.space == "global" and r.size]
    constants = [r for r in ranges if r.space == "const" and r.size and "const" in spaces]
    shared = "shared::cluster" if cluster else "shared"
    windows = [shared] if "shared" in spaces else []
    windows += ["local"] if "local" in spaces else []
    return AllowedMemory(
        tuple(windows),
        ("param",) if "param" in spaces else (),
        (
            *([_HEAP_RANGE] if allocates else []),
            *([_GRID_RANGE] if syncs_grid else []),
        ),
        (*writable, *constants),
        len(writable),
        known,
    )


def _table(ranges: Sequence[Range]) -> Variable:
    """Return the variable with their addresses and sizes."""
    values: list[InitialValue] = []
    for one in ranges:
        values += [Initializer(one.name, generic=one.space == "const"), immediate(one.size)]
    return Variable("global", "u64", RANGES, (len(values),), init=tuple(values), align=16)


def _leaves(value: InitialValue | None) -> Iterator[Initializer]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, Initializer):
        yield value


def _variables_first(
    items: Sequence[Function | Variable | Directive], table: Sequence[Variable]
) -> list[Function | Variable | Directive]:
    """Return ``items`` with all variables, then ``table``, before the code, whose checks name them.

    Between them stand declarations of the functions that variables behind these are set to.
    """
    functions = {item.name: item for item in reversed(items) if isinstance(item, Function)}
    first = next((n for n, item in enumerate(items) if isinstance(item, Function)), len(items))
    late = [
        item
        for item in items[first:]
        if isinstance(item, Variable) and item.space in ("global", "const")
    ]
    moved = set(map(id, late))
    named = {id(one): [leaf.name for leaf in _leaves(one.init)] for one in late}
    plain = [one for one in late if functions.keys().isdisjoint(named[id(one)])]
    naming = [one for one in late if not functions.keys().isdisjoint(named[id(one)])]
    declared = dict.fromkeys(name for one in naming for name in named[id(one)] if name in functions)
    return [
        *items[:first],
        *plain,
        *(replace(functions[name], body=None) for name in declared),
        *naming,
        *table,
        *(item for item in items[first:] if id(item) not in moved),
    ]
