"""``make demo``: compiles a CUDA C++ string without a GPU and shows the PTX that comes of it."""

from __future__ import annotations

from gpud.compiler.nvrtc import compile_cuda, nvrtc_version

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""


def main() -> None:
    """Compiles saxpy and prints the head of its PTX."""
    major, minor = nvrtc_version()
    ptx = compile_cuda(SAXPY).ptx
    lines = [line for line in ptx.splitlines() if line and not line.startswith("//")]
    print(f"NVRTC {major}.{minor}, no GPU needed: {len(lines)} lines of PTX, which begin")
    print("\n".join(lines[:9]))


if __name__ == "__main__":
    main()
