"""The idle rate: one number for how much work a GPU, or a node, could take now.

Problem: an item shall go to the node whose GPUs are the most idle. GPUs differ in what they can do
and in how much of it is idle, and an item needs cores as well as memory bandwidth. The method's
source (a patent on scheduling by idle rate) names the eight inputs of F, but the image of its
formula is lost.

Approach: F is written out of two products that the inputs leave hardly any choice about::

    C = freq * SM * Core * GPUPerc            idle core cycles,  10^6 a second
    B = memFreq * busWidth * memPerc          idle bits,         10^6 a second
    F = (w_c * C / C_ref  combined with  w_b * B / B_ref) * (W / W_ref) ** w_w

and what the source leaves open is a `Reading`, chosen by a setting:

* W, "warpSize", is the threads of a warp (32 on every GPU so far, so it changes nothing), or the
  number of warps that an SM holds (what hides the memory's latency);
* memPerc is the idle part of the bandwidth, or the free part of the memory;
* the two products are added, or multiplied (with the weights as exponents);
* GPUPerc is the idle part of the cores, or what a newcomer would get: gpud shares a full device
  equally, so that one job more gets 1 / (jobs + 1) of it, not nothing;
* F of a node is the maximum or the mean over its GPUs.

Items that were placed since a GPU's last heartbeat are in none of its figures. `unseen` of them
divide what is idle: one item more gets 1 / (unseen + 1) of it. If both products are divided and
added, items are given out between two heartbeats as D'Hondt's method gives seats, in proportion to
the idle rates.

The default is what predicted best the throughput that items then reached, of all 32 readings, in
virtual time (contrib/ray/bench/placement.py, docs/explanation/several-machines.md).

Terms: C_ref, B_ref and W_ref are those of one common GPU (68 SMs of 128 cores at 1,710 MHz; 320
bits at 9,501 MHz; 64 warps), so that F is about 1 for it when idle and weights are plain numbers.

Properties:
    * F is at least 0, and 0 if all cores and all bandwidth are in use (of the literal GPUPerc);
    * F never falls when a figure or an idle part rises, and never rises with `unseen`;
    * multiplying each weight of a sum by one number leaves the order of GPUs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

from gpud.errors import InvalidArgument
from gpud_ray.placement.gpu_reading import GPUReading

__all__ = ["READINGS", "Reading", "gpu_idle_rate", "node_idle_rate"]

_CORE_MHZ = 1_710.0 * 68 * 128
_MBIT_S = 9_501.0 * 320
_WARPS = 64
_THREADS = 32


@dataclass(frozen=True, slots=True)
class Reading:
    """How the formula is read, and its weights.

    Attributes:
        warp: What "warpSize" is: ``"threads"`` of a warp or ``"warps"`` of an SM.
        memory: What "memPerc" is a part of: the ``"bandwidth"`` or the ``"capacity"``.
        combine: Whether the two products are added (``"sum"``) or multiplied (``"product"``).
        cores: What "GPUPerc" is: the ``"idle"`` part, or what a ``"newcomer"`` would get.
        node: Whether a node has the ``"max"`` or the ``"mean"`` of its GPUs.
        compute_weight: w_c, at least 0.
        bandwidth_weight: w_b, at least 0.
        warp_weight: w_w, at least 0.
    """

    warp: Literal["threads", "warps"] = "threads"
    memory: Literal["bandwidth", "capacity"] = "capacity"
    combine: Literal["sum", "product"] = "product"
    cores: Literal["idle", "newcomer"] = "newcomer"
    node: Literal["max", "mean"] = "max"
    compute_weight: float = 1.0
    bandwidth_weight: float = 1.0
    warp_weight: float = 1.0

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for field in fields(self):
            value, choices = getattr(self, field.name), get_args(kinds[field.name])
            if choices and value not in choices:
                named = " or ".join(map(repr, choices))
                raise InvalidArgument(f"a reading's {field.name} is {named}, not {value!r}")
            if not choices and not 0 <= value < float("inf"):
                raise InvalidArgument(f"a reading's {field.name} is 0 or more, not {value!r}")
        if not self.compute_weight and not self.bandwidth_weight:
            raise InvalidArgument("one of compute_weight and bandwidth_weight is over 0")

    @property
    def name(self) -> str:
        """The choices in one word, such as ``threads-bandwidth-sum-idle-max``."""
        return f"{self.warp}-{self.memory}-{self.combine}-{self.cores}-{self.node}"


READINGS = tuple(
    Reading(warp, memory, combine, cores)
    for warp in ("threads", "warps")
    for memory in ("bandwidth", "capacity")
    for combine in ("sum", "product")
    for cores in ("idle", "newcomer")
)
"""Every way to read F of one GPU, with equal weights."""


def gpu_idle_rate(gpu: GPUReading, reading: Reading, *, unseen: int = 0, taken: int = 0) -> float:
    """Return F of one GPU; it has no unit, and is about 1 for a common GPU that is idle.

    Args:
        gpu: As its last heartbeat said.
        reading: How to read the formula.
        unseen: Items placed on it since that heartbeat.
        taken: The memory that these need, in bytes.
    """
    idle = gpu.idle_cores / (unseen + 1)
    bandwidth = gpu.idle_cores if gpu.idle_bandwidth is None else gpu.idle_bandwidth
    bandwidth /= unseen + 1
    if reading.cores == "newcomer":
        share = 1 / (gpu.jobs + unseen + 1)
        idle, bandwidth = max(idle, share), max(bandwidth, share)
    if reading.memory == "capacity":
        free = max(gpu.memory_free_bytes - taken, 0)
        bandwidth = free / gpu.memory_bytes if gpu.memory_bytes else 0.0
    compute = gpu.peak_core_mhz * idle / _CORE_MHZ
    moved = gpu.peak_mbit_s * bandwidth / _MBIT_S
    if reading.combine == "sum":
        both = reading.compute_weight * compute + reading.bandwidth_weight * moved
    else:
        both = compute**reading.compute_weight * moved**reading.bandwidth_weight
    warps = gpu.warps_per_sm / _WARPS if reading.warp == "warps" else gpu.warp_threads / _THREADS
    return float(both * warps**reading.warp_weight)


def node_idle_rate(rates: Sequence[float], reading: Reading) -> float:
    """Return F of a node from those of its GPUs: their maximum or mean; 0 if it has none."""
    if not rates:
        return 0.0
    return max(rates) if reading.node == "max" else sum(rates) / len(rates)
