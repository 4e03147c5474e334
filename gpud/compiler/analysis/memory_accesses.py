"""The memory that an instruction accesses through global or generic addresses.

Problem: a bounds check must know each range of bytes that an instruction reads or writes: the
operand that holds the address, the length, and the alignment that the hardware requires. An
omission is a hole in the isolation.

Approach: one function for each family of instructions, in a table by the opcode's first word. An
instruction that is not in the table and has an address operand is refused: a kernel that does not
run is better than an unchecked access.

Terms: the *span* of an access is its length in bytes, for vectors that of all elements; a *strided*
access is a matrix: ``rows`` times ``span`` bytes, each row ``stride`` elements of ``unit`` bits
after the one before; a *sized* access has its length in an operand.

Properties:
* accesses that name another space (``shared``, ``local``, ``param``, ``const``) are not included;
* hints (``prefetch``, ``applypriority``, ``createpolicy``) access nothing;
* instructions that access memory without an address operand (tensor maps, textures) are refused.

Source: PTX ISA 9.0, sections 9.7.9 (data movement), 9.7.13 (atomics, mbarrier), 9.7.14 to 9.7.16
(matrices), 6.4.5 (alignment).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpud.compiler.analysis.effects import SURFACE, TEXTURE, flags, state_space
from gpud.compiler.ptx.model import (
    Address,
    Immediate,
    Instruction,
    Operand,
    RawOperand,
)
from gpud.compiler.ptx.printer import print_instruction
from gpud.errors import KernelRejected

__all__ = [
    "ARITHMETIC",
    "MemoryAccess",
    "accesses",
    "is_familiar",
    "own_bytes",
    "unsupported_access",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARITHMETIC = _words(
    "mov add sub mul mad fma div rem abs neg min max and or xor not shl shr cvt setp selp set "
    "addc subc madc mul24 mad24 sad popc clz brev bfe bfi bfind lop3 shf prmt sqrt rsqrt rcp ex2 "
    "lg2 sin cos tanh slct cnot copysign testp shfl vote match redux activemask bar barrier ret "
    "exit trap cvta bra isspacep call"
)
"""First words of opcodes that access no memory, whatever their modifiers: a fast path."""


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """One range that an instruction accesses.

    ``operand`` is the index of the address among the operands. ``align`` is the alignment that the
    hardware requires. ``size`` is the operand with the number of bytes, if that is not a constant
    (``span`` is then 0). ``only_if`` is the operand that decides whether anything is read: a size,
    which may be 0, or a predicate, which if true ignores the source. ``rows``, ``stride`` and
    ``unit`` are those of a matrix; ``unit`` is in bits.
    """

    operand: int
    span: int
    align: int
    generic: bool
    writes: bool
    size: Operand | None = None
    only_if: Operand | None = None
    rows: int = 1
    stride: Operand | None = None
    unit: int = 1


_TYPE = re.compile(r"(?:[busf](8|16|32|64|128)|bf16|f16x2|bf16x2)", re.ASCII)
_NAMED = {"bf16": 2, "f16x2": 4, "bf16x2": 4}
_VECTOR = re.compile(r"v([248])", re.ASCII)
_LINE_BYTES = 128
_BULK_ALIGN = 16
_NONE: tuple[MemoryAccess, ...] = ()


def accesses(ins: Instruction) -> tuple[MemoryAccess, ...]:
    """Return the accesses of ``ins`` to global memory or through generic addresses.

    Raises:
        KernelRejected: they cannot be checked; reason code ``unsupported-instruction``.
    """
    op = ins.opcode
    family = _FAMILIES.get(op.base)
    if family is not None:
        return family(ins)
    if op.base in ARITHMETIC or op.base in _HARMLESS:
        return _NONE
    if flags(op) & (TEXTURE | SURFACE) or op.base == "gpud":
        raise unsupported_access(ins)  # programs may not contain the devices' pseudo-instructions
    for operand in ins.operands:
        if isinstance(operand, Address) or (
            isinstance(operand, RawOperand) and "[" in operand.text
        ):
            raise unsupported_access(ins)
    return _NONE


def is_familiar(base: str) -> bool:
    """Return whether the roles of such opcodes' operands are known; else any may be a result."""
    return base in ARITHMETIC or base in _FAMILIES or base in _HARMLESS


def unsupported_access(ins: Instruction) -> KernelRejected:
    """Return the error for an instruction whose accesses cannot be checked."""
    return KernelRejected(
        "unsupported-instruction",
        "nothing can check which memory this instruction touches",
        instruction=print_instruction(ins),
        line=ins.line or None,
    )


