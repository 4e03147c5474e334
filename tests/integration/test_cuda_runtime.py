"""Programs that link the CUDA runtime dynamically, over gpud's own, with a real daemon."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import gpud_client as gc
from gpud_client.cli.programs import program_environment
from gpud_cuda import library_folder
from gpud_cuda.build import find_compiler, find_headers
from tests.compiler.images.fat_binaries import ELF, PTX, ZSTD, container, entry

SOURCE = Path(__file__).parents[1] / "programs" / "runtime_calls.c"
PROGRAM = b"""
.version 7.0
.target sm_70
.address_size 64
.global .align 4 .u32 by;
.visible .entry add(.param .u64 x)
{
    .reg .b64 %a;
    .reg .b32 %v, %t, %n;
    ld.param.u64 %a, [x];
    mov.u32 %v, %ctaid.x;
    mov.u32 %n, %ntid.x;
    mov.u32 %t, %tid.x;
    mad.lo.u32 %t, %v, %n, %t;
    mad.wide.u32 %a, %t, 4, %a;
    ld.global.u32 %n, [by];
    add.u32 %t, %t, %n;
    st.global.u32 [%a], %t;
    ret;
}
"""
EXPECTED = """\
device: 2 SMs, warps of 32
memory: 1 1
host: 1
setup: cudaSuccess
launch: cudaSuccess
values: 5 68
variable: 5
kernel: 1 1
questions: cudaSuccess
too many threads: cudaErrorInvalidConfiguration
no such kernel: cudaErrorInvalidDeviceFunction
not registered: cudaErrorInvalidDeviceFunction
no such variable: cudaErrorInvalidSymbol
beyond the variable: cudaErrorInvalidValue
direction: cudaErrorInvalidMemcpyDirection
no such device: cudaErrorInvalidDevice
text: invalid configuration argument
not supported: cudaErrorNotSupported
end: 0
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a program, as a C compiler makes it: it finds the runtime by its name."""
    folder = tmp_path_factory.mktemp("runtime")
    image = container(entry(ELF, 90, b"\x7fELF"), entry(PTX, 70, PROGRAM, ZSTD))
    numbers = ", ".join(map(str, image))
    text = f"static const _Alignas(8) unsigned char container[] = {{{numbers}}};\n"
    (folder / "image.h").write_text(text)
    library = library_folder() / "libcudart.so.13"
    command = [*find_compiler(), "-std=c11", f"-I{folder}", f"-isystem{find_headers()}"]
    subprocess.run(
        [*command, str(SOURCE), str(library), "-o", "program", "-Wl,--allow-shlib-undefined"],
        cwd=folder,
        check=True,
        timeout=100,
    )
    return folder / "program"


def test_a_program_runs_unchanged(gpu: gc.Session, program: Path) -> None:
    environment = program_environment(os.environ, gpu.path, {}, library_folder())
    done = subprocess.run(
        [str(program)], env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout == EXPECTED
    assert "cudaGraphCreate is not supported" in done.stderr


def test_without_a_daemon_each_call_fails_with_a_reason(tmp_path: Path, program: Path) -> None:
    environment = program_environment(os.environ, str(tmp_path / "none"), {}, library_folder())
    done = subprocess.run(
        [str(program)], env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0
    assert "launch: cudaSuccess" not in done.stdout
