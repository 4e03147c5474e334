"""A kernel whose every single-precision operation flushes runs with the processor's mode for it."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from gpud.compiler.ptx.parser import parse
from gpud.device.cpu.codegen.emit.flush_to_zero import wants_flushing
from tests.unit.cpu.codegen.checked_arena import HEAD, Arena

KERNEL = """.visible .entry k(.param .u64 p) {{
    .reg .f32 a, b, c, d; .reg .u32 t; .reg .u64 at;
    ld.param.u64 at, [p]; mov.u32 t, %tid.x; mad.wide.u32 at, t, 8, at;
    ld.global.f32 a, [at]; ld.global.f32 b, [at+4];
    add{one}.f32 c, a, b; mul{two}.f32 d, a, b;
    st.global.f32 [at], c; st.global.f32 [at+4], d; ret; }}"""
TINY = np.float32(1e-40)


@pytest.mark.parametrize(("one", "two"), [(".ftz", ".ftz"), (".ftz", ""), ("", "")])
def test_what_flushes_and_what_does_not(world: Arena, one: str, two: str) -> None:
    source = HEAD + KERNEL.format(one=one, two=two)
    bodies = [function.body or () for function in parse(source).functions()]
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    assert wants_flushing(bodies) == (on_x86 and one == two == ".ftz")
    words = world.words(np.float32)
    words[:4] = TINY, 0, TINY, np.float32(2)
    assert world.run(source, world.base, block=2) is None
    kept = [np.float32(0) if ftz else TINY for ftz in (one, two)]
    assert words[0] == kept[0]
    assert words[3] == 2 * kept[1]
