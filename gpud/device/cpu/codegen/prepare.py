"""From a flat PTX kernel to one that the CPU code generator can cut into regions.

Problem: a thread that waits (at a barrier, a warp collective, in a loop that polls memory) must be
left and entered again later. That is simple where the waiting stands in the kernel's own body, and
needs a stack of its own where it stands in a function that the kernel called.

Approach: every function in which a thread can wait, trap or exit is inlined into the kernel;
an indirect call that may reach one becomes a chain of comparisons over the functions whose
address the program takes. All other functions stay functions, compiled as they are. Parameters of
calls, which PTX keeps in ``.param`` variables, become registers where they are scalars.

Terms: a function *suspends* if a thread can wait or end inside it: it has a barrier, a collective,
a trap, an ``exit``, a polling loop, or calls a function that suspends. The pseudo-instructions
made here are ``gpud.move`` (register copy of any type), ``gpud.resume`` (write the results of the
collective or reduction before it) and ``gpud.callee`` (does a function pointer equal this one?).

Properties:
* after `prepare` the kernel's body holds no call of a suspending function;
* no barrier, collective or trap has a guard: guards became branches around them;
* the instruction after a waiting one begins a basic block that nothing else can enter.

Recursion through a suspending function is refused: there is no place for its frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    BARRIER,
    COLLECTIVE,
    EXIT,
    TRAP,
    callee,
    flags,
    is_call,
)
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.codegen.substitute import rename
from gpud.device.cpu.codegen.waiting import waiting_headers
from gpud.device.cpu.codegen.webs import split_webs
from gpud.errors import KernelRejected

__all__ = ["KNOWN_EXTERNALS", "Prepared", "addressed_functions", "prepare"]

KNOWN_EXTERNALS = frozenset(("vprintf", "malloc", "free", "__assertfail"))
"""Device functions that the CPU device provides."""
_SUSPENDING_EXTERNALS = frozenset(("__assertfail",))


@dataclass(slots=True)
class Prepared:
    """A kernel ready for code generation.

    Attributes:
        entry: the kernel with suspending functions inlined.
        functions: the remaining functions that it may call, by name.
        addressed: functions whose address is taken, in module order; a function pointer is the
            index here plus one.
    """

    entry: ptx.Function
    functions: dict[str, ptx.Function]
    addressed: tuple[str, ...]


def prepare(module: ptx.Module, entry: ptx.Function) -> Prepared:
    """Inline what suspends, turn call parameters into registers, and isolate every wait.

    Args:
        module: flattened (no `Scope` in any body).
        entry: the kernel of ``module`` to prepare.

    Raises:
        KernelRejected: a suspending function is recursive, or a called function is not defined.
    """
    defined = {f.name: f for f in module.functions() if f.body is not None}
    functions = {name: _parameters_to_registers(f) for name, f in defined.items()}
    addressed = tuple(n for n in addressed_functions(module) if n in defined)
    suspending = _suspending(functions, addressed)
    body = _Inliner(functions, addressed, suspending).expand(functions[entry.name])
    prepared = ptx.Function(
        "entry", entry.name, entry.parameters, (), entry.attributes, _isolate(body), entry.linkage
    )
    prepared = split_webs(prepared)
    rest = {n: f for n, f in functions.items() if f.kind == "func" and n not in suspending}
    return Prepared(prepared, rest, addressed)


def addressed_functions(module: ptx.Module) -> list[str]:
    """Functions that the program uses as values: in ``mov`` or in an initialiser."""
    names = [f.name for f in module.functions() if f.kind == "func"]
    known = set(names)
    found: set[str] = set()

    def leaf(value: ptx.InitialValue | None) -> None:
        if isinstance(value, tuple):
            for item in value:
                leaf(item)
        elif isinstance(value, ptx.Initializer):
            found.add(value.name)

    for item in module.items:
        if isinstance(item, ptx.Variable):
            leaf(item.init)
        elif isinstance(item, ptx.Function):
            for statement in item.body or ():
                if isinstance(statement, ptx.Instruction) and not is_call(statement):
                    found.update(o.name for o in statement.operands if isinstance(o, ptx.Symbol))
                elif isinstance(statement, ptx.Variable):
                    leaf(statement.init)
    return [name for name in dict.fromkeys(names) if name in found & known]


def _suspending(functions: dict[str, ptx.Function], addressed: Iterable[str]) -> set[str]:
    calls: dict[str, set[str]] = {}
    found: set[str] = set()
    for name, function in functions.items():
        if function.kind != "func":
            continue
        calls[name] = set()
        for ins in _instructions(function):
            if flags(ins.opcode) & (BARRIER | COLLECTIVE | TRAP | EXIT):
                found.add(name)
            elif ins.opcode.base == "brkpt":
                found.add(name)
            elif is_call(ins):
                target = callee(ins)
                if isinstance(target, ptx.Symbol):
                    calls[name].add(target.name)
                else:
                    calls[name].update(addressed)
        if calls[name] & _SUSPENDING_EXTERNALS or waiting_headers(ControlFlow(function)):
            found.add(name)
    changed = True
    while changed:
        more = {n for n, targets in calls.items() if n not in found and targets & found}
        found |= more
        changed = bool(more)
    return found


def _instructions(function: ptx.Function) -> list[ptx.Instruction]:
    return [s for s in function.body or () if isinstance(s, ptx.Instruction)]


# -- call parameters ---------------------------------------------------------------------------


def _parameters_to_registers(function: ptx.Function) -> ptx.Function:
    """Make every scalar ``.param`` variable of calls and of a ``.func`` a register ``%P.name``."""
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
    return ptx.Function(
        function.kind,
        function.name,
        function.parameters,
        function.returns,
        function.attributes,
        body,
        function.linkage,
        function.line,
    )


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


# -- inlining ----------------------------------------------------------------------------------


class _Inliner:
    def __init__(
        self, functions: dict[str, ptx.Function], addressed: tuple[str, ...], suspending: set[str]
    ) -> None:
        self.functions = functions
        self.addressed = addressed
        self.suspending = suspending
        self.copies = 0

    def expand(self, function: ptx.Function, path: tuple[str, ...] = ()) -> list[ptx.Statement]:
        """The body of ``function`` with every suspending call replaced by the callee's body."""
        if function.name in path:
            raise KernelRejected(
                "unsupported-instruction",
                f"{function.name} calls itself and its threads can wait inside it, which the CPU "
                "device does not run; make it iterative or move the barrier out of it",
                f"call {function.name}",
            )
        path = (*path, function.name)
        body: list[ptx.Statement] = []
        for statement in function.body or ():
            if isinstance(statement, ptx.Instruction) and is_call(statement):
                body.extend(self._call(statement, path))
            else:
                body.append(statement)
        return body

    def _call(self, ins: ptx.Instruction, path: tuple[str, ...]) -> list[ptx.Statement]:
        target = callee(ins)
        if isinstance(target, ptx.Symbol):
            if target.name in KNOWN_EXTERNALS:
                return [ins]
            if target.name not in self.functions:
                raise KernelRejected(
                    "unresolved-external",
                    f"the program calls {target.name}, which it does not define",
                    print_instruction(ins),
                    ins.line,
                )
            if target.name not in self.suspending:
                return [ins]
            return self._guarded(ins, self._inline(ins, self.functions[target.name], path))
        if not self.suspending.intersection(self.addressed):
            return [ins]
        assert isinstance(target, ptx.Register)
        return self._guarded(ins, self._dispatch(ins, target, path))

    def _guarded(self, ins: ptx.Instruction, body: list[ptx.Statement]) -> list[ptx.Statement]:
        if ins.guard is None:
            return body
        return _around(ins, body, f"$after.{self._number()}")

    def _number(self) -> int:
        self.copies += 1
        return self.copies

    def _dispatch(
        self, ins: ptx.Instruction, pointer: ptx.Register, path: tuple[str, ...]
    ) -> list[ptx.Statement]:
        """An indirect call as comparisons with the functions that it can reach."""
        number = self._number()
        done = f"$called.{number}"
        matches = ptx.Register(f"%callee.{number}")
        body: list[ptx.Statement] = [ptx.RegisterDeclaration("pred", matches.name)]
        results, arguments = _call_parts(ins)
        for name in self.addressed:
            function = self.functions[name]
            if len(function.parameters) != len(arguments):
                continue
            if len(function.returns) != len(results):
                continue
            skip = f"$not.{number}.{self._number()}"
            opcode = ptx.opcode("gpud.callee")
            body.append(
                ptx.Instruction(opcode, (matches, pointer, ptx.Symbol(name)), None, ins.line)
            )
            body.append(_branch(skip, ptx.Guard(matches, negated=True)))
            direct: tuple[ptx.Operand, ...] = (ptx.Symbol(name), ptx.Tuple(arguments))
            if results:
                direct = (ptx.Tuple(results), *direct)
            body.extend(
                self._call(ptx.Instruction(ptx.opcode("call.uni"), direct, None, ins.line), path)
            )
            body.append(_branch(done))
            body.append(ptx.Label(skip))
        body.append(ptx.Instruction(ptx.opcode("trap"), (), None, ins.line))
        body.append(ptx.Label(done))
        return body

    def _inline(
        self, ins: ptx.Instruction, function: ptx.Function, path: tuple[str, ...]
    ) -> list[ptx.Statement]:
        number = self._number()
        done = f"$return.{number}"
        expanded = self.expand(function, path)
        results, arguments = _call_parts(ins)
        names: dict[str, str] = {}
        for statement in expanded:
            if isinstance(statement, ptx.RegisterDeclaration):
                if statement.count is None:
                    names[statement.name] = f"{statement.name}.i{number}"
                else:
                    for index in range(statement.count):
                        name = f"{statement.name}{index}"
                        names[name] = f"{statement.name}i{number}_{index}"
            elif isinstance(statement, ptx.Label | ptx.BranchTargets | ptx.CallPrototype):
                names[statement.name] = f"{statement.name}.i{number}"
            elif isinstance(statement, ptx.Variable) and statement.space in ("local", "param"):
                names[statement.name] = f"{statement.name}.i{number}"
        body: list[ptx.Statement] = []
        after: list[ptx.Statement] = []
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            self._bind(parameter, argument, names, body, ins, results=False)
        for parameter, result in zip(function.returns, results, strict=True):
            self._bind(parameter, result, names, after, ins, results=True)
        for statement in expanded:
            if isinstance(statement, ptx.RegisterDeclaration) and statement.count is not None:
                body.append(
                    ptx.RegisterDeclaration(
                        statement.type, f"{statement.name}i{number}_", statement.count
                    )
                )
                continue
            changed = rename(statement, lambda name: names.get(name, name))
            if isinstance(changed, ptx.Instruction) and changed.opcode.base == "ret":
                changed = _branch(done, changed.guard, changed.line)
            body.append(changed)
        body.append(ptx.Label(done))
        return body + after

    @staticmethod
    def _bind(
        parameter: ptx.Parameter,
        operand: ptx.Operand,
        names: dict[str, str],
        moves: list[ptx.Statement],
        ins: ptx.Instruction,
        *,
        results: bool,
    ) -> None:
        if parameter.dims:
            assert isinstance(operand, ptx.Symbol)
            names[parameter.name] = operand.name
            return
        inner = ptx.Register(
            names[f"%P.{parameter.name}"] if parameter.space == "param" else names[parameter.name]
        )
        pair = (operand, inner) if results else (inner, operand)
        opcode = ptx.opcode(f"gpud.move.{parameter.type}")
        moves.append(ptx.Instruction(opcode, pair, None, ins.line))


