"""Which instructions real programs use: what the suite must cover.

Counted over 107 compute kernels from five public benchmark suites and NVIDIA's samples (NVRTC
13.0, for compute_75 and compute_90), 17 programs compiled by Numba-CUDA and 11 by Triton 3.6:
every opcode that at least one of the files uses. ``FULL`` is as the compilers print them; in
``WITHOUT_TYPES`` the type suffixes are left out, which says more about what must work.

Left out: texture, surface and tensor-core instructions (``tex``, ``sust``, ``wmma``), which the CPU
device refuses.
"""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The words of ``text``."""
    return tuple(text.split())


WITHOUT_TYPES = words("""
mov ret add ld.param bra mul.wide cvta.to.global st.global shl setp.lt ld.global and cvt sub
mad.lo setp.eq setp.ne setp.ge shr mul.lo setp.gt or ld.shared st.shared selp fma.rn mul bra.uni
bar.sync neg cvt.rn xor not div.rn div ld.global.nc max barrier.sync setp.le ld.const
atom.global.add abs rem mad.wide sqrt.rn ld.local min st.local setp.geu ld.global.v4
st.global.v4 bfi cvt.rzi shfl.sync.bfly setp.ltu ld.shared.v2 atom.shared.add cvt.rni
ld.shared.v4 rcp.rn st.param mul.rn ex2.approx.ftz call.uni st.global.v2 add.rn setp.gtu
setp.leu shfl.sync.down bfe brev cvta.global ld.global.nc.v4 rsqrt.approx st.local.v2 cvt.rmi
cvt.sat fma.rm atom.global.cas rcp.approx.ftz atom.global.max atom.global.min bfind.shiftamt
cvta.local div.full ex2.approx ld.global.nc.v2 ld.global.v2 mul.hi popc shfl.sync.up st
st.local.v4 vote.sync.ballot clz div.approx ld.volatile.global copysign cp.async.commit_group
cp.async.wait_group atom.add.release.gpu atom.global.exch atom.global.gpu.acq_rel.add
atom.global.inc atom.global.or atom.global.xor bar.warp.sync call ld.acquire.gpu
ld.volatile.shared lg2.approx match.any.sync membar.gl prmt shfl.sync.idx st.shared.v2
st.shared.v4 st.volatile.global st.volatile.shared trap mad.lo.cc madc.hi setp.neu
cp.async.ca.shared.global redux.sync.add abs.ftz activemask add.cc addc addc.cc atom.add
atom.global.and atom.global.dec atom.global.sys.add atom.global.sys.and atom.global.sys.cas
atom.global.sys.dec atom.global.sys.exch atom.global.sys.inc atom.global.sys.max
atom.global.sys.min atom.global.sys.or atom.global.sys.xor atom.shared.or
cp.async.cg.shared.global cvt.rpi cvta.shared fma.rn.ftz ld ld.global.cs ld.local.v4 ld.v2 lop3
madc.hi.cc madc.lo.cc mbarrier.arrive.shared::cta mbarrier.init.shared mbarrier.try_wait.shared
nanosleep shf.l.wrap sqrt.approx.ftz st.global.cs sub.cc subc subc.cc vabsdiff2.add vabsdiff4
vabsdiff4.add vote.sync.all vote.sync.any add.rz fma.rz shf.r.clamp max.relu min.relu
redux.sync.max
""")

FULL = words("""
mov.u32 ret add.s64 bra cvta.to.global.u64 ld.param.u64 add.s32 mul.wide.s32 ld.param.u32
mad.lo.s32 mov.u64 shl.b32 and.b32 shl.b64 setp.lt.s32 setp.ne.s32 sub.s32 cvt.s64.s32
mul.lo.s32 setp.eq.s32 st.global.f32 setp.lt.u32 shr.u32 ld.global.f32 setp.ge.s32 fma.rn.f32
mul.f32 add.f32 bra.uni bar.sync cvt.u64.u32 mul.wide.u32 mov.f32 setp.gt.s32 cvt.u32.u64
sub.f32 st.global.u32 or.b32 ld.global.u32 shr.s32 selp.b32 or.pred and.b64 ld.shared.f32
mov.b32 st.shared.f32 st.shared.u32 setp.ge.u32 and.pred ld.shared.u32 neg.s32 div.rn.f32
shr.s64 barrier.sync ld.param.f32 selp.f32 shr.u64 setp.eq.s64 cvt.rn.f32.s32 setp.gt.u32
xor.b32 div.u32 mul.lo.s64 ld.param.b32 add.f64 sub.s64 setp.ge.s64 mov.u16 max.s32 not.b32
setp.eq.b32 setp.ne.s64 ld.param.b64 neg.f32 not.pred setp.gt.f32 add.u64 mul.f64 setp.eq.s16
atom.global.add.u32 ld.global.u64 cvt.rn.f32.f64 st.global.u64 setp.eq.f32 setp.lt.f32 mov.f64
selp.b64 setp.lt.s64 ld.global.nc.u32 fma.rn.f64 cvt.f64.f32 setp.geu.f32 xor.pred cvt.u16.u32
cvt.u32.u16 ld.const.f32 abs.f32 shfl.sync.bfly.b32 or.b64 setp.le.s32 cvt.rn.f32.u32 mov.pred
st.global.u8 st.local.u32 neg.s64 ld.global.b32 and.b16 ld.global.nc.f32 mad.wide.s32 selp.u32
sqrt.rn.f32 st.global.b32 atom.shared.add.u32 bfi.b64 cvt.rzi.s32.f32 ld.shared.f64 mov.b64
rem.u32 setp.lt.u64 setp.ltu.f32 st.global.f64 sub.f64 setp.gt.s64 div.s32 ld.global.s32
ld.shared.b32 setp.gt.s16 setp.le.u32 st.shared.b32 st.shared.u64 st.shared.f64
ex2.approx.ftz.f32 ld.global.f64 cvt.rn.f64.s64 call.uni ld.const.u32 min.s32 rem.s32
setp.ne.s16 st.param.b32 ld.global.u8 ld.local.u32 min.u32 mul.rn.f32 ld.param.f64 setp.gtu.f32
setp.leu.f32 shfl.sync.down.b32 xor.b64 selp.u64 bfe.u32 brev.b32 cvt.u16.u64 cvta.global.u64
ld.global.nc.u8 ld.global.v4.u32 max.f32 rcp.rn.f32 rsqrt.approx.f32 st.param.b64
cvt.rmi.f32.f32 cvt.rni.s32.f32 cvt.sat.f32.f32 fma.rm.f32 selp.f64 setp.ge.f32 div.rn.f64
not.b64 div.s64 max.s64 abs.s32 add.s16 bfind.shiftamt.u32 cvt.u64.u16 cvta.local.u64
div.full.f32 ex2.approx.f32 ld.global.nc.v4.f32 ld.global.v4.u8 ld.shared.u8 ld.shared.v2.b32
ld.shared.v2.f32 ld.shared.v4.b32 mad.wide.u32 selp.b16 setp.ge.u64 shfl.sync.up.b32 shl.b16
st.global.v4.f32 st.global.v4.u32 st.global.v4.u8 st.local.u64 st.local.v2.u32
vote.sync.ballot.b32 add.rn.f64 div.approx.f32 neg.f64 setp.gt.f64 sqrt.rn.f64
atom.global.cas.b32 cp.async.commit_group cp.async.wait_group cvt.rni.f32.f32 selp.s64
atom.add.release.gpu.u32 atom.global.exch.b32 atom.global.inc.u32 atom.global.max.s32
atom.global.min.s32 atom.global.or.b32 atom.global.xor.b32 bar.warp.sync bfi.b32 call clz.b64
cvt.f32.f16 cvt.rn.f16.f32 cvt.rn.f64.s32 cvt.rzi.u32.f32 div.u16 ld.acquire.gpu.u32
ld.global.nc.u64 ld.global.nc.v2.f64 ld.global.nc.v4.u32 ld.global.v4.f32 ld.local.s8
ld.local.u8 ld.param.u8 ld.shared.u64 ld.shared.v4.f32 ld.volatile.global.u32 lg2.approx.f32
membar.gl mul.hi.s32 mul.hi.u32 mul.wide.u16 popc.b32 prmt.b32 rcp.rn.f64 selp.u16 setp.gt.u64
setp.le.u64 setp.lt.s16 setp.ne.b32 shfl.sync.idx.b32 shr.u16 st.f32 st.global.v2.f32
st.local.u8 st.param.f32 st.shared.u8 st.shared.v2.f32 st.u32 st.volatile.global.u32 trap
xor.b16 abs.f64 add.rn.f32 atom.global.add.f32 copysign.f32 cvt.rzi.f32.f32 cvt.s32.s16
mad.lo.cc.u32 madc.hi.u32 rcp.approx.ftz.f32 rcp.approx.ftz.f64 setp.ge.f64 setp.le.s64
setp.ltu.f64 setp.neu.f32 cp.async.ca.shared.global rem.s64 redux.sync.add.s32 neg.s16
abs.ftz.f32 activemask.b32 add.cc.u32 add.f16x2 add.u32 addc.cc.u32 addc.u32 atom.add.u32
atom.global.and.b32 atom.global.cas.b64 atom.global.dec.u32 atom.global.gpu.acq_rel.add.f32
atom.global.gpu.acq_rel.add.u32 atom.global.max.u32 atom.global.min.u32 atom.global.sys.add.u32
atom.global.sys.and.b32 atom.global.sys.cas.b32 atom.global.sys.dec.u32 atom.global.sys.exch.b32
atom.global.sys.inc.u32 atom.global.sys.max.s32 atom.global.sys.min.s32 atom.global.sys.or.b32
atom.global.sys.xor.b32 atom.shared.add.f64 atom.shared.or.b32 cp.async.cg.shared.global
cvt.rn.f32.s16 cvt.rn.f32.u16 cvt.rni.s32.f64 cvt.rpi.f32.f32 cvt.rzi.s32.f64 cvt.s16.s8
cvt.s32.s8 cvt.s64.s8 cvta.shared.u64 div.u64 fma.rn.f16x2 fma.rn.ftz.f32 ld.const.f64
ld.const.u64 ld.const.u8 ld.f32 ld.global.b16 ld.global.cs.f32 ld.global.nc.f64 ld.global.nc.s32
ld.global.nc.u16 ld.global.nc.v2.f32 ld.global.nc.v4.u8 ld.global.v2.f32 ld.global.v2.f64
ld.global.v2.u32 ld.global.v4.b32 ld.global.v4.u16 ld.local.u64 ld.local.v4.u8 ld.param.s8
ld.shared.s32 ld.shared.v2.f64 ld.shared.v2.u64 ld.shared.v4.u8 ld.u32 ld.u64 ld.v2.u32
ld.volatile.shared.f32 ld.volatile.shared.u32 lop3.b32 madc.hi.cc.u32 madc.lo.cc.u32
match.any.sync.b32 match.any.sync.b64 max.u32 mbarrier.arrive.shared::cta.b64
mbarrier.init.shared.b64 mbarrier.try_wait.shared.b64 mul.lo.s16 mul.lo.u32 mul.rn.f64
nanosleep.u32 or.b16 popc.b64 rsqrt.approx.f64 setp.eq.f64 setp.gt.u16 setp.lt.f64
shf.l.wrap.b32 shr.b64 shr.s16 sqrt.approx.ftz.f32 st.global.b16 st.global.cs.f32
st.global.v2.f64 st.global.v2.u32 st.global.v2.u8 st.global.v4.b32 st.local.v2.u8
st.local.v4.u16 st.local.v4.u32 st.local.v4.u8 st.param.f64 st.shared.v4.u32 st.shared.v4.u8
st.u64 st.volatile.shared.f32 st.volatile.shared.u32 sub.cc.u32 sub.s16 sub.u32 subc.cc.u32
subc.u32 vabsdiff2.u32.u32.u32.add vabsdiff4.u32.u32.u32 vabsdiff4.u32.u32.u32.add
vote.sync.all.pred vote.sync.any.pred add.rz.f32 atom.global.add.f64 clz.b32 copysign.f64
fma.rz.f32 ld.local.f32 ld.volatile.global.f32 min.s64 shf.r.clamp.b32 st.local.f32 add.s16x2
add.u16x2 max.s16x2 max.s16x2.relu max.s32.relu max.u16x2 min.s16x2 min.s16x2.relu min.s32.relu
min.u16x2 redux.sync.max.s32 selp.s32 setp.eq.u16
""")

SPECIAL_REGISTERS = words("""
%tid.x %ctaid.x %ntid.x %tid.y %ctaid.y %nctaid.x %ntid.y %tid.z %ntid.z %ctaid.z %nctaid.y
%laneid %nctaid.z %envreg1 %envreg2 %clock64 %globaltimer %lanemask_lt %dynamic_smem_size
""")
