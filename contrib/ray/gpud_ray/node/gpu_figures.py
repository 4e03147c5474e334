"""The figures of a node's GPUs that heartbeats carry, from gpud's status, NVML and the processor.

A GPU's cores of an SM and warps of an SM follow from its compute capability. Clocks, bus width and
the use of the memory's bandwidth come from NVML if its bindings are installed; gpud's status has
the rest. Clocks are the highest that the card has, not those of the moment: an idle GPU clocks down
to a tenth, so that with the present ones F would choose the busy one. Without NVML the clocks are
those of a common GPU, so that nodes are compared by their SMs.

A CPU device has no such figures, so it has equivalents, which mean the same in the formula:

* core clock: that of the processor;
* cores of an SM: the numbers that its vector units add at once (float32), times the processors that
  stand behind a virtual SM: with more SMs than processors, each SM has a part of one;
* memory clock x bus width: the bandwidth of a copy in memory, measured once; the width is 64 bits;
* idle part of the cores: what no job of gpud has been allocated; that of the bandwidth is unknown,
  and the part of the cores stands for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpud_ray.placement.gpu_reading import GPUReading

__all__ = ["FIGURES_OF_CAPABILITY", "GPUFigures"]

# Compute capability times ten: FP32 cores and resident threads of an SM. CUDA C++ Programming
# Guide, "Compute Capabilities" (arithmetic throughput, technical specifications).
FIGURES_OF_CAPABILITY = {
    60: (64, 2048), 61: (128, 2048), 62: (128, 2048), 70: (64, 2048), 72: (64, 2048),
    75: (64, 1024), 80: (64, 2048), 86: (128, 1536), 87: (128, 1536), 89: (128, 1536),
    90: (128, 2048), 100: (128, 2048), 103: (128, 2048), 110: (128, 1536), 120: (128, 1536),
    121: (128, 1536),
}  # fmt: skip
_WARP = 32
_DEFAULT_MHZ = 1_000.0  # of a processor that does not say
_COMMON_CORE_MHZ, _COMMON_MEMORY_MHZ, _COMMON_BUS_BITS = 1_710.0, 9_501.0, 320.0
_COPY_BYTES = 32 << 20
_BUS_BITS = 64.0


class GPUFigures:
    """Makes a node's readings from gpud's answers to the query "status"."""

    def __init__(self) -> None:
        self._nvml = _nvml()

    def read(
        self, devices: Sequence[Mapping[str, Any]], reserved: Mapping[int, int]
    ) -> tuple[GPUReading, ...]:
        """Return a reading of each device that is ready.

        Args:
            devices: Rows of the status.
            reserved: Bytes that items need that have arrived for a device, and not taken yet.
        """
        readings = []
        for row in devices:
            if row.get("state") == "ready":
                readings.append(self._reading(row, reserved.get(int(row["index"]), 0)))
        return tuple(readings)

    def _reading(self, row: Mapping[str, Any], reserved: int) -> GPUReading:
        sms, memory = int(row["sms"]), int(row["memory_bytes"])
        threads = FIGURES_OF_CAPABILITY.get(int(row.get("capability") or 0), (128, 2048))[1]
        figures = self._cpu(sms) if row["kind"] == "cpu" else self._cuda(row)
        free = memory - int(row.get("memory_used_bytes") or 0) - reserved
        return GPUReading(
            index=int(row["index"]),
            name=str(row["name"]),
            sms=sms,
            idle_cores=min(max(1 - float(row["allocated_sms"]) / sms, 0.0), 1.0),
            memory_bytes=memory,
            memory_free_bytes=min(max(free, 0), memory),
            warps_per_sm=threads // _WARP,
            jobs=int(row.get("jobs") or 0),
            reserved_sms=float(row.get("reserved_sms") or 0),
            temporary_bytes=int((row.get("turns") or {}).get("temporary_bytes", 0)),
            paused=bool(row.get("paused")),
            **figures,
        )

    def _cpu(self, sms: int) -> dict[str, Any]:
        processors = len(os.sched_getaffinity(0))
        return {
            "core_clock_mhz": _processor()[0],
            "cores_per_sm": min(1.0, processors / sms) * _processor()[1],
            "memory_clock_mhz": _copy_mbit_s() / _BUS_BITS,
            "bus_width_bits": _BUS_BITS,
            "idle_bandwidth": None,
        }

    def _cuda(self, row: Mapping[str, Any]) -> dict[str, Any]:
        cores = FIGURES_OF_CAPABILITY.get(int(row.get("capability") or 0), (128, 2048))[0]
        index = str(row.get("spec", "")).partition(":")[2]  # NVML counts GPUs as the option does
        core_mhz, memory_mhz, bus, busy = _card_figures(self._nvml, int(index or 0))
        return {
            "core_clock_mhz": float(core_mhz or _COMMON_CORE_MHZ),
            "cores_per_sm": float(cores),
            "memory_clock_mhz": float(memory_mhz or _COMMON_MEMORY_MHZ),
            "bus_width_bits": float(bus or _COMMON_BUS_BITS),
            "idle_bandwidth": None if busy is None else 1 - busy / 100,
        }


@cache
def _processor() -> tuple[float, int]:
    """Return the clock of this machine's processor in MHz, and its float32 lanes."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    of: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        of.setdefault(name.strip(), value.strip())
    flags = of.get("flags", "").split()
    lanes = 16 if "avx512f" in flags else 8 if "avx" in flags else 4
    try:
        return float(of["cpu MHz"]) or _DEFAULT_MHZ, lanes
    except (KeyError, ValueError):
        return _DEFAULT_MHZ, lanes


@cache
def _copy_mbit_s() -> float:
    """Measure the bandwidth of a copy in memory, read and written, in millions of bits a second."""
    source = np.ones(_COPY_BYTES // 8)
    target = np.zeros_like(source)
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return 2 * _COPY_BYTES * 8 / best / 1e6


def _nvml() -> Any:
    """Return NVML's bindings, or None where there are none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  (not installed, no driver, no GPU: each has its own error)
        return None
    return pynvml


def _card_figures(nvml: Any, index: int) -> tuple[int | None, ...]:
    """Return what NVML knows of a card; each is None if it does not.

    Returns:
        The highest clocks of its SMs and of its memory (MHz), its memory's bus width (bits), and
        the use of the memory's bandwidth (%).
    """
    if nvml is None:
        return None, None, None, None
    values: list[int | None] = []
    for ask, *arguments in (
        (nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        (nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
        (nvml.nvmlDeviceGetMemoryBusWidth,),
        (lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,),
    ):
        try:
            values.append(int(ask(nvml.nvmlDeviceGetHandleByIndex(index), *arguments)))
        except nvml.NVMLError:
            values.append(None)
    return tuple(values)
