"""Uses a CUDA device over the real bindings; test_libcuda.py runs it with a libcuda of our own."""

from __future__ import annotations

import tempfile

from gpud.device.cuda.device import CUDADevice
from gpud.device.interface import LaunchSpec
from gpud.errors import CompileError
from tests.support.resizable_run import ResizableRun

HIDDEN = "(.param .u64 x, .param .u64 gpud_loop_control)"
PROGRAM = f"""
.version 8.0
.target sm_75
.address_size 64
.global .align 8 .b8 table[16];
.const .align 8 .b8 gpud_arena[16];
.visible .entry persistent_a{HIDDEN} {{ ret; }}
.visible .entry slow_b{HIDDEN} {{ ret; }}
.visible .entry sliced_c{HIDDEN} {{ ret; }}
.visible .entry whole_d{HIDDEN} {{ ret; }}
.visible .entry plain_e(.param .u64 x) {{ ret; }}
"""
FORMS = {
    "persistent_a": "persistent",
    "slow_b": "persistent",
    "sliced_c": "sliced",
    "whole_d": "whole",
    "plain_e": "unmodified",
}
ARENA = 8 << 20
HOURS = 1 << 30


def use(device: CUDADevice) -> None:
    """Use all functions of a device."""
    assert (device.name, device.sms, device.capability) == ("Model", 8, 90)
    assert device.uuid == "GPU-00112233-4455-6677-8899-aabbccddeeff"
    with tempfile.TemporaryFile() as file:
        file.truncate(ARENA)
        arena = device.map_arena(file.fileno(), ARENA)
        arena.commit(0, 100)
        arena.commit(5 << 20, 1 << 20)
        arena.upload(0, 100)
        arena.download(0, 100)
    module = device.load(PROGRAM, (arena.address, ARENA))

    def run(*names: str, exclusive: int = 0, times: int = 1) -> None:
        specs = [
            LaunchSpec(module.kernel(name), FORMS[name], (10, 1, 1), (32, 1, 1), bytes(8))  # type: ignore[arg-type]
            for name in names
        ]
        sequence = device.prepare(specs)
        for _ in range(times):
            job = ResizableRun(device, sequence, priority=1, exclusive=exclusive)
            job.resize(3)
            job.result(60)
            assert job.complete

    assert device.occupancy(module.kernel("persistent_a"), (32, 1, 1), 100 << 10) == 2
    module.symbol("table")[:4] = b"abcd"
    assert module.symbol("table").tobytes()[:4] == b"abcd"
    run(*["persistent_a"] * 20, times=4)
    assert device.batches is not None
    way = "native" if device.batches.graphs is None else "graph"
    assert device.batches.counts[way] >= 2, device.batches.counts
    run("plain_e", "sliced_c", "whole_d", "persistent_a")
    run("slow_b")
    assert device.partitions.step > 0
    run("persistent_a", exclusive=device.partitions.step)
    try:
        device.load(PROGRAM.replace("table", "refuse_me"))
    except CompileError as error:
        assert "ptxas fatal: refused" in str(error)  # noqa: PT017
    else:
        raise AssertionError
    arena.release(0, 100)
    arena.close()


def load_beside_a_kernel(device: CUDADevice) -> None:
    """Load while a kernel runs: the load waits, and blocks all other calls; no deadlock results."""
    module = device.load(PROGRAM)
    grid = (HOURS, 1, 1)
    spec = LaunchSpec(module.kernel("slow_b"), "persistent", grid, (32, 1, 1), bytes(8))
    job = ResizableRun(device, [spec])
    job.resize(1)
    for number in range(3):
        while not job.progress[1]:
            pass
        device.load(PROGRAM.replace("table", f"table_{number}"))
        done = job.progress[1]
        while job.progress[1] == done:
            pass
    assert not job.exhausted
    job.end()
    assert job.wait(60)
    assert job.error is None


if __name__ == "__main__":
    for graphs in (True, False):
        with CUDADevice(graphs=graphs) as opened:
            use(opened)
    with CUDADevice() as opened:
        load_beside_a_kernel(opened)
