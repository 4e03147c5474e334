"""The compiler process: limits, crashes, and that it ends with its owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaigns.host_failures.host_process import FOLDER
from gpud.device.cpu.program.compile_request import CompileRequest
from gpud.device.cpu.program.kernel_compiler import compile_kernel
from gpud.device.host import native_compiler
from gpud.device.host.native_compiler import NativeCompiler
from gpud.errors import CompileError, InternalError, KernelRejected

PTX = """.version 8.6\n.target sm_90\n.address_size 64
.visible .entry {name}(.param .u64 out)
{{ .reg .u64 %rd<3>; ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], 7; {more} ret; }}"""


def wanted(name: str, more: str = "", threads: int = 32) -> CompileRequest:
    return CompileRequest(PTX.format(name=name, more=more), name, (threads, 1, 1))


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[NativeCompiler]:
    monkeypatch.setattr(
        native_compiler, "COMMAND", ("-m", "campaigns.host_failures.native_process")
    )
    monkeypatch.setenv(FOLDER, str(tmp_path))
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root), str(root / "client"))))
    one = NativeCompiler(60, 0)
    yield one
    one.close()


def process(maker: NativeCompiler) -> int:
    assert maker._running is not None
    return maker._running._process.pid


def test_the_result_is_that_of_compiling_in_this_process(maker: NativeCompiler) -> None:
    maker.warm_up()
    first = process(maker)
    made = [maker(wanted("k", threads=n)) for n in (32, 64)]
    here = [compile_kernel(wanted("k", threads=n)) for n in (32, 64)]
    assert [one.generated.parameters for one in made] == [{"out": 0}] * 2
    for there, one in zip(made, here, strict=True):
        assert there.generated.block_bytes == one.generated.block_bytes
        assert there.generated.starts_in_lockstep == one.generated.starts_in_lockstep
        assert there.code == one.code
    assert process(maker) == first


def test_a_rejected_kernel_is_reported_and_the_process_goes_on(maker: NativeCompiler) -> None:
    maker.warm_up()
    first = process(maker)
    with pytest.raises(KernelRejected) as caught:
        maker(wanted("k", "call unknown;"))
    assert "unknown" in str(caught.value)
    maker(wanted("k"))
    assert process(maker) == first


def test_a_kernel_that_takes_too_long_is_ended_and_not_tried_again(maker: NativeCompiler) -> None:
    maker(wanted("k"))
    first, maker._limit_s = process(maker), 0.2
    maker._running._limit_s = 0.2  # type: ignore[union-attr]
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            maker(wanted("llvm_never_ends"))
        assert "compiling llvm_never_ends for blocks of 32 x 1 x 1 took longer" in str(caught.value)
        assert maker._running is None, "the second time no process is started"
    maker._limit_s = 60
    maker(wanted("k", threads=64))
    assert process(maker) != first


def test_a_crash_is_tried_once_more_and_then_no_more(maker: NativeCompiler) -> None:
    maker(wanted("llvm_dies_once"))
    assert Path(os.environ[FOLDER], "llvm_dies_once").exists()
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            maker(wanted("llvm_segfaults"))
        assert "ended the process that does it (SIGSEGV)" in str(caught.value)
        assert maker._running is None


def test_a_process_is_replaced_after_so_many_kernels(
    maker: NativeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_compiler, "_MOST_KERNELS", 1)
    maker(wanted("k"))
    first = process(maker)
    maker(wanted("k", threads=64))
    assert process(maker) != first


def test_the_last_results_are_cached(
    maker: NativeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [maker(wanted("k", threads=n)) for n in (32, 64, 96)]
    assert maker(wanted("k")) is made[0]
    assert maker._running is not None
    assert maker._running.made == 3
    monkeypatch.setattr(native_compiler, "_KEPT_BYTES", sum(len(one.code) for one in made))
    maker(wanted("other"))
    assert maker(wanted("k")) is made[0], "what was asked for last stays"
    assert maker(wanted("k", threads=64)) is not made[1]


@pytest.mark.parametrize(
    ("code", "problem"),
    [("import time; time.sleep(10**6)", "has not started within"), ("", "has ended while")],
)
def test_a_process_that_does_not_start_is_no_kernels_fault(
    maker: NativeCompiler, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    works = native_compiler.COMMAND
    monkeypatch.setattr(native_compiler, "COMMAND", ("-c", code))
    if code:  # else it may take its time to end
        monkeypatch.setattr(native_compiler, "_START_S", 0.05)
    with pytest.raises(InternalError, match=f"the process that makes machine code {problem}"):
        maker(wanted("k"))
    assert maker._running is None
    monkeypatch.setattr(native_compiler, "COMMAND", works)
    monkeypatch.setattr(native_compiler, "_START_S", 60.0)
    maker(wanted("k"))


def test_it_ends_when_it_is_closed(maker: NativeCompiler) -> None:
    maker(wanted("k"))
    running = maker._running
    maker.close()
    assert running is not None
    assert running._process.returncode is not None
