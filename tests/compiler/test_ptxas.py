"""Reading what ptxas reports; with the real ptxas where it is installed."""

from __future__ import annotations

import pytest

from gpud.compiler.toolchain.ptxas import Usage, assemble, find_ptxas, parse_report, ptxas_version
from gpud.errors import CompileError
from tests.compiler.support.ptx_samples import EVERYTHING

REPORT = """\
ptxas info    : 89 bytes gmem, 16 bytes cmem[3]
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    48 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 48 bytes cumulative stack size, 128 bytes smem
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_Z2tkIfEvPT_' for 'sm_90'
ptxas info    : Function properties for _Z2tkIfEvPT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")


def test_a_report_is_read_kernel_by_kernel() -> None:
    assert parse_report(REPORT) == {
        "k": Usage(registers=24, shared_bytes=128, stack_bytes=48, spill_bytes=20),
        "_Z2tkIfEvPT_": Usage(8, 0, 0, 0),
    }
    assert parse_report("") == {}


@needs_ptxas
def test_assembling() -> None:
    usages = assemble(EVERYTHING, "sm_90")
    assert set(usages) == {"template_entry", "nothing", "everything"}
    assert usages["everything"].shared_bytes >= 128
    assert ptxas_version() >= (11, 0)


@needs_ptxas
def test_a_refusal_carries_the_log() -> None:
    with pytest.raises(CompileError, match="ptxas refused the PTX for sm_90") as caught:
        assemble(".version 8.0\n.target sm_90\n.entry k() { nonsense; }\n", "sm_90")
    assert "nonsense" in caught.value.log
