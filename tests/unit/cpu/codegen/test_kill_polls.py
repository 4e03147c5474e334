"""Kill polls on the CPU device: endless kernels are killed."""

from __future__ import annotations

import pytest

from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import Form, LaunchSpec, Memory
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.codegen.checked_arena import ptx
from tests.unit.cpu.device_helpers import TIMEOUT_S, Array, pointer, words
from tests.unit.cpu.lower.instruction_runner import optimised

ENDLESS = r"""
__device__ __noinline__ void spin(unsigned* out, unsigned more) {
    for (unsigned i = 1; i != 0; i = i * 2 + 1 + more) { out[2] = i; }
}
extern "C" __global__ void together(unsigned* out, unsigned more) {
    out[1] = 1;
    for (unsigned i = 1; i != 0; i = i * 2 + 1 + more) out[2 + threadIdx.x] = i;
}
extern "C" __global__ void barriers(unsigned* out, unsigned more) {
    out[1] = 1;
    for (unsigned i = 1; i != 0; i = i * 2 + 1 + more) { out[2] = i; __syncthreads(); }
}
extern "C" __global__ void own_ways(unsigned* out, unsigned more) {
    out[1] = 1;
    for (unsigned i = threadIdx.x + 1; i != 0; i = i * 2 + 1 + more) out[2 + (i & 7)] = i;
}
extern "C" __global__ void nested(unsigned* out, unsigned more) {
    out[1] = 1;
    for (unsigned i = threadIdx.x + 1; i != 0; i = i * 2 + 1 + more)
        for (unsigned j = 0; j < (i & 3); j++) out[2 + (i & 7)] += j;
}
extern "C" __global__ void one_thread(unsigned* out, unsigned more) {
    if (threadIdx.x == 3) { out[1] = 1; spin(out, more); }
    __syncthreads();
}
extern "C" __global__ void polls(unsigned* out, unsigned more) {
    out[1] = 1;
    while (*(volatile unsigned*)out == 0) {}
}
extern "C" __global__ void ends(unsigned* out, unsigned more) {
    for (unsigned i = 0; i < 100; i++) out[2 + threadIdx.x] += i;
    out[1] = 1;
}
"""
MULTIPLIER = 1664525
ROUNDS = f"""
extern "C" __global__ void rounds(unsigned* out, int count) {{
    unsigned x = threadIdx.x;
    #pragma unroll 1
    for (int round = 0; round < count; round++) x = (x * {MULTIPLIER}u) ^ (x >> 3);
    out[threadIdx.x] = x;
}}"""


def job_of(
    device: CPUDevice, name: str, form: Form, threads: int = 32
) -> tuple[ResizableRun, Array, Memory]:
    program = ptx(ENDLESS, form)
    entry = program.kernels[name].entry_for((threads, 1, 1), killable=True)
    kernel = device.load(program.ptx).kernel(entry)
    memory, view = words(device, 64)
    values = [pointer(memory), (0).to_bytes(4, "little")]
    job = ResizableRun(device, [LaunchSpec.of(kernel, form, 3, threads, values)])
    return job, view, memory


@pytest.mark.parametrize("form", ["persistent", "sliced"])
@pytest.mark.parametrize(
    "name", ["together", "barriers", "own_ways", "nested", "one_thread", "polls"]
)
def test_an_endless_kernel_is_killed(device: CPUDevice, name: str, form: Form) -> None:
    job, view, _memory = job_of(device, name, form)
    job.resize(1)
    until(lambda: view[1] == 1)
    assert not job.done
    job.kill()
    assert job.wait(TIMEOUT_S)
    assert job.held == 0


def test_a_kernel_with_polls_that_is_not_killed(device: CPUDevice) -> None:
    job, view, _memory = job_of(device, "ends", "persistent")
    job.resize(1)
    job.result(TIMEOUT_S)
    assert view[1] == 1
    assert (view[2:34] == 3 * 4950).all()


def test_iterations_keep_results_in_machine_registers(device: CPUDevice) -> None:
    """A poll in each iteration does not force values to memory."""
    program = ptx(ROUNDS, "persistent")
    entry = program.kernels["rounds"].entry_for((8, 1, 1), killable=True)
    kernel = device.load(program.ptx).kernel(entry)
    module, _ = optimised(kernel.generate(Shape(8)).ir)
    (together,) = (f for f in module.functions if f.name == "run_lockstep")
    rounds = [
        text
        for text in map(str, together.blocks)
        if "load atomic" in text and str(MULTIPLIER) in text
    ]
    assert rounds
    assert not any(" store " in text for text in rounds)
