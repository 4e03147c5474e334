"""Programs that are sent as images, as the CUDA driver takes them, with a real daemon."""

from __future__ import annotations

import numpy as np
import pytest

import gpud_client as gc
from tests.compiler.images.fat_binaries import ELF, PTX, ZSTD, container, entry

TIMEOUT_S = 60.0

DOUBLE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry twice(.param .u64 x)
{
    .reg .b64 %a;
    .reg .b32 %v, %t;
    ld.param.u64 %a, [x];
    mov.u32 %t, %tid.x;
    mad.wide.u32 %a, %t, 4, %a;
    ld.global.u32 %v, [%a];
    add.u32 %v, %v, %v;
    st.global.u32 [%a], %v;
    ret;
}
"""


@pytest.mark.parametrize(
    "image",
    [DOUBLE, DOUBLE + b"\0", container(entry(ELF, 90, b"\x7fELF"), entry(PTX, 70, DOUBLE, ZSTD))],
    ids=["text", "with-nul", "fat-binary"],
)
def test_an_image_runs(gpu: gc.Session, image: bytes) -> None:
    kernel = gpu.kernel(image, "twice")
    x = gpu.array(np.arange(32, dtype=np.int32))
    kernel.submit(grid=1, block=32, args=(x,)).result(TIMEOUT_S)
    np.testing.assert_array_equal(x.get(), 2 * np.arange(32))


def test_what_holds_no_ptx_is_refused_by_name(gpu: gc.Session) -> None:
    with pytest.raises(gc.ImageError, match="machine code") as refused:
        gpu.module(b"\x7fELF" + bytes(60))
    assert refused.value.kind == "machine-code"
    with pytest.raises(TypeError, match="images as bytes"):
        gpu.module([])
