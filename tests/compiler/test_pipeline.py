"""The pipeline: stages, forms, what a program says about its kernels, dumps and failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpud.compiler import pipeline
from gpud.compiler.abi.reserved_names import kernel_of
from gpud.compiler.cache import Cache
from gpud.compiler.forms.form import Form
from gpud.compiler.pipeline import compile_program, compile_request
from gpud.compiler.program import ParameterInfo, Program, SymbolInfo
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.verify import verify
from gpud.compiler.reproducer import main
from gpud.compiler.reproducer_folder import load_request
from gpud.compiler.request import Request
from gpud.compiler.request_key import request_key
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.errors import (
    CompileError,
    EmptySource,
    InternalError,
    KernelNotFound,
    KernelRejected,
    LaunchConfigError,
    PTXSyntaxError,
    PTXVersionError,
)
from tests.compiler.support.cuda_samples import KERNELS, compiled

HEADER = "// made by hand\n.version 8.0\n.target sm_75\n.address_size 64\n"
PLAIN = HEADER + ".visible .entry k(.param .u64 p) { ret; }\n"
MIXED = (
    HEADER
    + """
.extern .func cudaLaunchDevice();
.func helper() { call cudaLaunchDevice; ret; }
.visible .entry good(.param .u64 p) { ret; }
.visible .entry bad() { call helper; ret; }
"""
)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("form", [None, "sliced", "whole"])
def test_every_sample_compiles_in_every_form(name: str, form: str | None) -> None:
    program = compile_program(KERNELS[name], form=form)
    verify(parse(program.ptx))
    for kernel in program.kernels.values():
        assert kernel.form == (form or "persistent")
        assert kernel.why
        for killable in (False, True):
            entry = parse(program.ptx).entries()[kernel.entry_for((32, 1, 1), killable=killable)]
            assert len(entry.parameters) == len(kernel.parameters) + 1
    if find_ptxas() is not None:
        assert {kernel_of(name) for name in assemble(program.ptx, "sm_75")} == set(program.kernels)


def test_a_block_shape_that_cannot_loop_has_a_sliced_variant_in_the_same_module() -> None:
    program = compile_program(
        'extern "C" __global__ void k(int* x) {'
        " if (threadIdx.x < 32) x[threadIdx.x] = __shfl_down_sync(~0u, threadIdx.x, 1); }"
    )
    kernel = Program.decode(program.encode()).kernel("k")
    assert kernel.form is Form.PERSISTENT
    assert kernel.entry_for((64, 2, 1)) == "k"
    assert kernel.form_for((48, 2, 1)) is Form.SLICED
    variant = kernel.entry_for((48, 2, 1))
    assert variant == kernel.sliced_entry != "k"
    assert "k" in program.kernels
    assert variant not in program.kernels
    verify(parse(program.ptx))
    body = program.ptx.partition(f".entry {variant}(")[2].partition("\n}")[0]
    assert "shfl" in body
    assert "atom" not in body  # it claims nothing


def test_a_kernel_that_loops_in_every_shape_has_no_sliced_variant() -> None:
    (kernel,) = compile_program(KERNELS["saxpy"]).kernels.values()
    assert kernel.sliced_entry is None
    assert kernel.entry_for((48, 2, 1)) == kernel.entry


def test_the_original_is_nvrtcs_own() -> None:
    assert compile_program(KERNELS["saxpy"]).original_ptx == compiled("saxpy", "compute_75")


def test_source_that_starts_like_ptx_is_taken_as_ptx() -> None:
    program = compile_program(PLAIN)
    assert program.original_ptx == PLAIN
    assert list(program.kernels) == ["k"]


def test_kernels_whose_blocks_meet_are_cooperative() -> None:
    grid, cluster = "mov.u32 %r1, %envreg1;", "barrier.cluster.arrive;"
    bodies = {"grid": grid, "cluster": cluster, "both": cluster + grid, "none": ""}
    text = "".join(
        f".visible .entry {name}() {{ .reg .b32 %r<2>; {body} ret; }}\n"
        for name, body in bodies.items()
    )
    program = compile_program(f".version 8.0\n.target sm_90\n.address_size 64\n{text}")
    cooperative = [name for name in bodies if program.kernel(name).cooperative]
    assert cooperative == ["grid", "both"]


def test_name_expressions() -> None:
    source = "template <class T> __global__ void axpy(T* x) { x[0] += 1; }"
    program = compile_program(source, name_expressions=["axpy<float>", "axpy<int*>"])
    kernel = program.kernel("axpy<float>")
    assert kernel.name == "axpy<float>"
    assert kernel.entry == program.lowered_names["axpy<float>"] == "_Z4axpyIfEvPT_"
    assert program.kernel(kernel.entry) is kernel
    with pytest.raises(KernelNotFound, match="axpy<double>") as caught:
        program.kernel("axpy<double>")
    assert caught.value.available == ("axpy<float>", "axpy<int*>")
    with pytest.raises(KernelNotFound, match="nowhere"):
        compile_program(source, name_expressions=["axpy<float>", "nowhere"])


MANY = "#include <assert.h>\n" + "".join(
    f"""__device__ __noinline__ int twice{n}(int x) {{ return 2 * x; }}
