"""PTX programs by hand: every construct of the grammar; the shapes of Numba and Triton.

``EVERYTHING`` and the compiler-shaped samples assemble with ptxas; ``PRESERVED`` holds what is
well formed but belongs to no program that could be assembled here.
"""

from tests.conformance.suite.frontends import NUMBA, TRITON

EVERYTHING = r"""
// a comment before the header
/* and a block
   comment */
.version 8.0
.target sm_90
.address_size 64
.file	1 "kernel.cu"
.file	2 "include/with space.h", 1600000000, 1234

.extern .func (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0,
	.param .b64 vprintf_param_1
)
;
.func helper_noreturn () .noreturn;
.visible .global .align 4 .u32 counter = 5;
.const .align 4 .b8 coef[16] = {0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64};
.global .align 8 .u64 pointer = generic(counter);
.global .align 8 .u64 pointers[3] = {generic(counter)+4, counter, 0};
.global .align 8 .u64 plain_offset = counter+8;
.global .align 1 .u8 bytes[8] = {0xFF(generic(counter)), 0xFF00(generic(counter)),
    0xFF0000(generic(counter)), 0xFF000000(generic(counter)), 1, 2, 3, 4};
.global .f32 floats[3] = {0f3F800000, 1.5, -2.5e3};
.global .f64 doubles[2] = {0d3FF0000000000000, 0.5};
.global .align 8 .u32 matrix[2][3] = {{1, 0x2, 03}, {0b100, 5U, -6}};
.weak .global .align 4 .b32 weak_one;
.common .global .align 4 .b32 _ZN08NumbaEnv8__main__;
.extern .shared .align 16 .b8 smem[];
.shared .align 4 .v2 .f32 pairs[4];
.global .b32 first, second[2], third = 7;
.global .b32 set<3>;

.func (.param .b32 func_retval0) twice(
	.param .b32 twice_param_0
)
{
	.reg .b32 	%r<3>;
	ld.param.u32 	%r1, [twice_param_0];
	shl.b32 	%r2, %r1, 1;
	st.param.b32 	[func_retval0+0], %r2;
	ret;
}
.visible .func plain() { ret; }
.visible .func alias_of_plain();
.alias alias_of_plain, plain;
.func (.reg .b32 result) by_register (.reg .b32 x, .reg .b32 %y)
{
	add.s32 result, x, %y;
	ret;
}
.func helper_noreturn () .noreturn { trap; exit; }

.weak .entry template_entry(.param .u64 p)
.maxntid 256, 1, 1
.minnctapersm 2
.maxnreg 64
{
	ret;
}
.entry nothing { ret; }

.visible .entry everything(
	.param .align 8 .b8 everything_param_0[24],
	.param .u64 .ptr .global .align 16 everything_param_1,
	.param .u64 .ptr everything_param_2,
	.param .u32 everything_param_3
)
.reqntid 128
.pragma "nounroll";
{
	.local .align 16 .b8 	__local_depot0[48];
	.reg .b64 	%SP, %SPL;
	.reg .pred 	%p<8>;
	.reg .b16 %rs<5>; .reg .f32 %f<20>;	.reg .f64 %fd<4>;
	.reg .b32 	%r<30>;
	.reg .b64 	%rd<20>;
	.reg .v4 .f32 %v;
	.reg .pred bare, other;
	.shared .align 4 .b8 tile[128];

	.loc	1 12 3
	.loc	1 20 5
	mov.u64 	%SPL, __local_depot0;
	cvta.local.u64 	%SP, %SPL;
	.loc	1 13 3, function_name $L__info_string0, inlined_at 1 20 5
	ld.param.u64 	%rd1, [everything_param_1];
	ld.param.f64 %fd1, [everything_param_0+8];
	mov.u32 	%r1, %tid.x; mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %laneid; // two statements, and a comment
	setp.ge.s32 	%p1, %r1, -5;
	setp.lt.and.s32 %p2|%p3, %r1, 0x10, !%p1;
	setp.eq.s32 bare, %r1, 0;
	not.pred other, bare;
@%p1 bra $L__BB0_1;
	@!%p2 bra.uni $L__BB0_1;
	@bare st.global.u32 [%rd1+-4], 0x7fffffff;
	@! other mov.b32 %r4,%r1;
	mov.b64 {%r5, %r6}, %rd1;
	mov.b64 %rd2, {%r5,%r6};
	ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1 + 16];
	ld.global.v4.f32 %v, [%rd1];
	add.f32 %f5, %v.x, %v.y;
	fma.rn.f32 %f6, %f5, 0f3F800000, 1.5;
	add.f64 %fd2, %fd1, 0dBFF0000000000000;
	mov.u64 %rd3, matrix+8;
	mov.u64 %rd4, smem;
	ld.shared.u32 %r7, [tile+4];
	ld.volatile.global.u32 %r8, [counter];
	ld.global.L1::evict_last.u32 %r8, [counter];
	st.shared.u8 [smem], %rs1;
	shfl.sync.down.b32 	%r9|%p4, %r8, 16, 31, -1;
	setp.eq.or.s32 _|%p4, %r8, 1, %p1;
	mov.b64 {_, %r10}, %rd2;
	atom.global.add.u32 	%r11, [%rd1], 1;
	vadd.s32.s32.s32 %r12, %r1.b0, %r2.h1;
	bar.sync 	0;
	barrier.sync 0, 128;
	barrier.red.or.pred %p5, 1, !%p4;
	.pragma "nounroll";
$L__BB0_1: // a label with a comment
	{ // callseq 0, 0
	.reg .b32 temp_param_reg;
	.param .b64 param0;
	st.param.b64 	[param0+0], %rd1;
	.param .b64 param1;
	st.param.b64 	[param1+0], %rd2;
	.param .b32 retval0;
	call.uni (retval0), 
	vprintf, 
	(
	param0, 
	param1
	);
	ld.param.b32 	%r13, [retval0+0];
	} // callseq 0
	{
	.param .b32 param0;
	st.param.b32 [param0+0], %r13;
	.param .b32 retval0;
	prototype_1 : .callprototype (.param .b32 _) _ (.param .b32 _);
	call (retval0), 
	%rd3, 
	(
	param0
	)
	, prototype_1;
	targets_1: .calltargets twice;
	call (retval0), %rd3, (param0), targets_1;
	}
	call (%r14), by_register, (%r1, 5);
	call.uni helper_noreturn, ();
	call helper_noreturn;
	{ .reg .pred p; .reg .b32 t<2>; setp.ne.b32 p, %r1, 0; @p bra L; mov.b32 t0, 5; L: add.s32 %r15, t0, %r1; }
	{ .reg .pred p; .reg .b32 t<2>; setp.ne.b32 p, %r1, 0; @p bra L; mov.b32 t0, 5; L: add.s32 %r15, t0, %r1; { .reg .b32 t0; mov.u32 t0, 1; } }
$L_brx_0: .branchtargets
	$L__BB0_2,
	$L__BB0_3;
	brx.idx %r1, $L_brx_0;
$L__BB0_2:
	ld.local.u32 %r16, [16];
	/* a comment
	   over lines */ ld.global.u32 %r17, [%rd1+
	8];
$L__BB0_3: ret;
}
	.section	.debug_str
	{
$L__info_string0:
.b8 95,90,0 // a name }
	}
"""

