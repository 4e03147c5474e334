"""What mangled names and lists of parameters tell of pointers, against what the compiler says."""

from __future__ import annotations

import pytest

from gpud.compiler.pipeline import compile_program
from gpud.compiler.program import Program
from gpud.compiler.toolchain.declared_types import declared_types

SOURCE = """
typedef float real;
#define BOTH float
struct Pair { int a; float b; };
template <typename T> __global__ void made(T* x, unsigned* n, const T* y, T* z) {}
template <typename T, int N> __global__ void sized(const T* __restrict__ x, T* y, double* p) {}
namespace ns {
__global__ void mangled(const volatile long long* x, const volatile long long* y, float** z) {}
template <typename T> __global__ void both(T* x, Pair p, Pair* q, const T* y, long* a, long* b) {}
}
__global__ void simple(const float* x, float* y, const float* z, unsigned short* s, Pair p, Pair q,
                       Pair* r, void* v, const void* w, int i, signed char* c, float* y2) {}
namespace { __global__ void anonymous(const double* x, double* y) {} }
__global__ void none() {}
__global__ void unusual(void (*f)(float*), float* x) {}
extern "C" {
__global__ void plain(float const* __restrict__ x, const volatile double* const y,
                      unsigned long long* z, int n, short int* s, unsigned* u, Pair p, Pair* q) {}
__global__ void __launch_bounds__(128) bounds(/* double */ float*, // double
                                              double*) {}
__global__ void typedefs(real* x, float* y, float** z, char* c, void* v, bool* b) {}
__global__ void macros(BOTH* x, double* y) {}
__global__ void nothing(void) {}
#ifndef BOTH
__global__ void branches(double* x) {
#else
__global__ void branches(float* x) {
#endif
}
__global__ void directives(
#ifndef BOTH
double* x
#else
float* x
#endif
) {}
}
"""
NAMES = ("made<double>", "sized<float, 3>", "ns::both<unsigned>", "anonymous")


@pytest.fixture(scope="module", params=["-DUNUSED", "-Dint=int"])
def option(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _words(program: Program) -> dict[str, list[str]]:
    return {
        kernel.name: [one.points_to for one in kernel.parameters]
        for kernel in program.kernels.values()
    }


def test_what_is_told_is_what_the_compiler_says(option: str) -> None:
    told = _words(compile_program(SOURCE, options=(option,), name_expressions=NAMES))
    exact = _words(compile_program(SOURCE, options=(option,), name_expressions=NAMES, check=True))
    assert told.keys() == exact.keys()
    unknown = {"typedefs": 1, "macros": 2, "branches": 1, "directives": 1}
    if "int" in option:  # a macro in their lists
        unknown |= {"plain": 5}
    mangled = next(name for name in told if "unusual" in name)
    unknown[mangled] = 1
    for name, words in told.items():
        missing = [one for one, right in zip(words, exact[name], strict=True) if one != right]
        assert set(missing) <= {""}, name
        assert len(missing) == unknown.get(name, 0), name


def test_mangled_names_tell_of_ptx() -> None:
    ptx = compile_program(SOURCE).original_ptx
    words = _words(compile_program(ptx))
    assert words["simple"] == [
        "f4", "f4", "f4", "i2", "", "", "", "", "", "", "", "f4"
    ]  # fmt: skip
    assert words["plain"] == [""] * 8


@pytest.mark.parametrize(
    "name",
    [
        "_Z", "_Z1", "_Z9kPf", "_Z1kP", "_Z1kS_", "_Z1kPfS9_", "_Z1kIfEvT0_", "_Z1kIfE", "_ZN1aPf",
        "_Z1kI", "_Z1kPFvPfE", "_Z1kP3FooIfE", "_Z1kPDF16b", "_Z1kDpT_", "_ZN1aIfE1kEPf",
        "_Z1kS" + "Z" * 6000 + "_", "_Z" + "9" * 6000 + "k", "_Z1kPSt4pairIffE", "_Z1k",
        "_Z1kILN1a1bE1EEvPf",
    ],
)  # fmt: skip
def test_names_of_other_forms_tell_nothing(name: str) -> None:
    assert declared_types([name], None) == {}


def test_many_pointers_are_no_trouble() -> None:
    assert declared_types(["_Z1k" + "P" * 50_000 + "f"], None)


def test_a_declaration_without_the_kernels_space_is_none() -> None:
    source = "void k(float* x); extern __global__ void other(float*); int f() { k(double * x); }"
    assert declared_types(["k", "other"], source) == {"other": ("f4",)}
