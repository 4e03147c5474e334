"""The versions of everything that a GPU run depends on, and a warm-up.

    python bench/gpu/machine.py

Fails if NVRTC is of a newer CUDA than the driver: the driver would refuse all of its PTX, and every
step after this one would fail for that reason. Writes bench/results/gpu_machine.json.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.driver import Gpu, check
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import keep, need_gpu
from gpud.compiler.toolchain.nvrtc import nvrtc_version
from gpud.compiler.toolchain.ptxas import find_ptxas

PACKAGES = ("cuda-bindings", "nvidia-ml-py", "llvmlite", "numpy")
CLOCKS = ("sm", "memory")


def main() -> int:
    """Print and save the versions, warm the GPU up, and check that NVRTC fits the driver."""
    need_gpu()
    gpu = Gpu()
    found = versions(gpu)
    found["clocks_mhz_idle"] = clocks()
    found["warm_up_s"] = warm_up(gpu)
    found["clocks_mhz_warm"] = clocks()
    for name, value in {**gpu.describe(), **found}.items():
        print(f"{name:<20}{value}")
    print(f"wrote {keep('machine', gpu, found).name}")
    if found["nvrtc_is_newer"]:
        print(
            f"NVRTC {found['nvrtc']} makes PTX that a driver for CUDA {gpu.describe()['cuda']} "
            "refuses: install NVRTC of that version or an older one",
            file=sys.stderr,
        )
        return 1
    return 0


def versions(gpu: Gpu) -> dict[str, Any]:
    """Return the versions of what is installed, and whether NVRTC is newer than the driver."""
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    compiler = nvrtc_version()
    driver = int(check(gpu.cu.cuDriverGetVersion()))
    found["nvrtc"] = ".".join(map(str, compiler))
    found["nvrtc_is_newer"] = compiler[:2] > (driver // 1000, driver % 1000 // 10)
    found["ptxas"] = str(find_ptxas() or "not installed")
    return found


def clocks() -> dict[str, int]:
    """Return the GPU's clocks in MHz, from NVML; empty if it does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        kinds = (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
        values = [int(pynvml.nvmlDeviceGetClockInfo(handle, kind)) for kind in kinds]
    except Exception:  # noqa: BLE001 - a detail of a report: its lack must not end a measurement
        return {}
    return dict(zip(CLOCKS, values, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
