"""Checks the modifiers of barriers and warp collectives, and reads their mode and type.

The code generator emits their code, but as with every instruction no modifier is ignored.

Source: PTX ISA 9.0, sections 9.7.9.6 (shfl.sync) and 9.7.13 (barriers, vote, match, activemask,
redux, elect).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpud.compiler.analysis.effects import barrier
from gpud.compiler.ptx.model import Immediate, Instruction
from gpud.device.cpu.lower.matrix_products import MatrixProduct, is_product, matrix_product
from gpud.device.cpu.lower.registry import Modifiers, rejected
from gpud.device.cpu.lower.unsupported import unsupported_error

__all__ = ["CollectiveKind", "check_barrier", "collective_kind"]

_SHUFFLES = ("up", "down", "bfly", "idx")
_VOTES = {"all": "pred", "any": "pred", "uni": "pred", "ballot": "b32"}
_REDUCTIONS = {
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
    "add": ("u32", "s32"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "f32")),
}
_BARRIER_REDUCTIONS = {"popc": "u32", "and": "pred", "or": "pred"}
_BARRIERS = 16


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """A collective's name, mode (``bfly``, ``all``, ``min.abs``) and type; a matrix product."""

    name: str
    mode: str = ""
    type: str = ""
    product: MatrixProduct | None = None


def collective_kind(ins: Instruction) -> CollectiveKind:
    """Return the kind of a warp collective.

    Raises:
        KernelRejected: there is no such collective, or the CPU device does not support it.
    """
    error = unsupported_error(ins)
    if error is not None:
        raise error
    base = ins.opcode.base
    if is_product(ins):
        return CollectiveKind("mma", product=matrix_product(ins))
    modifiers = Modifiers(ins)
    modifiers.flag("sync")
    mode = type_ = ""
    match base:
        case "shfl":
            mode, type_ = modifiers.require(*_SHUFFLES), modifiers.require("b32")
        case "vote":
            mode = modifiers.require(*_VOTES)
            type_ = modifiers.require(_VOTES[mode])
        case "match":
            mode, type_ = modifiers.require("all", "any"), modifiers.require("b32", "b64")
        case "redux":
            operation = modifiers.require(*_REDUCTIONS)
            type_ = modifiers.require(*_REDUCTIONS[operation])
            of_floats = [word for word in ("abs", "NaN") if type_ == "f32" and modifiers.flag(word)]
            mode = ".".join((operation, *of_floats))
        case "activemask":
            modifiers.require("b32")
        case "bar":
            modifiers.require("warp")
        case "elect":
            pass
        case _:
            raise rejected(ins, "it is not known here")
    modifiers.done()
    return CollectiveKind(base, mode, type_)


def check_barrier(ins: Instruction) -> None:
    """Check a barrier of the block against the ISA.

    Raises:
        KernelRejected: its modifiers, its number or its number of threads are invalid.
    """
    modifiers = Modifiers(ins)
    modifiers.flag("cta")
    modifiers.flag("aligned")
    if modifiers.require("sync", "arrive", "red") == "red":
        modifiers.require(_BARRIER_REDUCTIONS[modifiers.require(*_BARRIER_REDUCTIONS)])
    modifiers.done()
    parts = barrier(ins)
    if parts.constant_id is not None and not 0 <= parts.constant_id < _BARRIERS:
        raise rejected(ins, f"a block has barriers 0 to {_BARRIERS - 1}")
    if isinstance(parts.count, Immediate) and parts.count.value % 32:
        raise rejected(ins, "a barrier counts whole warps, in multiples of 32 threads")
    if parts.action == "arrive" and parts.count is None:
        raise rejected(ins, "it needs a number of threads")