PRESERVED = r"""
.version 9.0
.target sm_100a, texmode_independent, debug
.address_size 64
.visible .global .attribute(.managed) .align 4 .b32 managed_one;
.global .attribute(.unified(19, 95)) .b32 unified_one;
.global .texref a_texture;
.global .samplerref a_sampler = { addr_mode_0 = clamp_to_border, filter_mode = nearest };
.future_directive with, 3 arguments;
.future_block name { .inner 1; { nested } }
@@DWARF .byte 0x01
.visible .func .attribute(.unified(1, 2)) attributed(.param .b32 x) .abi_preserve 8;
.entry clustered(.param .texref t)
.explicitcluster
.reqnctapercluster 2, 1, 1
.maxclusterrank 8
.blocksareclusters
.pragma "one", "two, three";
{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.reg .f32 %f<9>;
	.reg .pred %p<3>;
	.future_statement 5, "text; with semicolon";
	tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f5, %f6}];
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%rd1], [%rd2, {%r1, %r2}], [%rd3];
	wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2}, %rd1, %rd2, %p1, 1, -1, 0, 0;
	vmad.s32.s32.s32 %r1, -%r2.b1, %r3, %r4;
	future.op.modifier::sub %r1, (1 + 2) * 4, WARP_SZ, <5>, %r2.b3;
	@%p1 future.predicated {{%r1, %r2}, {%r3, %r4}};
	proto: .callprototype _ (.param .align 8 .b8 _[16], .param .b64 _) .noreturn .abi_preserve 4;
	ret;
}
"""

SAMPLES = {"everything": EVERYTHING, "numba": NUMBA, "triton": TRITON, "preserved": PRESERVED}
"""All samples by name."""

ASSEMBLED = {"everything": "sm_90", "numba": "sm_75", "triton": "sm_90a"}
"""Those that ptxas takes, with the target to assemble for."""
