"""Products of matrices: what is refused, where elements are, and one rounding for a sum."""

from __future__ import annotations

import numpy as np
import pytest

import gpud_client as gc
from gpud.compiler.ptx.model import Instruction
from gpud.compiler.ptx.parser import parse
from gpud.device.cpu.lower.matrix_products import matrix_product
from gpud.errors import KernelRejected


def instruction(text: str, d: int, a: int, b: int, c: int) -> Instruction:
    operands = ", ".join(
        "{" + ", ".join(f"%{name}{n}" for n in range(count)) + "}"
        for name, count in (("d", d), ("a", a), ("b", b), ("c", c))
    )
    registers = " ".join(f".reg .b32 %{name}<9>;" for name in "abcd")
    body = f".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry k() {{ {registers}"
    module = parse(f"{body} {text} {operands}; ret; }}\n")
    return next(
        s
        for s in module.entries()["k"].body or ()
        if isinstance(s, Instruction) and s.opcode.base in ("mma", "wmma")
    )


MMA = "mma.sync.aligned."
WMMA = "wmma.mma.sync.aligned."
REFUSED = {
    (MMA + "m8n8k4.row.col.f32.f16.f16.f32", 8, 2, 2, 8): "m8n8k4 is not among the shapes for .f16",
    (MMA + "m16n8k16.row.col.f32.f16.bf16.f32", 4, 4, 2, 4): "do not go together",
    (MMA + "m16n8k16.row.col.s32.s8.s4.s32", 4, 2, 1, 4): "do not go together",
    (MMA + "m16n8k16.row.col.f16.bf16.bf16.f16", 2, 4, 2, 2): "do not go together",
    (MMA + "m16n8k16.col.col.f32.f16.f16.f32", 4, 4, 2, 4): "A is .row and B is .col",
    (MMA + "m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 2, 4): "has [4, 2, 2, 4] registers",
    (MMA + "m16n8k256.row.col.s32.b1.b1.s32", 4, 4, 2, 4): "for .b1, which has no other",
    (MMA + "m16n8k16.row.col.satfinite.f32.f16.f16.f32", 4, 4, 2, 4): "for integers",
    (MMA + "m16n8k16.row.col.f32.f16.f32", 4, 4, 2, 4): "no four types",
    (MMA + "row.col.f32.f16.f16.f32", 4, 4, 2, 4): "no shape",
    (WMMA + "row.col.m16n16k8.f32.f32", 8, 8, 8, 8): "m16n16k8 is not among the shapes for .f16",
    (WMMA + "row.col.m16n16k16.f32.f16.satfinite", 8, 8, 8, 4): "no four types|for integers",
}


@pytest.mark.parametrize("given", REFUSED, ids=lambda given: given[0])
def test_what_the_isa_does_not_have_is_refused(given: tuple[str, int, int, int, int]) -> None:
    said = REFUSED[given]
    with pytest.raises(KernelRejected) as caught:
        matrix_product(instruction(*given))
    assert any(part in str(caught.value) for part in said.split("|"))


@pytest.mark.parametrize(
    "given",
    [
        (MMA + "m16n8k16.row.col.f32.f16.f16.f32", 4, 4, 2, 4),
        (MMA + "m16n8k64.row.col.s32.s4.u4.s32", 4, 4, 2, 4),
        (WMMA + "row.col.m8n32k16.f32.f32", 8, 8, 8, 8),
        (WMMA + "col.row.m16n16k16.s32.s8.s8.s32", 8, 2, 2, 8),
    ],
    ids=lambda given: given[0],
)
def test_every_element_has_a_place_and_accumulators_have_one(
    given: tuple[str, int, int, int, int],
) -> None:
    product = matrix_product(instruction(*given))
    for part in (product.a, product.b, product.c, product.d):
        places = [part.place(lane, slot) for lane in range(32) for slot in range(part.slots)]
        assert set(places) == {(r, c) for r in range(part.rows) for c in range(part.columns)}
        if part.role == "c":
            assert len(places) == len(set(places))
        found = list(part.elements())
        assert len(found) == part.rows * part.columns
        for number, (bit, lane) in enumerate(found):
            assert part.place(lane, bit // part.bits) == divmod(number, part.columns)


SOURCE = r"""
extern "C" __global__ void product(const unsigned* a, const unsigned* b, const float* c, float* d) {
    int l = threadIdx.x;
    float d0, d1, d2, d3;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5},"
                 " {%6}, {%7, %8, %9, %10};"
                 : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
                 : "r"(a[2 * l]), "r"(a[2 * l + 1]), "r"(b[l]),
                   "f"(c[4 * l]), "f"(c[4 * l + 1]), "f"(c[4 * l + 2]), "f"(c[4 * l + 3]));
    d[4 * l] = d0, d[4 * l + 1] = d1, d[4 * l + 2] = d2, d[4 * l + 3] = d3;
}
"""


@pytest.mark.ci
@pytest.mark.parametrize("options", [(), ("--use_fast_math",)])
def test_a_sum_is_rounded_once_and_keeps_subnormal_numbers(options: tuple[str, ...]) -> None:
    """Every element of A is x and of B is y, so that each result is c + 8 x y."""
    tiny = float(np.float16(2.0**-24))
    cases = [
        (1.0, 2.0**-14, 2.0**10, 2.0**10 + 8 * 2.0**-14),  # one by one, each would be lost
        (tiny, 1.0, 0.0, 8 * tiny),
        (tiny, tiny, 2.0**-149, 8 * tiny * tiny),
        (65504.0, 65504.0, -3e38, -3e38 + 8 * 65504.0**2),
        (0.0, 1.0, 2.0**-149, 2.0**-149),
    ]
    with gc.local("cpu:1") as gpu:
        kernel = gpu.kernel(SOURCE, "product", options=options)
        d, zeros = gpu.zeros(128, np.float32), gpu.zeros(128, np.float32)
        for x, y, c, exact in cases:
            a = gpu.array(np.full(128, x, np.float16).view(np.uint32))
            b = gpu.array(np.full(64, y, np.float16).view(np.uint32))
            given = gpu.array(np.full(128, c, np.float32))
            kernel.submit(1, 32, (a, b, given, d), quota=1).result(60)
            assert d.get().tolist() == [np.float32(exact)] * 128, (x, y, c)
        a = gpu.array(np.full(128, np.inf, np.float16).view(np.uint32))
        b = gpu.array(np.full(64, 0, np.float16).view(np.uint32))
        kernel.submit(1, 32, (a, b, zeros, d), quota=1).result(60)
        assert set(d.get().view(np.uint32).tolist()) == {0x7FFFFFFF}
