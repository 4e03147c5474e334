"""NVML readings of a GPU: utilisation, memory, clocks, temperature, power, ECC, and Xid errors.

Problem: which values are available depends on the GPU, the driver and the container, and an unknown
value must not look like a 0.

Approach: each value is one NVML query; a failed query gives None. Xid errors (the driver's codes
for device errors) arrive as NVML events, which NVML queues until they are read.

Properties:
    * a value is what NVML has just returned, or None;
    * an Xid event is returned once; no method of an `NvmlReader` waits or raises.

For a MIG instance NVML has the memory figures of the instance; the other figures are missing, or
those of the whole GPU.

A GPU is identified by its UUID: NVML's indices are in PCI bus order, whatever
``CUDA_VISIBLE_DEVICES`` says. This module has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpud.errors import InvalidArgument, MissingDependency

__all__ = ["GPUState", "NvmlReader"]

_EXTRA = "daemon"
_MOST_EVENTS = 64


class GPUState(NamedTuple):
    """A snapshot of a GPU's state. None: unknown.

    Attributes:
        utilisation_percent: share of the last sample period in which a kernel ran.
        memory_utilisation_percent: share of it in which memory was read or written.
        memory_used_bytes: used by all processes and reserved by the driver.
        memory_total_bytes: total memory.
        sm_clock_mhz: present clock of the SMs.
        memory_clock_mhz: present clock of the memory.
        temperature_c: temperature of the GPU, in degrees Celsius.
        power_w: power draw of the board, in watts.
        ecc_corrected: memory errors that were corrected since the driver was loaded.
        ecc_uncorrected: memory errors that could not be corrected, likewise.
    """

    utilisation_percent: int | None
    memory_utilisation_percent: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None


class NvmlReader:
    """Reads the state of one GPU from NVML.

    Args:
        gpu: its UUID as the driver reports it, beginning with ``GPU-``.
        nvml: replaces ``pynvml`` in tests.

    Raises:
        MissingDependency: NVML or its Python bindings are not installed, or do not work.
        InvalidArgument: there is no such GPU.
    """

    def __init__(self, gpu: str, nvml: Any = None) -> None:
        self._nvml = nvml = _bindings() if nvml is None else nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise MissingDependency(
                "NVML (libnvidia-ml.so.1)", extra=_EXTRA, cause=f"{error}; it comes with the driver"
            ) from error
        self._events: Any = None
        try:
            self._device = _found(nvml, gpu)
        except nvml.NVMLError as error:
            nvml.nvmlShutdown()
            raise InvalidArgument(f"NVML knows no GPU {gpu!r}: {error}") from error
        self._open = True
        self._events = self._listen()

    def read(self) -> GPUState:
        """Return the present state of the GPU. Takes up to a few milliseconds."""
        nvml, device = self._nvml, self._device
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, device)
        return GPUState(
            _field(rates, "gpu"),
            _field(rates, "memory"),
            _field(memory, "used"),
            _field(memory, "total"),
            self._ask(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_SM),
            self._ask(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_MEM),
            self._ask(nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU),
            None if power is None else power / 1000,
            self._errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            self._errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        )

    def xid_events(self) -> list[int]:
        """Return the Xid codes since the last call, oldest first; none if NVML has no such events.

        NVIDIA's document "Xid Errors" explains the codes.
        """
        xids: list[int] = []
        while self._events is not None and len(xids) < _MOST_EVENTS:
            # With a timeout of 0, NVML fails with a timeout error when there is no event.
            event = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                break
            xids.append(int(event.eventData))
        return xids

    def close(self) -> None:
        """End the use of NVML."""
        if self._open:
            self._open = False
            if self._events is not None:
                self._ask(self._nvml.nvmlEventSetFree, self._events)
                self._events = None
            self._ask(self._nvml.nvmlShutdown)

    def _listen(self) -> Any:
        nvml = self._nvml
        events = self._ask(nvml.nvmlEventSetCreate)
        if events is None:
            return None
        kind = nvml.nvmlEventTypeXidCriticalError
        try:
            nvml.nvmlDeviceRegisterEvents(self._device, kind, events)
        except nvml.NVMLError:
            self._ask(nvml.nvmlEventSetFree, events)
            return None
        return events

    def _errors(self, kind: int) -> int | None:
        """Return the number of memory ECC errors of a kind since the driver was loaded."""
        since = self._nvml.NVML_VOLATILE_ECC
        count: int | None = self._ask(
            self._nvml.nvmlDeviceGetTotalEccErrors, self._device, kind, since
        )
        return count

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def _field(answer: Any, name: str) -> int | None:
    return None if answer is None else int(getattr(answer, name))


def _found(nvml: Any, gpu: str) -> Any:
    """Return NVML's handle of a GPU."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(gpu)
    except nvml.NVMLError:
        # The driver reports a MIG instance's UUID with the prefix GPU-, NVML expects MIG-.
        return nvml.nvmlDeviceGetHandleByUUID(gpu.replace("GPU-", "MIG-", 1))


def _bindings() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise MissingDependency("nvidia-ml-py", extra=_EXTRA, cause=str(error)) from error
    return pynvml
