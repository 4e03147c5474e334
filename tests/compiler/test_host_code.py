"""Host code beside kernels: it is skipped, and what is for the device keeps its lines."""

from __future__ import annotations

import re
import struct

import pytest

from gpud.compiler.toolchain.host_code import without_host_code
from gpud.compiler.toolchain.host_headers import HOST_HEADERS
from gpud.compiler.toolchain.nvrtc import compile_cuda
from gpud.errors import CompileError
from tests.conformance.runner import headers_installed

WHOLE_FILE = r"""
#include <iostream>
#include <vector>
#include <cuda.h>
#include "helper_cuda.h"
#include <cuda_runtime.h>
using namespace std;
#define KERNEL extern "C" __global__
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { puts("}"); exit(1); } } while (0)
static const char *title = "a { b";
const int N = 4;
float *h_a, *h_b = NULL;
std::vector<float> everything;
struct Host { std::string s; FILE* f; Host() : s("}"), f{nullptr} {} };
struct timeval t0, t1;
template <class T, int K = (3 > 2)> inline T twice(T v) { return v + v; }
template <typename T> __device__ T thrice(T v) { return 3 * v; }
void usage(int argc, char **argv);
double now() { gettimeofday(&t0, 0); return 'x' + R"x(}{ " )x"[0] + 1'000; }
#ifdef BIG
int size(int a) {
#else
int size() {
#endif
    return 1;
}
KERNEL void scale(float* p) {
    p[threadIdx.x] = thrice(p[threadIdx.x]) + (N + __LINE__);
}
template <class T> __global__ void fill(T* p) { p[0] = 2; }
template <class T> void launch(T* p) { fill<T><<<1, 1>>>(p); }
template void launch<float>(float*);
int main(int argc, char** argv) try {
    std::vector<int> v(3);
#ifdef VERBOSE
    cout << "}" << endl;
#endif
    #pragma omp parallel for
    for (auto f = [](int a) { return a; }; f(0);) CHECK(cudaMalloc(&h_a, 4));
    scale<<<dim3(1), 128>>>(h_a);
} catch (...) { return 1; }
"""
AFTER = "__device__ int here = __LINE__;\n"


@pytest.mark.skipif(not headers_installed(), reason="CUDA's headers are not installed")
def test_a_whole_file_compiles_and_says_what_it_skipped() -> None:
    line = 1 + WHOLE_FILE[: WHOLE_FILE.index("__LINE__")].count("\n")
    program = compile_cuda(WHOLE_FILE, name_expressions=["fill<int>"])
    assert set(re.findall(r"\.entry (\w+)", program.ptx)) == {
        "scale",
        program.lowered_names["fill<int>"],
    }
    assert "0f" + struct.pack(">f", 4 + line).hex().upper() in program.ptx  # N + __LINE__
    assert re.search(r"skipped for the host: title \(line 10\), .*main \(line 33\)", program.log)


TAKEN_OUT = [
    "int f(int a) { return a; }",
    "int f(int a, ...);",
    "static inline unsigned long f() { if (1) { return '{'; } }",
    "extern int shared_with_others;",
    'extern "C" void f(void);',
    "float* a, *b;",
    "float a[] = {1, 2};",
    "int a{3};",
    "auto f = [](int a) { return a; };",
    "int (*pointer)(int) = 0;",
    "S::S(int a) : x(a), y{a}, B<int>(a) { go(); }",
    "S& S::operator=(const S& o) { return *this; }",
    "bool S::operator()(int a, int b) const { return a < b; }",
    "auto f(int a) -> int { return a; }",
    "template <class T> T f(T a) { return a; }",
    "template <class T> template <class U> void S<T>::f(U a) { }",
    "__host__ int f() { return 1; }",
    "struct S* f(struct S* a) { return a; }",
    "typedef std::vector<int> Numbers;",
    "using std::cout;",
    "const std::string s = 0;",
    "static thrust::device_vector<int> v;",
    "TEST(group, name) { EXPECT_EQ(1, 1); }",
    "int main() try { return 0; } catch (int a) { } catch (...) { }",
    "__attribute__((noinline)) int f(int a) { return a; }",
    "struct S { std::string s; int f() { return 1; } };",
]


@pytest.mark.parametrize("declaration", TAKEN_OUT)
def test_taken_out(declaration: str) -> None:
    for text in (declaration, f"namespace a::b {{ {declaration} }}"):
        left = without_host_code(f"{AFTER}{text}\n{AFTER}").text
        rest = (
            left.replace(AFTER, "").replace("namespace a::b {", "").replace("}", "", left != text)
        )
        assert re.sub(r"[\s}]", "", rest) == ""
        assert left.count(AFTER) == 2


STAYS = [
    "__global__ void k(int* p) { p[0] = f<<<1, 1>>>(); }",
    "__device__ float a[] = {1, 2};",
    "static __constant__ int c;",
    "void __global__ __launch_bounds__(128) k() {}",
    "__host__ __device__ int f() { return 1; }",
    "template <int N> __device__ int S<N>::f() const { return 1; }",
    "template __global__ void k<float>(float*);",
    "const int N = 3;",
    "static const float table[] = {1, 2};",
    "const float* const p = 0;",
    "constexpr int M = 4;",
    "struct S { int x; float y[3]; };",
    "typedef struct { float x; int (*f)(int); } S;",
    "enum class E : int { A, B };",
    "union U { int a; float b; };",
    "struct S; class C; template <class T> struct B; template <> struct B<int>;",
    "typedef void (*F)(int);",
    "using T = int;",
    "template <class T> using P = T*;",
    "using namespace std;",
    "static_assert(sizeof(int) == 4);",
    "extern __shared__ float s[];",
    "CUDA_CALLABLE int f() { return 1; }",
    "struct S { int a : 3; S() = default; S(const S&) = delete; static const int N = 3; };",
    "struct S { DISALLOW_COPY(S); int (*f)(int); };",
    "DECLARE(x) __global__ void k() {}",
    "struct A { A* next; struct B { int c; } b; };",
]  # fmt: skip


