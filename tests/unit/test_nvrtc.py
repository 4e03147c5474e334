"""CUDA C++ to PTX through the real NVRTC: languages, names, headers, and every refusal."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpud.compiler.toolchain.cuda_headers import cuda_include_paths
from gpud.compiler.toolchain.nvcc_options import sorted_options
from gpud.compiler.toolchain.nvrtc import compile_cuda, nvrtc_version, supported_archs
from gpud.errors import (
    CompileError,
    EmptySource,
    InvalidArgument,
    KernelNotFound,
    UnsupportedTarget,
    pip_command,
)

SCALE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR; }'
AXPY = """
namespace blas {
template <class T, int N> __global__ void axpy(T a, const T* x, T* y) {
    for (int i = 0; i < N; ++i) y[i] += a * x[i];
}
}
__global__ void plain(int* p) { *p = 1; }
"""


def test_version_and_architectures() -> None:
    major, _ = nvrtc_version()
    assert major in {12, 13}
    archs = supported_archs()
    assert "compute_75" in archs
    assert list(archs) == sorted(archs, key=lambda arch: int(arch.removeprefix("compute_")))


def test_options_reach_the_compiler() -> None:
    ptx = compile_cuda(SCALE, options=["-DFACTOR=2.0f"]).ptx
    assert ".visible .entry scale(" in ptx
    assert ".target sm_75" in ptx
    assert ptx.endswith("\n")
    assert "\0" not in ptx


def test_architecture() -> None:
    assert ".target sm_90a" in compile_cuda(AXPY, arch="compute_90a").ptx


def test_equal_sources_give_equal_ptx() -> None:
    assert compile_cuda(AXPY).ptx == compile_cuda(AXPY).ptx


def test_name_expressions_instantiate_and_name_templates() -> None:
    names = ["blas::axpy<float, 3>", "blas::axpy<double,2>", "plain"]
    program = compile_cuda(AXPY, name_expressions=names)
    assert list(program.lowered_names) == names
    for lowered in program.lowered_names.values():
        assert f".entry {lowered}(" in program.ptx
    assert program.lowered_names["plain"] == "_Z5plainPi"


def test_cpp17_is_the_default_and_can_be_changed() -> None:
    source = "template <class T> __global__ void k(T* p) { if constexpr (sizeof(T) > 4) *p = 1; }"
    source += "\n#if __cplusplus != VERSION\n#error another language\n#endif"
    compile_cuda(source, options=["-DVERSION=201703L"])
    compile_cuda(source, options=["-DVERSION=202002L", "--std=c++20"])
    compile_cuda(source, options=["-DVERSION=202002L", "-std=c++20"])


def test_warnings_are_kept() -> None:
    program = compile_cuda("__global__ void k(int* p) { int unused; *p = 1; }")
    assert 'variable "unused"' in program.log
    assert compile_cuda("__global__ void k(int* p) { *p = 1; }").log == ""


def test_an_empty_log_leaves_the_interpreter_alone() -> None:
    """NVRTC writes one NUL for an empty log; written into a shared object it would stay there."""
    compile_cuda(AXPY)
    assert bytes([32]) == b" "
    assert [bytes([value])[0] for value in range(256)] == list(range(256))


@pytest.mark.parametrize(
    "header",
    ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cooperative_groups.h", "mma.h",
     "cuda/std/atomic", "cuda/atomic", "cuda/barrier", "cub/block/block_reduce.cuh"],
)  # fmt: skip
def test_cuda_headers_are_found(header: str) -> None:
    if not cuda_include_paths(nvrtc_version()[0]):
        pytest.skip("no CUDA headers are installed on this machine")
    compile_cuda(f'#include <{header}>\nextern "C" __global__ void k() {{}}')


@pytest.mark.parametrize("source", ["", " \n\t"])
def test_empty_source(source: str) -> None:
    with pytest.raises(EmptySource):
        compile_cuda(source)


def test_the_message_is_the_first_error_and_the_log_is_complete() -> None:
    source = "__global__ void k() {\n    first;\n    second;\n}"
    with pytest.raises(CompileError, match=r'(2).*"first" is undefined.*first of 2') as caught:
        compile_cuda(source)
    assert '"second" is undefined' in caught.value.log
    assert "errors detected in the compilation" not in caught.value.log  # it names "kernel.cu"


def test_an_error_of_the_source_comes_before_what_follows_from_it() -> None:
    with pytest.raises(CompileError, match=r"^kernel\.cu\(1\): error: .*first of 3") as caught:
        compile_cuda("oops", name_expressions=["k"])
    assert caught.value.log.startswith("__nv_name_map(2): error:")


def test_a_static_assertion_is_an_error() -> None:
    with pytest.raises(CompileError, match="not today"):
        compile_cuda('static_assert(false, "not today");')


def test_a_missing_header_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"nosuch\.h.*give your own"):
        compile_cuda("#include <nosuch.h>")


def test_code_for_the_host_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"JIT mode.*leave it out"):
        compile_cuda("__host__ int f() { return 1; }")


@pytest.mark.parametrize("option", ["--bogus", "--std=c++99", "-maxrregcount=many"])
def test_a_bad_option(option: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_cuda(SCALE, options=[option])
    assert caught.value.log.strip() == str(caught.value)


@pytest.mark.parametrize("option", ["--gpu-architecture=compute_80", "-arch=sm_80"])
def test_the_architecture_is_no_option(option: str) -> None:
    compiled = compile_cuda(AXPY, options=[option])
    assert ".target sm_75" in compiled.ptx
    assert compiled.log == f"left out: {option} (gpud compiles for its device)\n"


OF_NVCC = ("-O3", "-Xptxas", "-v", "-gencode", "arch=compute_90,code=sm_90", "-Xcompiler=-Wall",
           "-lcublas", "--expt-relaxed-constexpr", "-O", "2")  # fmt: skip


def test_what_an_option_of_nvcc_means_here() -> None:
    """What concerns others is left out with its value; what NVRTC has, it gets."""
    assert sorted_options(("-DN=3", *OF_NVCC, "-D", "M", "-lineinfo")).given == (
        *("-DN=3", "-D", "M", "-lineinfo"),
    )
    log = compile_cuda(AXPY, options=OF_NVCC).log
    assert "-O3, -Xptxas, -O (the device's driver assembles)" in log
    assert "-gencode (gpud compiles for its device)" in log


OWN = {
    "scale.h": '#include "../common/types.h"\nint half_of(int n) { return n / 2; } // of the host\n'
    "__device__ inline real scaled(real x) { return FACTOR * x; }",
    "../common/types.h": "#pragma once\n#include <vector>\ntypedef float real;",
    "factor.h": "#define FACTOR 3",
}


def test_own_headers() -> None:
    """They include each other, may have host code, and may be included by an option."""
    text = '#include "scale.h"\n__global__ void k(real* x) { x[0] = scaled(x[0]); oops }'
    with pytest.raises(CompileError, match=r"kernel.cu\(2\).*oops"):
        compile_cuda(text, headers=OWN, options=["-include", "factor.h"])
    good = compile_cuda(text.replace("oops", ""), headers=OWN, options=["-include=factor.h"])
    assert "_Z1kPf" in good.ptx
    with pytest.raises(InvalidArgument, match="headers="):
        compile_cuda(text, headers=OWN, options=["-include", "other.h"])
    with pytest.raises(InvalidArgument, match="gpuctl run -I"):
        compile_cuda(text, options=["-I", "/usr/include"])


def test_options_in_one_string_are_a_mistake() -> None:
    with pytest.raises(TypeError, match="-DFACTOR=2"):
        compile_cuda(SCALE, options="-DFACTOR=2")


@pytest.mark.parametrize("arch", ["compute_20", "sm_90", "compute_75a", "compute_90f", "90", ""])
def test_an_unsupported_architecture(arch: str) -> None:
    with pytest.raises(UnsupportedTarget) as caught:
        compile_cuda(SCALE, arch=arch)
    assert caught.value.target == arch
    assert caught.value.supported == supported_archs()


@pytest.mark.parametrize(
    ("expression", "cause"),
    [
        ("nosuch<float>", '"nosuch" is undefined'),
        ("blas::axpy", "cannot determine which instance"),
        ("1+", "expected an expression"),
        ("42", "address of a __global__ function"),
    ],
)
def test_a_name_expression_that_names_nothing(expression: str, cause: str) -> None:
    with pytest.raises(KernelNotFound) as caught:
        compile_cuda(AXPY, name_expressions=["plain", expression])
    assert caught.value.name == expression
    assert caught.value.available == ("axpy", "plain")
    assert cause in str(caught.value)
    assert cause in caught.value.log


def test_an_error_in_the_source_comes_before_one_in_a_name() -> None:
    with pytest.raises(CompileError, match="oops"):
        compile_cuda("__global__ void k() { oops; }", name_expressions=["nosuch"])


def test_nul_characters_are_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        compile_cuda("__global__ void k() {}\0 hidden")


def test_text_that_is_not_ascii() -> None:
    program = compile_cuda('// Größe\nextern "C" __global__ void k() {}')
    assert ".entry k(" in program.ptx
    with pytest.raises(CompileError, match="größe"):
        compile_cuda("#error größe")


def test_threads_compile_at_once() -> None:
    sources = [SCALE.replace("FACTOR", f"{n}.0f").replace("scale", f"scale{n}") for n in range(12)]
    with ThreadPoolExecutor(4) as pool:
        programs = list(pool.map(compile_cuda, sources))
    for n, program in enumerate(programs):
        assert f".entry scale{n}(" in program.ptx


NO_BINDINGS = "import sys; sys.modules['cuda.bindings'] = None"
NO_LIBRARY = """
from cuda.bindings import nvrtc
from cuda.pathfinder import DynamicLibNotFoundError

def absent():
    raise DynamicLibNotFoundError("Failure finding libnvrtc.so")

nvrtc.nvrtcVersion = absent
"""


@pytest.mark.parametrize(
    ("hide", "dependency"), [(NO_BINDINGS, "cuda-bindings"), (NO_LIBRARY, "libnvrtc.so")]
)
def test_a_missing_library_says_what_to_install(hide: str, dependency: str) -> None:
    """In a process of its own, because the bindings load the library once and for all."""
    script = (
        f"{hide}\n"
        "from gpud.compiler.toolchain.nvrtc import compile_cuda\n"
        "from gpud.errors import MissingDependency\n"
        "try:\n    compile_cuda('int x;')\n"
        "except MissingDependency as error:\n    print(error.extra, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("daemon ")
    assert dependency in done.stdout
    assert pip_command("daemon") in done.stdout
