"""Directed rounding (.rz, .rm, .rp) of f32 and f64 arithmetic.

Problem: a CPU's rounding mode is global state; changing it around every instruction costs tens of
cycles and keeps LLVM from vectorising. Compilers emit `fma.rm.f32` inside `expf`, so f32 matters.

f32, approach: compute in double. Products and quotients of floats are known well enough there
(below); a sum comes with its exact error by Knuth's two-sum; then `formats.round_double` rounds
once, in the direction wanted, by integer steps.

Properties of the f32 algorithm:
    product: 48 bits and exponents within +-300, exact in double.
    sum, fma: s = p + c rounded, e = two_sum(p, c) exact: no overflow, no underflow in double.
    quotient, square root: not exact, but a quotient of 24-bit numbers that is not itself a float
        differs from every float by more than 2**-49 relatively, so the double rounded to 53 bits
        stays on the same side of it. The same holds for square roots.
    zero: x - x is -0 only under .rm, which is computed as the negative of .rp on negated operands.

f64: no wider type exists, and the instructions are rare (interval arithmetic). A function that
LLVM may not inline sets the rounding mode, computes with constrained intrinsics that LLVM may
neither fold nor move, and restores round-to-nearest.

Source: PTX ISA 9.0, section 9.7.3; D. Knuth, TAOCP vol. 2, 4.2.2 (two-sum); LLVM language
reference, "Constrained Floating-Point Intrinsics" and `llvm.set.rounding`.
"""

from __future__ import annotations

from gpud.device.cpu.ir.values import Value, call
from gpud.device.cpu.lower.floats.formats import round_double

__all__ = ["directed"]


def directed(operation: str, mode: str, *operands: Value) -> Value:
    """Emit an operation on floats or on doubles, rounded in ``mode``.

    Args:
        operation: ``add``, ``mul``, ``fma``, ``div`` or ``sqrt``.
        mode: ``rz``, ``rm`` or ``rp``.
        operands: all float or all double.
    """
    if operands[0].type == "double":
        return _directed_double(operation, mode, *operands)
    wide = [operand.cast("fpext", "double") for operand in operands]
    if operation == "add":
        return _sum(wide[0], wide[1], mode)
    if operation == "fma":
        return _sum(wide[0] * wide[1], wide[2], mode)
    if operation == "mul":
        return round_double(wide[0] * wide[1], mode)
    if operation == "div":
        return round_double(wide[0] / wide[1], mode)
    return round_double(wide[0].unary("sqrt"), mode)


def _sum(a: Value, b: Value, mode: str) -> Value:
    """Return the sum of two doubles as a float rounded in ``mode``."""
    if mode == "rm":
        return -_sum(-a, -b, "rp")
    total = a + b
    b_part = total - a
    error = (a - (total - b_part)) + (b - b_part)
    return round_double(total, mode, error)


_LLVM_ROUNDING = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}
_LLVM_OPERATION = {"add": "fadd", "mul": "fmul", "fma": "fma", "div": "fdiv", "sqrt": "sqrt"}


def _directed_double(operation: str, mode: str, *operands: Value) -> Value:
    emitter = operands[0].emitter
    module = emitter.module
    name = f"gpud.{operation}.{mode}.f64"
    if not module.has(name):
        module.declare("declare void @llvm.set.rounding(i32)")
        operator = f"llvm.experimental.constrained.{_LLVM_OPERATION[operation]}.f64"
        types = ["double"] * len(operands)
        module.declare(f"declare double @{operator}({', '.join([*types, 'metadata', 'metadata'])})")
        given = [f"double %x{i}" for i in range(len(operands))]
        rounding = ['metadata !"round.dynamic"', 'metadata !"fpexcept.ignore"']
        module.define_once(
            name,
            f"""define internal double @{name}({", ".join(given)}) noinline strictfp {{
  call void @llvm.set.rounding(i32 {_LLVM_ROUNDING[mode]}) strictfp
  %r = call double @{operator}({", ".join(given + rounding)}) strictfp
  call void @llvm.set.rounding(i32 1) strictfp
  ret double %r
}}""",
        )
    return call(emitter, name, "double", *operands)
