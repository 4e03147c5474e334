"""Kernels that repeat one piece any number of times, with which the code generator has work."""

from __future__ import annotations

__all__ = ["FAMILIES", "growing"]

_PIECES = {
    "calls of sinf": "x = sinf(x + in[i + {k}]);",
    "loops of diverging length": (
        "for (int j = i + {k}; x > in[j & 4095] && j < n; j += 3) x = x * 0.5f + in[j & 1023];"
    ),
    "guarded bodies": (
        "if (in[i + {k}] > 0.5f) {{ "
        + " ".join(f"x += in[(i * {3 + j} + {j}) & 4095] / (x + {j}.25f);" for j in range(6))
        + " out[i + {k}] = x; }}"
    ),
}
_KERNEL = """
extern "C" __global__ void grown(float* out, const float* in, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = in[i];
    {body}
    out[i] = x;
}}
"""


def growing(family: str, count: int) -> str:
    """Return CUDA C++ of a kernel that repeats a family's piece ``count`` times."""
    if family == "branches in one loop":
        pieces = (_PIECES["guarded bodies"].format(k=k) for k in range(count))
        body = "for (int r = 0; r < n; r++) {{ {} }}".format("\n".join(pieces))
    else:
        body = "\n    ".join(_PIECES[family].format(k=k) for k in range(count))
    return _KERNEL.format(body=body)


FAMILIES = (*_PIECES, "branches in one loop")
