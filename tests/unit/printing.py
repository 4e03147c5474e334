"""Kernels that print, well and badly, and one-thread runs of them: the same on every device."""

from __future__ import annotations

from typing import Any

from gpud.device.interface import Device, LaunchSpec
from tests.support.resizable_run import ResizableRun
from tests.unit.cpu.device_helpers import TIMEOUT_S, rewritten

ARENA = 1 << 20

SOURCE = r"""
extern "C" __global__ void all(int* returned) {
    short small = -3; float half = 0.5f; char letter = 'z';
    const char* name = "kernel";
    returned[0] = printf("%d %hd %c %s %5.2f %lld %llu %x %%|%*d|%p\n", 1, small, letter, name,
                         half, -5000000000LL, 18446744073709551615ULL, 255u, 4, 7, (void*)16);
    returned[1] = printf("plain\n");
    returned[2] = printf("%d%%\n", 5);
}
extern "C" __global__ void many() { printf("%d.%d\n", blockIdx.x, threadIdx.x); }
"""

ALL_LINES = "1 -3 z kernel  0.50 -5000000000 18446744073709551615 ff %|   7|0x10\nplain\n5%\n"

HOSTILE = r"""
extern "C" __device__ int vprintf(const char*, const char*);
extern "C" __global__ void format(const char* text) { vprintf(text, 0); }
extern "C" __global__ void string(const char* text) { printf("<%s>\n", text); }
extern "C" __global__ void values(const char* packed) { vprintf("%d\n", packed); }
__device__ char own[] = "its own";
__device__ __noinline__ void deep(char first) {
    char local[8] = {first, 'e', 'e', 'p', 0};
    printf("%s\n", local);
}
extern "C" __global__ void legal() {
    char local[8] = {'l', 'o', 'c', 'a', 'l', 0};
    __shared__ char shared[8];
    shared[0] = 's'; shared[1] = 0;
    printf("%s %s %s\n", own, local, shared);
}
extern "C" __global__ void nested() { deep('d'); }
extern "C" __global__ void much(int lines) {
    for (int i = 0; i < lines; i++) printf("%1000d%1000d\n", threadIdx.x, i);
}
"""

SAID = {"format": b"", "string": b"<(unreadable)>\n", "values": b"(unreadable)\n"}
"""What kernels of `HOSTILE` print of a pointer that means nothing."""

EACH = r"""
extern "C" __device__ int vprintf(const char*, const char*);
extern "C" __global__ void each(const char* formats, const char* values, int count) {
    for (int i = 0; i < count; i++) {
        vprintf(formats + 64 * i, values + 64 * i);
        printf("\n=%d\n", i);
    }
}
"""


def load(device: Device, source: str, memory: Any) -> Any:
    """A rewritten program whose arena is ``memory``, `ARENA` bytes."""
    return device.load(rewritten(source).ptx, (memory.address, ARENA))


def run(
    device: Device, kernel: Any, *values: bytes, blocks: int = 1, threads: int = 1
) -> ResizableRun:
    """Run a rewritten kernel."""
    job = ResizableRun(device, [LaunchSpec.of(kernel, "persistent", blocks, threads, list(values))])
    job.resize(1)
    job.result(TIMEOUT_S)
    return job
