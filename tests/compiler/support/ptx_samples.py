"""PTX programs by hand: every construct of the grammar, and the shapes of Numba and Triton.

``EVERYTHING`` and the compiler-shaped samples assemble with ptxas; ``PRESERVED`` holds what is
well formed but belongs to no program that could be assembled here.
"""

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

NUMBA = r"""
//
// Generated by NVIDIA NVVM Compiler
//
.version 8.0
.target sm_75
.address_size 64

	// .globl	_ZN6cudapy8__main__5saxpyB2v1B94cw51cXTLSUwv1sDUaKthrkdxgE5ArrayIfLi1E1C7mutable7alignedE5ArrayIfLi1E1C7mutable7alignedEf
.common .global .align 8 .u64 _ZN08NumbaEnv8__main__5saxpyB2v1B94cw51cXTLSUwv1sDUaKthrkdxgE5ArrayIfLi1E1C7mutable7alignedE5ArrayIfLi1E1C7mutable7alignedEf;

.visible .entry _ZN6cudapy8__main__5saxpyB2v1B94cw51cXTLSUwv1sDUaKthrkdxgE5ArrayIfLi1E1C7mutable7alignedE5ArrayIfLi1E1C7mutable7alignedEf(
	.param .u64 saxpy_param_0,
	.param .u64 saxpy_param_1,
	.param .u64 saxpy_param_2,
	.param .u64 saxpy_param_3,
	.param .u64 saxpy_param_4,
	.param .u64 saxpy_param_5,
	.param .u64 saxpy_param_6,
	.param .f32 saxpy_param_7
)
{
	.reg .pred 	%p<2>;
	.reg .f32 	%f<5>;
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<12>;


	ld.param.u64 	%rd1, [saxpy_param_4];
	ld.param.u64 	%rd2, [saxpy_param_5];
	ld.param.f32 	%f1, [saxpy_param_7];
	mov.u32 	%r1, %tid.x;
	cvt.s64.s32 	%rd3, %r1;
	setp.ge.s64 	%p1, %rd3, %rd2;
	@%p1 bra 	$L__BB0_2;

	cvta.to.global.u64 	%rd4, %rd1;
	shr.s64 	%rd5, %rd3, 63;
	and.b64  	%rd6, %rd5, %rd2;
	add.s64 	%rd7, %rd6, %rd3;
	shl.b64 	%rd8, %rd7, 2;
	add.s64 	%rd9, %rd4, %rd8;
	ld.global.f32 	%f2, [%rd9];
	fma.rn.f32 	%f3, %f2, %f1, 0f3F800000;
	st.global.f32 	[%rd9], %f3;

$L__BB0_2:
	ret;

}
"""

TRITON = r"""
//
// Generated by LLVM NVPTX Back-End
//

.version 8.0
.target sm_90a
.address_size 64

	// .globl	add_kernel              // -- Begin function add_kernel
.extern .shared .align 16 .b8 global_smem[];
                                        // @add_kernel
.visible .entry add_kernel(
	.param .u64 .ptr .global .align 1 add_kernel_param_0,
	.param .u64 .ptr .global .align 1 add_kernel_param_1,
	.param .u32 add_kernel_param_2,
	.param .u64 .ptr .global .align 1 add_kernel_param_3,
	.param .u64 .ptr .global .align 1 add_kernel_param_4
)
.reqntid 128
{
	.reg .pred 	%p<4>;
	.reg .b32 	%r<20>;
	.reg .b64 	%rd<8>;
	.loc	1 10 0                          // add.py:10:0
$L__func_begin0:
	.loc	1 10 0                          // add.py:10:0

// %bb.0:
	ld.param.u64 	%rd3, [add_kernel_param_0];
	ld.param.u64 	%rd4, [add_kernel_param_1];
	ld.param.u32 	%r9, [add_kernel_param_2];
$L__tmp0:
	.loc	1 14 24                         // add.py:14:24
	// begin inline asm
	mov.u32 %r1, %ctaid.x;
	// end inline asm
	mov.u32 	%r10, %tid.x;
	shl.b32 	%r11, %r10, 2;
	and.b32  	%r12, %r11, 508;
	or.b32  	%r13, %r12, %r1;
	setp.lt.s32 	%p1, %r13, %r9;
	mul.wide.s32 	%rd5, %r13, 4;
	add.s64 	%rd1, %rd3, %rd5;
	add.s64 	%rd2, %rd4, %rd5;
	// begin inline asm
	mov.u32 %r2, 0x0;
	mov.u32 %r3, 0x0;
	mov.u32 %r4, 0x0;
	mov.u32 %r5, 0x0;
	@%p1 ld.global.v4.b32 { %r2, %r3, %r4, %r5 }, [ %rd1 + 0 ];
	// end inline asm
	// begin inline asm
	@%p1 st.global.v4.b32 [ %rd2 + 0 ], { %r2, %r3, %r4, %r5 };
	// end inline asm
	mov.u32 	%r14, global_smem;
	shfl.sync.bfly.b32 	%r15, %r2, 16, 31, -1;
	{
	.reg .b32 %dummy;
	mov.b64 {%dummy, %r16}, %rd1;
	}
	.loc	1 21 4                          // add.py:21:4
	ret;
$L__tmp1:
$L__func_end0:
                                        // -- End function
}
	.file	1 "/tmp/add.py"
	.section	.debug_abbrev
	{
.b8 1                                   // Abbreviation Code
.b8 17                                  // DW_TAG_compile_unit
.b8 0                                   // a brace in a comment: }
.b8 0                                   // EOM(3)
	}
	.section	.debug_info
	{
.b32 16                                 // Length of Unit
.b8 2                                   // DWARF version number
.b8 0
.b32 .debug_abbrev                      // Offset Into Abbrev. Section
.b8 8                                   // Address Size (in bytes)
.b64 $L__func_begin0                    // DW_AT_low_pc
	}
	.section	.debug_macinfo	{	}
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
