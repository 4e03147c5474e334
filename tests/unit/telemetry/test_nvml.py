"""NVML readings, against a fake with the names of the real bindings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpud.errors import InvalidArgument, MissingDependency
from gpud.telemetry.nvml import GPUState, NvmlReader


class FakeNVML:
    """Answers queries from a table; those in ``silent`` are not supported."""

    def __init__(self, *silent: str) -> None:
        self.silent = set(silent)
        self.opened = self.sets = 0
        self.events = [79, 31]
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetHandleByUUID": "device",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40, memory=7),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1 << 30, total=80 << 30),
            "nvmlDeviceGetPowerUsage": 123456,
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceRegisterEvents": None,
            "nvmlEventSetCreate": "set",
        }

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)  # fails if the bindings have no such name
        if not callable(real) or isinstance(real, type):
            return real

        def answer(*arguments: Any) -> Any:
            if name in self.silent:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return getattr(self, f"_{name}", lambda *_: self.answers[name])(*arguments)

        return answer

    def _nvmlInit(self) -> None:
        self.opened += 1

    def _nvmlShutdown(self) -> None:
        self.opened -= 1

    def _nvmlEventSetCreate(self) -> str:
        self.sets += 1
        return "set"

    def _nvmlEventSetFree(self, _: str) -> None:
        self.sets -= 1

    def _nvmlEventSetWait_v2(self, _: str, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.events.pop(0))

    def _nvmlDeviceGetClockInfo(self, _: str, which: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[which]

    def _nvmlDeviceGetTotalEccErrors(self, _: str, kind: int, since: int) -> int:
        assert since == pynvml.NVML_VOLATILE_ECC
        return {
            pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED: 3,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED: 0,
        }[kind]


def test_all_that_is_known() -> None:
    nvml = FakeNVML()
    telemetry = NvmlReader("GPU-1234", nvml)
    assert telemetry.read() == GPUState(40, 7, 1 << 30, 80 << 30, 1980, 2619, 55, 123.456, 3, 0)
    assert telemetry.xid_events() == [79, 31]
    assert telemetry.xid_events() == []
    telemetry.close()
    telemetry.close()
    assert (nvml.opened, nvml.sets) == (0, 0)


def test_a_part_of_a_gpu_is_found_by_the_name_that_nvml_has_for_it() -> None:
    class Divided(FakeNVML):
        def _nvmlDeviceGetHandleByUUID(self, name: str) -> str:
            if name != "MIG-1234":
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return "part"

    telemetry = NvmlReader("GPU-1234", Divided("nvmlDeviceGetUtilizationRates"))
    assert telemetry.read().memory_used_bytes == 1 << 30
    assert telemetry.read().utilisation_percent is None
    nvml = Divided()
    with pytest.raises(InvalidArgument, match="no GPU 'GPU-4321'"):
        NvmlReader("GPU-4321", nvml)
    assert nvml.opened == 0


def test_what_is_not_known_is_none_each_for_itself() -> None:
    everything = FakeNVML(*(name for name in dir(pynvml) if name.startswith("nvmlDeviceGet")
                            and "Handle" not in name), "nvmlDeviceRegisterEvents")  # fmt: skip
    telemetry = NvmlReader("GPU-1234", everything)
    assert telemetry.read() == GPUState(*[None] * 10)
    assert telemetry.xid_events() == []
    assert everything.sets == 0
    telemetry.close()
    power = NvmlReader("GPU-1234", FakeNVML("nvmlDeviceGetPowerUsage")).read()
    assert power.power_w is None
    assert power.temperature_c == 55


def test_without_nvml_or_without_the_gpu_it_says_so() -> None:
    with pytest.raises(MissingDependency, match="libnvidia-ml"):
        NvmlReader("GPU-1234", FakeNVML("nvmlInit"))
    nvml = FakeNVML("nvmlDeviceGetHandleByUUID")
    with pytest.raises(InvalidArgument, match="no GPU 'GPU-1'"):
        NvmlReader("GPU-1", nvml)
    assert nvml.opened == 0


def test_on_this_machine_it_answers_or_says_what_is_missing() -> None:
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        with pytest.raises((MissingDependency, InvalidArgument)):
            NvmlReader("GPU-1234")
    else:
        telemetry = NvmlReader(gpu)
        assert telemetry.read().memory_total_bytes != 0
        telemetry.close()
