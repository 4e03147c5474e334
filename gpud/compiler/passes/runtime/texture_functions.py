"""What texture and surface instructions do, as CUDA C++ that is compiled into programs.

Problem: a texture unit interpolates, wraps coordinates and converts. Its results are to be the same
on every device, and nobody's handle may lead it to memory of others.

Approach: a texture object is the address of a *description* in the session's own memory (the client
writes it, `gpud_client.textures`), and a fetch is a call of a function here. The functions are
rewritten like the program around them, so that all they load is checked: a wrong handle, or a
forged description, is an illegal address of its job. A description does not begin with `MAGIC`:
the function loads from address 0, for the same end.

Algorithm, after the guide: a normalised coordinate is wrapped or mirrored as a fraction and scaled
by the extent. Point filtering takes the element at its floor. Linear filtering takes the elements
around x - 0.5, weighted by the fraction, which has 8 bits: it is rounded to the nearest 1/256. Only
then is an index clamped, wrapped, or found to be outside, where the border's value holds.

Properties:
* an index is tested before the address is computed from it, for all coordinates, NaN too;
* a channel that a texture does not have is 0, the fourth 1.

Source: CUDA C++ Programming Guide 13.0, chapter "Texture Fetching"; PTX ISA 9.0, sections 9.7.10
and 9.7.11. That weights are rounded, not cut, and the order of sums are choices made here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from gpud.compiler.ptx.model import Function, Instruction, Statement
from gpud.compiler.ptx.parser import parse
from gpud.compiler.toolchain.nvrtc import compile_cuda

__all__ = ["ELEMENT", "MAGIC", "PREFIX", "texture_functions"]

MAGIC = 0x74757067
"""The first word of a description."""

PREFIX = "gpud_texture_"
"""The names of the functions begin with it."""

ELEMENT = f"{PREFIX}element"
"""The function that the others call."""

_SOURCE = r"""
typedef unsigned long long u64;
struct Texture {
    unsigned magic, flags, width, height, depth, unused;
    u64 data, row, slice;
    unsigned border[4];
};
enum { WRAP, CLAMP, MIRROR, BORDER };  // two bits for each of x, y and z
enum { LINEAR = 1 << 6, NORMALIZED = 1 << 7, AS_FLOAT = 1 << 8 };
enum { UNSIGNED, SIGNED, FLOAT };      // bits 9 and 10; 11 and 12: log2 of an element's bytes
                                       // 13 and 14: log2 of the channels
#define DEVICE extern "C" __device__ __noinline__

