"""A kernel that keeps the GPU busy, to find out which calls wait for running kernels.

It runs until the host ends it, or for a limited time. A call waited for it if the kernel is over
when the call has returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.gpu.instrumentation.driver import DriverError, Function, Gpu, check
from gpud.compiler.pipeline import compile_program
from gpud.device.interface import pack_parameters

__all__ = ["Act", "BusyKernel"]

SOURCE = r"""
__device__ unsigned long long timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
extern "C" __global__ void hold(volatile unsigned* words, unsigned long long ns) {
    unsigned long long began = timer();
    if (threadIdx.x == 0) atomicAdd((unsigned*)words + 1, 1u);
    while (words[0] == 0 && timer() - began < ns) {}
}
extern "C" __global__ void looks(volatile unsigned* word, int count) {
    if (threadIdx.x == 0)
        for (int k = 0; k < count; k++)
            if (word[0] == 7) break;
}
extern "C" __global__ void leaves(unsigned* word) { if (threadIdx.x == 0) atomicSub(word, 1u); }
extern "C" __global__ void sees(volatile unsigned* word, volatile unsigned* answer, unsigned rounds,
                                unsigned long long ns) {
    unsigned long long began = timer();
    for (unsigned k = 1; k <= rounds; k++) {
        while (word[0] < k) if (timer() - began > ns) return;
        answer[0] = k;
    }
}
extern "C" __global__ void quick(unsigned* words) { atomicAdd(words + 2, 1u); }
extern "C" __global__ void deep(unsigned* words) {
    unsigned big[4096];
    for (int i = 0; i < 4096; i++) big[(i * 77u + words[3]) & 4095] = i + words[3];
    words[2] = big[words[3] & 4095];
}
extern "C" __global__ void wide(unsigned* words) {
    extern __shared__ unsigned tile[];
    tile[threadIdx.x] = words[3];
    words[2] = tile[0];
}
"""

BEGIN_S = 30.0

Act = Callable[[], Any]


class BusyKernel:
    """Keeps the GPU busy while a call is made.

    Args:
        gpu: to keep busy.
        seconds: for how long at most.

    Attributes:
        everywhere: whether it has as many blocks as fit where `run_beside` is not told how many.
    """

    def __init__(self, gpu: Gpu, seconds: float) -> None:
        self.gpu = gpu
        self.seconds = seconds
        self.everywhere = False
        self.text = compile_program(SOURCE, kill=False).original_ptx
        self._module = gpu.load(self.text)
        self._words = gpu.host_words(8)
        self.stream = gpu.stream(gpu.lowest_priority)
        self.others = [gpu.stream(gpu.highest_priority) for _ in range(2)]
        self._hold = self.function("hold")

    def function(self, name: str) -> Function:
        """Return a kernel of the module."""
        return self._module.function(name)

    def capacity(self, threads: int) -> int:
        """Blocks of the busy kernel that fit at once."""
        return self.gpu.sms * self._hold.occupancy(threads)

    def begin(self, blocks: int, threads: int, stream: Any, seconds: float) -> None:
        """Launch the busy kernel."""
        ns = int(seconds * 1e9).to_bytes(8, "little")
        values = [self._words.address.to_bytes(8, "little"), ns]
        buffer = pack_parameters(self._hold.parameters, values)
        self._hold.launch((blocks, 1, 1), (threads, 1, 1), buffer, stream=stream)

    def launch(self, name: str, stream: Any, shared: int = 0) -> None:
        """Launch one block of another kernel."""
        function = self.function(name)
        values = [self._words.address.to_bytes(8, "little")]
        buffer = pack_parameters(function.parameters, values)
        function.launch((1, 1, 1), (32, 1, 1), buffer, stream=stream, shared=shared)

    def finish(self, stream: Any) -> None:
        """Wait for a stream, but at most twice as long as the busy kernel may take."""
        event = self.event(stream)
        ends = time.monotonic() + 2 * self.seconds
        while not self.over(event) and time.monotonic() < ends:
            time.sleep(20e-6)

    def event(self, stream: Any) -> Any:
        """Record an event behind the work on a stream."""
        event = check(self.gpu.cu.cuEventCreate(2))
        check(self.gpu.cu.cuEventRecord(event, stream))
        return event

    def over(self, event: Any) -> bool:
        """Whether everything before an event is done."""
        (status,) = self.gpu.cu.cuEventQuery(event)
        return int(status) == 0

    def begun(self) -> int:
        """How many blocks of the busy kernel have begun."""
        return int(self._words.words[1])

    def reset(self) -> None:
        """Reset the words before the next kernel; nothing runs."""
        self._words.words[:] = 0

    def end(self) -> None:
        """End the busy kernel, and wait for it."""
        self._words.words[0] = 1
        self.gpu.synchronise()

    def run_beside(
        self, act: Act, *, blocks: int = 0, threads: int = 32, behind: Act | None = None
    ) -> dict[str, Any]:
        """Call ``act`` while the kernel runs: whether and how long it waited, or its error.

        ``behind`` is called first, to queue work behind the kernel. ``blocks`` 0: one, or as many
        as fit.

        Raises:
            TimeoutError: the kernel did not begin.
        """
        self.reset()
        if not blocks:
            threads = 1024 if self.everywhere else threads
            blocks = self.capacity(threads) if self.everywhere else 1
        self.begin(blocks, threads, self.stream, self.seconds)
        point = self.event(self.stream)
        wanted = min(blocks, self.capacity(threads))
        ends = time.monotonic() + BEGIN_S
        while self.begun() < wanted:
            if time.monotonic() > ends:
                raise TimeoutError(f"{self.begun()} of {wanted} blocks have begun")
        began = time.monotonic()
        found: dict[str, Any] = {}
        try:
            if behind is not None:
                behind()
            act()
        except DriverError as error:
            found["error"] = str(error)
        finally:
            took = time.monotonic() - began
            if took > self.seconds / 2:
                time.sleep(2e-3)  # a call that waited may return just before the event completes
            found["waits"] = self.over(point)
            found["us"] = 1e6 * took
            self.end()
        return found
