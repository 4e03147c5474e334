"""A program over the CUDA driver API that knows nothing of gpud: adds two vectors."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")

PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %d<8>;
    ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p, %r5, %r1;
    @%p bra DONE;
    mul.wide.s32 %d4, %r5, 4;
    add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;
    ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%d7], %f3;
DONE:
    ret;
}
"""
COUNT = 10_000


def check(code: int) -> None:
    if code:
        raise SystemExit(f"CUDA error {code}")


context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"add"))

Floats = ctypes.c_float * COUNT
size = ctypes.c_size_t(ctypes.sizeof(Floats))
a, b, c = Floats(*range(COUNT)), Floats(*range(0, 2 * COUNT, 2)), Floats()
addresses = [ctypes.c_uint64() for _ in range(3)]
for address in addresses:
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), size))
check(cuda.cuMemcpyHtoD_v2(addresses[0], a, size))
check(cuda.cuMemcpyHtoD_v2(addresses[1], b, size))
arguments = [*addresses, ctypes.c_int(COUNT)]
places = (ctypes.c_void_p * 4)(*(ctypes.addressof(one) for one in arguments))
check(cuda.cuLaunchKernel(function, 40, 1, 1, 256, 1, 1, 0, None, places, None))
check(cuda.cuMemcpyDtoH_v2(c, addresses[2], size))
for address in addresses:
    check(cuda.cuMemFree_v2(address))
check(cuda.cuCtxDestroy_v2(context))
assert list(c) == [3.0 * i for i in range(COUNT)]
print("right")