def _is_elsewhere(ins: Instruction) -> bool:
    """Return whether the opcode names a space that is not checked."""
    op = ins.opcode
    if state_space(op) == "const" and op.base not in ("ld", "ldu"):
        raise unsupported_access(ins)  # constants cannot be written
    return state_space(op) not in ("global", "generic")


def own_bytes(ins: Instruction) -> int:
    """Return the length of the access, from the opcode's type and vector modifier."""
    modifiers = ins.opcode.modifiers
    types = [m for m in map(_TYPE.fullmatch, modifiers) if m is not None]
    vectors = [m for m in modifiers if m[0] == "v" and m[1:].isdecimal()]
    if len(types) != 1 or len(vectors) > 1:
        raise unsupported_access(ins)
    unit = int(types[0][1]) // 8 if types[0][1] else _NAMED[types[0][0]]
    if not vectors:
        return unit
    count = _VECTOR.fullmatch(vectors[0])
    if count is None:
        raise unsupported_access(ins)
    return unit * int(count[1])


def _one(ins: Instruction, operand: int, span: int, *, writes: bool) -> tuple[MemoryAccess, ...]:
    """Return the single access of an instruction, with the state space of its opcode.

    ``span``: its length; of a load that uses no more than a part, the check covers that.
    """
    if operand >= len(ins.operands) or not isinstance(ins.operands[operand], Address):
        raise unsupported_access(ins)
    generic = state_space(ins.opcode) == "generic"
    return (MemoryAccess(operand, ins.opcode.used_of(span), span, generic, writes),)


# -- families ----------------------------------------------------------------------------------


def _load(ins: Instruction) -> tuple[MemoryAccess, ...]:
    if _is_elsewhere(ins):
        return _NONE
    return _one(ins, 1, own_bytes(ins), writes=False)


def _store(ins: Instruction) -> tuple[MemoryAccess, ...]:
    op = ins.opcode
    if _is_elsewhere(ins):
        return _NONE
    if op.has("bulk") or (op.has("async") and state_space(op) == "generic"):
        raise unsupported_access(ins)
    return _one(ins, 0, own_bytes(ins), writes=True)


def _atomic(ins: Instruction) -> tuple[MemoryAccess, ...]:
    if _is_elsewhere(ins):
        return _NONE
    return _one(ins, 1, own_bytes(ins), writes=True)


def _mbarrier(ins: Instruction) -> tuple[MemoryAccess, ...]:
    """Return the access to a barrier object of 8 bytes; without ``.shared`` it is generic."""
    if _is_elsewhere(ins):
        return _NONE
    places = [n for n, operand in enumerate(ins.operands) if isinstance(operand, Address)]
    return _one(ins, places[0], 8, writes=True) if places else _NONE


def _copy(ins: Instruction) -> tuple[MemoryAccess, ...]:
    op = ins.opcode
    modifiers = op.modifiers
    if op.has("commit_group") or op.has("wait_group") or op.has("wait_all"):
        return _NONE
    if op.has("mbarrier") and not op.has("bulk"):
        return _mbarrier(ins)
    if op.has("tensor"):
        raise unsupported_access(ins)  # its addresses are in a tensor map
    if op.has("prefetch"):
        return _NONE
    if op.has("bulk"):
        return _bulk(ins)
    if modifiers[:1] != ("async",) or not op.has("global") or len(ins.operands) < 3:
        raise unsupported_access(ins)
    size = ins.operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise unsupported_access(ins)
    count = len(ins.operands) - op.has("L2::cache_hint")
    if count == 3:
        return _one_of(ins, 1, size.value, size.value)
    given = ins.operands[3]
    if isinstance(given, Immediate):
        read = min(given.value, size.value)
        return _one_of(ins, 1, read, size.value) if read else _NONE
    # An aligned piece of at most 16 bytes whose first byte is legal lies in the same range.
    return (MemoryAccess(1, 1, size.value, generic=False, writes=False, only_if=given),)


def _one_of(ins: Instruction, operand: int, span: int, align: int) -> tuple[MemoryAccess, ...]:
    if not isinstance(ins.operands[operand], Address):
        raise unsupported_access(ins)
    return (MemoryAccess(operand, span, align, generic=False, writes=False),)


