"""Tables of function pointers of every signature in one kernel, and objects made in place.

A call through a pointer must reach the functions of its own signature and no others: the tables
differ in the number of parameters, in their sizes, and in structs in place of scalars.

Source: PTX ISA 9.0, sections 7.1 and 9.7.13 (``call``, ``.callprototype``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from .case import Args, Case, Rng

# C++ type: (how to make one of an int x, the sum of its fields, that sum for an int x in Python).
TYPES: dict[str, tuple[str, str, Callable[[int], int]]] = {
    "int": ("x", "v", lambda x: x),
    "long long": ("(long long)x * 3", "v", lambda x: 3 * x),
    "signed char": ("(signed char)(x & 63)", "v", lambda x: x & 63),
    "float": ("(float)(x & 255)", "(long long)v", lambda x: x & 255),
    "double": ("(double)x * 2", "(long long)v", lambda x: 2 * x),
    "One": ("One{x}", "v.a", lambda x: x),
    "Two": ("Two{x, 7}", "v.a + v.b", lambda x: x + 7),
    "Three": ("Three{x, 2, x}", "v.a + v.b + v.c", lambda x: 2 * x + 2),
    "Wide": ("Wide{x, (short)5}", "v.a + v.b", lambda x: x + 5),
}
SIGNATURES: tuple[tuple[str, ...], ...] = (
    *((result,) for result in TYPES),
    *(("int", one) for one in TYPES),
    *((one, one) for one in TYPES),
    *product(("int", "Two"), ("int", "long long", "Two", "Three"), ("int", "Two", "Three")),
)
"""The result's type, then those of the parameters."""


def _source() -> str:
    lines = [
        "struct One { int a; };",
        "struct Two { int a, b; };",
        "struct Three { int a, b, c; };",
        "struct Wide { long long a; short b; };",
    ]
    for name, (_, fields, _) in TYPES.items():
        kind = name.replace(" ", "_")
        lines.append(f"__device__ long long sum_{kind}({name} v) {{ return {fields}; }}")
        made = TYPES[name][0]
        lines.append(f"__device__ {name} make_{kind}(int x) {{ return {made}; }}")
    calls = []
    for number, (result, *given) in enumerate(SIGNATURES):
        parameters = ", ".join(f"{one} p{n}" for n, one in enumerate(given))
        total = " + ".join(f"sum_{_kind(one)}(p{n})" for n, one in enumerate(given)) or "0"
        for which in (0, 1):
            lines.append(
                f"__device__ __noinline__ {result} f{number}_{which}({parameters}) "
                f"{{ return make_{_kind(result)}((int)({total}) + {10 * number + which}); }}"
            )
        lines.append(
            f"__device__ {result} (*t{number}[2])({', '.join(given)}) = "
            f"{{f{number}_0, f{number}_1}};"
        )
        passed = ", ".join(f"make_{_kind(one)}(i + {n})" for n, one in enumerate(given))
        calls.append(f"    total += sum_{_kind(result)}(t{number}[which]({passed}));")
    return "\n".join(
        [
            *lines,
            'extern "C" __global__ void call_signatures(const int* chosen, long long* out, int n,',
            "                                           unsigned* runs) {",
            "    GPUD_COUNT(runs);",
            "    int i = blockIdx.x * blockDim.x + threadIdx.x;",
            "    if (i >= n) return;",
            "    int which = chosen[i];",
            "    long long total = 0;",
            *calls,
            "    out[i] = total;",
            "}",
        ]
    )


def _kind(name: str) -> str:
    return name.replace(" ", "_")


def _signatures_make(rng: Rng) -> Args:
    n = 150
    return [rng.integers(0, 2, n).astype(np.int32), np.zeros(n, np.int64), np.int32(n)]


def _signatures_expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros_like(args[1])
    for i, which in enumerate(args[0].tolist()):
        for number, (result, *given) in enumerate(SIGNATURES):
            total = sum(TYPES[one][2](i + n) for n, one in enumerate(given))
            out[i] += TYPES[result][2](total + 10 * number + which)
    return {1: out}


# -- the same where the functions wait ---------------------------------------------------------

