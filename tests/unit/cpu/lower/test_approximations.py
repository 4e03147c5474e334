"""What the CPU device's approximations keep beyond the ISA, and that loops over threads vectorise.

The ISA's bounds and special values are in the conformance suite's tables.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.cpu.lower.instruction_runner import Instructions, Operation, optimised

CODE = Instructions()
EX2 = {t: CODE.define(f"ex2.approx{t}.f32", "f4", "f4") for t in ("", ".ftz")}
CIRCULAR = {n: CODE.define(f"{n}.approx.f32", "f4", "f4") for n in ("sin", "cos")}


@pytest.mark.parametrize("ftz", EX2)
def test_ex2_within_two_ulp(ftz: str) -> None:
    x = np.linspace(-152, 128.5, 400_001).astype("f4")
    x = np.concatenate([x, np.linspace(-2, 2, 200_001).astype("f4")])
    with np.errstate(under="ignore"):
        exact = np.exp2(x.astype("f8"))
    got = EX2[ftz](x).astype("f8")
    largest = float(np.finfo("f4").max)
    inside = exact <= largest
    if ftz:
        inside &= exact >= 2.0**-126
        assert (got[exact < 2.0**-126 * (1 - 2.0**-23)] == 0).all()
    spacing = np.spacing(np.maximum(exact[inside], 2.0**-126).astype("f4")).astype("f8")
    assert (np.abs(got - exact)[inside] / spacing).max() <= 1.1  # the ISA allows 2
    assert (got[exact > largest * (1 + 2.0**-23)] == np.inf).all()


@pytest.mark.parametrize("name", CIRCULAR)
def test_sin_and_cos_far_out(name: str) -> None:
    """The ISA bounds no error there."""
    x = np.linspace(-1e5, 1e5, 400_001).astype("f4")
    got = CIRCULAR[name](x).astype("f8")
    assert np.abs(got - getattr(np, name)(x.astype("f8"))).max() <= 1e-4
    bits = np.random.default_rng(1).integers(1, 0x7F800000, 10_000, dtype=np.uint32)
    bits[::2] |= np.uint32(1 << 31)
    for argument in (x, bits.view("f4")):
        assert (np.abs(CIRCULAR[name](argument)) <= 1).all()


@pytest.mark.parametrize(
    "text",
    [
        "ex2.approx.ftz.f32",
        "lg2.approx.f32",
        "sin.approx.f32",
        "cos.approx.f32",
        "tanh.approx.f32",
        "rsqrt.approx.f32",
        "fma.rm.f32",
        "div.full.f32",
        "cvt.rn.f16.f32",
        "cvt.rzi.s32.f32",
        "fma.rn.bf16",
        "min.f32",
        "div.s32",
    ],
)
def test_a_loop_over_threads_is_vectorised(text: str) -> None:
    """The point of avoiding branches and library calls."""
    alone = Instructions()
    output, source = {"cvt": ("u2", "f4"), "div": ("f4", "f4")}.get(text[:3], ("f4", "f4"))
    if text.endswith("s32"):
        output, source = "i4", "f4" if "cvt" in text else "i4"
    if "bf16" in text:
        output = source = "u2"
    count = {"fma": 3, "div": 2, "min": 2}.get(text[:3], 1)
    operation = alone.define(text, output, [source] * count)
    assert isinstance(operation, Operation)
    module, _ = optimised(alone.module.text())
    assert "vector.body" in str(module.get_function("op0"))
