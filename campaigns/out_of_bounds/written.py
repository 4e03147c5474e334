"""Kernels written in CUDA C++, as people write them, with their usual mistakes.

They go through NVRTC, whose output has shapes that the generated PTX has not. The lines that
access memory are marked with ``//@``; the report must name one of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import gpud_client as gc
from campaigns.out_of_bounds.campaign import Tally
from campaigns.out_of_bounds.cases import Layout
from campaigns.out_of_bounds.check import Outcome, array_problems, differences, reset
from campaigns.out_of_bounds.world import TIMEOUT_S, World

Bad = Mapping[tuple[int, int], tuple[int, ...]]
"""By (task block, thread): the addresses of which it may access one first."""


@dataclass(frozen=True)
class Launch:
    """A launch and what misses in it; nothing in a legal one."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[int, ...]
    bad: Bad


@dataclass(frozen=True)
class Written:
    """A kernel: its code, what its access looks like in PTX, and how it is launched."""

    name: str
    code: str
    opcode: str
    make: Callable[[random.Random, Layout, int], Launch]
    span: int
    sides: tuple[str, ...] = ("after", "before", "neighbour", "host", "null", "minus", "far")


GRID: Final = (2, 1, 1)
BLOCK: Final = (8, 2, 2)
THREADS: Final = 32
ID = (
    "(blockIdx.x * blockDim.z + threadIdx.z) * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x"
)


# -- one thread takes a pointer that is bad ----------------------------------------------------


def _chosen(rng: random.Random, layout: Layout, target: int) -> Launch:
    who = rng.choice((0, 63, rng.randrange(64)))
    args = (layout.good, target, who, layout.out)
    return Launch(GRID, BLOCK, args, {divmod(who, THREADS): (target,)})


def _pick(
    name: str, type_: str, size: int, statement: str, opcode: str, before: str = ""
) -> Written:
    code = f"""{before}
extern "C" __global__ void {name}({type_}* p, {type_}* bad, int who, long long* out) {{
    int i = ({ID};
    {type_}* q = i == who ? bad : p + i;  //@ (NVRTC may give a callee's access this line)
    long long r = 5;
    {statement}  //@
    out[i] = r;
}}
"""
    return Written(name, code, opcode, _chosen, size)


_LD, _ST, _ATOM = r"(ld|ldu)[.a-z0-9:]*", r"st[.a-z0-9:]*", r"(atom|red)[.a-z0-9:]*"
_PICKS = (
    _pick("load_int", "const int", 4, "r += *q;", _LD),
    _pick("load_char", "const signed char", 1, "r += *q;", _LD),
    _pick("load_double", "const double", 8, "r += (long long)*q;", _LD),
    _pick("load_float4", "const float4", 16, "float4 v = *q; r += (long long)(v.x + v.w);", _LD),
    _pick("load_cached", "const int", 4, "r += __ldg(q);", _LD),
    _pick("load_volatile", "volatile int", 4, "r += *q;", _LD),
    _pick("store_short", "short", 2, "*q = (short)i;", _ST),
    _pick("store_double", "double", 8, "*q = i;", _ST),
    _pick("store_int4", "int4", 16, "*q = make_int4(i, i, i, i);", _ST),
    _pick("store_volatile", "volatile long long", 8, "*q = i;", _ST),
    _pick("update", "int", 4, "*q += 3;", _LD),
    _pick("add_int", "int", 4, "r += atomicAdd(q, 1);", _ATOM),
    _pick("add_float", "float", 4, "atomicAdd(q, 1.0f);", _ATOM),
    _pick("add_double", "double", 8, "atomicAdd(q, 1.0);", _ATOM),
    _pick("exchange", "unsigned long long", 8, "r += atomicExch(q, 9ull);", _ATOM),
    _pick("swap", "unsigned", 4, "r += atomicCAS(q, 0xa5a5a5a5u, 7u);", _ATOM),
    _pick("least", "int", 4, "atomicMin(q, -5);", _ATOM),
    _pick("count", "unsigned", 4, "r += atomicInc(q, 100u);", _ATOM),
    _pick(
        "callee", "int", 4, "r += callee_load(q);", _LD,
        "__device__ __noinline__ int callee_load(const int* q) { return q[0] * 3; }  //@",
    ),
    _pick(
        "pointer_callee", "int", 4, "callee_table[i & 1](q, i);", _ST,
        "__device__ void callee_a(int* q, int i) { *q = i; }  //@\n"
        "__device__ void callee_b(int* q, int i) { *q = -i; }  //@\n"
        "typedef void (*callee_t)(int*, int);\n"
        "__device__ callee_t callee_table[2] = {callee_a, callee_b};",
    ),
    _pick(
        "functor", "float", 4, "functor_apply(q, functor_scale{2.0f});", _LD,
        "struct functor_scale {float k; __device__ float operator()(float x) { return k * x; }};\n"
        "template <class F> __device__ void functor_apply(float* q, F f) { *q = f(*q); }  //@",
    ),
    _pick(
        "shuffled", "int", 4,
        "unsigned long long a = (unsigned long long)(i == (who ^ 1) ? bad : p + i);"
        "q = (int*)__shfl_xor_sync(~0u, a, 1); *q = i;",
        _ST,
    ),
)  # fmt: skip


