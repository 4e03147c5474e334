"""A kernel whose task blocks record when and where they ran, and analysis of these records.

Problem: the host learns late, and indirectly, when a share of a device changes hands; the blocks
know. Approach: a kernel whose task blocks record the device's timer at their begin and end, and
their SM; everything else is computed from these *notes*.

Terms: a *place* is where a resident block runs: SM and first warp slot, of which no two resident
blocks have the same; all task blocks that one persistent block runs one after the other have one
place. *Busy* at a moment is how many task blocks have begun and not ended then.

Properties: times are the device's nanoseconds; the analysis needs no GPU. On the CPU device all
blocks of an SM have the same warp numbers, so there places are right for one block an SM only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.gpu.instrumentation.device_memory import DeviceMemory
from gpud.compiler.pipeline import compile_program
from gpud.demo.metrics import percentile
from gpud.device.interface import Form, LaunchSpec

__all__ = [
    "ENTRY",
    "NOTE_BYTES",
    "SLOTS",
    "SOURCE",
    "NotedKernel",
    "Notes",
    "freed_sms",
    "gone_ns",
    "quantiles_us",
    "tick_ns",
]

Times = npt.NDArray[np.int64]

SLOTS: Final = 64
"""Places of an SM: the most warps that it can hold."""

NOTE_BYTES: Final = 24

BRIDGE_NS: Final = 20_000
"""The longest gap between two task blocks of one persistent block."""

ENTRY: Final = "noted"

SOURCE: Final = r"""
struct Note { unsigned long long began, ended; unsigned place, sm; };
extern "C" __global__ void noted(Note* notes, float* out, int loops) {
    unsigned long long began = 0;
    if (threadIdx.x == 0) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    float x = (float)(threadIdx.x + (blockIdx.x & 7));
    for (int k = 0; k < loops; k++) x = x * 0.999f + 0.5f;
    out[((blockIdx.x & 1023) * blockDim.x) + threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned long long ended;
        unsigned sm, warp;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ended));
        notes[blockIdx.x].began = began;
        notes[blockIdx.x].place = sm * 64 + warp;
        notes[blockIdx.x].sm = sm;
        notes[blockIdx.x].ended = ended;
    }
}
"""
"""``loops`` sets the length of task blocks: they compute, not wait, so that a slower SM shows."""

OUT_BLOCKS: Final = 1024

_NOTE = np.dtype([("began", "<u8"), ("ended", "<u8"), ("place", "<u4"), ("sm", "<u4")])


@dataclass(frozen=True)
class Notes:
    """The notes of the task blocks that ran, ordered by their begin.

    Attributes:
        began, ended: in nanoseconds of the device.
        place: where; ``sm``: on which SM.
    """

    began: Times
    ended: Times
    place: npt.NDArray[np.uint32]
    sm: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, raw: bytes) -> Notes:
        """Read the kernel's array; task blocks that have not ended are left out."""
        found = np.frombuffer(raw, _NOTE)
        found = found[found["ended"] > 0]
        found = found[np.argsort(found["began"], kind="stable")]
        began, ended = (found[name].astype(np.int64) for name in ("began", "ended"))
        return cls(began, ended, found["place"].copy(), found["sm"].copy())

    def __len__(self) -> int:
        return len(self.began)

    def between(self, first_ns: int, last_ns: int) -> Notes:
        """Return the notes of the task blocks that were running at some moment in [first, last]."""
        some = (self.ended >= first_ns) & (self.began <= last_ns)
        return Notes(self.began[some], self.ended[some], self.place[some], self.sm[some])

    def block_ns(self) -> Times:
        """Return the duration of each task block."""
        found: Times = self.ended - self.began
        return found

    def bridged(self, gap_ns: int = BRIDGE_NS) -> Notes:
        """Return the notes, each end moved to the next begin at its place, if that follows soon.

        In the gap the persistent block claims its next task block: it is resident all the while.
        """
        order = np.lexsort((self.began, self.place))
        began, ended, place = self.began[order], self.ended[order].copy(), self.place[order]
        gap = began[1:] - ended[:-1]
        near = (place[1:] == place[:-1]) & (gap > 0) & (gap <= gap_ns)
        ended[:-1][near] = began[1:][near]
        back = np.argsort(began, kind="stable")
        return Notes(began[back], ended[back], place[back], self.sm[order][back])

    def busy(self, moments: Times) -> npt.NDArray[np.int64]:
        """How many task blocks were running at each moment."""
        begun = np.searchsorted(self.began, moments, side="right")
        over = np.searchsorted(np.sort(self.ended), moments, side="right")
        return (begun - over).astype(np.int64)

    def sms_busy(self, moments: Times) -> npt.NDArray[np.int64]:
        """On how many SMs at least one task block was running at each moment."""
        longest = int(self.block_ns().max(initial=0))
        found = np.zeros(len(moments), np.int64)
        for number, moment in enumerate(moments):
            first = np.searchsorted(self.began, moment - longest, side="left")
            last = np.searchsorted(self.began, moment, side="right")
            some = slice(int(first), int(last))
            found[number] = np.unique(self.sm[some][self.ended[some] > moment]).size
        return found

    def busy_share(self, first_ns: int, last_ns: int) -> float:
        """How many task blocks were running on average from first to last."""
        begin = np.clip(self.began, first_ns, last_ns)
        end = np.clip(self.ended, first_ns, last_ns)
        return float((end - begin).sum()) / (last_ns - first_ns)


