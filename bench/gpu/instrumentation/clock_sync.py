"""Converts times between the host's clock and the device's timer.

Problem: a decision is made on the host, and blocks record its effects in device time. Approach:
the device reads its timer between two reads of the host's clock, many times. Each such *sample*
bounds the difference from both sides; the tightest bounds hold.

Terms: offset = device time - host time, in nanoseconds; its uncertainty is half the distance
between the bounds. On a GPU a kernel answers through mapped memory, which takes 2 or 3 us.

The two clocks drift apart by some microseconds a second, so the offset is measured shortly before
and after the events of interest, and interpolated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from bench.gpu.instrumentation.driver import Gpu
from gpud.compiler.pipeline import compile_program
from gpud.device.interface import pack_parameters

__all__ = ["Clock", "ClockSample", "GpuClock", "Offset", "between", "offset_of"]

_ROUNDS = 40
_TIMEOUT_S = 30.0

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


class ClockSample(NamedTuple):
    """A device time, read between two host times; nanoseconds."""

    before: int
    device: int
    after: int


class Offset(NamedTuple):
    """Device time = host time + ``ns``, give or take ``uncertainty_ns``, at host time ``at_ns``."""

    ns: int
    uncertainty_ns: int
    at_ns: int


Clock = Callable[[], Offset]
"""Measures the offset now."""


def between(first: Offset, last: Offset, host_ns: int) -> int:
    """Convert a time of `time.perf_counter_ns` to device time, by two offsets around it."""
    span = max(1, last.at_ns - first.at_ns)
    drift = (last.ns - first.ns) * (host_ns - first.at_ns)
    return host_ns + first.ns + round(drift / span)


def offset_of(samples: Iterable[ClockSample], tick_ns: int = 0) -> Offset:
    """Return the offset that all samples allow; ``tick_ns`` is the step of the device's timer.

    If the clocks drift, so that no offset fits all samples, the middle between the crossed bounds,
    with half their distance as uncertainty.

    Raises:
        ValueError: no samples.
    """
    some = list(samples)
    bounds = [(one.device - one.after, one.device + tick_ns - one.before) for one in some]
    if not bounds:
        raise ValueError("no sample of the device's timer")
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    middle = (some[0].before + some[-1].after) // 2
    return Offset((low + high) // 2, abs(high - low + 1) // 2, middle)


class GpuClock:
    """Reads the device's time through a kernel; nothing else should run meanwhile."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        text = compile_program(_ANSWER, kill=False).original_ptx
        self._function = gpu.load(text).function("answer")
        self._words = gpu.host_words(8)
        self._stream = gpu.stream()

    def __call__(self) -> Offset:
        """Return the offset now."""
        with self._gpu.current():
            return offset_of(self.samples())

    def samples(self, rounds: int = _ROUNDS) -> list[ClockSample]:
        """Take ``rounds`` samples; returns when the kernel has ended.

        Raises:
            TimeoutError: it does not answer.
        """
        asked = self._words.words
        asked[:] = 0
        told = asked[4:6].view("<u8")
        values = [
            self._words.address.to_bytes(8, "little"),
            (self._words.address + 16).to_bytes(8, "little"),
            rounds.to_bytes(4, "little"),
        ]
        buffer = pack_parameters(self._function.parameters, values)
        self._function.launch((1, 1, 1), (1, 1, 1), buffer, stream=self._stream)
        found: list[ClockSample] = []
        deadline = time.monotonic() + _TIMEOUT_S
        for number in range(1, rounds + 1):
            before = time.perf_counter_ns()
            asked[0] = number
            while asked[1] < number:
                if time.monotonic() > deadline:
                    asked[0] = rounds  # let the kernel end
                    raise TimeoutError(f"no answer to question {number} of {rounds}")
            after = time.perf_counter_ns()
            found.append(ClockSample(before, int(told[0]), after))
        self._gpu.synchronise(self._stream)
        return found
