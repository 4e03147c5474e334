"""Prepares a flat PTX kernel for code generation: the order of the passes in this package.

Problem: a thread that waits (at a barrier, a warp collective, in a loop that polls memory) must be
suspended and resumed later. That is simple if the wait is in the kernel's own body, and needs a
separate stack if it is in a function that the kernel called.

Approach: every function in which a thread can wait, trap or exit is inlined into the kernel. So are
functions of a few instructions, since their results may be uniform, or indices. An indirect call
that may reach such a function becomes a chain of comparisons over the functions whose address the
program takes. All other functions are compiled as functions. Call parameters, which PTX keeps in
``.param`` variables, become registers if they are scalars.

Terms: a function *suspends* if a thread can wait or end inside it: it has a barrier, a collective,
a trap, an ``exit``, a polling loop, or calls a function that suspends. The pseudo-instructions made
here are ``gpud.move`` (register copy of any type), ``gpud.resume`` (write the results of the
collective or reduction before it) and ``gpud.callee`` (compare a function pointer with a function);
`gpud.device.cpu.codegen.preparation.pseudo_instructions` makes others before.

Properties:
* after `prepare` the kernel's body has no call of a suspending function;
* no barrier, collective, trap or atomic has a guard: guards became branches around them;
* operands of collectives that are known constants are immediates;
* the instruction after a wait begins a basic block that nothing else can enter.

Recursion through a suspending function is refused: there is no storage for its frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpud.compiler.abi.reserved_names import PRINT
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.definitions import Definitions
from gpud.compiler.analysis.effects import (
    ATOMIC,
    BARRIER,
    COLLECTIVE,
    EXIT,
    TERMINATOR,
    TRAP,
    flags,
    is_call,
)
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.analysis.spin_loops import spin_headers
from gpud.device.cpu.codegen.preparation.bounds_checks import insert_bounds_checks
from gpud.device.cpu.codegen.preparation.bulk_copies import expand_bulk_copies
from gpud.device.cpu.codegen.preparation.fragment_moves import expand_fragments
from gpud.device.cpu.codegen.preparation.inliner import (
    Inliner,
    around,
    possible_callees,
    resolve_indirect_calls,
)
from gpud.device.cpu.codegen.preparation.matrix_moves import expand_matrices
from gpud.device.cpu.codegen.preparation.module_layout import addressed_functions
from gpud.device.cpu.codegen.preparation.provenance import infer_origins
from gpud.device.cpu.codegen.preparation.pseudo_instructions import ENDINGS, fold_pseudos
from gpud.device.cpu.codegen.preparation.webs import split_webs
from gpud.device.cpu.lower.collectives import check_barrier, collective_kind
from gpud.errors import KernelRejected

__all__ = ["Prepared", "prepare"]

_MAX_INLINED = 40
"""Maximum number of instructions of a function that is inlined although its threads cannot wait."""


@dataclass(slots=True)
class Prepared:
    """A kernel ready for code generation.

    Attributes:
        functions: the remaining functions that it may call, by name.
    """

    entry: ptx.Function
    functions: dict[str, ptx.Function]


def prepare(
    module: ptx.Module, entry: ptx.Function, shape: Shape | None = None, *, checked: bool = False
) -> Prepared:
    """Inline what suspends, turn call parameters into registers, and isolate every wait.

    Args:
        module: flattened (no `Scope` in any body).
        entry: the kernel of ``module`` to prepare.
        shape: of its blocks, if it is known.
        checked: whether accesses to memory are checked.

    Raises:
        KernelRejected: a suspending function is recursive, a called function is not defined, or the
            kernel needs thread block clusters.
    """
    _refuse_clusters(entry)
    defined = {f.name: f for f in module.functions() if f.body is not None and not _is_own(f.name)}
    if module.target[0].startswith("sm_1") and len(module.target[0]) == len("sm_1x"):
        defined = {name: _with_roundings(function) for name, function in defined.items()}
    addressed = tuple(n for n in addressed_functions(module) if n in defined)
    resolved = {n: resolve_indirect_calls(f, defined, addressed) for n, f in defined.items()}
    functions = {
        name: fold_pseudos(expand_matrices(_parameters_to_registers(f)), checked=checked)
        for name, f in resolved.items()
    }
    functions = {
        name: expand_bulk_copies(expand_fragments(f, checked=checked), checked=checked)
        for name, f in functions.items()
    }
    if checked:
        functions = {name: insert_bounds_checks(module, f, shape) for name, f in functions.items()}
    suspending = _suspending(functions)
    inlined = suspending | {n for n, f in functions.items() if n not in addressed and _is_small(f)}
    body = Inliner(functions, inlined).expand(functions[entry.name])
    prepared = ptx.Function(
        "entry",
        entry.name,
        entry.parameters,
        (),
        entry.attributes,
        _isolate_waits(body),
        entry.linkage,
    )
    prepared = split_webs(prepared)
    prepared = replace(prepared, body=_fold_constant_operands(prepared.body or []))
    rest = {n: f for n, f in functions.items() if f.kind == "func" and n not in suspending}
    if checked:
        prepared, *others = infer_origins(module, [prepared, *rest.values()])
        rest = {function.name: function for function in others}
    return Prepared(prepared, rest)


def _refuse_clusters(entry: ptx.Function) -> None:
    """Refuse a kernel with several blocks in a cluster: each would see a cluster of its own."""
    for text in entry.attributes:
        name, _, sizes = text.partition(" ")
        if name == ".reqnctapercluster" and any(size.strip() != "1" for size in sizes.split(",")):
            raise KernelRejected(
                "unsupported-instruction",
                "the CPU device has no thread block clusters; without __cluster_dims__ the kernel "
                "runs if it does not use them",
                text,
                entry.line or None,
            )


def _with_roundings(function: ptx.Function) -> ptx.Function:
    """Return ``function``, of a program for sm_1x, with the rounding that ``mad.f32`` lacks there.

    PTX ISA 9.0, section 9.7.3.7: on later GPUs its results may differ slightly from those of sm_1x.
    """
    body: list[ptx.Statement] = [
        replace(one, opcode=ptx.opcode("mad.rn" + one.opcode.text[len("mad") :]))
        if isinstance(one, ptx.Instruction) and one.opcode.text in ("mad.f32", "mad.sat.f32")
        else one
        for one in function.body or ()
    ]
    return replace(function, body=body)


def _is_own(name: str) -> bool:
    """Return whether the device itself implements a function that gpud's passes add."""
    return name in ENDINGS or name.startswith(PRINT)


