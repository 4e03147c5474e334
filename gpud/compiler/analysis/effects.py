"""The effects of single PTX instructions: what they read, write and do.

Problem: analyses and passes need the same few properties of every instruction, tens of thousands
of times: which registers it reads and writes, whether it is a barrier, a warp collective, the end
of a basic block, a memory access.

Approach: everything that depends only on the text of the opcode is computed once per text and
cached as a set of bits (`flags`); operands are walked by type.

Terms: the *destination* is the first operand, unless the opcode is in `_NO_DESTINATION`; a
*full-block barrier* waits for all threads of the block, a *counted* one for a stated number; a
*warp collective* exchanges values between lanes, or waits for the lanes named in its mask.

Properties:
* an unknown opcode is taken to write its first operand and to read the others;
* a predicated instruction counts as writing its destination, though the old value may survive (see
  `gpud.compiler.analysis.liveness`);
* operands that the parser kept as text are searched for register names; as a first operand such
  text counts as both read and written.

Source: PTX ISA 9.0, chapter 9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpud.compiler.ptx.model import (
    Address,
    Immediate,
    Instruction,
    Not,
    Opcode,
    Operand,
    Pair,
    RawOperand,
    Register,
    SpecialRegister,
    Symbol,
    SymbolOffset,
    Tuple,
    Vector,
    opcode,
)

__all__ = [
    "ATOMIC",
    "BARRIER",
    "BRANCH",
    "CALL",
    "CLUSTER",
    "COLLECTIVE",
    "EXIT",
    "FLAGS",
    "MEMORY_READ",
    "MEMORY_WRITE",
    "RETURN",
    "SURFACE",
    "TENSOR",
    "TERMINATOR",
    "TEXTURE",
    "TRAP",
    "VOLATILE",
    "Barrier",
    "barrier",
    "callee",
    "flags",
    "is_barrier",
    "is_call",
    "is_volatile_or_atomic_read",
    "is_warp_collective",
    "read",
    "special_registers",
    "state_space",
    "symbols",
    "written",
]

TERMINATOR = 1 << 0
"""Ends a basic block: ``bra``, ``brx``, ``ret``, ``exit``, ``trap``."""
BRANCH = 1 << 1
"""``bra`` or ``brx``."""
RETURN = 1 << 2
"""``ret``: leaves the function; in an entry, the thread."""
EXIT = 1 << 3
"""``exit``: ends the thread, wherever it stands."""
TRAP = 1 << 4
CALL = 1 << 5
BARRIER = 1 << 6
"""Block-wide ``bar`` or ``barrier``: ``sync``, ``arrive``, ``red``; no ``bar.warp``, no cluster."""
COLLECTIVE = 1 << 7
"""Warp collective, ``bar.warp.sync`` and ``activemask`` included."""
MEMORY_READ = 1 << 8
MEMORY_WRITE = 1 << 9
VOLATILE = 1 << 10
"""The access is volatile, relaxed, acquire, release, ``.mmio`` or atomic."""
ATOMIC = 1 << 11
"""``atom``, ``red`` or ``multimem`` read-modify-write."""
TENSOR = 1 << 12
"""Tensor cores: ``mma``, ``wmma``, ``wgmma``, ``tcgen05``."""
TEXTURE = 1 << 13
SURFACE = 1 << 14
CLUSTER = 1 << 15
"""Needs a thread block cluster: ``barrier.cluster``, ``mapa``, ``getctarank`` ..."""
_NO_RESULT = 1 << 16
_READS_RESULT = 1 << 17


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_DESTINATION = _words(
    "st red bar barrier fence membar bra brx ret exit trap brkpt prefetch prefetchu nanosleep cp "
    "sust sured stmatrix discard applypriority pmevent griddepcontrol setmaxnreg stackrestore "
    "tensormap"
)
_HAS_NO_DESTINATION_BY_MODIFIER = {
    "mbarrier": frozenset(("init", "inval", "expect_tx", "complete_tx")),
    "wmma": frozenset(("store",)),
    "wgmma": frozenset(("fence", "commit_group", "wait_group")),
    "multimem": frozenset(("st", "red")),
    "tcgen05": _words("alloc dealloc relinquish_alloc_permit st cp shift mma commit wait fence"),
    "clusterlaunchcontrol": frozenset(("try_cancel",)),
}
_COLLECTIVE_BASES = _words(
    "shfl vote match redux activemask elect ldmatrix stmatrix movmatrix mma wmma wgmma tcgen05 "
    "setmaxnreg"
)
_TENSOR_BASES = _words("mma wmma wgmma tcgen05")
_TEXTURE_BASES = _words("tex tld4 txq istypep")
_SURFACE_BASES = _words("suld sust sured suq")
_ORDERED = frozenset(("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"))
_READ_BASES = _words("ld ldu atom tex tld4 suld ldmatrix")
_WRITE_BASES = _words("st red atom sust sured stmatrix")
_SPACES = ("global", "shared", "local", "const", "param")
_REGISTER_IN_TEXT = re.compile(r"%[A-Za-z0-9_$]+(?![A-Za-z0-9_$.])")


# -- opcodes -----------------------------------------------------------------------------------


class _Flags(dict[str, int]):
    def __missing__(self, text: str) -> int:
        bits = self[text] = _compute(opcode(text))
        return bits


FLAGS = _Flags()
"""The bits above by the text of the opcode, computed on demand: `flags` for inner loops."""


def flags(op: Opcode) -> int:
    """Return the properties of ``op`` as the bits above."""
    return FLAGS[op.text]


def _compute(op: Opcode) -> int:
    base, modifiers = op.base, op.modifiers
    first = modifiers[0] if modifiers else ""
    result = 0
    if base in ("bra", "brx"):
        result |= TERMINATOR | BRANCH
    elif base == "ret":
        result |= TERMINATOR | RETURN
    elif base == "exit":
        result |= TERMINATOR | EXIT
    elif base == "trap":
        result |= TERMINATOR | TRAP
    elif base == "call":
        result |= CALL
    elif base in ("bar", "barrier"):
        if first == "warp":
            result |= COLLECTIVE
        elif first == "cluster":
            result |= CLUSTER
        else:
            result |= BARRIER
    if base in _COLLECTIVE_BASES:
        result |= COLLECTIVE
    if base in _TENSOR_BASES:
        result |= TENSOR
    if base in _TEXTURE_BASES:
        result |= TEXTURE
    if base in _SURFACE_BASES:
        result |= SURFACE
    if base in ("mapa", "getctarank", "clusterlaunchcontrol"):
        result |= CLUSTER
    if base in ("atom", "red") or (base == "multimem" and first == "red"):
        result |= ATOMIC | VOLATILE
    if not _ORDERED.isdisjoint(modifiers) and base in ("ld", "st", "multimem"):
        result |= VOLATILE
    if base in _READ_BASES:
        result |= MEMORY_READ
    if base in _WRITE_BASES:
        result |= MEMORY_WRITE
    if base == "cp":
        result |= MEMORY_READ | MEMORY_WRITE
    elif base == "mbarrier" and first != "pending_count":
        result |= MEMORY_READ | MEMORY_WRITE | VOLATILE
    elif base == "multimem":
        result |= MEMORY_READ if first == "ld_reduce" else MEMORY_WRITE
    elif base == "wmma":
        result |= {"load": MEMORY_READ, "store": MEMORY_WRITE}.get(first, 0)
    no_result = base in _NO_DESTINATION
    if base in ("bar", "barrier") and "red" in modifiers:
        no_result = False
    by_modifier = _HAS_NO_DESTINATION_BY_MODIFIER.get(base)
    if by_modifier is not None and first in by_modifier:
        no_result = True
    if no_result:
        result |= _NO_RESULT
    if base == "wgmma" and not no_result:
        result |= _READS_RESULT
    return result


def is_call(ins: Instruction) -> bool:
    """Return whether ``ins`` is a direct or indirect ``call``."""
    return ins.opcode.base == "call"


def is_barrier(ins: Instruction) -> bool:
    """Return whether ``ins`` is a barrier of the thread block; see `barrier` for its parts."""
    return bool(flags(ins.opcode) & BARRIER)


def is_warp_collective(ins: Instruction) -> bool:
    """Return whether ``ins`` exchanges values between, or waits for, the lanes of a warp."""
    return bool(flags(ins.opcode) & COLLECTIVE)


def is_volatile_or_atomic_read(ins: Instruction) -> bool:
    """Return whether ``ins`` is a volatile, ordered or atomic read: others change that memory."""
    need = MEMORY_READ | VOLATILE
    return flags(ins.opcode) & need == need


def state_space(op: Opcode) -> str:
    """Return the state space of an access, ``"global"`` ...; ``"generic"`` if none is given."""
    for modifier in op.modifiers:
        space = modifier.partition("::")[0]
        if space in _SPACES:
            return space
    return "generic"


# -- registers ---------------------------------------------------------------------------------


def written(ins: Instruction) -> tuple[Register, ...]:
    """Return the registers that ``ins`` writes if its guard holds, in operand order."""
    operands = ins.operands
    if not operands:
        return ()
    bits = FLAGS[ins.opcode.text]
    if bits & (_NO_RESULT | CALL):
        has_results = bits & CALL and len(operands) > 1 and type(operands[0]) is Tuple
        return _registers(operands[0]) if has_results else ()
    target = operands[0]
    kind = type(target)
    if kind is Register:
        return (target,)  # type: ignore[return-value]
    if kind is Vector or kind is Pair or kind is RawOperand:
        return _registers(target)
    return ()


def read(ins: Instruction) -> tuple[Register, ...]:
    """Return the registers that ``ins`` reads: guard, then operands in order, address bases too."""
    operands = ins.operands
    registers: list[Register] = [] if ins.guard is None else [ins.guard.register]
    if operands:
        bits = FLAGS[ins.opcode.text]
        first = type(operands[0])
        if bits & CALL:
            skip = first is Tuple and len(operands) > 1
        else:
            no_target = bits & (_NO_RESULT | _READS_RESULT) or first is Address
            skip = not no_target and first is not RawOperand
        for operand in operands[1:] if skip else operands:
            kind = type(operand)
            if kind is Register:
                registers.append(operand)  # type: ignore[arg-type]
            elif kind is Address:
                base = operand.base  # type: ignore[union-attr]
                if type(base) is Register:
                    registers.append(base)
            elif kind is not Immediate and kind is not Symbol and kind is not SpecialRegister:
                registers.extend(_registers(operand))
    return tuple(registers)


def _registers(operand: Operand) -> tuple[Register, ...]:
    if isinstance(operand, Register):
        return (operand,)
    if isinstance(operand, Address):
        return (operand.base,) if isinstance(operand.base, Register) else ()
    if isinstance(operand, Vector | Tuple):
        return tuple(r for item in operand.items for r in _registers(item))
    if isinstance(operand, Pair):
        return _registers(operand.first) + _registers(operand.second)
    if isinstance(operand, Not):
        return (operand.operand,)
    if isinstance(operand, RawOperand):
        return tuple(Register(name) for name in _REGISTER_IN_TEXT.findall(operand.text))
    return ()


def special_registers(ins: Instruction) -> tuple[str, ...]:
    """Return the names of the special registers that ``ins`` reads, such as ``"%ctaid.x"``."""
    names: tuple[str, ...] = ()
    for operand in ins.operands:
        kind = type(operand)
        if kind is SpecialRegister:
            names += (operand.name,)  # type: ignore[union-attr]
        elif kind is Vector or kind is Tuple:
            names += tuple(i.name for i in operand.items if isinstance(i, SpecialRegister))  # type: ignore[union-attr]
    return names


def symbols(ins: Instruction) -> tuple[str, ...]:
    """Return the names of variables, parameters, functions and labels in operands of ``ins``."""
    names: list[str] = []
    for operand in ins.operands:
        if isinstance(operand, Address):
            operand = operand.base or operand  # noqa: PLW2901
        if isinstance(operand, Symbol):
            names.append(operand.name)
        elif isinstance(operand, SymbolOffset):
            names.append(operand.symbol.name)
        elif isinstance(operand, Tuple | Vector):
            names += [item.name for item in operand.items if isinstance(item, Symbol)]
    return tuple(names)


# -- barriers and calls ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Barrier:
    """The parts of a block-wide barrier.

    ``action`` is ``"sync"``, ``"arrive"`` or ``"red"``; ``id`` is its number or the register that
    holds it; ``count`` is the number of threads, ``None`` for the whole block.
    """

    action: str
    id: Operand
    count: Operand | None

    @property
    def constant_id(self) -> int | None:
        """The barrier's number if it is an immediate operand, else ``None``."""
        return self.id.value if isinstance(self.id, Immediate) else None


def barrier(ins: Instruction) -> Barrier:
    """Split a barrier into its parts.

    Raises:
        ValueError: ``ins`` is not a block-wide barrier.
    """
    if not is_barrier(ins):
        raise ValueError(f"not a block-wide barrier: {ins.opcode.text}")
    modifiers = ins.opcode.modifiers
    if "red" in modifiers:
        # bar.red.op d, a{, b}, c: the predicate comes last.
        operands = ins.operands[1:]
        return Barrier("red", operands[0], operands[1] if len(operands) == 3 else None)
    action = "arrive" if "arrive" in modifiers else "sync"
    count = ins.operands[1] if len(ins.operands) > 1 else None
    return Barrier(action, ins.operands[0], count)


def callee(ins: Instruction) -> Operand:
    """Return the callee of a ``call``: a `Symbol`, or the `Register` of an indirect call.

    Raises:
        ValueError: ``ins`` is not a call.
    """
    if not is_call(ins):
        raise ValueError(f"not a call: {ins.opcode.text}")
    first = ins.operands[0]
    return ins.operands[1] if isinstance(first, Tuple) else first
