"""Kernels that gpud must refuse, or that only some devices can run, each with the expected reason.

Source: docs/explanation/forms.md; PTX ISA 9.0, sections 9.7.10 (texture), 9.7.11 (surface) and
9.7.15 (``wgmma``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, ExpectedForm
from .cases import Cases
from .ptx_text import header, kernel

CASES = Cases()


_TEXTURE_BODY = """
    .reg .f32 %a, %b, %c, %d, %x, %y; .reg .b32 %v; .reg .b64 %p, %t;
    ld.param.u64 %t, [image];
    mov.b32 %v, 1;
    mov.f32 %x, 0f3F000000;
    mov.f32 %y, %x;
    tex.a2d.v4.f32.f32 {%a, %b, %c, %d}, [%t, {%v, %x, %y, %y}];
    mad.wide.u32 %p, %i, 4, %out;
    st.global.f32 [%p], %a;
    ret;
"""
_SURFACE_BODY = """
    .reg .b64 %t; .reg .b32 %x, %v;
    ld.param.u64 %t, [image];
    mov.b32 %x, 0;
    mov.b32 %v, 7;
    sured.b.add.2d.u32.trap [%t, {%x, %x}], %v;
    ret;
"""
_WGMMA_BODY = """
    wgmma.fence.sync.aligned;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    ret;
"""
_DEVICE_LAUNCH = f"""{header("compute_75", "8.0")}
.extern .func (.param .b64 retval) cudaGetParameterBufferV2(
    .param .b64 function, .param .align 4 .b8 grid[12], .param .align 4 .b8 block[12],
    .param .b32 shared);
.visible .entry launches_from_device(.param .u64 out, .param .u64 runs)
{{
    .reg .b64 %a, %b;
    ld.param.u64 %a, [out];
    {{
        .param .b64 retval;
        .param .b64 function;
        .param .align 4 .b8 grid[12];
        .param .align 4 .b8 block[12];
        .param .b32 shared;
        st.param.b64 [function], %a;
        st.param.b32 [grid], 1; st.param.b32 [grid+4], 1; st.param.b32 [grid+8], 1;
        st.param.b32 [block], 1; st.param.b32 [block+4], 1; st.param.b32 [block+8], 1;
        st.param.b32 [shared], 0;
        call.uni (retval), cudaGetParameterBufferV2, (function, grid, block, shared);
        ld.param.b64 %b, [retval];
    }}
    st.global.u64 [%a], %b;
    ret;
}}
"""
_MISSING_BODY = """
    .reg .b32 %v;
    {
        .param .b32 r;
        call (r), somewhere_else, ();
        ld.param.b32 %v, [r];
    }
    st.global.u32 [%out], %v;
    ret;
"""


def _nothing(args: Args) -> dict[int | str, Any]:
    return {}


def _refuse(
    name: str,
    source: str,
    buffers: tuple[int, ...],
    word: str,
    form: ExpectedForm = "rejected",
    arch: str = "compute_75",
) -> None:
    CASES.cuda(
        name,
        source,
        2,
        32,
        lambda rng: [np.zeros(n, np.uint32) for n in buffers],
        f"rejected.{word}",
        forms="",
        expected_form=form,
        rejection=word,
        arch=arch,
    )(_nothing)


_EXTERNAL = ".extern .func (.param .b32 r) somewhere_else();"
# Textures with layers, and atomic operations on surfaces.
_refuse("reads_texture", kernel("reads_texture", ("u64 image", "u64 out"), _TEXTURE_BODY), (1, 64),
        "texture")  # fmt: skip
_refuse("writes_surface", kernel("writes_surface", ("u64 image",), _SURFACE_BODY), (1,),
        "texture")  # fmt: skip
# Refused by devices without asynchronous tensor cores only.
_refuse("matrix_unit", kernel("matrix_unit", ("u64 out",), _WGMMA_BODY, arch="compute_90a"), (1,),
        "tensor-core", "persistent", "compute_90a")  # fmt: skip
_refuse("launches_from_device", _DEVICE_LAUNCH, (64,), "unresolved-external")
_refuse("calls_missing", kernel("calls_missing", ("u64 out",), _MISSING_BODY,
                                declarations=_EXTERNAL), (64,), "unresolved-external")  # fmt: skip
