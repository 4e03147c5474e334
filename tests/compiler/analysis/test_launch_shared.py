"""Which kernels use shared memory of which the launch gives the size."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis.launch_shared import with_launch_shared
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_75\n.address_size 64\n"
SIZED = ".extern .shared .align 4 .b8 sized[];\n"


def entry(body: str, name: str = "k") -> str:
    return f".visible .entry {name}() {{ .reg .b64 %rd<3>; .reg .b32 %r<3>; {body} ret; }}\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (SIZED + entry("mov.u64 %rd1, sized;"), {"k"}),
        (SIZED + entry("mov.u64 %rd1, sized+4;"), {"k"}),
        (SIZED + entry("ld.shared.u32 %r1, [sized+4];"), {"k"}),
        (SIZED + entry("mov.u64 %rd1, sized;", "a") + entry("", "b"), {"a"}),
        (SIZED + entry(""), set()),
        (".shared .align 4 .b8 sized[4];\n" + entry("mov.u64 %rd1, sized;"), set()),
        (SIZED + ".func f() { .reg .b64 %rd<2>; mov.u64 %rd1, sized; ret; }\n"
         + entry("call f;", "calls") + entry("", "other"), {"calls"}),
        (entry(SIZED + "mov.u64 %rd1, sized;"), {"k"}),
    ],
)  # fmt: skip
def test_it_is_named_by_the_kernel_or_by_what_it_calls(text: str, named: set[str]) -> None:
    assert with_launch_shared(flatten_module(parse(HEAD + text))) == named
