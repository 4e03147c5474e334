"""Green contexts of the model: sets of its SMs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as real

from tests.driver_model.handles import Misuse

if TYPE_CHECKING:
    from tests.driver_model.model_driver import ModelDriver


class GreenContexts:
    """Sets of SMs and the contexts that have them.

    Attributes:
        unit: the fewest SMs of a set; a smaller remainder is left over.
        units: the numbers of the SMs, in the order in which the driver splits them.
    """

    def __init__(self, driver: ModelDriver, device: Mapping[str, int]) -> None:
        self._driver = driver
        self.unit = device.get("UNIT", 1)
        self.units = list(range(driver.contexts.attributes["MULTIPROCESSOR_COUNT"]))
        random.Random(device.get("SEED", 0)).shuffle(self.units)
        self._resources: dict[int, tuple[Any, list[int]]] = {}

    def _resource(self, numbers: list[int]) -> Any:
        made = real.CUdevResource()
        made.type = real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        made.sm.smCount = len(numbers)
        made.sm.minSmPartitionSize, made.sm.smCoscheduledAlignment = self.unit, 1
        self._resources[int(made.getPtr())] = (made, numbers)
        return made

    def _numbers(self, resource: Any) -> list[int]:
        found = self._resources.get(int(resource.getPtr()))
        if found is None:
            raise Misuse(f"{resource!r} is no resource of this driver")
        return found[1]

    def cuDeviceGetDevResource(self, device: Any, kind: Any) -> Any:
        if kind != real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM:
            return real.CUresult.CUDA_ERROR_INVALID_RESOURCE_TYPE
        return self._resource(self.units)

    def cuDevSmResourceSplitByCount(
        self, groups: int, whole: Any, flags: int, least: int
    ) -> tuple[list[Any], int, Any]:
        numbers = self._numbers(whole)
        size = -(-max(1, least) // self.unit) * self.unit
        most = min(groups, len(numbers) // size)
        parts = [numbers[size * n : size * (n + 1)] for n in range(most)]
        found = [self._resource(part) for part in parts]
        return found, most, self._resource(numbers[size * most :])

    def cuDevResourceGenerateDesc(self, resources: list[Any], count: int) -> Any:
        numbers = [n for one in resources for n in self._numbers(one)]
        if not len(resources) == count > 0 or not numbers or len(set(numbers)) != len(numbers):
            return real.CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
        return self._driver.handles.new("described", tuple(numbers), counts=False)

    def cuGreenCtxCreate(self, described: Any, device: Any, flags: int) -> Any:
        if flags != int(real.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM):
            return real.CUresult.CUDA_ERROR_INVALID_VALUE
        numbers = self._driver.handles.of("described", described)
        return self._driver.handles.new("green", (numbers, set()))

    def cuGreenCtxDestroy(self, green: Any) -> None:
        _, streams = self._driver.handles.of("green", green)
        if any(stream in self._driver.streams.all for stream in streams):
            raise Misuse("streams outlive their green context")
        self._driver.handles.drop("green", green)

    def cuCtxFromGreenCtx(self, green: Any) -> Any:
        self._driver.handles.of("green", green)
        return self._driver.handles.new("context", green, counts=False)

    def cuGreenCtxStreamCreate(self, green: Any, flags: int, priority: int) -> Any:
        numbers, streams = self._driver.handles.of("green", green)
        made = self._driver.streams.cuStreamCreateWithPriority(flags, priority)
        stream = self._driver.handles.of("stream", made)
        stream.sms = numbers
        streams.add(stream)
        return made
