"""The idle rate: one number for how much work a GPU, or a node, could take now.

Problem: an item shall go to the node whose GPUs are the most idle. GPUs differ in what they can do
and in how much of it is idle, and an item needs cores as well as memory bandwidth. The method's
source (a patent on scheduling by idle rate) names the eight inputs of F, but the image of its
formula is lost.

Approach: F is the product of what the inputs leave hardly any choice about::

    C = freq * SM * Core * GPUPerc            idle core cycles,  10^6 a second
    B = memFreq * busWidth * memPerc          idle bits,         10^6 a second
    F = C / C_ref * B / B_ref * warpSize / W_ref

* freq and memFreq are the card's highest clocks. Those of the moment are those of a GPU that has
  clocked down because it is idle.
* warpSize is the number of warps that an SM holds, as the source's text says.
* GPUPerc is what a newcomer would get: the idle part of the cores, or 1 / (jobs + 1) if that is
  more, since gpud shares a full device equally.
* memPerc is open: the idle part of the memory is the free part of it (``capacity``, the default) or
  the unused part of its bandwidth (``bandwidth``).
* F of a node is that of its most idle GPU.

Items that were placed since a GPU's last heartbeat are in none of its figures. `unseen` of them
divide what is idle: one item more gets 1 / (unseen + 1) of it.

A product, a newcomer's part and the free part of the memory are what predicted best the throughput
that items then reached, in virtual time (docs/explanation/several-machines.md, decisions.md).

Terms: C_ref, B_ref and W_ref are those of one common GPU (68 SMs of 128 cores at 1,710 MHz; 320
bits at 9,501 MHz; 64 warps), so that F is about 1 for it when idle.

Properties:
    * F is at least 0;
    * F never falls when a figure or an idle part rises, and never rises with `unseen`;
    * F does not depend on the clocks of the moment.
"""

from __future__ import annotations

from typing import Literal

from gpud_ray.placement.gpu_reading import GPUReading

__all__ = ["IdleMemory", "gpu_idle_rate"]

IdleMemory = Literal["capacity", "bandwidth"]
"""What "memPerc" is a part of."""

_CORE_MHZ = 1_710.0 * 68 * 128
_MBIT_S = 9_501.0 * 320
_WARPS = 64


def gpu_idle_rate(
    gpu: GPUReading, memory: IdleMemory = "capacity", *, unseen: int = 0, taken: int = 0
) -> float:
    """Return F of one GPU; it has no unit, and is about 1 for a common GPU that is idle.

    Args:
        gpu: As its last heartbeat said.
        memory: What the idle part of the memory is.
        unseen: Items placed on it since that heartbeat.
        taken: The memory that these need, in bytes.
    """
    share = 1 / (gpu.jobs + unseen + 1)
    cores = max(gpu.idle_cores / (unseen + 1), share)
    if memory == "capacity":
        free = max(gpu.memory_free_bytes - taken, 0)
        idle = free / gpu.memory_bytes if gpu.memory_bytes else 0.0
    else:
        unused = gpu.idle_cores if gpu.idle_bandwidth is None else gpu.idle_bandwidth
        idle = max(unused / (unseen + 1), share)
    compute = gpu.peak_core_mhz * cores / _CORE_MHZ
    moved = gpu.peak_mbit_s * idle / _MBIT_S
    return float(compute * moved * gpu.warps_per_sm / _WARPS)
