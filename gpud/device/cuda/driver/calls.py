"""The one door to the CUDA driver: calls by name, results checked, errors of gpud's own tree.

Problem: every driver call returns a status that must not be overlooked, some statuses mean that the
whole context is dead, and a machine without a GPU has no driver at all.

Approach: `Driver.call` is the only way in. It calls a function of ``cuda.bindings.driver``, checks
the status, and returns what is left: nothing, a value or a tuple. A status after which no call on
the context succeeds (a *sticky* one) raises `gpud.errors.DeviceLost`, whichever call it came from;
any other a `DriverError` with its name. Tests pass an object of their own instead of the bindings.

CuPy is not used. These bindings would be needed beside it: CuPy has neither flags of the primary
context nor reserved addresses, stream writes, green contexts, or a load that says why it failed.
What both have (streams, events, memory, modules, launches) CuPy reports by two errors of its own,
one for the driver and one for the runtime, and sticky statuses must be known from all. And its
arrays have kernels of their own, which are loaded when they are first used: the device may have to
be at rest for that (`gpud.device.cuda.driver.watchdog`).

Source: CuPy's ``cupy_backends/cuda/api/driver.pyx``, its list of functions.

Properties:
* no status is lost, not even one that the bindings do not know;
* nothing of CUDA is loaded before `open_driver`;
* kernels are loaded when their module is: the driver's lazy loading may wait for the device, which
  never comes to rest while a persistent kernel runs.

This module has not run on a GPU yet.
"""

from __future__ import annotations

import os
from typing import Any, Final

from gpud.errors import DeviceLost, InvalidArgument, MissingDependency

__all__ = ["ENVIRONMENT", "STICKY", "Driver", "DriverError", "open_driver"]

STICKY: Final = frozenset(
    (
        "ASSERT",
        "CONTAINED",
        "CONTEXT_IS_DESTROYED",
        "DEINITIALIZED",
        "DEVICE_UNAVAILABLE",
        "ECC_UNCORRECTABLE",
        "EXTERNAL_DEVICE",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS",
        "MPS_CLIENT_TERMINATED",
        "MPS_RPC_FAILURE",
        "NVLINK_UNCORRECTABLE",
        "TENSOR_MEMORY_LEAK",
        "UNKNOWN",
    )
)
"""Statuses, without ``CUDA_ERROR_``, after which the process has to be ended and begun anew.

Source: CUDA Driver API 13.0, ``CUresult``: "This leaves the process in an inconsistent state and
any further CUDA work will return the same error", and those that say that the device or the context
is gone.
"""

ENVIRONMENT: Final = {
    "CUDA_MODULE_LOADING": "EAGER",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "32",
}
"""What the driver must find in the environment when it is initialised.

Lazy loading may wait for the device. Streams that share a connection wait for each other; 32 is the
most that there can be, and the second variable would override the first for copies. Some programs
ask for 1.

Source: CUDA Programming Guide 13, 4.7.4 and 5.2.3.
"""

_PREFIX = "CUDA_ERROR_"
_EXTRA = "cuda13"


class DriverError(RuntimeError):
    """A driver call failed, and the context goes on.

    Attributes:
        status: its name without ``CUDA_ERROR_``, such as ``OUT_OF_MEMORY``.
        function: the call.
    """

    def __init__(self, function: str, status: str) -> None:
        super().__init__(f"{function} failed: {_PREFIX}{status}")
        self.function = function
        self.status = status


class Driver:
    """The driver API.

    Args:
        api: ``cuda.bindings.driver``, or what stands in for it.

    Attributes:
        api: for its enumerations and structures; functions are called through `call`.
    """

    __slots__ = ("_not_ready", "_success", "api")

    def __init__(self, api: Any) -> None:
        self.api = api
        self._success = api.CUresult.CUDA_SUCCESS
        self._not_ready = api.CUresult.CUDA_ERROR_NOT_READY

    def call(self, function: str, *arguments: Any) -> Any:
        """What ``function`` gives besides its status: None, one value, or a tuple.

        Raises:
            DeviceLost: the context is dead.
            DriverError: the call failed otherwise.
        """
        try:
            status, *values = getattr(self.api, function)(*arguments)
        except (KeyError, ValueError) as error:
            raise _unknown(function, error) from error
        if status != self._success:
            raise self._error(function, status)
        if len(values) == 1:
            return values[0]
        return tuple(values) if values else None

    def is_over(self, event: Any) -> bool:
        """Whether all that was put on its stream before ``event`` is over.

        Raises:
            DeviceLost: it failed, and the context with it.
        """
        try:
            status = self.api.cuEventQuery(event)[0]
        except (KeyError, ValueError) as error:
            raise _unknown("cuEventQuery", error) from error
        if status == self._success:
            return True
        if status == self._not_ready:
            return False
        raise self._error("cuEventQuery", status)

    def attribute(self, device: Any, name: str) -> int:
        """A device's attribute by its name without ``CU_DEVICE_ATTRIBUTE_``."""
        which = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", which, device))

    @staticmethod
    def _error(function: str, status: Any) -> DeviceLost | DriverError:
        name = str(getattr(status, "name", status)).removeprefix(_PREFIX)
        if name in STICKY:
            return DeviceLost(
                f"the GPU's context is lost: {function} reports {_PREFIX}{name}. A kernel or the "
                "device failed in a way that ends every kernel in the process"
            )
        return DriverError(function, name)


def _unknown(function: str, error: KeyError | ValueError) -> Exception:
    """For a status that is newer than the bindings, which look its name up: it may be sticky.

    Version 13.0 of theirs raises KeyError then, 12.9 and 13.5 ValueError.
    """
    if isinstance(error, ValueError) and "CUresult" not in str(error):
        return error  # an argument's
    return DeviceLost(
        f"the GPU's context cannot be relied on: {function} reports a status that this version of "
        f"cuda-bindings does not know: {error}"
    )


def open_driver() -> Driver:
    """The machine's driver, initialised.

    Raises:
        MissingDependency: its bindings are not installed.
        InvalidArgument: there is no driver, or no GPU, or it does not answer.
    """
    # Read by cuInit, and whatever they were: we would wait for kernels that run for hours.
    os.environ.update(ENVIRONMENT)
    try:
        from cuda.bindings import driver as api
    except ImportError as error:
        raise MissingDependency("cuda-bindings", extra=_EXTRA, cause=str(error)) from error
    driver = Driver(api)
    try:
        driver.call("cuInit", 0)
    except (DriverError, DeviceLost) as error:
        raise InvalidArgument(
            f"there is no GPU that could be used ({error}): see nvidia-smi and CUDA_VISIBLE_DEVICES"
        ) from error
    except RuntimeError as error:
        # The bindings look for libcuda at the first call, and say so in this way.
        raise InvalidArgument(
            f"there is no NVIDIA driver that could be used (libcuda.so.1: {_first_line(error)}); "
            "it comes with the system, not with pip: see nvidia-smi, or serve --device cpu"
        ) from error
    return driver


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
