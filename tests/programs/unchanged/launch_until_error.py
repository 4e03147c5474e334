"""A program over the CUDA driver API that launches until a call fails, and prints the error."""

import ctypes
import time

cuda = ctypes.CDLL("libcuda.so.1")
PTX = b".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing() { ret; }\n"
LIMIT_S = 60

context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
cuda.cuModuleLoadData(ctypes.byref(module), PTX)
cuda.cuModuleGetFunction(ctypes.byref(function), module, b"nothing")
print("begins", flush=True)
end = time.monotonic() + LIMIT_S
code = 0
while not code and time.monotonic() < end:
    code = cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    code = code or cuda.cuCtxSynchronize()
print(code, cuda.cuCtxSynchronize(), cuda.cuMemFree_v2(ctypes.c_uint64(1)))
