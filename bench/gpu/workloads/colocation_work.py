"""The work of the co-location measurement: online sequences, offline kernels, and their sizes.

All kernels do arithmetic for as long as their loops say, so that a kernel which has half of the SMs
takes twice as long; none waits for a time. Sizes are found by the device's timer once, on the idle
GPU, as plain launches, and are the same for every system that is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

__all__ = [
    "ENTRY",
    "OFFLINE",
    "ONLINE",
    "OUT_BLOCKS",
    "SOURCE",
    "THREADS",
    "Offline",
    "Online",
    "Sized",
    "sized_offline",
    "sized_online",
]

SOURCE: Final = r"""
extern "C" __global__ void work(float* out, int loops) {
    float x = (float)(threadIdx.x + (blockIdx.x & 7));
    for (int k = 0; k < loops; k++) x = x * 0.999f + 0.5f;
    out[(blockIdx.x & 1023) * blockDim.x + threadIdx.x] = x;
}
"""
ENTRY: Final = "work"
THREADS: Final = 256
OUT_BLOCKS: Final = 1024
_ONLINE_WAVES: Final = 2


@dataclass(frozen=True)
class Online:
    """A request: kernels one after the other, each of a length in microseconds."""

    name: str
    kernels_us: tuple[float, ...]


@dataclass(frozen=True)
class Offline:
    """An offline kernel: its length alone, and how many task blocks a resident block runs."""

    name: str
    kernel_ms: float
    waves: int


ONLINE: Final = (
    Online("1ms", (50.0,) * 20),
    # 200 kernels of 5 to 40 us, 20 us on average.
    Online("4ms", tuple(5.0 + 35.0 * (number * 7 % 20) / 20 for number in range(200))),
)
OFFLINE: Final = (
    Offline("2.2ms", 2.2, 22),
    Offline("blocks of 5ms", 20.0, 4),
    Offline("0.24ms", 0.24, 8),
    Offline("10.8ms", 10.8, 54),
    Offline("0.04ms", 0.04, 4),
)
"""The most informative first: time on a GPU may end in the middle."""


@dataclass(frozen=True)
class Sized:
    """A kernel on this device: task blocks and loops."""

    blocks: int
    loops: int

    def plain(self) -> dict[str, int]:
        """For JSON; ``Sized(**plain)`` is the same again."""
        return asdict(self)


Timer = Callable[[int, int], float]
"""(blocks, loops) to microseconds of the kernel alone."""


def _loops(timer: Timer, blocks: int, wanted_us: float) -> int:
    loops = 100
    for _ in range(6):
        took = timer(blocks, loops)
        if abs(took / wanted_us - 1) < 0.03:
            break
        loops = max(1, min(round(loops * wanted_us / max(took, 0.1)), 1 << 30))
    return loops


def sized_online(online: Online, slots: int, timer: Timer) -> list[Sized]:
    """Return the kernels of a request; the size for each length is found once."""
    blocks = _ONLINE_WAVES * slots
    found = {us: Sized(blocks, _loops(timer, blocks, us)) for us in set(online.kernels_us)}
    return [found[us] for us in online.kernels_us]


def sized_offline(offline: Offline, slots: int, timer: Timer) -> Sized:
    """Return an offline kernel."""
    blocks = offline.waves * slots
    return Sized(blocks, _loops(timer, blocks, 1e3 * offline.kernel_ms))
