"""The printf pass: kernels' ``printf`` output is collected per job.

Problem: a device's own ``vprintf`` prints to the standard output of the process that owns the
device: the text cannot be attributed to a job, and the job's owner never sees it.

Approach: each call of ``vprintf`` becomes a call of `gpud_print`, a function in the module
(`gpud.compiler.passes.runtime.printf_functions`) that writes format and arguments to the output
buffer of the job's run. It finds the buffer through the job record, whose address
`gpud.compiler.passes.runtime.fault_lowering` passes to it. A device that prints in its own way (the
CPU device) treats the call as an intrinsic and leaves the functions out.

Terms: the *packed arguments* are the memory whose address ``vprintf`` gets; compilers put them into
a local variable.

Algorithm. ``call (result), vprintf, (format, values)`` becomes ``call (result), gpud_print,
(format, values, most)``. ``most`` is the number of bytes from ``values`` to the end of its local
variable, if single definitions lead from one to the other, and at most `MOST_VALUES_BYTES`: a
format with too many conversions cannot read memory behind the arguments.

Properties:
* ``guards`` and everything around the calls are not changed;
* a module whose kernels print nothing is returned as the same object;
* kernels that do not print pay nothing.

Source: CUDA C++ Programming Guide 13.0, "Formatted Output".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi.print_buffer import MOST_VALUES_BYTES
from gpud.compiler.abi.reserved_names import PRINT
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.analysis.definitions import Definitions
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.passes.builder import map_functions
from gpud.compiler.passes.runtime.printf_functions import print_functions
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    Register,
    Statement,
    Symbol,
    Tuple,
    Variable,
    immediate,
)

__all__ = ["pass_printf"]

_VPRINTF = Symbol("vprintf")
_DEPTH = 8  # compilers need two or three steps


def pass_printf(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Redirect the output of all that the entries of ``plan`` can reach to the job's buffer.

    Args:
        module: flat; not changed.
        plan: the entries that will run.
    """
    call_graph = call_graph_of(module)
    printing = {
        uses.function.name for uses in call_graph.closure(*plan) if _VPRINTF.name in uses.calls
    }
    if not printing:
        return module
    changed = map_functions(module, lambda one: _rewritten(one) if one.name in printing else one)
    first = next(n for n, item in enumerate(changed.items) if isinstance(item, Function))
    variables = [
        item
        for item in changed.items[:first]
        if isinstance(item, Variable)
        and item.space in ("global", "const")
        and item.linkage != "extern"
    ]
    functions = print_functions(variables)
    items = [*changed.items[:first], *functions, *changed.items[first:]]
    return replace(changed, items=items)


def _rewritten(function: Function) -> Function:
    body = function.body
    if body is None:
        return function  # a declaration of one that is defined behind its callers
    extents = _Extents(body)
    made: list[Statement] = []
    stored: dict[str, Operand] = {}
    for statement in body:
        if isinstance(statement, Label):
            stored.clear()
        elif isinstance(statement, Instruction):
            if (
                is_call(statement)
                and callee(statement) == _VPRINTF
                and len(statement.operands) == 3
            ):
                made.append(_call(statement, stored, extents))
                continue
            _note_store(statement, stored)
        made.append(statement)
    return replace(function, body=made)


def _call(ins: Instruction, stored: Mapping[str, Operand], extents: _Extents) -> Instruction:
    result, _, given = ins.operands
    assert isinstance(given, Tuple), "vprintf has two arguments"
    values = given.items[-1]
    if isinstance(values, Symbol):
        values = stored.get(values.name, values)
    most = min(extents.behind(values), MOST_VALUES_BYTES)
    operands = (result, Symbol(PRINT), Tuple((*given.items, immediate(most))))
    return replace(ins, operands=operands)


def _note_store(ins: Instruction, stored: dict[str, Operand]) -> None:
    """Note in ``stored`` the value that ``ins`` stores to a ``.param`` variable, if it does."""
    if ins.opcode.base != "st" or not ins.opcode.has("param"):
        return
    target = ins.operands[0]
    if isinstance(target, Address) and isinstance(target.base, Symbol):
        stored[target.base.name] = ins.operands[1]


class _Extents:
    """Finds the distances from addresses to the ends of their local variables."""

    def __init__(self, body: list[Statement]) -> None:
        self._definitions = Definitions(body)
        self._sizes = {
            one.name: size_and_align(one)[0]
            for one in body
            if isinstance(one, Variable) and one.space == "local"
        }

    def behind(self, operand: Operand) -> int:
        """Return the bytes left in an address's variable; `MOST_VALUES_BYTES` if unknown."""
        offset = 0
        for _ in range(_DEPTH):
            if isinstance(operand, Symbol):
                size = self._sizes.get(operand.name)
                return MOST_VALUES_BYTES if size is None else max(0, size - offset)
            if isinstance(operand, Immediate):
                return MOST_VALUES_BYTES
            ins = self._definitions.of(operand)
            if ins is None:
                break
            base, others = ins.opcode.base, ins.operands[1:]
            if base in ("mov", "cvta"):
                operand = others[0]
            elif base == "add" and isinstance(others[1], Immediate):
                operand, offset = others[0], offset + others[1].value
            else:
                break
            if not isinstance(operand, Register | Symbol | Immediate):
                break
        return MOST_VALUES_BYTES