def _call_parts(
    ins: ptx.Instruction,
) -> tuple[tuple[ptx.Operand, ...], tuple[ptx.Operand, ...]]:
    """(results, arguments) of a call."""
    operands = list(ins.operands)
    results: tuple[ptx.Operand, ...] = ()
    if isinstance(operands[0], ptx.Tuple):
        results = operands.pop(0).items  # type: ignore[union-attr]
    arguments = (
        operands[1].items if len(operands) > 1 and isinstance(operands[1], ptx.Tuple) else ()
    )
    return results, arguments


# -- waits -------------------------------------------------------------------------------------


def _branch(label: str, guard: ptx.Guard | None = None, line: int = 0) -> ptx.Instruction:
    return ptx.Instruction(ptx.opcode("bra"), (ptx.Symbol(label),), guard, line)


def _around(ins: ptx.Instruction, body: list[ptx.Statement], label: str) -> list[ptx.Statement]:
    """``body`` under the guard of ``ins``, as a branch around it."""
    assert ins.guard is not None
    opposite = ptx.Guard(ins.guard.register, not ins.guard.negated)
    return [_branch(label, opposite, ins.line), *body, ptx.Label(label)]


def _isolate(body: list[ptx.Statement]) -> list[ptx.Statement]:
    """Unguard waits and traps, and put a block boundary and a ``gpud.resume`` after each wait."""
    result: list[ptx.Statement] = []
    for number, statement in enumerate(body):
        if not isinstance(statement, ptx.Instruction):
            result.append(statement)
            continue
        bits = flags(statement.opcode)
        waits = bits & COLLECTIVE or (bits & BARRIER and not statement.opcode.has("arrive"))
        ends = bits & TRAP or statement.opcode.base == "brkpt"
        asserts = is_call(statement) and callee(statement) == ptx.Symbol("__assertfail")
        if not (waits or ends or asserts or bits & BARRIER):
            result.append(statement)
            continue
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
        elif ends:
            unit[0] = ptx.Instruction(ptx.opcode("trap"), statement.operands, None, statement.line)
        if statement.guard is not None:
            unit = _around(statement, unit, f"$skip.{number}")
        result.extend(unit)
        if waits and statement.guard is None:
            result.append(ptx.Label(f"$go.{number}"))
    return result
