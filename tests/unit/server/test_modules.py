"""What clients are told about a program: the index of a kernel by each of its names."""

from __future__ import annotations

from gpud.compiler.pipeline import compile_program
from gpud.compiler.process.answer import answer
from gpud.device.cpu.program.heap import HEAP_BYTES
from gpud.server.state.modules import CompiledProgram, Module
from gpud.units import SessionId

SOURCE = """
template <class T> __global__ void axpy(T* x) { x[0] += 1; }
namespace ns { __global__ void inner(int* x) { x[0] = 3; } }
"""


def test_every_name_has_the_index_of_its_kernel() -> None:
    wanted = ("axpy<float>", "_ZN2ns5innerEPi")
    made = CompiledProgram(answer(1, compile_program(SOURCE, name_expressions=wanted), wanted))
    entries = {name: made.kernel(at).entry for name, at in made.names.items()}
    assert entries == {
        **dict.fromkeys(("axpy<float>", "axpy"), "_Z4axpyIfEvPT_"),
        **dict.fromkeys(("_ZN2ns5innerEPi", "ns::inner", "inner"), "_ZN2ns5innerEPi"),
    }


def test_the_heap_of_malloc_counts_as_the_programs_memory() -> None:
    source = 'extern "C" __global__ void k(char** p) { *p = (char*)malloc(8); }'
    plain = source.replace("(char*)malloc(8)", "0")
    sizes = [
        Module(1, SessionId(1), 0, CompiledProgram(answer(1, compile_program(text), ())))
        for text in (source, plain)
    ]
    assert [one.variable_bytes for one in sizes] == [HEAP_BYTES, 0]
