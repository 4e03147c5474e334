"""Inlines calls of functions in which threads can wait.

Properties:
* every copy has registers, labels and variables of its own; ``.shared`` variables stay shared;
* an indirect call becomes comparisons with the functions that it can reach, and traps if the
  pointer equals none of them;
* recursion through a suspending function is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpud.compiler.abi.check_calls import CHECK_CALLS
from gpud.compiler.abi.reserved_names import PRINT
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.analysis.signatures import IndirectCalls, call_parts
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.codegen.preparation.renaming import rename
from gpud.errors import KernelRejected

__all__ = ["KNOWN_EXTERNALS", "Inliner", "around", "possible_callees", "resolve_indirect_calls"]

KNOWN_EXTERNALS = CHECK_CALLS | {"vprintf", "malloc", "free", "__assertfail", PRINT}
"""External functions that the CPU device provides."""


class Inliner:
    """Replaces calls of suspending functions by their bodies.

    Args:
        functions: by name; their call parameters are already registers, their indirect calls
            resolved.
        suspending: functions in which a thread can wait or end.
    """

    def __init__(self, functions: dict[str, ptx.Function], suspending: set[str]) -> None:
        self.functions = functions
        self.suspending = suspending
        self.copies = 0

    def expand(self, function: ptx.Function, path: tuple[str, ...] = ()) -> list[ptx.Statement]:
        """Return the body of ``function`` with its suspending calls expanded in place."""
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
        if not self.suspending.intersection(possible_callees(ins, self.functions)):
            return [ins]
        assert isinstance(target, ptx.Register)
        return self._guarded(ins, self._dispatch(ins, target, path))

    def _guarded(self, ins: ptx.Instruction, body: list[ptx.Statement]) -> list[ptx.Statement]:
        if ins.guard is None:
            return body
        return around(ins, body, f"$after.{self._number()}")

    def _number(self) -> int:
        self.copies += 1
        return self.copies

    def _dispatch(
        self, ins: ptx.Instruction, pointer: ptx.Register, path: tuple[str, ...]
    ) -> list[ptx.Statement]:
        """Expand an indirect call to comparisons with the functions that it can reach."""
        number = self._number()
        done = f"$called.{number}"
        matches = ptx.Register(f"%callee.{number}")
        body: list[ptx.Statement] = [ptx.RegisterDeclaration("pred", matches.name)]
        results, arguments = call_parts(ins)
        for name in possible_callees(ins, self.functions):
            skip = f"$not.{number}.{self._number()}"
            opcode = ptx.opcode("gpud.callee")
            body.append(
                ptx.Instruction(opcode, (matches, pointer, ptx.Symbol(name)), None, ins.line)
            )
            body.append(branch(skip, ptx.Guard(matches, negated=True)))
            direct: tuple[ptx.Operand, ...] = (ptx.Symbol(name), ptx.Tuple(arguments))
            if results:
                direct = (ptx.Tuple(results), *direct)
            body.extend(
                self._call(ptx.Instruction(ptx.opcode("call.uni"), direct, None, ins.line), path)
            )
            body.append(branch(done))
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
        results, arguments = call_parts(ins)
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
                changed = branch(done, changed.guard, changed.line)
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


def resolve_indirect_calls(
    function: ptx.Function, functions: Mapping[str, ptx.Function], addressed: Sequence[str]
) -> ptx.Function:
    """Return ``function`` with the functions that an indirect call may reach in it, as a vector.

    They take the place of the prototype or list of targets, which belong to the function.
    """
    body = function.body or ()
    calls = IndirectCalls(body)
    changed: list[ptx.Statement] = []
    for statement in body:
        if isinstance(statement, ptx.Instruction) and is_call(statement):
            if isinstance(callee(statement), ptx.Register):
                names = calls.candidates(statement, functions, addressed)
                last = ptx.Vector(tuple(ptx.Symbol(one) for one in names if one in addressed))
                operands = statement.operands
                if isinstance(operands[-1], ptx.Symbol):
                    operands = operands[:-1]
                changed.append(replace(statement, operands=(*operands, last)))
                continue
        changed.append(statement)
    return replace(function, body=changed)


def possible_callees(ins: ptx.Instruction, functions: Collection[str]) -> list[str]:
    """Return which ``functions`` a call may reach; indirect ones have been resolved."""
    target, last = callee(ins), ins.operands[-1]
    reached = [target] if isinstance(target, ptx.Symbol) else []
    if not reached and isinstance(last, ptx.Vector):
        reached = [one for one in last.items if isinstance(one, ptx.Symbol)]
    return [one.name for one in reached if one.name in functions]


def branch(label: str, guard: ptx.Guard | None = None, line: int = 0) -> ptx.Instruction:
    """Build ``bra label``, with the guard if one is given."""
    return ptx.Instruction(ptx.opcode("bra"), (ptx.Symbol(label),), guard, line)


def around(ins: ptx.Instruction, body: list[ptx.Statement], label: str) -> list[ptx.Statement]:
    """Run ``body`` only if the guard of ``ins`` holds, by a branch around it."""
    assert ins.guard is not None
    opposite = ptx.Guard(ins.guard.register, not ins.guard.negated)
    return [branch(label, opposite, ins.line), *body, ptx.Label(label)]
