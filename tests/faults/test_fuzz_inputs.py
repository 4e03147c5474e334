"""Spoilt settings files, PTX, compiler options and command lines: refused in words, or accepted."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from campaigns.fuzz import inputs
from campaigns.fuzz.choices import Dice
from campaigns.fuzz.live import KERNEL, Talk
from gpud.compiler.ptx.parser import parse
from gpud.config import load
from gpud.errors import CompileError, InvalidArgument, PTXSyntaxError
from gpud.wire import messages as wm
from gpud_client.cli import main
from tests.compiler.support.ptx_samples import SAMPLES
from tests.support.daemon_process import serving

PTX = [KERNEL, SAMPLES["numba"], SAMPLES["triton"]]
CUDA = 'extern "C" __global__ void k(int* p) { *p = 1; }'


def test_settings_files(tmp_path: Path) -> None:
    outcomes = Counter(
        inputs.check_settings(inputs.settings_text(Dice(f"test:{number}")), tmp_path)
        for number in range(500)
    )
    assert min(outcomes["accepted"], outcomes["refused"]) > 50


def test_a_number_that_python_does_not_read(tmp_path: Path) -> None:
    digits = "9" * 5000
    file = tmp_path / "gpud.toml"
    file.write_text(f"history = {digits}")
    with pytest.raises(InvalidArgument, match="no valid TOML"):
        load({}, {}, file)
    with pytest.raises(PTXSyntaxError, match="fewer digits"):
        parse(f".version 8.0\n.target sm_90\n.global .align 4 .u32 x = {digits};\n")
    assert main(["run", "k.cu", "k", "--grid", digits, "--block", "1"]) == 2
    assert main(["run", "k.cu", "k", "-g1", "-b1", "--arg", f"zeros:f32:{digits}"]) == 2


def test_ptx() -> None:
    outcomes = Counter(
        inputs.check_ptx(inputs.ptx_text(Dice(f"test:{number}"), PTX)) for number in range(600)
    )
    assert min(outcomes["accepted"], outcomes["refused"]) > 10


@pytest.mark.ci
def test_command_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outcomes = Counter(
        inputs.check_arguments(inputs.command_line(Dice(f"test:{number}")))
        for number in range(2000)
    )
    assert min(outcomes["accepted"], outcomes["refused"]) > 10
    for number in range(40):
        line = inputs.command_line(Dice(f"test:{number}"))
        line[0] = str(tmp_path / "missing.cu")
        status = main(["run", *line, "--socket", str(tmp_path / "s")])
        assert status in (1, 2), (line, status)
    words = capsys.readouterr().err
    assert "this is a bug" not in words
    assert "Traceback" not in words


@pytest.mark.ci
def test_compiler_options_at_a_live_daemon(tmp_path: Path) -> None:
    """NVRTC is native code: it gets them in a process that may die without harm."""
    with serving("cpu:1") as daemon, closing(Talk(daemon.connect())) as talk:
        talk.ask(wm.Hello(1, 1, "options"))
        outcomes: Counter[str] = Counter()
        for number, option in enumerate(inputs.OPTIONS):
            answer = talk.ask(wm.Compile(2 + number, 0, CUDA, (), (option,)))
            outcomes[type(answer).__name__] += 1
            if type(answer) is wm.Failed:
                assert answer.error["code"] in ("compile", "invalid-argument"), (option, answer)
        assert min(outcomes.values()) >= 3
        assert type(talk.ask(wm.Compile(500, 0, CUDA, ()))) is wm.Compiled
        assert daemon.bugs() == []


@pytest.mark.parametrize(
    "option",
    ["--time=", "-time=", " --time=", "\t-fdevice-time-trace=", "--create-pch=", "--use-pch="],
)
def test_no_option_has_the_compiler_write_a_file(option: str, tmp_path: Path) -> None:
    from gpud.compiler.toolchain.nvrtc import compile_cuda

    with pytest.raises(CompileError, match="leave it out"):
        compile_cuda(CUDA, options=[f"{option}{tmp_path / 'x'}"])
    assert not list(tmp_path.iterdir())