@pytest.mark.parametrize("declaration", STAYS)
def test_stays(declaration: str) -> None:
    for text in (
        declaration,
        f"namespace a {{ {declaration} }}",
        f'extern "C" {{ {declaration} }}',
    ):
        assert without_host_code(text).text == text


def test_macros_for_spaces_are_known_from_the_text_and_the_options() -> None:
    text = "#define KERNEL_OF(t) ENTRY t\n#define ENTRY __global__\nFUN int f() {}\n"
    text += "KERNEL_OF(void) k() {}\nENTRY void l() {}\nOTHER int g() {}\n"
    left = without_host_code(text, ["-DFUN=__device__", "-DOTHER"]).text
    assert left == text.replace("OTHER int g() {}", " " * 16)


def test_members_without_a_space_cannot_be_called() -> None:
    source = """struct S {
    float x;
    S() : x(1) {}
    explicit S(float a) : x{a} { for (;;) {} }
    float get() const { return x; }
    friend int f(S s) { return 1; }
    static int count;
    __device__ float on_device() const { return x; }
};
extern "C" __global__ void k(S s, float* p) { p[0] = s.on_device(); USE }
"""
    compile_cuda(source, options=["-DUSE="])
    for use in ("S t;", "S t(1.f);", "p[1] = s.get();"):
        with pytest.raises(CompileError, match=r"kernel.cu\(10\).*deleted function"):
            compile_cuda(source, options=[f"-DUSE={use}"])


def test_a_constexpr_function_can_be_called() -> None:
    source = "constexpr int f(int a) { return a + 1; }\nint main() {}\n"
    source += "__device__ int a[f(2)];\n__global__ void k(int* p) { p[0] = a[0] + f(p[1]); }"
    assert ".entry" in compile_cuda(source).ptx


def test_device_code_that_uses_host_code_is_refused_with_its_line() -> None:
    source = "\n\nint helper(int a) { return a; }\n__global__ void k(int* p) { p[0] = helper(1); }"
    with pytest.raises(CompileError, match=r"(?s)kernel.cu\(4\).*'helper', line 3, has no __dev"):
        compile_cuda(source)


def test_headers_of_the_host_bring_the_types_that_device_code_uses() -> None:
    source = "#include <vector>\n#include <stdlib.h>\nint main() {}\n"
    source += "__global__ void k(uint64_t* p, uint n) { p[0] = n + (size_t)INT_MAX; }"
    assert ".entry" in compile_cuda(source).ptx


@pytest.mark.skipif(not headers_installed(), reason="CUDA's headers are not installed")
def test_all_headers_of_the_host_go_together() -> None:
    source = "".join(f"#include <{name}>\n" for name in HOST_HEADERS) + "int main() {}\n"
    source += "static_assert(std::numeric_limits<int>::max() > 0 && std::is_same<int, int>::value);"
    assert ".entry" in compile_cuda(source + "\n__global__ void k() {}").ptx


@pytest.mark.skipif(not headers_installed(), reason="CUDA's headers are not installed")
def test_of_cub_what_blocks_call_is_there() -> None:
    source = """#include <cub/cub.cuh>
#include <cub/device/device_reduce.cuh>
__global__ void sum(const int* in, int* out) {
    using Reduce = cub::BlockReduce<int, 64>;
    __shared__ Reduce::TempStorage storage;
    int total = Reduce(storage).Sum(in[threadIdx.x]);
    if (threadIdx.x == 0) *out = total;
}
int main() { cub::DeviceReduce::Sum(nullptr, bytes, in, out, n); }
"""
    assert ".entry" in compile_cuda(source).ptx
    kernel_alone = source.partition("int main")[0].replace("#include <cub/device", "// ")
    assert ".entry" in compile_cuda(kernel_alone).ptx


def test_a_launch_from_the_device_is_refused_with_what_to_do() -> None:
    source = "__global__ void a() {}\n__global__ void b() { a<<<1, 1>>>(); }\nint main() {}"
    with pytest.raises(CompileError, match=r"kernel.cu\(2\).*gpu.sequence"):
        compile_cuda(source)


def test_errors_of_the_device_keep_their_lines() -> None:
    source = "#include <map>\nint main() {\n\n return 0; }\n__global__ void k() {\n  oops();\n}"
    with pytest.raises(CompileError, match=r'kernel.cu\(6\): error: identifier "oops"'):
        compile_cuda(source)


def test_host_code_alone_is_refused_as_ever() -> None:
    with pytest.raises(CompileError, match="host functions are not allowed"):
        compile_cuda("int main() { return 0; }")


def test_a_device_by_default_is_taken_at_its_word() -> None:
    source = "int twice(int a) { return 2 * a; }\n__global__ void k(int* p) { p[0] = twice(p[0]); }"
    assert ".entry" in compile_cuda(source, options=["--device-as-default-execution-space"]).ptx


@pytest.mark.parametrize("end", range(0, len(WHOLE_FILE), 7))
def test_text_that_is_cut_anywhere_ends(end: int) -> None:
    left = without_host_code(WHOLE_FILE[:end])
    assert left.text.count("\n") == WHOLE_FILE[:end].count("\n")