WAITING = r"""
struct Pair { int a, b; };
__device__ int meet(int v) { return __shfl_xor_sync(0xffffffffu, v, 1); }
__device__ __noinline__ int alone(int* s, int v) { s[threadIdx.x] = v; __syncthreads();
                                                   return s[threadIdx.x ^ 32]; }
__device__ __noinline__ int turned(int* s, int v) { return meet(v) + s[0] * 0; }
__device__ __noinline__ int paired(int* s, Pair v) { s[threadIdx.x] = v.a - v.b; __syncthreads();
                                                     return s[threadIdx.x ^ 1]; }
__device__ __noinline__ int summed(int* s, Pair v) { return meet(v.a) + v.b + s[0] * 0; }
__device__ __noinline__ int lonely(int* s) { __syncthreads(); return s[threadIdx.x] ; }
__device__ int (*scalars[2])(int*, int) = {alone, turned};
__device__ int (*pairs[2])(int*, Pair) = {paired, summed};
__device__ int (*single[1])(int*) = {lonely};
extern "C" __global__ void waiting_signatures(const int* chosen, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[64];
    s[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x, which = chosen[blockIdx.x];
    int v = scalars[which](s, i);
    __syncthreads();
    v = v * 3 + pairs[which](s, Pair{i, 5});
    __syncthreads();
    out[i] = v + 1000 * single[0](s);
}
"""


def _waiting_make(rng: Rng) -> Args:
    blocks = 6
    return [np.arange(blocks, dtype=np.int32) & 1, np.zeros(64 * blocks, np.int32)]


def _waiting_expect(args: Args) -> dict[int | str, Any]:
    blocks = args[0].size
    out = np.zeros((blocks, 64), np.int32)
    t = np.arange(64)
    for block, which in enumerate(args[0].tolist()):
        i = block * 64 + t
        first = i ^ (1 if which else 32)
        second = (i ^ 1) + 5 if which else (i ^ 1) - 5
        shared = np.zeros(64, np.int64) if which else i - 5
        out[block] = first * 3 + second + 1000 * shared
    return {1: out.ravel()}


# -- objects with virtual functions, made in place and on the heap -----------------------------

OBJECTS = r"""
struct Pair { int a, b; };
struct Animal {
    int age;
    __device__ Animal(int a) : age(a) {}
    __device__ virtual ~Animal() {}
    __device__ virtual int speak(int loud) const = 0;
    __device__ virtual int meet(Pair others) { return others.a - others.b; }
};
struct Dog : Animal {
    __device__ Dog(int a) : Animal(a) {}
    __device__ int speak(int loud) const override { return age * loud; }
};
struct Cat : Animal {
    long long lives;
    __device__ Cat(int a) : Animal(a), lives(9) {}
    __device__ int speak(int loud) const override { return (int)lives - loud; }
    __device__ int meet(Pair others) override { return --lives * others.a + others.b; }
};
__device__ __noinline__ int play(Animal* one, int i) {
    return one->speak(i) * 100 + one->meet(Pair{i, 3}) + one->speak(1);
}
extern "C" __global__ void placed_objects(const int* kind, int* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    alignas(16) unsigned char room[sizeof(Cat)];
    Animal* here = kind[i] & 1 ? (Animal*)new (room) Cat(i) : (Animal*)new (room) Dog(i);
    int sum = play(here, i);
    Animal* there = kind[i] & 2 ? (Animal*)new Cat(i + 1) : (Animal*)new Dog(i + 1);
    if (there != nullptr) {
        sum += play(there, i) * 7;
        delete there;
    }
    out[i] = sum;
}
"""


def _objects_make(rng: Rng) -> Args:
    n = 100
    return [rng.integers(0, 4, n).astype(np.int32), np.zeros(n, np.int32), np.int32(n)]


def _objects_expect(args: Args) -> dict[int | str, Any]:
    def play(cat: bool, age: int, i: int) -> int:
        if cat:
            return (9 - i) * 100 + 8 * i + 3 + (8 - 1)
        return age * i * 100 + i - 3 + age

    out = np.zeros_like(args[1])
    for i, kind in enumerate(args[0].tolist()):
        out[i] = play(bool(kind & 1), i, i) + 7 * play(bool(kind & 2), i + 1, i)
    return {1: out}


CASES: tuple[Case, ...] = (
    Case(
        "call_signatures",
        _source(),
        (3,),
        (64,),
        _signatures_make,
        _signatures_expect,
        covers=frozenset({"call", "call.indirect", "call.signature", "parameter.struct"}),
        long=True,
    ),
    Case(
        "waiting_signatures",
        WAITING,
        (6,),
        (64,),
        _waiting_make,
        _waiting_expect,
        covers=frozenset({"call", "call.indirect", "call.signature", "call.barrier"}),
        long=True,
    ),
    Case(
        "placed_objects",
        OBJECTS,
        (3,),
        (48,),
        _objects_make,
        _objects_expect,
        covers=frozenset({"call", "call.indirect", "call.signature", "malloc"}),
        long=True,
    ),
)
