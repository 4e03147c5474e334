"""Uses the processor's flush-to-zero mode for kernels that are compiled with ``.ftz`` throughout.

Problem: code compiled with ``--use_fast_math`` flushes the inputs and the result of every
single-precision operation. Emulated, that is a dozen instructions around each.

Approach: a kernel all of whose single-precision arithmetic is ``.ftz``, and which computes in no
other floating-point type, runs with the processor's own flush-to-zero and denormals-are-zero modes
on. They are set around the kernel's code only, so they never affect the scheduler or Python.

Properties: a kernel that needs subnormal numbers anywhere (``f64``, halves, any ``f32`` operation
without ``.ftz``) does not run with these modes; on processors other than x86-64 none does.

Source: PTX ISA 9.0, 9.7.3 (``.ftz``); Intel SDM volume 1, 10.2.3 (MXCSR: FTZ is bit 15, DAZ bit 6).
"""

from __future__ import annotations

import platform
from collections.abc import Iterable

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["FLUSHING_ATTRIBUTES", "define_with_flushing", "wants_flushing"]

_ARITHMETIC = frozenset(
    (
        "add", "sub", "mul", "fma", "mad", "div", "sqrt", "rcp", "rsqrt", "setp", "set", "slct",
        "min", "max", "ex2", "lg2", "sin", "cos", "tanh", "cvt", "atom", "red", "mma", "wmma",
    )
)  # fmt: skip
_OTHER_FLOATS = ("f64", "f16", "bf16", "f16x2", "bf16x2", "tf32", "e4m3x2", "e5m2x2", "f32x2")
_FTZ_AND_DAZ = 0x8040

FLUSHING_ATTRIBUTES = (
    '"denormal-fp-math"="preserve-sign,preserve-sign" '
    '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
)
"""Tell LLVM what the mode does, so that it folds constants alike."""


def wants_flushing(bodies: Iterable[Iterable[ptx.Statement]]) -> bool:
    """Return whether all of ``bodies`` (a kernel and its callees) may run with flushing on."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    flushes = False
    for body in bodies:
        for ins in body:
            if not isinstance(ins, ptx.Instruction) or ins.opcode.base not in _ARITHMETIC:
                continue
            modifiers = ins.opcode.modifiers
            if any(m in _OTHER_FLOATS for m in modifiers):
                return False
            if "f32" in modifiers:
                if _never_flushes(ins):
                    continue
                if ins.opcode.base in ("atom", "red") or "ftz" not in modifiers:
                    return False
                flushes = True
    return flushes


def _never_flushes(ins: ptx.Instruction) -> bool:
    """Return whether the result of ``ins`` does not depend on flushing.

    A conversion from an integer makes no subnormal number, and one to an integer rounds them to 0
    unless it rounds up or down.
    """
    if ins.opcode.base != "cvt":
        return False
    to, of = ins.opcode.modifiers[-2:]
    if to == "f32":
        return of[0] in "su"
    return to[0] in "su" and not {"rmi", "rpi"} & set(ins.opcode.modifiers)


def define_with_flushing(ir: IRModule, result: str, name: str, arguments: str) -> str:
    """Define ``@name`` as ``@name.flushing`` run with the modes on; returns the latter's name.

    Args:
        ir: the module.
        result: LLVM result type.
        name: exported name, without ``@``.
        arguments: LLVM parameters, such as ``ptr %b, i32 %cut``.
    """
    emitter = Emitter(ir, f"define {result} @{name}({arguments}) nounwind")
    emitter.module.declare("declare void @llvm.x86.sse.stmxcsr(ptr)")
    emitter.module.declare("declare void @llvm.x86.sse.ldmxcsr(ptr)")
    before, now = emitter.alloca("i32", "before"), emitter.alloca("i32", "now")
    emitter.do(f"call void @llvm.x86.sse.stmxcsr(ptr {before})")
    modes = emitter.value(f"or i32 {emitter.value(f'load i32, ptr {before}')}, {_FTZ_AND_DAZ}")
    emitter.do(f"store i32 {modes}, ptr {now}")
    emitter.do(f"call void @llvm.x86.sse.ldmxcsr(ptr {now})")
    call = f"call {result} @{name}.flushing({arguments})"
    value = "" if result == "void" else emitter.value(call)
    if not value:
        emitter.do(call)
    emitter.do(f"call void @llvm.x86.sse.ldmxcsr(ptr {before})")
    emitter.end(f"ret {result} {value}".strip())
    emitter.finish()
    return f"{name}.flushing"