def gone_ns(notes: Notes, decision_ns: int, released: int) -> int | None:
    """When the last of the blocks had left that were released by a decision.

    Of all places that were occupied at the decision, the released ones are those whose last task
    block ended first. The job must go on for long enough after it, and must not have grown.

    Returns:
        The time; None if it cannot be determined: too few places, or no clear gap between those
        that left and those that stayed.
    """
    last: dict[int, int] = {}
    occupied: set[int] = set()
    for began, ended, place in zip(
        notes.began.tolist(), notes.ended.tolist(), notes.place.tolist(), strict=True
    ):
        last[place] = max(last.get(place, 0), ended)
        if began <= decision_ns:
            occupied.add(place)
    ends = sorted(last[place] for place in occupied if last[place] >= decision_ns)
    if not 0 < released < len(ends):
        return None
    gap = ends[released] - ends[released - 1]
    typical = int(np.median(notes.block_ns()))
    return ends[released - 1] if gap > 2 * typical else None


def freed_sms(notes: Notes, decision_ns: int, gone_ns: int) -> int:
    """How many SMs had task blocks before the decision and none once the released ones had left."""
    before, stayed = notes.began <= decision_ns, notes.ended > gone_ns
    return len(set(notes.sm[before].tolist()) - set(notes.sm[stayed].tolist()))


def tick_ns(notes: Notes) -> int:
    """Return the step of the device's timer: the least difference between two noted times."""
    times = np.unique(np.concatenate([notes.began, notes.ended]))
    return int(np.diff(times).min(initial=1 << 30)) if len(times) > 1 else 0


class NotedKernel:
    """The noting kernel on a device, with memory for the notes of ``most`` task blocks.

    Args:
        device: a CUDA or CPU device.
        threads: of a block.
        most: task blocks of its largest job.
        form: "persistent", or "unmodified" for plain launches.
    """

    def __init__(self, device: Any, threads: int, most: int, form: Form = "persistent") -> None:
        program = compile_program(SOURCE, form="persistent", bounds_checks=False, kill=False)
        self._form: Form = form
        text = program.original_ptx if form == "unmodified" else program.ptx
        self._kernel = device.load(text).kernel(ENTRY)
        self.threads = threads
        self.occupancy: int = device.occupancy(self._kernel, (threads, 1, 1))
        self._notes = DeviceMemory(device, NOTE_BYTES * most)
        self._out = DeviceMemory(device, 4 * threads * OUT_BLOCKS)
        self.most = most

    def spec(self, blocks: int, loops: int) -> LaunchSpec:
        """Return a launch of ``blocks`` task blocks."""
        assert blocks <= self.most
        values = [
            self._notes.address.to_bytes(8, "little"),
            self._out.address.to_bytes(8, "little"),
            loops.to_bytes(4, "little"),
        ]
        return LaunchSpec.of(self._kernel, self._form, blocks, self.threads, values)

    def clear(self) -> None:
        """Clear the notes of the last job."""
        self._notes.clear()

    def notes(self, blocks: int | None = None) -> Notes:
        """Return the notes of the first ``blocks`` task blocks; None: of all."""
        return Notes.of(self._notes.read(None if blocks is None else NOTE_BYTES * blocks))

    def loops_for(self, block_us: float, run: Callable[[int], Notes]) -> int:
        """Return the loops of a task block of ``block_us``; ``run`` runs some with N loops."""
        loops = 1000
        for _ in range(6):
            took = float(np.median(run(loops).block_ns())) / 1e3
            if abs(took / block_us - 1) < 0.05:
                break
            loops = max(1, min(round(loops * block_us / max(took, 0.05)), 1 << 30))
        return loops

    def close(self) -> None:
        """Free the memory."""
        self._notes.close()
        self._out.close()


def quantiles_us(times_ns: Sequence[int]) -> dict[str, float]:
    """p50, p99, maximum and count, in microseconds."""
    values = [one / 1e3 for one in times_ns]
    if not values:
        return {"count": 0}
    return {
        "p50": percentile(values, 50),
        "p99": percentile(values, 99),
        "most": max(values),
        "count": len(values),
    }
