"""How much work code does between two kill polls (gpud.compiler.analysis.work)."""

from __future__ import annotations

import pytest

from gpud.compiler.abi.reserved_names import killable_variant
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.work import MOST_WORK, Work
from gpud.compiler.instrumentation.kill_polls import fold
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.safety.kill import may_run_long
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Directive, Module
from gpud.compiler.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
PRINTF = """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);
.visible .global .align 1 .b8 text[2] = {65, 0};
"""
PRINT = """{ .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %rd1;
st.param.b64 [b], 0; call.uni (c), vprintf, (a, b); }
"""
BULK = """cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
[%r1], [%rd1], SIZE, [%r2];
"""
SHORT_LOOP = """mov.u32 %r1, 0;
L{0}: add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra L{0};
"""


def kernel(body: str, before: str = "") -> Module:
    declared = ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>;"
    return flatten_module(
        parse(f"{HEAD}{before}.visible .entry k(.param .u64 p) {{ {declared} {body} ret; }}\n")
    )


def function(name: str, body: str) -> str:
    return f".func {name}() {{ .reg .b32 %r<4>; .reg .pred %p<2>; {body} ret; }}\n"


def polls(text: str, entry: str = "k") -> int:
    """How many polls the killable variant of a kernel has, after the whole rewriting."""
    module = parse(compile_program(text).ptx)
    name = killable_variant(entry)
    found: list[int] = []

    def count(number: int) -> Directive:
        found.append(number)
        return Directive("")

    for item in module.functions():
        if item.name.startswith(name) and item.body is not None:
            fold(item, count)
    return len(found)


@pytest.mark.parametrize(
    ("body", "before", "long"),
    [
        ("add.u32 %r1, %r1, 1;\n" * 100, "", False),
        ("add.u32 %r1, %r1, 1;\n" * (MOST_WORK + 1), "", False),  # long, with nothing costly
        (PRINT, PRINTF, True),
        (BULK.replace("SIZE", "64"), "", False),
        (BULK.replace("SIZE", "%r3"), "", True),
        (BULK.replace("SIZE", "32768") * 40, "", True),
        (SHORT_LOOP.format(0), "", False),
        ("".join(SHORT_LOOP.format(number) for number in range(40)), "", True),
    ],
)  # fmt: skip
def test_what_takes_long_polls(body: str, before: str, long: bool) -> None:
    module = kernel(body, before)
    assert may_run_long(CallGraph(module), ["k"]) == ({"k"} if long else frozenset())


def test_calls_count_as_often_as_they_stand() -> None:
    """Without a loop anywhere: the last function runs 2^40 times."""
    names = [f"f{number}" for number in range(40)]
    functions = function("f0", "add.u32 %r1, %r1, 1;")
    for name, callee in zip(names[1:], names, strict=False):
        functions += function(name, f"call {callee}; call {callee};")
    graph = CallGraph(kernel(f"call {names[-1]};", functions))
    work = Work(graph)
    assert work.of("f3") < MOST_WORK
    assert work.is_long("k")
    assert "k" in may_run_long(graph, ["k"])


def test_who_calls_itself_has_an_end_here() -> None:
    graph = CallGraph(kernel("call f;", function("f", "call f;")))
    assert not Work(graph).is_long("k")


def test_polls_stand_before_what_is_costly() -> None:
    print_twice = f"{HEAD}{PRINTF}.visible .entry k(.param .u64 p) {{ .reg .b64 %rd<9>; "
    print_twice += f"mov.u64 %rd1, text; {PRINT}{PRINT} ret; }}\n"
    assert polls(print_twice) == 2