# -- the usual mistakes ------------------------------------------------------------------------


def _off_by_one(rng: random.Random, layout: Layout, target: int) -> Launch:
    count = rng.randrange(1, 63)
    first = layout.end - 4 * count
    return Launch(GRID, BLOCK, (first, count, layout.out), {divmod(count, THREADS): (layout.end,)})


def _rows(rng: random.Random, layout: Layout, target: int) -> Launch:
    width = 8
    first = layout.base
    bad = {(0, x): (first + 4 * (x - width),) for x in range(width)}
    return Launch((1, 1, 1), (8, 4, 1), (first, width, layout.out), bad)


def _walk(rng: random.Random, layout: Layout, target: int) -> Launch:
    """A list of three nodes in the second page, the last of which points to the target."""
    first = layout.table + 512
    return Launch((1, 1, 1), (1, 1, 1), (first, target, layout.out),
                  {(0, 0): (target, target + 8)})  # fmt: skip


def _forward(rng: random.Random, layout: Layout, target: int) -> Launch:
    length = rng.randrange(1, 60)
    first = layout.end - 4 * length
    return Launch((1, 1, 1), (1, 1, 1), (first, 64, layout.out), {(0, 0): (layout.end,)})


def _backward(rng: random.Random, layout: Layout, target: int) -> Launch:
    length = rng.randrange(1, 60)
    first = layout.base + length
    return Launch((1, 1, 1), (1, 1, 1), (first, 64, layout.out), {(0, 0): (layout.base - 1,)})


def _recursion(rng: random.Random, layout: Layout, target: int) -> Launch:
    length = rng.randrange(1, 20)
    first = layout.end - 4 * length
    return Launch((1, 1, 1), (3, 1, 1), (first, 24, layout.out),
                  {(0, thread): (layout.end,) for thread in range(3)})  # fmt: skip


def _underflow(rng: random.Random, layout: Layout, target: int) -> Launch:
    address = layout.good + 4 * ((3 - 5) & 0xFFFFFFFF)
    return Launch((1, 1, 1), (1, 1, 1), (layout.good, 3, layout.out), {(0, 0): (address,)})


def _tile(rng: random.Random, layout: Layout, target: int) -> Launch:
    """The last of two warps' rows lies past the end."""
    first = layout.end - 4 * 32
    bad = {(0, thread): (first + 4 * thread,) for thread in range(32, 64)}
    return Launch((1, 1, 1), (64, 1, 1), (first, layout.out), bad)


def _strided(rng: random.Random, layout: Layout, target: int) -> Launch:
    count = rng.randrange(1, 200)
    first = layout.end - 8 * count
    threads = THREADS * 2
    return Launch(GRID, BLOCK, (first, count, layout.out),
                  {divmod(count % threads, THREADS): (layout.end,)})  # fmt: skip


def _copied(rng: random.Random, layout: Layout, target: int) -> Launch:
    pieces = tuple(target + offset for offset in range(64))
    return Launch((1, 1, 1), (1, 1, 1), (layout.good, target, layout.out), {(0, 0): pieces})


def _together(rng: random.Random, layout: Layout, target: int) -> Launch:
    bad = {(block, thread): (target,) for block in range(2) for thread in range(THREADS)}
    return Launch(GRID, BLOCK, (target, layout.out), bad)


