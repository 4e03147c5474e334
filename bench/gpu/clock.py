"""The device's timer and the host's: which moment of one is which of the other.

Problem: a decision is made on the host, and what follows from it is noted by blocks in the device's
time. Approach: the device notes its timer between two looks at the host's clock, many times. Each
such *sight* bounds the difference from both sides; the tightest bounds hold.

Terms: offset = device time - host time, in nanoseconds; its uncertainty is half of what is left
between the bounds. On a GPU a kernel answers through mapped memory, which takes 2 or 3 us.

The part that asks a GPU has not run on one yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from bench.gpu.driver import Gpu
from gpud.device.interface import pack_parameters

__all__ = ["Offset", "Sight", "offset_of", "sights_of"]

_ROUNDS = 300
_PATIENCE_S = 5.0

_ANSWER = r"""
extern "C" __global__ void answer(volatile unsigned* asked, volatile unsigned long long* told,
                                  int rounds) {
    for (int k = 1; k <= rounds; k++) {
        while (asked[0] < (unsigned)k) {}
        unsigned long long now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        told[0] = now;
        __threadfence_system();
        asked[1] = (unsigned)k;
        __threadfence_system();
    }
}
"""


class Sight(NamedTuple):
    """A time of the device's, seen between two of the host's; nanoseconds."""

    before: int
    device: int
    after: int


class Offset(NamedTuple):
    """Device time = host time + ``ns``, give or take ``uncertainty_ns``."""

    ns: int
    uncertainty_ns: int

    def to_device(self, host_ns: int) -> int:
        """A moment of `time.perf_counter_ns` in the device's time."""
        return host_ns + self.ns


def offset_of(sights: Iterable[Sight], tick_ns: int = 0) -> Offset:
    """The offset that all sights allow; ``tick_ns`` is the step of the device's timer.

    If the clocks drift, so that none fits all, the middle of what is left, with its size.

    Raises:
        ValueError: no sights.
    """
    bounds = [(one.device - one.after, one.device + tick_ns - one.before) for one in sights]
    if not bounds:
        raise ValueError("no sight of the device's timer")
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    return Offset((low + high) // 2, abs(high - low + 1) // 2)


def sights_of(gpu: Gpu, rounds: int = _ROUNDS) -> list[Sight]:
    """Ask a kernel for the device's time again and again; nothing else should run meanwhile.

    Raises:
        TimeoutError: it does not answer.
    """
    from gpud.compiler.pipeline import compile_program

    function = gpu.load(compile_program(_ANSWER, kill=False).original_ptx).function("answer")
    words = gpu.host_words(8)
    told = words.words[4:6].view("<u8")
    stream = gpu.stream()
    values = [
        words.address.to_bytes(8, "little"),
        (words.address + 16).to_bytes(8, "little"),
        rounds.to_bytes(4, "little"),
    ]
    buffer = pack_parameters(function.parameters, values)
    function.launch((1, 1, 1), (1, 1, 1), buffer, stream=stream)
    found: list[Sight] = []
    asked = words.words
    deadline = time.monotonic() + _PATIENCE_S
    for number in range(1, rounds + 1):
        before = time.perf_counter_ns()
        asked[0] = number
        while asked[1] < number:
            if time.monotonic() > deadline:
                asked[0] = rounds  # let the kernel end
                raise TimeoutError(f"no answer to question {number} of {rounds}")
        after = time.perf_counter_ns()
        found.append(Sight(before, int(told[0]), after))
    gpu.synchronise(stream)
    return found