extern "C" __global__ void k{n}(int* x, int n) {{
    assert(n < {n} && "k{n}");
    if (threadIdx.x < n) x[threadIdx.x] = twice{n}(x[threadIdx.x]);
}}
"""
    for n in range(30)
)


def test_what_a_file_of_many_kernels_becomes() -> None:
    """One of them alone if only that is wanted; and of all no more for each than of few."""
    whole = compile_program(MANY)
    assert len(whole.ptx) < 15 * len(whole.original_ptx)
    one = compile_program(MANY, name_expressions=["k7"], only=True)
    assert list(one.kernels) == ["k7"]
    assert one.original_ptx == whole.original_ptx
    assert one.kernel("k7").entry == "k7"
    functions = [name for name in ("twice7", "twice8", "k8(") if name in one.ptx]
    assert functions == ["twice7"]
    assert len(one.ptx) < len(whole.ptx) / 10
    with pytest.raises(KernelNotFound, match="it defines k0, k1"):
        compile_program(MANY, name_expressions=["k30"], only=True)


def test_what_a_program_says_about_a_kernel() -> None:
    source = """
    struct Pair { int a; double b; };
    __constant__ float coefficients[5];
    __device__ int counter;
    extern "C" __global__ void __launch_bounds__(96)
    k(Pair pair, bool flag, const float* x, short s, double d) {
        __shared__ float tile[8];
        tile[threadIdx.x & 7] = x[0];
        __syncthreads();
        counter = pair.a + flag + s + d + coefficients[threadIdx.x] + tile[3];
    }"""
    program = compile_program(source)
    kernel = program.kernel("k")
    assert [(p.kind, p.size, p.offset) for p in kernel.parameters] == [
        ("struct", 16, 0),
        ("uint", 1, 16),
        ("uint", 8, 24),
        ("uint", 2, 32),
        ("float", 8, 40),
    ]
    assert kernel.max_block == (96, 1, 1)
    assert kernel.max_threads == 96
    kernel.check_block((8, 4, 3))
    with pytest.raises(LaunchConfigError, match="97 threads are more than the 96"):
        kernel.check_block((97, 1, 1))
    assert kernel.required_block is None
    assert kernel.shared_bytes == 32
    assert program.symbols == {
        "coefficients": SymbolInfo("coefficients", "const", 20, 4),
        "counter": SymbolInfo("counter", "global", 4, 4),
    }


def test_what_ptx_says_about_a_kernel() -> None:
    text = HEADER + (
        ".entry k(.param .u64 .ptr .global .align 16 p, .param .align 8 .b8 s[20], .param .b32 x)\n"
        ".reqntid 16, 8\n{ ret; }\n"
    )
    kernel = compile_program(text).kernel("k")
    assert kernel.parameters == (
        ParameterInfo("p", "pointer", 8, 8, 0),
        ParameterInfo("s", "struct", 20, 8, 8),
        ParameterInfo("x", "bits", 4, 4, 28),
    )
    assert kernel.required_block == (16, 8, 1)
    assert kernel.max_threads == 128
    kernel.check_block((16, 8, 1))
    with pytest.raises(LaunchConfigError, match=r"blocks of \(16, 8, 1\) only"):
        kernel.check_block((128, 1, 1))


def test_a_rejected_kernel_does_not_keep_the_others_from_running() -> None:
    program = compile_program(MIXED)
    assert program.kernel("good").form is Form.PERSISTENT
    assert program.kernels["bad"].form is Form.REJECTED
    with pytest.raises(KernelRejected) as caught:
        program.kernel("bad")
    assert caught.value.reason == "unresolved-external"
    assert caught.value.line == 7
    names = [function.name for function in parse(program.ptx).functions()]
    assert "good" in names
    assert "bad" not in names
    assert "helper" not in names


def test_a_program_without_any_kernel_that_runs_is_refused() -> None:
    with pytest.raises(KernelRejected, match="unresolved-external"):
        compile_program(MIXED.replace(".visible .entry good(.param .u64 p) { ret; }", ""))


def test_what_is_forced_and_not_legal_is_refused() -> None:
    source = """
    extern "C" __global__ void k(unsigned* x) {
        if (x[threadIdx.x] == 0) return;
        x[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[0], 1);
    }"""
    natural = compile_program(source).kernel("k")
    assert natural.form is Form.SLICED
    with pytest.raises(KernelRejected) as caught:
        compile_program(source, form="persistent")
    assert caught.value.reason == "form-not-legal"
    assert caught.value.line is not None
    with pytest.raises(ValueError, match="form is one of persistent, sliced, whole"):
        compile_program(source, form="rejected")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", EmptySource),
        ("  \n\t ", EmptySource),
        ("this is not C++", CompileError),
        (".version 8.0\n.target sm_75\nnonsense", PTXSyntaxError),
        (".version 99.0\n.target sm_75\n", PTXVersionError),
        (HEADER + ".entry k() { mov.u32 %r1, 5; ret; }", PTXSyntaxError),
    ],
)
def test_bad_sources(source: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        compile_program(source)


def test_ptx_of_a_later_release_is_compiled_as_the_newest_known() -> None:
    text = PLAIN.replace(".version 8.0", ".version 9.7")
    program = compile_program(text)
    assert program.ptx.startswith(".version 9.0\n")
    assert (program.original_ptx, program.log) == (
        text,
        "the PTX is of ISA version 9.7; it is compiled as 9.0\n",
    )


def test_a_program_without_kernels_has_none() -> None:
    program = compile_program(HEADER)
    assert program.kernels == {}
    with pytest.raises(KernelNotFound):
        program.kernel("k")


def test_ptx_for_a_newer_device_is_refused() -> None:
    text = PLAIN.replace("sm_75", "sm_90a")
    assert compile_program(text, sm=90).kernels
    for sm in (75, 100):
        with pytest.raises(KernelRejected, match="target-too-new"):
            compile_program(text, sm=sm)


# -- dumps and failures ------------------------------------------------------------------------


def test_every_stage_can_be_dumped(tmp_path: Path) -> None:
    program = compile_program(KERNELS["shared"], dump=tmp_path / "dump")
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names[:5] == [
        "00-source.cu",
        "01-nvrtc.ptx",
        "02-parse.ptx",
        "03-flatten.ptx",
        "04-analyse.json",
    ]
    assert names[-1].endswith("-print.ptx")
    assert any("persistent" in name for name in names)
    assert (tmp_path / "dump" / names[-1]).read_text() == program.ptx
    decisions = json.loads((tmp_path / "dump" / "04-analyse.json").read_text())
    assert decisions["k"]["form"] == "persistent"
    for name in names:
        if name.endswith(".ptx"):
            parse((tmp_path / "dump" / name).read_text())


def test_a_failure_leaves_a_reproducer_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PTXSyntaxError) as caught:
        compile_program(HEADER + "nonsense", options=["-DX=1"], form="sliced", dump=tmp_path)
    path = tmp_path / "reproducer.json"
    assert str(caught.value).endswith(f"(reproducer: {path})")
    found = json.loads(path.read_text())
    assert found["stage"] == "parse"
    assert found["error"]["type"] == "PTXSyntaxError"
    assert found["versions"]["rewriter"]
    assert load_request(tmp_path).source == HEADER + "nonsense"
    assert main([str(tmp_path)]) == 1
    assert "found 'nonsense'" in capsys.readouterr().err


def test_a_reproducer_of_cuda_names_nvrtc(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        compile_program("__global__ void k( {}", dump=tmp_path)
    assert caught.value.log
    found = json.loads((tmp_path / "reproducer.json").read_text())
    assert found["stage"] == "nvrtc"
    assert found["versions"]["nvrtc"].count(".") == 1
    assert (tmp_path / "source.cu").read_text() == "__global__ void k( {}"


def test_a_bug_becomes_an_internal_error_with_a_reproducer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(module: object) -> object:
        raise IndexError("planted")

    monkeypatch.setattr(pipeline, "flatten_module", broken)
    cache = Cache(tmp_path / "cache")
    with pytest.raises(InternalError, match="stage 'flatten': IndexError: planted") as caught:
        compile_program(PLAIN, cache=cache)
    assert caught.value.stage == "flatten"
    assert caught.value.reproducer is not None
    assert str(caught.value).endswith(f"planted (reproducer: {caught.value.reproducer})")
    with pytest.raises(InternalError, match=r"planted$") as without:
        compile_program(PLAIN)
    assert without.value.reproducer is None
    folder = Path(caught.value.reproducer).parent
    monkeypatch.undo()
    assert compile_request(load_request(folder)).kernels


def test_usage_of_the_reproducer_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


# -- cache -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["saxpy", "templates", "state"])
def test_a_cached_program_is_the_same(tmp_path: Path, name: str) -> None:
    cache = Cache(tmp_path / "cache")
    fresh = compile_program(KERNELS[name], cache=cache)
    assert len(list(cache.folder.glob("*.entry"))) == 1
    assert compile_program(KERNELS[name], cache=Cache(cache.folder)) == fresh
    assert Program.decode(fresh.encode()) == fresh


def test_a_hit_runs_no_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    fresh = compile_program(MIXED, cache=cache)

    def refuse(*_: object) -> object:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(pipeline, "parse", refuse)
    assert compile_program(MIXED, cache=cache) == fresh
    with pytest.raises(InternalError):
        compile_program(MIXED + " ", cache=cache)


def test_a_damaged_or_foreign_entry_is_compiled_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    fresh = compile_program(PLAIN, cache=cache)
    (entry,) = cache.folder.glob("*.entry")
    entry.write_bytes(entry.read_bytes()[:-3])
    assert compile_program(PLAIN, cache=cache) == fresh
    key = request_key(Request(PLAIN, (), "compute_75", (), None, None))
    assert key is not None
    for payload in (b"", b"whole, but no program", fresh.encode()[:-1], fresh.encode() + b"x"):
        cache.put(key, payload)
        assert compile_program(PLAIN, cache=cache) == fresh
        assert cache.get(key) == fresh.encode()


def test_failures_are_not_cached(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(PTXSyntaxError):
            compile_program(HEADER + "nonsense", cache=cache)
    assert list(tmp_path.rglob("*.entry")) == []


def test_the_key_covers_the_whole_request() -> None:
    base = Request(KERNELS["saxpy"], (), "compute_75", (), None, None)
    fields = {
        "source": KERNELS["saxpy"] + " ",
        "options": ("-DX",),
        "arch": "compute_90",
        "name_expressions": ("k",),
        "form": "sliced",
        "sm": 90,
        "bounds_checks": False,
        "kill": False,
    }
    keys = {request_key(base)}
    for name, value in fields.items():
        values = {f: getattr(base, f) for f in fields} | {name: value}
        keys.add(request_key(Request(**values)))
    assert None not in keys
    assert len(keys) == 1 + len(fields)


@pytest.mark.parametrize(
    ("source", "options", "cached"),
    [
        ("#include <cuda_fp16.h>\n", (), True),
        ('#include "cuda_fp16.h"\n', (), True),
        ('#include "mine.h"\n', (), False),
        ('# \\\n include "mine.h"\n', (), False),
        ("#include <mine.h>\n", (), False),
        ("#include HEADER\n", ("-DHEADER=<mine.h>",), False),
        ("%: include <mine.h>\n", (), False),
        ("#if __has_include(<mine.h>)\n#endif\n", (), False),
        ("", ("-I.",), False),
        ("", ("--include-path=.",), False),
        ("", ("-include=mine.h",), False),
        ("", ("-lineinfo",), True),
    ],
)
def test_headers_that_gpud_cannot_name_are_not_cached(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    options: tuple[str, ...],
    cached: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.h").write_text("#define N 1\n")
    request = Request(source + KERNELS["saxpy"], options, "compute_75", (), None, None)
    assert (request_key(request) is not None) is cached


@pytest.mark.parametrize("data", [b"", b"\0" * 12, b"\xff" * 40, b"x" * 200])
def test_decoding_something_else_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Program.decode(data)