_MISTAKES = (
    Written("off_by_one", f"""
extern "C" __global__ void off_by_one(int* p, int n, long long* out) {{
    int i = ({ID};
    if (i <= n) p[i] = i;  //@
}}
""", _ST, _off_by_one, 4),
    Written("rows", """
extern "C" __global__ void rows(const int* p, int w, long long* out) {
    int x = threadIdx.x, y = threadIdx.y;
    int sum = p[(y - 1) * w + x] + p[y * w + x];  //@
    out[y * w + x] = sum;
}
""", _LD, _rows, 4),
    Written("walk", """
struct node { node* next; long long value; };
extern "C" __global__ void walk(node* first, node* bad, long long* out) {
    for (int k = 0; k < 3; k++) { first[k].value = k; first[k].next = k < 2 ? first + k + 1 : bad; }
    long long s = 0;
    __threadfence();
    for (volatile node* n = first; n; n = n->next) s += n->value;  //@
    out[0] = s;
}
""", _LD, _walk, 16, ("after", "before", "neighbour", "host", "minus", "far")),
    Written("forward", """
extern "C" __global__ void forward(int* p, int n, long long* out) {
    while (n--) *p++ = n;  //@
}
""", _ST, _forward, 4),
    Written("backward", """
extern "C" __global__ void backward(char* p, int n, long long* out) {
    while (n--) *--p = n;  //@
}
""", _ST, _backward, 1),
    Written("recursion", """
__device__ __noinline__ int sum_of(const int* p, int n) {
    return n ? *p + sum_of(p + 1, n - 1) : 0;  //@
}
extern "C" __global__ void recursion(const int* p, int n, long long* out) {
    out[threadIdx.x] = sum_of(p, n);  //@
}
""", _LD, _recursion, 4),
    Written("underflow", """
extern "C" __global__ void underflow(int* p, unsigned n, long long* out) {
    p[n - 5u] = 1;  //@
}
""", _ST, _underflow, 4),
    Written("tile", """
extern "C" __global__ void tile(const int* p, long long* out) {
    __shared__ int t[64];
    t[threadIdx.x] = p[threadIdx.x];  //@
    __syncthreads();
    out[threadIdx.x] = t[63 - threadIdx.x];
}
""", _LD, _tile, 4),
    Written("strided", f"""
extern "C" __global__ void strided(long long* p, int n, long long* out) {{
    for (int i = ({ID}; i <= n; i += gridDim.x * 32) p[i] *= 2;  //@
}}
""", _LD, _strided, 8),
    Written("copied", """
struct large { long long a[8]; };
extern "C" __global__ void copied(large* p, const large* bad, long long* out) {
    *p = *bad;  //@
    out[0] = 1;
}
""", _LD, _copied, 64, ("after", "before", "neighbour", "host", "null")),
    Written("together", f"""
__shared__ int* together_box;
extern "C" __global__ void together(int* bad, long long* out) {{
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) together_box = bad;
    __syncthreads();
    int r = together_box[0];  //@
    out[({ID}] = r;
}}
""", _LD, _together, 4),
)  # fmt: skip

KERNELS: Final = (*_PICKS, *_MISTAKES)
SOURCE: Final = "".join(kernel.code for kernel in KERNELS)
"""All of them as one program."""


# -- running them ------------------------------------------------------------------------------


