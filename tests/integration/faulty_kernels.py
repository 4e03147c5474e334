"""Small wrong kernels, each with one planted fault, and what the checking mode has to say of it.

The faulty line ends in ``// here``. Arguments are written as in `ARRAYS`: ``f4`` is an array of
`COUNT` floats with values, ``f4?`` one from `empty`, ``n`` the number `COUNT`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COUNT", "FAULTS", "Fault"]

COUNT = 256


class Fault(NamedTuple):
    """A kernel, and the first finding about it.

    Attributes:
        name: of the case.
        source: the body of ``kernel``, or all of the program if it has a ``__global__``.
        kind: of the finding.
        access: of the finding.
        element: the index of the element, or the byte of shared memory, or the lane; None: any.
        argument: whose array it is; None: not the point.
        parameters: of the kernel.
        arguments: what they are given.
        grid: blocks.
        block: threads.
    """

    name: str
    source: str
    kind: str | None
    access: str | None
    element: int | None = None
    argument: int | None = None
    parameters: str = "float* x, float* y, int n"
    arguments: str = "f4 f4 n"
    grid: int = 2
    block: int = 128

    @property
    def program(self) -> str:
        """The whole source."""
        if "__global__" in self.source:
            return self.source
        head = "int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t;"
        name = f'extern "C" __global__ void kernel({self.parameters})'
        return f"{name} {{\n    {head}\n{self.source}\n}}"

    @property
    def line(self) -> int:
        """The faulty line."""
        lines = self.program.splitlines()
        return next(n for n, line in enumerate(lines, 1) if line.endswith("// here"))


_LIST = """
struct List { float* data; int count; };
extern "C" __global__ void kernel(List list) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    list.data[i + 1] = i; // here
}"""

_MEMBER = """
struct Node { float* data; };
extern "C" __global__ void kernel(Node* node, float* x, int n) {
    int i = threadIdx.x;
    if (blockIdx.x == 0) node->data[i + 129] = 1.0f; // here
}"""

_FUNCTION = """
__device__ __noinline__ float fetch(const float* from, int at) {
    return from[at]; // here
}
extern "C" __global__ void kernel(float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = fetch(x, i + 1);
}"""

_TEMPLATE_COPY = """
template <typename T> __device__ void copy(T* to, const T* from, int n) {
    for (int i = threadIdx.x; i <= n; i += blockDim.x) to[i] = from[i]; // here
}
extern "C" __global__ void kernel(float* x, float* y, int n) {
    if (blockIdx.x == 0) copy(y, x, n);
}"""

_LOCKED = """
__device__ int lock;
extern "C" __global__ void kernel(float* x, float* y, int n) {
    if (threadIdx.x == 0) {
        x[0] += 1.0f + blockIdx.x; // here
        while (atomicCAS(&lock, 0, 1) != 0) {}
        __threadfence();
        y[0] += 1.0f;
        __threadfence();
        atomicExch(&lock, 0);
    }
}"""

FAULTS = (
    # -- out of bounds
    Fault("one-too-far", "if (i <= n) y[i] = 1; // here", "out-of-bounds", "write", 256, 1, grid=3),
    Fault("one-before", "y[i] = x[i - 1]; // here", "out-of-bounds", "read", -1, 0),
    Fault("no-limit", "y[i] = 1; // here", "out-of-bounds", "write", 256, 1, grid=4),
    Fault("next-array", "if (i == 7) y[5000] = 1; // here", "out-of-bounds", "write", 5000, 1),
    Fault(
        "far-away", "if (i == 7) y[1 << 22] = x[i]; // here", "out-of-bounds", "write", 1 << 22, 1
    ),
    Fault("negative", "if (i == 7) y[-(1 << 20)] = 1; // here", "out-of-bounds", "write", None, 1),
    Fault("row-and-column", "y[t * n + b] = 1; // here", "out-of-bounds", "write", 256, 1),
    Fault(
        "vector-at-the-end",
        "((float4*)y)[i] = make_float4(1, 2, 3, 4); // here",
        "out-of-bounds",
        "write",
        256,
        1,
    ),
    Fault(
        "last-bytes",
        "if (i == 0) *(double*)((char*)y + 1020 - 1020 % 8 + 8) = 1; // here",
        "out-of-bounds",
        "write",
        256,
        1,
    ),
    Fault(
        "atomic", "atomicAdd(&y[i + 1], 1.0f); // here", "out-of-bounds", "atomic access", 256, 1
    ),
    Fault(
        "loop",
        "if (!i) for (int k = 0; k <= n; k++)\n y[k] = k; // here",
        "out-of-bounds",
        "write",
        256,
        1,
    ),
    Fault(
        "moving-pointer",
        "if (!i) for (float* p = y; p <= y + n; p++)\n *p = 1; // here",
        "out-of-bounds",
        "write",
        256,
        1,
    ),
    Fault("struct-by-value", _LIST, "out-of-bounds", "write", 256, 0, arguments="list"),
    Fault("pointer-in-memory", _MEMBER, "out-of-bounds", "write", 256, None, arguments="node f4 n"),
    Fault("in-a-function", _FUNCTION, "out-of-bounds", "read", 256, 0),
    Fault("in-a-template", _TEMPLATE_COPY, "out-of-bounds", "read", 256, 0),
    Fault(
        "null",
        "if (i == 3) y[0] = 1; // here",
        "out-of-bounds",
        "write",
        None,
        None,
        arguments="f4 null n",
    ),
    Fault(
        "bytes",
        "if (i <= n) y[i] = 1; // here",
        "out-of-bounds",
        "write",
        256,
        1,
        parameters="char* x, char* y, int n",
        arguments="i1 i1 n",
        grid=3,
    ),
    Fault(
        "wrong-element-size",
        "y[i] = x[i]; // here",
        "out-of-bounds",
        "read",
        256,
        0,
        parameters="const double* x, float* y, int n",
        arguments="ptr f4 n",
    ),
    # -- after free
    Fault(
        "after-free",
        "if (i == 0) *x = 1; // here",
        "use-after-free",
        "write",
        0,
        arguments="freed f4 n",
    ),
    # -- never written
    Fault(
        "uninitialised", "y[i] = x[i]; // here", "uninitialised", "read", 0, 0, arguments="f4? f4 n"
    ),
    Fault(
        "partly-written",
        "if (i != 100) x[i] = i;\n __syncthreads(); if (b == 0)\n y[t] = x[t]; // here",
        "uninitialised",
        "read",
        100,
        0,
        arguments="f4? f4 n",
    ),
    Fault(
        "accumulate",
        "atomicAdd(&y[i], 1.0f); // here",
        "uninitialised",
        "atomic access",
        0,
        1,
        arguments="f4 f4? n",
    ),
    Fault(
        "padding",
        "if (t < 8) x[4 * t] = t;\n __syncthreads(); if (b == 0 && t == 0)\n"
        "y[0] = ((float4*)x)[2].y; // here",
        "uninitialised",
        "read",
        None,
        0,
        arguments="f4? f4 n",
    ),
    # -- races in shared memory
    Fault(
        "no-barrier",
        "__shared__ float s[128]; s[t] = i;\n y[i] = s[127 - t]; // here",
        "read-write",
        "read",
    ),
    Fault(
        "barrier-too-late",
        "__shared__ float s[129]; s[t] = i; __syncthreads();\n"
        "float v = s[t + 1 < 128 ? t + 1 : 0];\n"
        "s[t] = v; // here\n__syncthreads(); y[i] = s[t];",
        "read-write",
        "write",
    ),
    Fault(
        "same-cell",
        "__shared__ int s;\n s = t; // here\n__syncthreads(); y[i] = s;",
        "write-write",
        "write",
        0,
    ),
    Fault(
        "histogram",
        "__shared__ int h[4]; if (t < 4) h[t] = 0; __syncthreads();\n"
        "h[t & 3] += 1; // here\n__syncthreads(); if (t < 4) y[t + 4 * b] = h[t];",
        "read-write",
        "write",
    ),
    Fault(
        "reduction",
        "__shared__ float s[128]; s[t] = x[i]; __syncthreads();\n"
        "for (int k = 64; k; k >>= 1) if (t < k)\n"
        "s[t] += s[t + k]; // here\n__syncthreads(); if (!t) y[b] = s[0];",
        "read-write",
        None,
    ),
    Fault(
        "warp-only",
        "__shared__ float s[128]; s[t] = i; __syncwarp();\ny[i] = s[127 - t]; // here",
        "read-write",
        "read",
    ),
    Fault(
        "zeroed-without-barrier",
        "__shared__ int h[4]; if (t < 4) h[t] = 1000 + t;\n"
        "atomicAdd(&h[(t + 1) & 3], 1); // here\n__syncthreads(); if (t < 4) y[t + 4 * b] = h[t];",
        None,
        "atomic access",
    ),
    Fault(
        "dynamic-shared",
        "extern __shared__ float s[]; s[t] = i;\ny[i] = s[t ^ 64]; // here",
        "read-write",
        "read",
    ),
    # -- races between blocks, and in a block on global memory
    Fault("blocks-write-one", "if (!t)\n y[3] = b + 2; // here", "write-write", "write", 3, 1),
    Fault("blocks-add-up", "if (!t)\n y[3] += b + 2; // here", "read-write", None, 3, 1),
    Fault(
        "blocks-exchange",
        "y[i] = 5 + i;\n__syncthreads(); x[i] = y[(i + 128) % n]; // here",
        "read-write",
        None,
        None,
        1,
    ),
    Fault(
        "threads-of-a-block",
        "if (b == 0) { y[t] = t + 1;\n x[t] = y[t ^ 32]; // here\n}",
        "read-write",
        "read",
        None,
        1,
    ),
    Fault(
        "no-fence",
        "__shared__ int last; if (!t) y[b] = 1 + b;\n"
        "if (!t) last = atomicAdd(x, 1) == 1; __syncthreads();\n"
        "if (last && !t) y[8] = y[0] + y[1]; // here",
        "read-write",
        "read",
        None,
        1,
        parameters="int* x, float* y, int n",
        arguments="i4 f4 n",
    ),
    Fault("outside-of-the-lock", _LOCKED, None, None, 0, 0, grid=4),
    # -- shuffles
    Fault(
        "shuffle-beyond-its-members",
        "float v = t;\nif (t < 16) v += __shfl_down_sync(0xffff, v, 8); // here\ny[i] = v;",
        "shuffle",
        "shuffle",
        16,
    ),
    Fault(
        "shuffle-from-a-lane-that-is-none",
        "y[i] = __shfl_sync(0xff, (float)t, 5 * (t + 1)); // here",
        "shuffle",
        "shuffle",
        10,
        block=8,
    ),
    Fault(
        "shuffle-with-half-a-mask",
        "float v = t;\nif ((t & 31) < 16) v += __shfl_xor_sync(0xffff, v, 16); // here\ny[i] = v;",
        "shuffle",
        "shuffle",
        16,
    ),
)
