"""PTX instructions that the CPU device does not support, with reason code and explanation.

Source: PTX ISA 9.0, chapter 9.7; docs/explanation/forms.md, row "rejected".
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction
from gpud.errors import KernelRejected

__all__ = ["unsupported_error"]

_TENSOR = ("tensor-core", "tensor-core instructions with asynchronous operands run on a GPU only")
_TEXTURE = (
    "texture",
    "what the compiler does not make loads of: layers, cubes, gathers, samplers, references",
)
_CLUSTER = ("unsupported-instruction", "the CPU device has no thread block clusters")
_TENSOR_MAP = (
    "unsupported-instruction",
    "tensor maps are not available: copy by cp.async.bulk, or by cuda::memcpy_async",
)

_BY_BASE = {
    **dict.fromkeys(("wgmma", "tcgen05"), _TENSOR),
    **dict.fromkeys(("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep"), _TEXTURE),
    **dict.fromkeys(("mapa", "getctarank", "clusterlaunchcontrol"), _CLUSTER),
    **dict.fromkeys(("tensormap",), _TENSOR_MAP),
    "multimem": ("unsupported-instruction", "memory of several devices is not available"),
    "setmaxnreg": ("unsupported-instruction", "registers cannot be moved between warps"),
    "alloca": ("unsupported-instruction", "stack allocation at run time is not available"),
    "stacksave": ("unsupported-instruction", "stack allocation at run time is not available"),
    "stackrestore": ("unsupported-instruction", "stack allocation at run time is not available"),
}
_BY_MODIFIER = {  # by base and modifier
    ("cp", "tensor"): _TENSOR_MAP,
    ("cp", "multicast::cluster"): _CLUSTER,
    ("barrier", "cluster"): _CLUSTER,
    ("red", "async"): _CLUSTER,
    ("st", "async"): _CLUSTER,
    ("st", "bulk"): ("unsupported-instruction", "shared memory is not set in bulk"),
    ("prefetch", "tensormap"): _TENSOR_MAP,
}


def unsupported_error(instruction: Instruction) -> KernelRejected | None:
    """Return the error for an instruction that the CPU device never supports; None for any other.

    Modifiers and types that a lowering does not know are rejected by the lowering itself.
    """
    base = instruction.opcode.base
    reason = _BY_BASE.get(base)
    for modifier in instruction.opcode.modifiers:
        reason = reason or _BY_MODIFIER.get((base, modifier))
    if reason is None:
        return None
    return KernelRejected(
        *reason, instruction=instruction.opcode.text, line=instruction.line or None
    )