def _bulk(ins: Instruction) -> tuple[MemoryAccess, ...]:
    """Return the accesses of ``cp{.reduce}.async.bulk.TO.FROM ... [dst], [src], size``."""
    spaces = [
        m.partition("::")[0]
        for m in ins.opcode.modifiers
        if m.partition("::")[0] in ("global", "shared")
    ]
    if len(spaces) < 2 or len(ins.operands) < 3:
        raise unsupported_access(ins)
    size = ins.operands[2]
    accessed = []
    for operand, space in enumerate(spaces[:2]):
        if space != "global":
            continue
        if not isinstance(ins.operands[operand], Address):
            raise unsupported_access(ins)
        span = size.value if isinstance(size, Immediate) else 0
        dynamic = None if isinstance(size, Immediate) else size
        if dynamic is not None or span:
            accessed.append(
                MemoryAccess(
                    operand, span, _BULK_ALIGN, generic=False, writes=operand == 0, size=dynamic
                )
            )
    return tuple(accessed)


def _discard(ins: Instruction) -> tuple[MemoryAccess, ...]:
    return _NONE if _is_elsewhere(ins) else _one(ins, 0, _LINE_BYTES, writes=True)


def _multimem(ins: Instruction) -> tuple[MemoryAccess, ...]:
    if ins.opcode.has("bulk") or ins.opcode.has("async"):
        raise unsupported_access(ins)
    loads = ins.opcode.has("ld_reduce")
    return _one(ins, 1 if loads else 0, own_bytes(ins), writes=not loads)


def _tensormap(ins: Instruction) -> tuple[MemoryAccess, ...]:
    """Return the access that changes a tensor map: 128 bytes; refuse instructions that use one."""
    if ins.opcode.has("replace"):
        if _is_elsewhere(ins):
            return _NONE
        return _one(ins, 0, _LINE_BYTES, writes=True)
    if ins.opcode.has("cp_fenceproxy"):
        return _one(ins, 0, _LINE_BYTES, writes=True)
    raise unsupported_access(ins)


def _shared_only(ins: Instruction) -> tuple[MemoryAccess, ...]:
    """Return no access; refuse addresses that do not name shared memory."""
    has_address = any(isinstance(operand, Address) for operand in ins.operands)
    if has_address and state_space(ins.opcode) != "shared":
        raise unsupported_access(ins)
    return _NONE


def _tcgen05(ins: Instruction) -> tuple[MemoryAccess, ...]:
    """Return the accesses of ``tcgen05``: most addresses are of tensor or shared memory."""
    op = ins.opcode
    return _shared_only(ins) if op.has("alloc") or op.has("commit") else _NONE


_UNITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s32": 32, "s8": 8, "u8": 8}
_UNITS |= {"s4": 4, "u4": 4, "b1": 1}


def _matrix(ins: Instruction) -> tuple[MemoryAccess, ...]:
    """Return the access of ``wmma.load`` or ``wmma.store``: rows (or columns) ``stride`` apart."""
    op = ins.opcode
    if op.modifiers[:1] not in (("load",), ("store",)):
        return _NONE
    if _is_elsewhere(ins):
        return _NONE
    loads = op.modifiers[0] == "load"
    shape = next((m for m in op.modifiers if re.fullmatch(r"m\d+n\d+k\d+", m)), None)
    bits = _UNITS.get(op.modifiers[-1])
    role = op.modifiers[1]
    if shape is None or bits is None or role not in "abcd" or not (op.has("row") or op.has("col")):
        raise unsupported_access(ins)
    m, n, k = (int(part) for part in re.findall(r"\d+", shape))
    lines, length = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}[role]
    if op.has("col"):
        lines, length = length, lines
    at = 1 if loads else 0
    place = ins.operands[at] if len(ins.operands) > at else None
    if not isinstance(place, Address):
        raise unsupported_access(ins)
    stride = ins.operands[2] if len(ins.operands) > 2 else Immediate(str(length), length)
    generic = state_space(op) == "generic"
    return (
        MemoryAccess(
            at,
            length * bits // 8,
            min(length * bits // 8, 16),
            generic,
            not loads,
            rows=lines,
            stride=stride,
            unit=bits,
        ),
    )


_FAMILIES: dict[str, Callable[[Instruction], tuple[MemoryAccess, ...]]] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _store,
    "cp": _copy,
    "mbarrier": _mbarrier,
    "discard": _discard,
    "multimem": _multimem,
    "tensormap": _tensormap,
    "wmma": _matrix,
    "ldmatrix": _shared_only,
    "stmatrix": _shared_only,
    "clusterlaunchcontrol": _shared_only,
    "tcgen05": _tcgen05,
}
_HARMLESS = _words("prefetch prefetchu applypriority createpolicy fence membar mapa brx wgmma mma")
