"""Machine code is used again: by other sessions, which have other arenas, and by other daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpud.compiler.cache import Cache, default_folder, machine_code_folder
from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.compile_request import CompileRequest, CompileResult
from gpud.device.cpu.program.kernel_compiler import compile_kernel
from gpud.device.host.native_compiler import NativeCompiler
from gpud.device.interface import LaunchSpec
from gpud.errors import IllegalAddress
from tests.conformance.checked_device import CheckedDevice
from tests.support.resizable_run import ResizableRun

SOURCE = """
extern "C" __global__ void put(unsigned *out, unsigned value) {
    int *mine = (int *)malloc(4);
    if (mine) *mine = value + threadIdx.x;
    out[threadIdx.x] = mine ? *mine : 0;
    free(mine);
}
"""


class Once:
    """Compiles here, each request once."""

    def __init__(self) -> None:
        self.made: dict[CompileRequest, CompileResult] = {}

    def __call__(self, wanted: CompileRequest) -> CompileResult:
        if wanted not in self.made:
            self.made[wanted] = compile_kernel(wanted)
        return self.made[wanted]

    def warm_up(self) -> None:
        pass


def run(device: CheckedDevice, address: int, value: int) -> None:
    """Launch the kernel in a session of its own, whose arena is ``device``'s."""
    kernel = device.load(compile_program(SOURCE).ptx).kernel("put")
    parameters = [address.to_bytes(8, "little"), value.to_bytes(4, "little")]
    launch = LaunchSpec.of(kernel, "persistent", (1,), (32,), parameters)
    job = ResizableRun(device.device, [launch])
    job.resize(1)
    job.result(60.0)


def test_code_is_the_same_in_each_arena_and_keeps_to_its_own() -> None:
    compiler = Once()
    shared = CPUDevice(2, compiler=compiler)
    sessions = [CheckedDevice(shared, 1 << 20) for _ in range(3)]
    arrays = [session.allocate(128) for session in sessions]
    for number, (session, array) in enumerate(zip(sessions, arrays, strict=True)):
        run(session, array.address, 100 * number)
    assert len(compiler.made) == 1
    for number, array in enumerate(arrays):
        assert array.view.view("u4").tolist() == [100 * number + i for i in range(32)]
    with pytest.raises(IllegalAddress):
        run(sessions[0], arrays[1].address, 7)
    assert 7 not in arrays[1].view.view("u4")
    shared.close()


def wanted(threads: int = 32) -> CompileRequest:
    return CompileRequest(compile_program(SOURCE).ptx, "put", (threads, 1, 1))


def has_process(compiler: NativeCompiler) -> bool:
    return compiler._running is not None


def test_the_next_daemon_compiles_nothing_again(tmp_path: Path) -> None:
    first = NativeCompiler(60, 0, disk=Cache(tmp_path))
    made = first(wanted())
    first.close()
    second = NativeCompiler(60, 0, disk=Cache(tmp_path))
    assert second(wanted()) == made
    assert not has_process(second)
    second(wanted(64))
    assert has_process(second), "another block shape is other code"
    second.close()


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    first = NativeCompiler(60, 0, disk=Cache(tmp_path))
    made = first(wanted())
    first.close()
    (entry,) = tmp_path.glob("*.entry")
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    second = NativeCompiler(60, 0, disk=Cache(tmp_path))
    assert second(wanted()) == made
    assert has_process(second)
    second.close()


def test_it_lies_beside_the_programs_where_their_compilers_may_not_write() -> None:
    assert machine_code_folder("") is None
    assert machine_code_folder("/var/cache/one") == Path("/var/cache/one-machine-code")
    beside = machine_code_folder(None)
    assert beside is not None
    assert beside.parent == default_folder().parent
    assert default_folder() not in beside.parents
