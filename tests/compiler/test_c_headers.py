"""Headers of C: programs that include them compile, alone and beside CUDA's own."""

from __future__ import annotations

import pytest

from gpud.compiler.toolchain.c_headers import C_HEADERS
from gpud.compiler.toolchain.nvrtc import compile_cuda
from gpud.errors import CompileError
from tests.conformance.runner import headers_installed

USES = r"""
__global__ void uses(uint32_t* out, std::int64_t* wide, float* f, size_t n) {
    static_assert(sizeof(uint8_t) == 1 && sizeof(int_fast16_t) == 2 && sizeof(uintptr_t) == 8);
    static_assert(INT64_MIN < 0 && UINT32_MAX == 0xffffffff && INT_MAX == 2147483647);
    struct Pair { int a; double b; };
    out[0] = offsetof(Pair, b) + CHAR_BIT;
    wide[0] = LLONG_MAX;
    f[0] = fabsf(sinf((float)M_PI)) + FLT_EPSILON + INFINITY;
    assert(n > 0);
    int* p = (int*)malloc(16);
    if (p != NULL) { memcpy(p, out, 16); out[1] = p[2]; free(p); }
    printf("%d\n", (int)out[1]);
}
"""


def test_all_can_be_included_in_any_order() -> None:
    names = list(C_HEADERS)
    for order in (names, names[::-1]):
        compile_cuda("".join(f"#include <{name}>\n" for name in order) + USES)


@pytest.mark.parametrize("name", C_HEADERS)
def test_each_can_be_included_alone(name: str) -> None:
    compile_cuda(f'#include <{name}>\n#include "{name}"\n__global__ void k(int* p) {{ *p = 1; }}')


@pytest.mark.skipif(not headers_installed(), reason="CUDA's headers are not installed")
@pytest.mark.parametrize("first", [True, False])
def test_beside_those_of_cuda(first: bool) -> None:
    ours = "".join(f"#include <{name}>\n" for name in C_HEADERS)
    theirs = "#include <cuda/std/cstdint>\n#include <cuda/std/climits>\n#include <cuda/atomic>\n"
    theirs += "#include <cooperative_groups.h>\n#include <cub/block/block_reduce.cuh>\n"
    compile_cuda((ours + theirs if first else theirs + ours) + USES)


def test_others_are_still_named() -> None:
    with pytest.raises(CompileError, match=r"boost.*give your own with headers="):
        compile_cuda("#include <boost/any.hpp>\n__global__ void k() {}")