def written(world: World, tally: Tally, seed: int, cases: int, *, every: int = 1) -> None:
    """Run some ``cases``, each kernel at least once; one in ten is legal where it can be.

    Args:
        world, tally, seed: as for `generated`.
        cases: about so many.
        every: only each so many-th of the kernels in which one thread takes a bad pointer.
    """
    rng = random.Random(seed)
    module = world.gpu.module(SOURCE, [one.name for one in KERNELS], options=("-lineinfo",))
    kernels = (*_PICKS[::every], *_MISTAKES)
    each = max(1, cases // len(kernels))
    for one in kernels:
        kernel = module.kernel(one.name)
        for number in range(each):
            side = rng.choice(one.sides)
            legal = number % 10 == 9 and one.make is _chosen
            target = _target(rng, world.layout, side, one.span, legal=legal)
            launch = one.make(rng, world.layout, target)
            outcome = _run(world, one, kernel, launch, legal=legal)
            if one.make in (_off_by_one, _forward, _tile, _strided, _recursion):
                side = "after"
            elif one.make in (_rows, _backward):
                side = "before"
            what = f"seed {seed}: {one.name} #{number} {side} {launch}"
            tally.add("CUDA C++", "legal: last bytes" if legal else side, what, outcome)
        tally.fail(f"seed {seed}: {one.name}", world.neighbour_faults())


def _target(rng: random.Random, layout: Layout, side: str, span: int, *, legal: bool) -> int:
    if legal:
        return layout.end - span
    return {
        "after": layout.end + span * rng.choice((0, 0, 1, 17)),
        "before": layout.base - span * rng.choice((1, 1, 2, 40)),
        "neighbour": layout.neighbours[rng.randrange(2)][0] + span * rng.randrange(1000),
        "host": layout.host[rng.choice(sorted(layout.host))],
        "null": span * rng.choice((0, 0, 1, 100)),
        "minus": 2**64 - span,
        "far": layout.base + rng.choice((-1, 1)) * (1 << rng.randrange(24, 43)),
    }[side] & (2**64 - 1)  # fmt: skip


def _run(world: World, one: Written, kernel: gc.Kernel, launch: Launch, *, legal: bool) -> Outcome:
    layout = world.layout
    reset(world, layout)
    before = world.file.read()
    error = kernel.submit(launch.grid, launch.block, launch.args).exception(TIMEOUT_S)
    after = world.file.read()
    problems: list[str] = []
    out = layout.out - layout.base
    if legal:
        if error is not None:
            return Outcome(type(error).__name__, (f"a legal access was refused: {error}",))
        for gid in range(64):
            if after[out + 8 * gid : out + 8 * gid + 8] == b"\xee" * 8:
                problems.append(f"thread {gid} did not end")
        return Outcome("ran", tuple(problems))
    if error is None:
        problems.append("the job did not fail")
    elif not isinstance(error, gc.IllegalAddress):
        problems.append(f"{type(error).__name__} instead of IllegalAddress: {error}")
    else:
        problems += _report_problems(world, one, launch, error)
    for block, thread in launch.bad:
        at = out + 8 * (block * THREADS + thread)
        if one.make is _tile or one.make is _rows:
            at = out + 8 * thread
        if after[at : at + 8] != b"\xee" * 8:
            problems.append(f"thread {thread} of block {block} went on after its bad access")
            break
    expected = bytearray(before)
    for name in ("good", "out", "table", "edge"):
        start = world.arrays[name].ptr - layout.base
        expected[start : start + world.arrays[name].nbytes] = after[
            start : start + world.arrays[name].nbytes
        ]
    expected[:8192] = after[:8192]
    expected[-8192:] = after[-8192:]
    problems += differences(expected, after, layout)
    kind = "refused" if isinstance(error, gc.IllegalAddress) else type(error).__name__
    return Outcome(kind, tuple(problems))


def _report_problems(
    world: World, one: Written, launch: Launch, error: gc.IllegalAddress
) -> list[str]:
    problems = []
    where = _place(launch, error)
    addresses: tuple[int, ...] = launch.bad.get(where, ()) if where is not None else ()
    if not addresses:
        problems.append(f"task block {error.task_block}, thread {error.thread} did not miss")
    elif error.address not in addresses:
        problems.append(f"address {error.address:#x} is not {addresses[0]:#x}")
    words = (error.instruction or "").split()
    if not any(re.fullmatch(one.opcode, word) for word in words):
        problems.append(f"instruction {error.instruction!r} is no {one.opcode}")
    if error.kernel != one.name:
        problems.append(f"kernel {error.kernel!r} is not {one.name!r}")
    lines = SOURCE.splitlines()
    if error.file_line is None or "//@" not in lines[error.file_line - 1]:
        problems.append(f"source line {error.file_line} of {error.file} has no access")
    return problems + array_problems(world, error, error.address)


def _place(launch: Launch, error: gc.IllegalAddress) -> tuple[int, int] | None:
    if error.task_block is None or error.thread is None:
        return None
    x, y, z = error.thread
    return error.task_block[0], (z * launch.block[1] + y) * launch.block[0] + x
