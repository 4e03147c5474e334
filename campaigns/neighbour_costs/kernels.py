"""Kernels that cost most for their size: each takes long, or has others wait for it."""

from __future__ import annotations

GATE = r"""
extern "C" __global__ void waits(volatile int* gate, int* done) {
    if (threadIdx.x == 0) {
        atomicAdd((int*)gate + 1, 1);
        while (!gate[0]) {}
        atomicAdd(done, 1);
    }
}
"""
PRINTS = f'extern "C" __global__ void k(int* p) {{ printf("{"%.0d" * 16000}", 0); }}'
PRINTS_OFTEN = 'extern "C" __global__ void k(int* p) { %s }' % ('printf("%.0d%%", p[0]);' * 300)
SHORT_LOOPS = (
    'extern "C" __global__ void k(int* p) { unsigned x = p[threadIdx.x];'
    + "\n#pragma unroll 1\nfor (int i = 0; i < 1000; i++) x = x * 1664525u + (x >> 3) + i;" * 100
    + "p[threadIdx.x] = x; }"
)
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
BULK_LOOPS = (
    f"""{HEAD}
.visible .entry k(.param .u64 p)
{{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  .shared .align 16 .b8 to[32768];
  .shared .align 8 .b64 arrived;
  ld.param.u64 %rd1, [p];
"""
    + "".join(
        f"""
  mov.u32 %r1, 0;
L{number}:
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [%rd1], 32768, [arrived];
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, 1000;
  @%p1 bra L{number};
"""
        for number in range(40)
    )
    + "  ret;\n}\n"
)
CALLS = (
    HEAD
    + ".visible .global .align 4 .u32 sum;\n"
    + ".func f0() { .reg .b32 %r<2>; ld.volatile.global.u32 %r1, [sum]; ret; }\n"
    + "".join(f".func f{n}() {{ call f{n - 1}; call f{n - 1}; ret; }}\n" for n in range(1, 45))
    + ".visible .entry k(.param .u64 p) { call f44; ret; }\n"
)
COSTLY = {
    "prints": PRINTS,
    "prints often": PRINTS_OFTEN,
    "short loops": SHORT_LOOPS,
    "bulk loops": BULK_LOOPS,
    "calls": CALLS,
}

SHARED_NAMES = (
    HEAD
    + "".join(f".extern .shared .align 4 .b8 name{n}[];\n" for n in range(3000))
    + ".visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; .reg .b32 %r<2>;\n"
    + "mov.u64 %rd1, name2999; st.shared.u32 [name2999+1048576], %r1;\n"
    + "st.shared.u32 [name2998], 1;\n" * 3000
    + "ret; }\n"
)
"""It fails in shared memory: the daemon once searched it for each of its names."""
