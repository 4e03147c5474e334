"""Has a released block give back what it has claimed in advance, so that it leaves at once.

Problem: a claim in advance hides the time of an atomic behind the task block that runs. But a block
runs what it has claimed before it leaves, so task blocks of some microseconds or more are not
claimed in advance (`gpud.device.claim_size`): a release would take one of them longer.

Approach: before a block runs what it has claimed in advance, its leader checks whether the block is
released; if so it puts the claim on a stack of the job's and leaves. Who finds nothing to claim
takes from the stack. A block that is not released may leave only if nothing will be left for it to
run; so who finds the stack empty *seals* it before leaving, and who finds it sealed runs its claim
itself. Releases are late then only at the very end of a launch, by one claim.

The stack, in device memory, at multiples of 16; in front of each run the first two words are 0::

    0  u32 top       0: empty; SEALED; else how far behind this the top node is, in nodes
    4  u32 used      how many nodes have been taken for claims
    8  u32 capacity  how many nodes there are; who finds none runs its claim itself
    12 u32 nodes     how far behind this the first node is, in nodes
       nodes of 16 bytes: u32 first, u32 count of the claim; u32 next, as ``top``

Why no claim is lost or taken twice: a node is used for one claim only, so ``top`` never has a value
again that it had before, and a compare-and-swap that finds what was read has found that nothing
happened in between (there is no ABA problem). Its words are written before it is on the stack, and
read after it was found there, with a memory fence in between each time.

Properties:
* ``once``: each claim that is given back is taken by one block, in this launch or a later one;
* ``sealed``: after a block that was not released has left, nothing is given back;
* without a stack (address 0) nothing is given back; kernels that claim one task block at a time,
  those without the structure of `gpud.device.cuda.program.by_value`, other forms and all functions
  are unchanged.

Launches of a run follow each other, and each leaves its stack empty: so they share their nodes.

Source: R. K. Treiber, Systems Programming: Coping with Parallelism, 1986, for the stack;
tests/unit/test_claim_protocol.py, which runs the loop with it through every interleaving.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import LOOP
from gpud.compiler.passes.builder import CodeBuilder, map_functions, split_declarations
from gpud.compiler.passes.forms.claim import branch_if_released
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    RegisterDeclaration,
    Statement,
    Symbol,
    immediate,
)
from gpud.device.cuda.program.by_value import JOB_AT, RETURNED, is_values
from gpud.device.cuda.program.report_blocks import is_persistent

__all__ = [
    "HEAD_BYTES",
    "NODE_BYTES",
    "give_back",
    "gives_back",
    "has_returned",
    "is_sealed",
    "returned_claims",
    "stack_bytes",
    "stack_head",
]

_SEALED: Final = 0xFFFFFFFF
_USED, _CAPACITY, _NODES = 4, 8, 12
NODE_BYTES: Final = 16
_LAST: Final = 8
"""Offset from the slots of the last task block that a block holds, see `add_claim`."""

_HEAD = struct.Struct("<4I")
_NODE = struct.Struct("<3I4x")
HEAD_BYTES: Final = _HEAD.size


def stack_bytes(capacity: int) -> int:
    """Return the size of a stack of so many nodes."""
    return _HEAD.size + capacity * _NODE.size


def stack_head(capacity: int, nodes: int = HEAD_BYTES) -> bytes:
    """Return how a stack begins that is empty; its nodes may have any content.

    Args:
        capacity: how many nodes it has.
        nodes: how far behind the stack's address the first of them is.
    """
    assert nodes % NODE_BYTES == 0, nodes
    return _HEAD.pack(0, 0, capacity, nodes // NODE_BYTES)


def has_returned(head: bytes) -> bool:
    """Return whether claims are on the stack that begins so; empty: there is no stack."""
    return bool(head) and _HEAD.unpack_from(head)[0] not in (0, _SEALED)


def is_sealed(head: bytes) -> bool:
    """Return whether nothing is on the stack that begins so, nor will be."""
    return bool(_HEAD.unpack_from(head)[0] == _SEALED)


def returned_claims(stack: bytes) -> list[tuple[int, int]]:
    """Return (first, count) of the claims on a stack, the last one first."""
    top, found = _HEAD.unpack_from(stack)[0], []
    while top not in (0, _SEALED):
        first, count, top = _NODE.unpack_from(stack, NODE_BYTES * top)
        found.append((first, count))
    return found


def give_back(program: Module) -> Module:
    """Have the persistent kernels of a flat program, after `pass_by_value`, give claims back."""

    def change(function: Function) -> Function:
        if not gives_back(function):
            return function
        return _changed(function, Symbol(next(filter(is_values, _names(function)))))

    return map_functions(program, change)


def gives_back(entry: Function) -> bool:
    """Return whether `give_back` changes an entry of a program after `pass_by_value`."""
    ahead = f"%{LOOP}_ahead"
    several = any(
        isinstance(one, RegisterDeclaration) and one.name == ahead for one in entry.body or ()
    )
    return several and is_persistent(entry) and any(map(is_values, _names(entry)))


def _names(entry: Function) -> list[str]:
    return [one.name for one in entry.parameters]


def _changed(entry: Function, values: Symbol) -> Function:
    code = CodeBuilder(LOOP)  # the loop's own registers and labels
    declarations, statements = split_declarations(entry.body or [])
    pending, valid = code.register("pending", "pred"), code.register("valid", "pred")
    body: list[Statement] = []
    for statement in statements:
        guard = statement.guard if isinstance(statement, Instruction) else None
        if guard is not None and guard.register == pending and _is(statement, "bra"):
            _emit_give(code, values)
            body += code.body
            code.body = []
        elif _is(statement, "selp") and statement.operands[3] == valid:  # type: ignore[union-attr]
            _emit_take(code, values)
            body += [*code.body, statement]
            code.body = []
        else:
            body.append(statement)
    known = {one.name for one in declarations if isinstance(one, RegisterDeclaration)}
    new = [one for one in code.declarations if getattr(one, "name", None) not in known]
    return replace(entry, body=[*declarations, *new, *body])


def _is(statement: Statement, base: str) -> bool:
    return isinstance(statement, Instruction) and statement.opcode.base == base


def _emit_give(code: CodeBuilder, values: Symbol) -> None:
    """Go to ``check``, in a leader with ``pending``, or give its claim back and to ``publish``."""
    check, publish, held = code.label("check"), code.label("publish"), code.label("held")
    give, again, none = code.label("give"), code.label("again_give"), code.label("given")
    claim, count, total = (code.register(name) for name in ("claim", "chunk", "total"))
    stack, node = code.register("stack", "b64"), code.register("node", "b64")
    mine, top, seen = (code.register(name) for name in ("mine", "top", "seen"))
    yes = code.register("yes", "pred")
    code("bra", held, unless=code.register("pending", "pred"))
    code("ld.param.u64", stack, Address(values, RETURNED))
    code("setp.eq.u64", yes, stack, 0)
    code("bra", check, when=yes)
    branch_if_released(code, give, code.label("keeps"))
    code("bra", check)
    code.place(give)
    code("ld.param.u32", total, Address(values, JOB_AT + cw.TOTAL))
    code("setp.ge.u32", yes, claim, total)
    code("bra", none, when=yes)  # there is nothing in it
    code("atom.global.add.u32", mine, Address(stack, _USED), 1)
    code("ld.global.u32", top, Address(stack, _CAPACITY))
    code("setp.ge.u32", yes, mine, top)
    code("bra", check, when=yes)
    code("ld.global.u32", top, Address(stack, _NODES))
    code("add.u32", mine, mine, top)
    code("mad.wide.u32", node, mine, NODE_BYTES, stack)
    code("st.volatile.global.u32", Address(node), claim)
    code("st.volatile.global.u32", Address(node, 4), count)
    code("ld.volatile.global.u32", top, Address(stack))
    code.place(again)
    code("setp.eq.u32", yes, top, immediate(_SEALED))
    code("bra", check, when=yes)
    code("st.volatile.global.u32", Address(node, 8), top)
    code("membar.gl")
    code("atom.global.cas.b32", seen, Address(stack), top, mine)
    code("setp.ne.u32", yes, seen, top)
    code("mov.u32", top, seen)
    code("bra", again, when=yes)
    code.place(none)
    code("mov.u32", claim, immediate(cw.NOTHING))
    code("mov.u32", code.register("last"), 0)
    code("bra", publish)
    code.place(held)


def _emit_take(code: CodeBuilder, values: Symbol) -> None:
    """Take a claim from the stack if there is none, not ``valid``; seal it if it is empty."""
    have, take, seal = code.label("have"), code.label("take"), code.label("seal")
    valid, yes = code.register("valid", "pred"), code.register("yes", "pred")
    claim, total, last = (code.register(name) for name in ("claim", "total", "last"))
    stack, node = code.register("stack", "b64"), code.register("node", "b64")
    top, seen, following = (code.register(name) for name in ("top", "seen", "following"))
    code("bra", have, when=valid)
    code("ld.param.u64", stack, Address(values, RETURNED))
    code("setp.eq.u64", yes, stack, 0)
    code("bra", have, when=yes)
    code("ld.volatile.global.u32", top, Address(stack))
    code.place(take)
    code("setp.eq.u32", yes, top, immediate(_SEALED))
    code("bra", have, when=yes)
    code("setp.eq.u32", yes, top, 0)
    code("bra", seal, when=yes)
    code("membar.gl")
    code("mad.wide.u32", node, top, NODE_BYTES, stack)
    code("ld.volatile.global.u32", following, Address(node, 8))
    code("atom.global.cas.b32", seen, Address(stack), top, following)
    code("setp.ne.u32", yes, seen, top)
    code("mov.u32", top, seen)
    code("bra", take, when=yes)
    code("ld.volatile.global.u32", claim, Address(node))
    code("ld.volatile.global.u32", last, Address(node, 4))
    code("add.u32", last, last, claim)
    code("min.u32", last, last, total)
    code("sub.u32", last, last, 1)
    code("st.shared.u32", Address(code.register("rest"), _LAST), last)
    code("setp.lt.u32", valid, claim, total)
    code("bra", have)
    code.place(seal)
    code("atom.global.cas.b32", seen, Address(stack), 0, immediate(_SEALED))
    code("setp.ne.u32", yes, seen, 0)
    code("mov.u32", top, seen)
    code("bra", take, when=yes)
    code.place(have)
