"""What a CUDA device writes to the dump folder: programs as the driver is given them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpud.compiler.dump_folder import DumpFolder
from gpud.compiler.pipeline import compile_program
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.host.__main__ import DeviceSettings, open_device
from gpud.device.spec import parse_device
from tests.driver_model import SteppedDriver

SOURCE = r"""
extern "C" __global__ void one(int* p) { p[blockIdx.x] = 1; }
extern "C" __global__ void two(int* p) { p[blockIdx.x] = 2; }
"""


class Listening(SteppedDriver):
    """Keeps what it is given."""

    given: str = ""

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "cuModuleLoadDataEx":
            self.given = arguments[0].rstrip(b"\0").decode()


def test_a_program_is_written_as_the_driver_is_given_it(tmp_path: Path) -> None:
    fake, program = Listening(), compile_program(SOURCE)
    dump = DumpFolder(tmp_path / "dumps", ["two"])
    with CUDADevice(driver=Driver(fake), watch=False, dump=dump) as device:
        module = device.load(program.ptx)
        del module
        device.load(program.ptx)
        device.load(compile_program(SOURCE.replace("two", "three")).ptx)
    (folder,) = (tmp_path / "dumps").iterdir()
    assert folder.name.startswith("two-")
    (path,) = folder.iterdir()
    assert path.name == "loaded.ptx"
    written = path.read_text()
    assert "gpud_loop_control_values" in written, "what is added as it is loaded"
    assert written != program.ptx
    assert ".visible .entry two(" in written


def test_the_device_host_dumps_where_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpud.device.cuda.device.open_driver", lambda: Driver(SteppedDriver()))
    settings = DeviceSettings(dump=str(tmp_path / "dumps"), dump_kernels="one,two")
    device: Any = open_device(parse_device("cuda"), settings)
    try:
        device.load(compile_program(SOURCE).ptx)
    finally:
        device.close()
    assert [path.name for path in (tmp_path / "dumps").glob("one-*/*")] == ["loaded.ptx"]
