"""Loading programs: kernels by name, variables and their initial values, refused programs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.module import CPUModule
from gpud.errors import CompileError, KernelNotFound, KernelRejected
from tests.unit.cpu.device_helpers import TIMEOUT_S, cuda, pointer, words

PTX = """.version 8.0
.target sm_75
.address_size 64
.global .align 4 .u32 number = 7;
.global .align 4 .s32 negative = -2;
.global .align 4 .f32 quarter = 0f3E800000;
.global .align 8 .f64 third = 0d3FD5555555555555;
.global .align 2 .b16 table[2][3] = {{1, 2}, {4, 5, 6}};
.global .align 8 .u64 where = number;
.global .align 8 .u64 behind = table+4;
.global .align 4 .b32 zeros[5];
.const .align 4 .u32 fixed[2] = {11, 12};
.global .align 1 .b8 text[6] = {104, 101, 108, 108, 111, 0};
.visible .entry k() { ret; }
.visible .entry other(.param .u32 a, .param .u64 b, .param .align 16 .b8 c[20], .param .u8 d)
{ ret; }
"""

REFUSED = """.version 8.0
.target sm_75
.address_size 64
.visible .entry bad(.param .u64 p)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, 0;
    tex.2d.v4.s32.s32 {%r1, %r1, %r1, %r1}, [%rd1, {%r1, %r1}];
    ret;
}
.visible .entry good() { ret; }
"""

CUDA = r"""
__constant__ int factors[3] = {2, 3, 5};
__device__ int calls = 40;
__device__ int* target = &calls;
extern "C" __global__ void use(int* out) {
    out[threadIdx.x] = factors[threadIdx.x] * *target;
    if (threadIdx.x == 0) calls = 1;
}
"""


@pytest.fixture(scope="module")
def module() -> CPUModule:
    return CPUModule(PTX)


def test_initial_values(module: CPUModule) -> None:
    def words_of(name: str, kind: str) -> list[float]:
        values: list[float] = module.symbol(name).view(kind).tolist()
        return values

    assert words_of("number", "<u4") == [7]
    assert words_of("negative", "<i4") == [-2]
    assert words_of("quarter", "<f4") == [0.25]
    assert words_of("third", "<f8") == [1 / 3]
    assert words_of("table", "<u2") == [1, 2, 0, 4, 5, 6]
    assert words_of("zeros", "<u4") == [0] * 5
    assert words_of("fixed", "<u4") == [11, 12]
    assert module.symbol("text").tobytes() == b"hello\0"


def test_addresses_as_initial_values(module: CPUModule) -> None:
    [where] = module.symbol("where").view("<u8")
    [behind] = module.symbol("behind").view("<u8")
    assert where == module.symbol("number").ctypes.data
    assert behind == module.symbol("table").ctypes.data + 4


def test_variables_lie_apart_and_aligned(module: CPUModule) -> None:
    ranges = []
    for name in module.data.sizes:
        view = module.symbol(name)
        ranges.append((view.ctypes.data, view.ctypes.data + view.size))
    ranges.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert module.symbol("third").ctypes.data % 8 == 0


def test_an_unknown_symbol_lists_those_there_are(module: CPUModule) -> None:
    with pytest.raises(KeyError, match=r"no variable 'nummer'.*fixed, negative, number"):
        module.symbol("nummer")
    with pytest.raises(KeyError, match="it has: none"):
        CPUModule(PTX.split(".global", maxsplit=1)[0] + ".visible .entry k() { ret; }").symbol("x")


def test_an_unknown_kernel_lists_those_there_are(module: CPUModule) -> None:
    with pytest.raises(KernelNotFound) as caught:
        module.kernel("kk")
    assert "k, other" in str(caught.value) or "'k', 'other'" in str(caught.value)


def test_a_kernel_is_the_same_each_time(module: CPUModule) -> None:
    assert module.kernel("k") is module.kernel("k")


def test_parameters_have_their_offsets(module: CPUModule) -> None:
    found = [(p.name, p.offset, p.size) for p in module.kernel("other").parameters]
    assert found == [("a", 0, 4), ("b", 8, 8), ("c", 16, 20), ("d", 36, 1)]
    assert module.kernel("k").parameters == ()


@pytest.mark.parametrize("text", ["", "hello", ".version 8.0\n.target sm_75\n.visible .entry k( {"])
def test_what_is_not_ptx_is_refused(text: str) -> None:
    with pytest.raises(CompileError):
        CPUModule(text)


def test_an_instruction_that_does_not_run_here_is_named(device: CPUDevice) -> None:
    module = device.load(REFUSED)
    with pytest.raises(KernelRejected, match="tex") as caught:
        device.launch(module.kernel("bad"), (1, 1, 1), (32, 1, 1), bytes(8))
    assert caught.value.line is None
    assert caught.value.instruction is not None
    assert caught.value.instruction is not None
    assert caught.value.instruction.startswith("tex.2d")
    # The rest of the program is not affected.
    device.launch(module.kernel("good"), (2, 1, 1), (32, 1, 1), b"").result(TIMEOUT_S)


def test_kernels_and_host_see_the_same_variables(device: CPUDevice) -> None:
    module = device.load(cuda(CUDA))
    kernel = module.kernel("use")
    memory, out = words(device, 3)
    device.launch(kernel, (1, 1, 1), (3, 1, 1), pointer(memory)).result(TIMEOUT_S)
    assert out.tolist() == [80, 120, 200]
    assert module.symbol("calls").view("<i4").tolist() == [1]
    module.symbol("calls").view("<i4")[0] = 10
    module.symbol("factors")[:] = np.array([1, 2, 3], "<i4").view(np.uint8)
    device.launch(kernel, (1, 1, 1), (3, 1, 1), pointer(memory)).result(TIMEOUT_S)
    assert out.tolist() == [10, 20, 30]


def test_two_loads_of_one_program_share_nothing(device: CPUDevice) -> None:
    first, second = device.load(cuda(CUDA)), device.load(cuda(CUDA))
    first.symbol("calls").view("<i4")[0] = 5
    assert second.symbol("calls").view("<i4").tolist() == [40]
    assert second.symbol("target").view("<u8")[0] == second.symbol("calls").ctypes.data