__device__ __forceinline__ const Texture* described(u64 handle) {
    const Texture* t = (const Texture*)handle;
    if (t->magic != MAGIC) t = (const Texture*)(u64)*(const volatile unsigned*)0;
    return t;
}
__device__ __forceinline__ unsigned mode_of(const Texture* t, int axis) {
    unsigned mode = t->flags >> 2 * axis & 3;
    return t->flags & NORMALIZED || mode == BORDER ? mode : CLAMP;
}
__device__ __forceinline__ float scaled(float x, unsigned extent, unsigned mode, bool normalized) {
    if (!normalized) return x;
    float whole = floorf(x);
    if (mode == WRAP) x -= whole;
    if (mode == MIRROR) x = (long long)whole & 1 ? 1 - (x - whole) : x - whole;
    return x * (float)extent;
}
__device__ __forceinline__ int index_of(int i, unsigned extent, unsigned mode) {
    int n = max((int)extent, 1);
    if (mode == BORDER) return i < 0 || i >= n ? -1 : i;
    if (mode == WRAP) { i %= n; return i < 0 ? i + n : i; }
    return min(max(i, 0), n - 1);
}
DEVICE uint4 gpud_texture_element(const Texture* t, int x, int y, int z) {
    unsigned flags = t->flags, kind = flags >> 9 & 3, log = flags >> 11 & 3;
    unsigned channels = 1u << (flags >> 13 & 3), v[4];
    bool as_float = kind == FLOAT || flags & AS_FLOAT;
    if ((x | y | z) < 0)
        return make_uint4(t->border[0], t->border[1], t->border[2], t->border[3]);
    u64 at = t->data + z * t->slice + y * t->row + ((u64)x * channels << log);
    v[0] = v[1] = v[2] = 0;
    v[3] = as_float ? 0x3f800000 : 1;
    for (unsigned c = 0; c < channels && c < 4; ++c, at += 1u << log) {
        int raw;
        float value;
        if (log == 0) raw = kind == SIGNED ? *(const signed char*)at : *(const unsigned char*)at;
        else if (log == 1) raw = kind == SIGNED ? *(const short*)at : *(const unsigned short*)at;
        else raw = *(const int*)at;
        if (kind == FLOAT && log == 1) {
            asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(raw));
            raw = __float_as_int(value);
        } else if (kind != FLOAT && as_float) {
            int bits = 8 << log;
            value = kind == SIGNED ? fmaxf((float)raw / (float)((1 << bits - 1) - 1), -1.f)
                                   : (float)raw / (float)((1 << bits) - 1);
            raw = __float_as_int(value);
        }
        v[c] = raw;
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ unsigned mixed(unsigned a, unsigned b, float w) {
    return __float_as_uint(__fadd_rn(__fmul_rn(1 - w, __uint_as_float(a)),
                                     __fmul_rn(w, __uint_as_float(b))));
}
__device__ __forceinline__ uint4 mixed(uint4 a, uint4 b, float w) {
    return make_uint4(mixed(a.x, b.x, w), mixed(a.y, b.y, w), mixed(a.z, b.z, w),
                      mixed(a.w, b.w, w));
}
struct Axis { int first, second; float weight; };
__device__ __forceinline__ Axis axis_of(const Texture* t, float x, unsigned extent, int axis) {
    unsigned mode = mode_of(t, axis);
    x = scaled(x, extent, mode, t->flags & NORMALIZED);
    Axis result;
    if (!(t->flags & LINEAR)) {
        result.first = result.second = index_of(__float2int_rd(x), extent, mode);
        result.weight = 0;
        return result;
    }
    x -= 0.5f;
    float whole = floorf(x);
    int i = (int)whole;
    result.first = index_of(i, extent, mode);
    result.second = index_of(i < 0x7fffffff ? i + 1 : i, extent, mode);
    result.weight = rintf((x - whole) * 256) * 0.00390625f;
    return result;
}
__device__ __forceinline__ uint4 line(const Texture* t, Axis x, int y, int z) {
    uint4 a = gpud_texture_element(t, x.first, y, z);
    if (!(t->flags & LINEAR)) return a;
    return mixed(a, gpud_texture_element(t, x.second, y, z), x.weight);
}
DEVICE uint4 gpud_texture_1d(u64 handle, float x) {
    const Texture* t = described(handle);
    return line(t, axis_of(t, x, t->width, 0), 0, 0);
}
DEVICE uint4 gpud_texture_2d(u64 handle, float x, float y) {
    const Texture* t = described(handle);
    Axis i = axis_of(t, x, t->width, 0), j = axis_of(t, y, t->height, 1);
    uint4 a = line(t, i, j.first, 0);
    return t->flags & LINEAR ? mixed(a, line(t, i, j.second, 0), j.weight) : a;
}
DEVICE uint4 gpud_texture_3d(u64 handle, float x, float y, float z) {
    const Texture* t = described(handle);
    Axis i = axis_of(t, x, t->width, 0), j = axis_of(t, y, t->height, 1);
    Axis k = axis_of(t, z, t->depth, 2);
    uint4 a = line(t, i, j.first, k.first);
    if (!(t->flags & LINEAR)) return a;
    a = mixed(a, line(t, i, j.second, k.first), j.weight);
    uint4 b = line(t, i, j.first, k.second);
    return mixed(a, mixed(b, line(t, i, j.second, k.second), j.weight), k.weight);
}
DEVICE uint4 gpud_texture_at_1d(u64 handle, int x) {
    const Texture* t = described(handle);
    return gpud_texture_element(t, index_of(x, t->width, BORDER), 0, 0);
}
DEVICE uint4 gpud_texture_at_2d(u64 handle, int x, int y) {
    const Texture* t = described(handle);
    return gpud_texture_element(t, index_of(x, t->width, BORDER), index_of(y, t->height, BORDER),
                                0);
}
DEVICE uint4 gpud_texture_at_3d(u64 handle, int x, int y, int z) {
    const Texture* t = described(handle);
    return gpud_texture_element(t, index_of(x, t->width, BORDER), index_of(y, t->height, BORDER),
                                index_of(z, t->depth, BORDER));
}
// The address of `size` bytes of a surface, x in bytes; 0: outside, and nothing is to be done.
// What is outside: 0 is an error, 1 is clamped, 2 is 0.
DEVICE u64 gpud_texture_surface(u64 handle, int x, int y, int z, unsigned size, unsigned outside) {
    const Texture* t = described(handle);
    unsigned flags = t->flags;
    int width = (int)(t->width << (flags >> 13 & 3) << (flags >> 11 & 3)) - (int)size;
    int height = (int)t->height - 1, depth = (int)t->depth - 1;
    if (outside == 1) {
        x = min(max(x, 0), max(width, 0));
        y = min(max(y, 0), max(height, 0));
        z = min(max(z, 0), max(depth, 0));
    } else if (x < 0 || x > width || y < 0 || y > height || z < 0 || z > depth) {
        return outside ? 0 : (u64)*(const volatile unsigned*)0;
    }
    return t->data + z * t->slice + y * t->row + x;
}
""".replace("MAGIC", str(MAGIC))


@cache
def texture_functions() -> tuple[Function, ...]:
    """Return all the functions, callees first, as functions of a module's own.

    Raises:
        MissingDependency: NVRTC is not installed.
    """
    compiled = compile_cuda(_SOURCE, options=["--relocatable-device-code=true", "-fmad=false"])
    functions = [one for one in parse(compiled.ptx).functions() if one.body is not None]
    return tuple(
        replace(one, linkage=None, body=[_unnumbered(s) for s in one.body or ()])
        for one in functions
    )


def _unnumbered(statement: Statement) -> Statement:
    """Return a statement without its line, which is not one of the program's."""
    return replace(statement, line=0) if isinstance(statement, Instruction) else statement