def _suspending(functions: dict[str, ptx.Function]) -> set[str]:
    calls: dict[str, set[str]] = {}
    suspending: set[str] = set()
    for name, function in functions.items():
        if function.kind != "func":
            continue
        calls[name] = set()
        for ins in _instructions(function):
            if flags(ins.opcode) & (BARRIER | COLLECTIVE | TRAP | EXIT):
                suspending.add(name)
            elif is_call(ins):
                calls[name].update(possible_callees(ins, functions))
        if spin_headers(ControlFlow(function)):
            suspending.add(name)
    changed = True
    while changed:
        more = {n for n, targets in calls.items() if n not in suspending and targets & suspending}
        suspending |= more
        changed = bool(more)
    return suspending


def _is_small(function: ptx.Function) -> bool:
    """Return whether a function that does not suspend is short straight-line code."""
    instructions = _instructions(function)
    if function.kind != "func" or len(instructions) > _MAX_INLINED:
        return False
    if any(isinstance(s, ptx.Variable) for s in function.body or ()):
        return False
    last = instructions[-1] if instructions else None
    return all(
        not is_call(ins) and (ins is last or not flags(ins.opcode) & TERMINATOR)
        for ins in instructions
    )


def _instructions(function: ptx.Function) -> list[ptx.Instruction]:
    return [s for s in function.body or () if isinstance(s, ptx.Instruction)]


# -- call parameters ---------------------------------------------------------------------------


def _parameters_to_registers(function: ptx.Function) -> ptx.Function:
    """Replace scalar ``.param`` variables of calls and of a ``.func`` by registers ``%P.name``."""
    assert function.body is not None
    scalars: dict[str, str] = {}
    registers: list[ptx.Statement] = []
    if function.kind == "func":
        for parameter in (*function.parameters, *function.returns):
            if parameter.space == "reg":
                registers.append(ptx.RegisterDeclaration(parameter.type, parameter.name))
            elif not parameter.dims:
                scalars[parameter.name] = parameter.type
    for statement in function.body:
        if isinstance(statement, ptx.Variable) and statement.space == "param":
            if not statement.dims:
                scalars[statement.name] = statement.type
    body: list[ptx.Statement] = [
        *registers,
        *(ptx.RegisterDeclaration(type_, f"%P.{name}") for name, type_ in scalars.items()),
    ]
    for statement in function.body:
        if isinstance(statement, ptx.Variable) and statement.name in scalars:
            continue
        if isinstance(statement, ptx.Instruction):
            body.append(_use_registers(statement, scalars))
        else:
            body.append(statement)
    return replace(function, body=body)


