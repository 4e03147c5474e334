"""Programs that are sent as images, as the CUDA driver takes them, with a real daemon."""

from __future__ import annotations

from collections.abc import Iterator

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


VARIABLES = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counts[3] = {10, 20, 30};
.visible .const .align 4 .f32 scale = 0f40400000;
.global .align 8 .u64 second = generic(counts)+4;
.visible .entry use(.param .u64 x)
{
    .reg .b64 %a, %b;
    .reg .f32 %f, %s;
    .reg .b32 %v;
    ld.param.u64 %a, [x];
    ld.global.f32 %f, [%a];
    mov.u64 %b, scale;
    ld.const.f32 %s, [%b];
    mul.f32 %f, %f, %s;
    st.global.f32 [%a], %f;
    ld.global.u64 %b, [second];
    atom.add.u32 %v, [%b], 1;
    red.global.add.u32 [counts+8], 100;
    ret;
}
"""


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[gc.Session]:
    """A session on the CPU device, and on the CUDA device over the model of the driver."""
    if request.param == "cpu":
        yield request.getfixturevalue("gpu")
        return
    with request.getfixturevalue("served").connect() as session:
        yield session


def test_variables_have_addresses_in_the_arena(device: gc.Session) -> None:
    """The host, the module's kernels and those of others see the same bytes."""
    module, other = device.module(VARIABLES), device.kernel(DOUBLE, "twice")
    counts, scale = module.symbol("counts", np.int32), module.symbol("scale", np.float32)
    assert module.symbol("second", np.uint64).get() == counts.ptr + 4
    np.testing.assert_array_equal(counts.get(), [10, 20, 30])
    x = device.array(np.ones(1, np.float32))
    use = module.kernel("use")
    use.submit(grid=1, block=1, args=(x,)).result(TIMEOUT_S)
    np.testing.assert_array_equal(counts.get(), [10, 21, 130])
    assert x.get() == [3.0]
    scale.set([0.5])
    counts.set([1, 2, 3])
    use.submit(grid=1, block=1, args=(x,)).result(TIMEOUT_S)
    assert x.get() == [1.5]
    other.submit(grid=1, block=3, args=(counts.ptr,)).result(TIMEOUT_S)
    np.testing.assert_array_equal(counts.get(), [2, 6, 206])
    # Constants lie in the arena, too, and a kernel of another module may read and write them.
    bits = module.symbol("scale", np.int32)
    bits.set([21])
    other.submit(grid=1, block=1, args=(scale.ptr,)).result(TIMEOUT_S)
    assert bits.get() == [42]


def test_modules_of_one_image_have_variables_of_their_own(device: gc.Session) -> None:
    first, second = (device.module(VARIABLES).symbol("counts", np.int32) for _ in range(2))
    first.set([7, 8, 9])
    np.testing.assert_array_equal(second.get(), [10, 20, 30])
    assert first.ptr != second.ptr


def test_variables_of_a_source_have_no_address(gpu: gc.Session) -> None:
    module = gpu.module(VARIABLES.decode())
    with pytest.raises(gc.InvalidArgument, match="pass the PTX as bytes"):
        module.symbol("counts").ptr  # noqa: B018


FIRST = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .global .align 4 .u32 total;
.extern .func (.param .b32 r) next(.param .b32 a);
.global .align 4 .u32 own = 100;
.visible .entry first(.param .u64 x)
{
    .reg .b64 %a;
    .reg .b32 %v;
    .param .b32 a0;
    .param .b32 r0;
    ld.param.u64 %a, [x];
    ld.global.u32 %v, [own];
    st.param.b32 [a0], %v;
    call.uni (r0), next, (a0);
    ld.param.b32 %v, [r0];
    st.global.u32 [%a], %v;
    red.global.add.u32 [total], %v;
    ret;
}
"""
SECOND = b"""
.version 7.5
.target sm_75
.address_size 64
.visible .global .align 4 .u32 total = 1000;
.global .align 4 .u32 own = 5;
.visible .func (.param .b32 r) next(.param .b32 a)
{
    .reg .b32 %v, %w;
    ld.param.b32 %v, [a];
    ld.global.u32 %w, [own];
    add.u32 %v, %v, %w;
    st.param.b32 [r], %v;
    ret;
}
"""


def test_linked_images_run(gpu: gc.Session) -> None:
    module = gpu.module([FIRST, container(entry(PTX, 75, SECOND))])
    x = gpu.zeros(1, np.int32)
    module.kernel("first").submit(grid=1, block=1, args=(x,)).result(TIMEOUT_S)
    assert x.get() == [105]
    assert module.symbol("total", np.int32).get() == [1105]
    with pytest.raises(gc.CompileError, match="next is used, and no file defines it"):
        gpu.module([FIRST, b".version 7.0\n.target sm_70\n.visible .global .u32 total;"])


GRID_SYNC = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 h) cudaCGGetIntrinsicHandle(.param .b32 s);
.extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 f);
.visible .entry rounds(.param .u64 x)
{
    .reg .b64 %x, %h, %at, %other;
    .reg .b32 %v, %n, %b;
    .reg .pred %p;
    .param .b32 s; .param .b64 h; .param .b64 g; .param .b32 f; .param .b32 r;
    ld.param.u64 %x, [x];
    st.param.b32 [s], 1;
    call.uni (h), cudaCGGetIntrinsicHandle, (s);
    ld.param.b64 %h, [h];
    mov.u32 %b, %ctaid.x;
    mul.wide.u32 %at, %b, 4;
    add.u64 %at, %at, %x;
    xor.b32 %b, %b, 1;
    mul.wide.u32 %other, %b, 4;
    add.u64 %other, %other, %x;
    mov.u32 %n, 0;
$round:
    atom.global.add.u32 %v, [%at], 1;
    st.param.b64 [g], %h;
    st.param.b32 [f], 0;
    call.uni (r), cudaCGSynchronize, (g, f);
    add.u32 %n, %n, 32;
    ld.volatile.global.u32 %v, [%other];
    setp.ne.u32 %p, %v, %n;
    @%p red.global.add.u32 [%x+8], 1;
    call.uni (r), cudaCGSynchronize, (g, f);
    setp.lt.u32 %p, %n, 640;
    @%p bra $round;
    ret;
}
"""


def test_a_grid_synchronises_by_the_built_in_functions(gpu: gc.Session) -> None:
    """In each round the block's threads count, and see that the other's have."""
    x = gpu.zeros(3, np.int32)
    gpu.kernel(GRID_SYNC, "rounds").submit(grid=2, block=32, args=(x,)).result(TIMEOUT_S)
    np.testing.assert_array_equal(x.get(), [640, 640, 0])
