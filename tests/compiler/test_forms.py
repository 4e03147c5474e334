"""Which form a kernel gets, and why (gpud.compiler.forms)."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis.block_shape import ShapeRule, holds
from gpud.compiler.forms.classifier import Decision, Form, check_target, classify
from gpud.errors import REJECTIONS, KernelNotFound, KernelRejected
from tests.compiler.support.flat_programs import REGISTERS, compiled, entry, program

INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def cuda(body: str, parameters: str = "int* x, int n", before: str = "") -> Decision:
    source = f'{before}\nextern "C" __global__ void k({parameters}) {{ {INDEX} {body} }}'
    return classify(compiled(source), "k")


def ptx(body: str, **options: str) -> Decision:
    return classify(entry(body, **options), "k")


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.why]


# -- persistent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "if (i < n) x[i] = i;",
        "if (i >= n) return; x[i] = i;",
        "__shared__ int s[64]; s[threadIdx.x] = i; __syncthreads(); x[i] = s[63 - threadIdx.x];",
        "for (int k = 0; k < n; ++k) { x[i] += k; __syncthreads(); }",
        "if (n > 3) { __syncthreads(); x[i] = 1; } else x[i] = 2;",
        "if (x[blockIdx.x] > 3) __syncthreads(); x[i] = 2;",
        "for (int j = i; j < n; j += gridDim.x * blockDim.x) x[j] = 1; __syncthreads();",
        "int v = __shfl_xor_sync(~0u, i, 1); x[i] = v;",
        "if (__syncthreads_or(x[i])) { __syncthreads(); x[i] = 1; }",
        (
            "__shared__ int last; if (threadIdx.x == 0) last = atomicAdd(x, 1) == gridDim.x - 1;"
            "__syncthreads(); if (last) { __syncthreads(); x[i] = 3; }"
        ),
        "unsigned m = __ballot_sync(~0u, i < n); if (i < n) x[i] = __shfl_sync(m, i, 0);",
    ],
)
def test_plain_persistent(body: str) -> None:
    decision = cuda(body)
    assert decision.form is Form.PERSISTENT, decision.why
    assert not decision.exit_aware
    assert decision.shape is ShapeRule.ANY
    assert codes(decision) == ["persistent"]
    assert decision.legal == (Form.PERSISTENT, Form.SLICED, Form.WHOLE)


@pytest.mark.parametrize(
    "body",
    [
        "if (i >= n) return; __syncthreads(); x[i] = 1;",
        "if (i < n) { __syncthreads(); x[i] = 1; }",
        # Threads leave the loop in different rounds and return.
        "for (int k = 0; k < x[i]; ++k) { __syncthreads(); x[i + n] += k; }",
        "while (true) { if (x[i] == 0) return; __syncthreads(); x[i]--; }",
    ],
)
def test_exit_aware(body: str) -> None:
    decision = cuda(body)
    assert decision.form is Form.PERSISTENT, decision.why
    assert decision.exit_aware
    assert decision.barrier == 0
    first = decision.why[0]
    assert first.code == "exit-aware"
    assert first.instruction is not None
    assert "bar" in first.instruction
    assert first.line is not None


def test_a_failed_assertion_is_no_early_exit() -> None:
    before = (
        'extern "C" __device__ __attribute__((noreturn)) void '
        "__assertfail(const char*, const char*, unsigned, const char*, size_t);"
    )
    decision = cuda(
        'if (i >= n) __assertfail("i < n", "f", 1, "k", 1); __syncthreads(); x[i] = 1;',
        before=before,
    )
    assert decision.form is Form.PERSISTENT
    assert not decision.exit_aware


def test_the_loop_gets_the_lowest_free_barrier() -> None:
    assert ptx("ret;").barrier == 0
    assert ptx("bar.sync 0; bar.sync 2; ret;").barrier == 1
    assert ptx("barrier.sync 0; bar.sync 1, 64; ret;").barrier == 2
    # Exit-aware barriers share one number; others keep theirs.
    assert ptx(f"{RETURN_SOME} bar.sync 3; ret;").barrier == 0
    assert ptx(f"bar.sync 0, 64; {RETURN_SOME} bar.sync 3; ret;").barrier == 1
    # A number in a register is followed back to its constant.
    assert ptx("mov.u32 %r1, 0; bar.sync %r1, 64; ret;").barrier == 1


RETURN_SOME = "mov.u32 %r30, %tid.x; setp.gt.u32 %p9, %r30, 5; @%p9 ret;"


def test_barriers_in_functions_count() -> None:
    function = "__device__ __noinline__ void f(int* x) { *x += 1; __syncthreads(); *x += 2; }"
    assert cuda("f(x + i);", before=function).barrier == 1
    aware = cuda("if (i < n) return; f(x + i);", before=function)
    assert aware.exit_aware
    assert aware.why[0].instruction is not None
    assert aware.why[0].instruction.startswith("call")


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("if (threadIdx.x < 32) x[i] = __shfl_down_sync(~0u, i, 1);", ShapeRule.ROWS),
        ("if (threadIdx.x / 32 == 0) x[i] = __shfl_down_sync(~0u, i, 1);", ShapeRule.ROWS),
        ("if (i / 32 < n) x[i] = __shfl_down_sync(~0u, i, 1);", ShapeRule.ROWS | ShapeRule.WHOLE),
        (
            (
                "int r = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;"
                "if (r < 32) x[i] = __shfl_down_sync(~0u, i, 1);"
            ),
            ShapeRule.ANY,
        ),
    ],
)
def test_whole_warps_may_leave_before_a_collective(body: str, shape: ShapeRule) -> None:
    decision = cuda(body)
    assert decision.form is Form.PERSISTENT, decision.why
    assert decision.shape == shape
    assert ("block-shape" in codes(decision)) is (shape is not ShapeRule.ANY)
    assert holds(decision.shape, (64, 2, 1))
    assert holds(decision.shape, (48, 2, 1)) is (shape is ShapeRule.ANY)
    assert holds(decision.shape, (48, 1, 1)) is not bool(shape & ShapeRule.WHOLE)


# -- sliced ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "if (i >= n) return; x[i] = __shfl_xor_sync(~0u, i, 1);",
        "if (i < n) x[i] = __shfl_xor_sync(~0u, i, 1);",
        "if (i < n) x[i] = __popc(__activemask());",
        "if (threadIdx.x < 20) x[i] = __any_sync(~0u, i);",
        "if (i < n) { __syncwarp(); x[i] = 1; }",
        "for (int j = i; j < n; j += blockDim.x) x[j] = __shfl_xor_sync(~0u, j, 1);",
    ],
)
def test_lanes_that_leave_before_a_collective(body: str) -> None:
    decision = cuda(body)
    assert decision.form is Form.SLICED
    assert codes(decision)[0] == "collective-after-exit"
    assert decision.why[0].line is not None
    assert "line" in decision.why[0].text
    assert decision.legal == (Form.SLICED, Form.WHOLE)
    assert decision.barrier is None


@pytest.mark.parametrize(
    "barrier", ["bar.sync 1, 64;", "bar.red.popc.u32 %r1, 0, %p1;", "bar.arrive 1, 64;"]
)
def test_other_barriers_that_threads_leave_behind(barrier: str) -> None:
    decision = ptx(f"{RETURN_SOME} {barrier} ret;")
    assert decision.form is Form.SLICED
    assert codes(decision) == ["barrier-after-exit"]
    assert ptx(f"{barrier} ret;").form is Form.PERSISTENT


def test_predicated_barriers_are_their_own_danger() -> None:
    some = "mov.u32 %r30, %tid.x; setp.gt.u32 %p9, %r30, 5;"
    assert ptx(f"{some} @%p9 bar.sync 0; ret;").exit_aware
    all_alike = "mov.u32 %r30, %ctaid.x; setp.gt.u32 %p9, %r30, 5;"
    assert not ptx(f"{all_alike} @%p9 bar.sync 0; ret;").exit_aware


def test_no_free_barrier() -> None:
    every = " ".join(f"bar.sync {n};" for n in range(16))
    assert codes(ptx(f"{every} ret;")) == ["no-free-barrier"]
    unknown = ptx("ld.param.u32 %r1, [n]; bar.sync %r1, 64; ret;")
    assert unknown.form is Form.SLICED
    assert unknown.why[0].instruction == "bar.sync %r1, 64;"


def test_exit_in_a_function() -> None:
    module = program(
        ".func f() { exit; }",
        ".visible .entry k() { call f; ret; }",
    )
    decision = classify(module, "k")
    assert decision.form is Form.SLICED
    assert codes(decision) == ["exit-in-function"]


def test_an_exit_aware_barrier_behind_a_pointer() -> None:
    module = program(
        ".func f() { bar.sync 0; ret; }",
        f""".visible .entry k() {{ .reg .b64 %d<4>; .reg .b32 %r<32>; .reg .pred %p<16>;
            {RETURN_SOME} mov.u64 %d1, f; P: .callprototype _ (); call %d1, (), P; ret; }}""",
    )
    decision = classify(module, "k")
    assert decision.form is Form.SLICED
    assert codes(decision) == ["barrier-behind-pointer"]


def test_full_static_shared_memory() -> None:
    assert ptx(".shared .align 4 .b8 s[49136]; ret;").form is Form.PERSISTENT
    assert codes(ptx(".shared .align 4 .b8 s[49140]; ret;")) == ["shared-memory-full"]


def test_other_reasons_for_slices() -> None:
    assert codes(ptx("setmaxnreg.dec.sync.aligned.u32 40; ret;", target="sm_90a")) == [
        "register-reallocation"
    ]
    assert codes(ptx("alloca.u64 %d1, 16; ret;")) == ["stack-allocation"]


# -- whole -------------------------------------------------------------------------------------


def test_clusters() -> None:
    assert codes(ptx("barrier.cluster.arrive; ret;", target="sm_90")) == ["cluster"]
    assert codes(ptx("mov.u32 %r1, %cluster_ctaid.x; ret;", target="sm_90")) == ["cluster"]
    module = program(".visible .entry k() .reqnctapercluster 2 { ret; }", target="sm_90")
    assert classify(module, "k").form is Form.WHOLE


def test_cooperative_launches() -> None:
    for number in (1, 2):
        decision = ptx(f"mov.u32 %r1, %envreg{number}; ret;")
        assert decision.form is Form.WHOLE
        assert codes(decision) == ["grid-sync"]
        assert decision.legal == (Form.WHOLE,)
    decision = ptx("mov.u32 %r1, %envreg12; ret;")
    assert decision.form is Form.REJECTED
    assert codes(decision) == ["unsupported-instruction"]


def test_full_parameters() -> None:
    def sized(size: int, version: str) -> Form:
        module = program(
            f".visible .entry k(.param .align 4 .b8 p[{size}]) {{ ret; }}", version=version
        )
        return classify(module, "k").form

    assert sized(4096, "7.0") is Form.PERSISTENT
    assert sized(4344, "7.0") is Form.PERSISTENT
    assert sized(4348, "7.0") is Form.WHOLE
    assert sized(4348, "8.1") is Form.PERSISTENT
    assert sized(32752, "9.0") is Form.PERSISTENT
    assert sized(32756, "9.0") is Form.REJECTED
    assert sized(32764, "9.0") is Form.REJECTED


# -- waiting for other blocks ------------------------------------------------------------------

POLL = "volatile int* flag = x;"


def test_waiting_for_another_block() -> None:
    decision = cuda(
        f"{POLL} if (threadIdx.x == 0) while (flag[blockIdx.x] == 0) ; __syncthreads(); x[i] = 1;"
    )
    assert decision.form is Form.PERSISTENT
    assert decision.waits_on_blocks
    assert codes(decision) == ["persistent", "waits-on-blocks"]
    assert decision.why[1].instruction is not None
    assert "volatile" in decision.why[1].instruction


@pytest.mark.parametrize(
    "body",
    [
        "while (atomicAdd(x, 0) < n) ;",
        "while (atomicCAS(x, 0, 1) != 0) ; x[1]++; atomicExch(x, 0);",
        (
            'int v; do { asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(x));'
            "} while (v == 0);"
        ),
    ],
)
def test_other_ways_to_wait(body: str) -> None:
    assert cuda(body).waits_on_blocks


@pytest.mark.parametrize(
    "body",
    [
        "for (int k = 0; k < n; ++k) atomicAdd(x + k, 1);",
        f"{POLL} x[i] = flag[n]; for (int k = 0; k < n; ++k) x[k] = 1;",
        "__shared__ volatile int s; s = 0; while (s < n) s = s + 1; x[i] = 1;",
    ],
)
def test_loops_that_do_not_wait_for_blocks(body: str) -> None:
    assert not cuda(body).waits_on_blocks


def test_a_grid_barrier_by_hand() -> None:
    decision = cuda(
        "__syncthreads(); if (threadIdx.x == 0) { atomicAdd(x, 1);"
        "while (*(volatile int*)x < gridDim.x) ; } __syncthreads(); x[i + 1] = 1;"
    )
    assert decision.form is Form.WHOLE
    assert codes(decision) == ["grid-barrier"]


def test_retries_in_a_grid_stride_loop_are_no_grid_barrier() -> None:
    decision = cuda(
        "for (int j = i; j < n; j += gridDim.x * blockDim.x) {"
        "int old = x[j & 15], seen; do { seen = old; old = atomicCAS(x + (j & 15), seen, seen * 3);"
        "} while (old != seen); }"
    )
    assert codes(decision) == ["persistent"]


# -- rejected ----------------------------------------------------------------------------------


def test_unresolved_externals() -> None:
    module = program(
        ".extern .func elsewhere();", ".visible .entry k() {\n call elsewhere;\n ret; }"
    )
    decision = classify(module, "k")
    assert decision.form is Form.REJECTED
    assert decision.legal == ()
    with pytest.raises(KernelRejected) as caught:
        decision.require()
    assert caught.value.reason == "unresolved-external"
    assert caught.value.instruction == "call elsewhere;"
    assert caught.value.line == 6
    assert "elsewhere" in str(caught.value)


@pytest.mark.parametrize("name", ["vprintf", "malloc", "free", "__assertfail"])
def test_known_externals(name: str) -> None:
    module = program(f".extern .func {name}();", f".visible .entry k() {{ call {name}; ret; }}")
    assert classify(module, "k").form is Form.PERSISTENT


def test_an_unresolved_external_that_is_not_reached_does_not_matter() -> None:
    module = program(
        ".extern .func elsewhere();",
        ".func f() { call elsewhere; ret; }",
        ".visible .entry k() { ret; }",
        ".visible .entry bad() { call f; ret; }",
    )
    assert classify(module, "k").form is Form.PERSISTENT
    assert classify(module, "bad").form is Form.REJECTED


def test_unresolved_variables() -> None:
    module = program(
        ".extern .global .align 4 .u32 elsewhere;",
        f".visible .entry k() {{ {REGISTERS} ld.global.u32 %r1, [elsewhere]; ret; }}",
        ".visible .entry other() { ret; }",
    )
    decision = classify(module, "k")
    assert codes(decision) == ["unresolved-external"]
    assert decision.why[0].instruction == "ld.global.u32 %r1, [elsewhere];"
    assert classify(module, "other").form is Form.PERSISTENT
    dynamic = entry("ld.shared.u32 %r1, [dynamic]; ret;")
    assert classify(dynamic, "k").form is Form.PERSISTENT


def test_textures_and_surfaces() -> None:
    decision = ptx("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f5, %f6}]; ret;")
    assert codes(decision) == ["texture"]
    assert codes(ptx("sust.b.2d.b32.trap [t, {%r1, %r2}], {%r3}; ret;")) == ["texture"]
    parameter = program(".visible .entry k(.param .texref t) { ret; }")
    assert codes(classify(parameter, "k")) == ["texture"]


def test_tensor_cores_are_a_capability_not_a_refusal() -> None:
    decision = ptx("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2}, [%d1], %r3; ret;")
    assert decision.form is Form.PERSISTENT
    assert [reason.code for reason in decision.capabilities] == ["tensor-core"]
    assert ptx("ret;").capabilities == ()


def test_reasons_of_rejections_are_known_to_clients() -> None:
    assert {"unresolved-external", "texture", "target-too-new", "form-not-legal"} <= set(REJECTIONS)


@pytest.mark.parametrize(
    ("target", "sm", "fits"),
    [
        ("sm_75", 75, True), ("sm_75", 90, True), ("sm_90", 75, False), ("sm_90a", 90, True),
        ("sm_90a", 100, False), ("sm_100f", 103, True), ("sm_100f", 120, False),
        ("sm_100", 103, True),
    ],
)  # fmt: skip
def test_targets(target: str, sm: int, fits: bool) -> None:
    module = entry("ret;", target=target)
    if fits:
        check_target(module, sm)
    else:
        with pytest.raises(KernelRejected, match=f"{target}.*sm_{sm}") as caught:
            check_target(module, sm)
        assert caught.value.reason == "target-too-new"


# -- forcing -----------------------------------------------------------------------------------


def test_forced_forms() -> None:
    module = entry("ret;")
    for form in (Form.PERSISTENT, Form.SLICED, Form.WHOLE):
        assert classify(module, "k", force=form).form is form
    with pytest.raises(KernelRejected, match="cannot run in rejected form"):
        classify(module, "k", force=Form.REJECTED)


def test_a_forced_form_that_is_not_legal_is_refused() -> None:
    module = compiled(
        f'extern "C" __global__ void k(int* x, int n) {{ {INDEX} if (i >= n) return;'
        " x[i] = __shfl_xor_sync(~0u, i, 1); }"
    )
    with pytest.raises(KernelRejected, match="persistent form") as caught:
        classify(module, "k", force=Form.PERSISTENT)
    assert caught.value.reason == "form-not-legal"
    assert caught.value.instruction is not None
    assert caught.value.instruction.startswith("shfl.sync")


def test_a_missing_kernel_is_named_with_those_there_are() -> None:
    with pytest.raises(KernelNotFound, match="it defines k"):
        classify(entry("ret;"), "nobody")


def test_equal_modules_give_equal_decisions() -> None:
    texts = f"{RETURN_SOME} bar.sync 0; ret;"
    assert classify(entry(texts), "k") == classify(entry(texts), "k")
