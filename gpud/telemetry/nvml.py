"""What NVML tells of a GPU: load, memory, clocks, temperature, power, ECC, and Xid errors.

Problem: which of these a GPU, a driver or a container tells varies, and a figure that is not known
must not look like a 0.

Approach: each figure is one question; what NVML does not answer is None. Xid errors (the driver's
own numbers for what went wrong on a device) come as events, which are kept until somebody asks.

Properties:
    * a figure is what NVML said just now, or None;
    * an Xid event is returned once; nothing here waits or raises after `NvmlReader` was made.

A part of a GPU that was divided (MIG) has its own memory to tell; of the other figures NVML keeps
silent, or has them of the whole GPU only.

A GPU is named by its UUID: NVML's numbers are by the place on the bus, whatever
``CUDA_VISIBLE_DEVICES`` says. It has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpud.errors import InvalidArgument, MissingDependency

__all__ = ["GPUState", "NvmlReader"]

_EXTRA = "daemon"
_MOST_EVENTS = 64


class GPUState(NamedTuple):
    """A GPU at a moment. None: unknown.

    Attributes:
        utilisation_percent: of the last sample period, the time in which some kernel ran.
        memory_utilisation_percent: likewise, the time in which memory was read or written.
        memory_used_bytes: by all processes, and what the driver keeps.
        memory_total_bytes: in all.
        sm_clock_mhz: of the SMs, now.
        memory_clock_mhz: of the memory, now.
        temperature_c: of the GPU, in degrees Celsius.
        power_w: of the board, in watts.
        ecc_corrected: errors in memory that were corrected since the driver was loaded.
        ecc_uncorrected: and those that could not be.
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
    """Questions about one GPU.

    Args:
        gpu: its UUID as the driver tells it, beginning with ``GPU-``.
        nvml: stands in for ``pynvml``, in tests.

    Raises:
        MissingDependency: NVML or its bindings are not there.
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
        """How the GPU is now. Takes up to a few milliseconds."""
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
        """Xid errors since the last call, oldest first; none if they cannot be listened for.

        By number; see NVIDIA's "Xid Errors".
        """
        found: list[int] = []
        while self._events is not None and len(found) < _MOST_EVENTS:
            # Not waiting at all: NVML answers "timeout" when there is none.
            event = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                break
            found.append(int(event.eventData))
        return found

    def close(self) -> None:
        """Ask nothing more."""
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
        """ECC errors in memory since the driver was loaded."""
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
    """NVML's handle of a GPU."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(gpu)
    except nvml.NVMLError:
        # The driver tells a part's UUID as it does a GPU's; NVML has another prefix for it.
        return nvml.nvmlDeviceGetHandleByUUID(gpu.replace("GPU-", "MIG-", 1))


def _bindings() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise MissingDependency("nvidia-ml-py", extra=_EXTRA, cause=str(error)) from error
    return pynvml