def _use_registers(ins: ptx.Instruction, scalars: dict[str, str]) -> ptx.Instruction:
    base, modifiers = ins.opcode.base, ins.opcode.modifiers
    if is_call(ins):
        operands = tuple(
            ptx.Tuple(tuple(_scalar(o, scalars) for o in operand.items))
            if isinstance(operand, ptx.Tuple)
            else operand
            for operand in ins.operands
        )
        return ptx.Instruction(ins.opcode, operands, ins.guard, ins.line)
    if base in ("ld", "st") and modifiers[0].startswith("param"):
        position = 1 if base == "ld" else 0
        address = ins.operands[position]
        if (
            isinstance(address, ptx.Address)
            and isinstance(address.base, ptx.Symbol)
            and address.base.name in scalars
        ):
            if address.offset or isinstance(ins.operands[1 - position], ptx.Vector):
                raise KernelRejected(
                    "unsupported-instruction",
                    "parts of a scalar call parameter are accessed, which the CPU device does not "
                    "run",
                    print_instruction(ins),
                    ins.line,
                )
            register = ptx.Register(f"%P.{address.base.name}")
            source = ins.operands[1] if base == "st" else register
            target = register if base == "st" else ins.operands[0]
            opcode = ptx.opcode(f"gpud.move.{modifiers[-1]}")
            return ptx.Instruction(opcode, (target, source), ins.guard, ins.line)
    return ins


def _scalar(operand: ptx.Operand, scalars: dict[str, str]) -> ptx.Operand:
    if isinstance(operand, ptx.Symbol) and operand.name in scalars:
        return ptx.Register(f"%P.{operand.name}")
    return operand


# -- waits -------------------------------------------------------------------------------------


def _fold_constant_operands(body: list[ptx.Statement]) -> list[ptx.Statement]:
    """Replace known constant masks and lanes of collectives by immediates."""
    known = Definitions(body).constant

    def number(operand: ptx.Operand) -> ptx.Operand:
        value = known(operand)
        return operand if value is None else ptx.Immediate(str(value), value)

    return [
        replace(statement, operands=tuple(map(number, statement.operands)))
        if isinstance(statement, ptx.Instruction) and flags(statement.opcode) & COLLECTIVE
        else statement
        for statement in body
    ]


def _isolate_waits(body: list[ptx.Statement]) -> list[ptx.Statement]:
    """Unguard waits and traps, and put a block boundary and a ``gpud.resume`` after each wait."""
    result: list[ptx.Statement] = []
    for number, statement in enumerate(body):
        if not isinstance(statement, ptx.Instruction):
            result.append(statement)
            continue
        bits = flags(statement.opcode)
        waits = bits & COLLECTIVE or (bits & BARRIER and not statement.opcode.has("arrive"))
        if not (
            waits or bits & (BARRIER | TRAP) or (bits & ATOMIC and statement.guard is not None)
        ):
            result.append(statement)
            continue
        if bits & BARRIER:
            check_barrier(statement)
        elif bits & COLLECTIVE:
            collective_kind(statement)
        bare = ptx.Instruction(statement.opcode, statement.operands, None, statement.line)
        unit: list[ptx.Statement] = [bare]
        if waits:
            unit.append(ptx.Label(f"$resume.{number}"))
            has_result = bool(bits & COLLECTIVE) or statement.opcode.has("red")
            operands = statement.operands[:1] if has_result else ()
            if statement.opcode.base == "bar" and statement.opcode.modifiers[:1] == ("warp",):
                operands = ()
            resume = ptx.opcode(f"gpud.resume.{statement.opcode.text}")
            unit.append(ptx.Instruction(resume, operands, None, statement.line))
        if statement.guard is not None:
            unit = around(statement, unit, f"$skip.{number}")
        result.extend(unit)
        if waits and statement.guard is None:
            result.append(ptx.Label(f"$go.{number}"))
    return result
