"""The arena-variables pass: a program's variables lie in its session's arena.

Problem and terms: `gpud.compiler.variables`.

Approach: the placed variables are no variables of the module any more. Code loads the block's
address from `gpud.compiler.abi.reserved_names.VARIABLES`, which a device writes when it loads the
program, once at the beginning of each function that uses one, and adds the variable's offset.

Properties:
* a module without placed variables is returned as the same object;
* an access by name becomes one access at the block's address plus a constant, so that the
  bounds checks see that it lies in the block;
* if constants are placed, every load from constant memory becomes one from global memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi.reserved_names import VARIABLES
from gpud.compiler.analysis.effects import is_call
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.passes.builder import split_declarations
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Opcode,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    SymbolOffset,
    Variable,
    immediate,
    opcode,
)
from gpud.compiler.ptx.renaming import replace_names
from gpud.compiler.variables import place_variables

__all__ = ["BASE", "pass_arena_variables"]

BASE = Register(f"%{VARIABLES}")
"""Holds the block's address in every function that uses it."""

_AT = f"%{VARIABLES}_at"
_MOST_OFFSET = (1 << 31) - 1
_JUMPS = frozenset(("bra", "brx"))
_OF_CONSTANTS = frozenset(("ld", "ldu", "cvta"))


def pass_arena_variables(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Have the code of ``module`` use its variables' block in the arena.

    Args:
        module: flat; not changed.
        plan: not looked at: variables are shared by all functions.
    """
    block = place_variables(module)
    offsets = block.offsets
    if not offsets:
        return module
    moved = [item for item in module.items if _is_moved(item, offsets)]
    constants = any(isinstance(one, Variable) and one.space == "const" for one in moved)
    size = immediate(block.size)
    own = Variable("const", "b64", VARIABLES, (2,), align=16, init=(immediate(0), size))
    kept = [item for item in module.items if not _is_moved(item, offsets)]
    return replace(
        module,
        items=[
            own,
            *(
                _Rewriter(item, offsets, constants=constants).function()
                if isinstance(item, Function) and item.body is not None
                else item
                for item in kept
            ),
        ],
    )


def _is_moved(item: object, offsets: Mapping[str, int]) -> bool:
    return isinstance(item, Variable) and item.name in offsets and item.linkage != "extern"


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, function: Function, offsets: Mapping[str, int], *, constants: bool) -> None:
        self._function = function
        self._constants = constants
        body = function.body or []
        hidden = {p.name for p in (*function.parameters, *function.returns)}
        hidden |= {one.name for one in body if isinstance(one, Variable)}
        self._offsets = {name: at for name, at in offsets.items() if name not in hidden}
        self._addresses = 0
        self._uses_base = False

    def function(self) -> Function:
        """Return the function, itself if it uses no variable."""
        declared, code = split_declarations(self._function.body or [])
        made: list[Statement] = []
        for statement in code:
            if type(statement) is Instruction:
                self._instruction(statement, made)
            else:
                made.append(statement)
        if not self._uses_base:
            if all(new is old for new, old in zip(made, code, strict=True)):
                return self._function
            return replace(self._function, body=[*declared, *made])
        own: list[Statement] = [RegisterDeclaration("b64", BASE.name)]
        if self._addresses:
            own.append(RegisterDeclaration("b64", _AT, self._addresses))
        load = Instruction(opcode("ld.const.b64"), (BASE, Address(Symbol(VARIABLES))))
        return replace(self._function, body=[*own, *declared, load, *made])

    def _instruction(self, ins: Instruction, made: list[Statement]) -> None:
        if is_call(ins) or ins.opcode.base in _JUMPS:
            made.append(ins)
            return
        before: list[Statement] = []
        operands = tuple(self._operand(one, before) for one in ins.operands)
        op = self._opcode(ins, operands)
        if op is ins.opcode and all(a is b for a, b in zip(operands, ins.operands, strict=True)):
            made.append(ins)
            return
        for statement in before:
            statement.line = ins.line
        made += before
        made.append(Instruction(op, operands, ins.guard, ins.line))

    def _opcode(self, ins: Instruction, operands: tuple[Operand, ...]) -> Opcode:
        """Return the opcode, of global instead of constant memory if constants are placed."""
        op = ins.opcode
        if not self._constants or op.base not in _OF_CONSTANTS or not op.has("const"):
            return op
        place = operands[-1]
        if isinstance(place, Address) and isinstance(place.base, Symbol):
            return op  # gpud's own
        return opcode(op.text.replace(".const", ".global", 1), op.used_bytes_mask)

    def _operand(self, operand: Operand, before: list[Statement]) -> Operand:
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            at = self._offsets.get(operand.base.name)
            if at is None:
                return operand
            if 0 <= at + operand.offset <= _MOST_OFFSET:
                self._uses_base = True
                return Address(BASE, at + operand.offset)
            return Address(self._address(at + operand.offset, before))
        if isinstance(operand, SymbolOffset):
            at = self._offsets.get(operand.symbol.name)
            return operand if at is None else self._address(at + operand.offset, before)

        def new(name: Register | Symbol) -> Operand:
            at = self._offsets.get(name.name) if isinstance(name, Symbol) else None
            return name if at is None else self._address(at, before)

        return replace_names(operand, new)

    def _address(self, offset: int, before: list[Statement]) -> Register:
        """Return a register with the address of ``offset`` in the block."""
        self._uses_base = True
        register = Register(f"{_AT}{self._addresses}")
        self._addresses += 1
        operands = register, BASE, immediate(offset)
        before.append(Instruction(opcode("add.s64"), operands))
        return register
