"""Checked calls to the CUDA driver, with statuses turned into gpud's errors.

Problem: every driver call returns a status that must be checked, some statuses mean that the whole
context is dead, and a machine without a GPU has no driver at all.

Approach: all calls go through `Driver.call`. It calls a function of ``cuda.bindings.driver``,
checks the status, and returns the remaining results: nothing, a value or a tuple. A status after
which no call on the context succeeds (a *sticky* one) raises `gpud.errors.DeviceLost`, whichever
call returned it; any other a `DriverError` with its name. Tests pass a model instead of the
bindings.

CuPy is not used. These bindings would be needed beside it: CuPy has neither primary context flags
nor address reservation, stream writes, green contexts, or a load that says why it failed. What both
have (streams, events, memory, modules, launches) CuPy reports by two errors of its own, one for the
driver and one for the runtime, and sticky statuses would have to be recognized in all of them. And
CuPy arrays have kernels of their own, which are loaded on first use: that may wait until the device
is idle (`gpud.device.cuda.driver.watchdog`).

Source: CuPy's ``cupy_backends/cuda/api/driver.pyx``, its list of functions.

Properties:
* no status is lost, not even one that the bindings do not know;
* nothing of CUDA is loaded before `open_driver`;
* kernels are loaded with their module: the driver's lazy loading may wait for an idle device, which
  does not come while a persistent kernel runs.
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
"""Statuses, without ``CUDA_ERROR_``, after which the process has to be restarted.

Source: CUDA Driver API 13.0, ``CUresult``: "This leaves the process in an inconsistent state and
any further CUDA work will return the same error", and those that report a lost device or context.
"""

ENVIRONMENT: Final = {
    "CUDA_MODULE_LOADING": "EAGER",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "32",
}
"""Environment variables that the driver must find when it is initialised.

Lazy loading may wait for an idle device. Streams that share a connection wait for each other; 32 is
the maximum, and the second variable would override the first for copies. Some programs set it to 1.

Source: CUDA Programming Guide 13, 4.7.4 and 5.2.3.
"""

_PREFIX = "CUDA_ERROR_"
_EXTRA = "cuda13"


class DriverError(RuntimeError):
    """A driver call failed, and the context is still usable.

    Attributes:
        status: its name without ``CUDA_ERROR_``, such as ``OUT_OF_MEMORY``.
        function: the name of the call.
    """

    def __init__(self, function: str, status: str) -> None:
        super().__init__(f"{function} failed: {_PREFIX}{status}")
        self.function = function
        self.status = status


class Driver:
    """The driver API.

    Args:
        api: ``cuda.bindings.driver``, or a model of it.

    Attributes:
        api: for its enumerations and structures; functions are called through `call`.
    """

    __slots__ = ("_not_ready", "_success", "api")

    def __init__(self, api: Any) -> None:
        self.api = api
        self._success = api.CUresult.CUDA_SUCCESS
        self._not_ready = api.CUresult.CUDA_ERROR_NOT_READY

    def call(self, function: str, *arguments: Any) -> Any:
        """Call ``function`` and return its results without the status: None, one value, or a tuple.

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
        """Return whether everything on its stream before ``event`` has completed.

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
        """Return a device's attribute by its name without ``CU_DEVICE_ATTRIBUTE_``."""
        which = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", which, device))

    def uuid(self, device: Any) -> str:
        """Return a device's UUID, as NVML takes it."""
        raw = bytes(self.call("cuDeviceGetUuid", device).bytes).hex()
        return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"

    def error_of(self, function: str, status: int) -> Exception:
        """Return the error for a status that native code was given; not that of a success."""
        try:
            named = self.api.CUresult(status)
        except (KeyError, ValueError) as error:
            return _unknown(function, error)
        return self._error(function, named)

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
    """Return the error for a status that the bindings, which look its name up, do not know.

    It may be a sticky one of a newer driver. Bindings 13.0 raise KeyError then, 12.9 and 13.5
    ValueError.
    """
    if isinstance(error, ValueError) and "CUresult" not in str(error):
        return error  # about an argument
    return DeviceLost(
        f"the GPU's context cannot be relied on: {function} reports a status that this version of "
        f"cuda-bindings does not know: {error}"
    )


def open_driver() -> Driver:
    """Load and initialise the machine's driver.

    Raises:
        MissingDependency: its bindings are not installed.
        InvalidArgument: there is no driver, or no GPU, or it does not answer.
    """
    # cuInit reads them. Override the user's: with others we would wait for kernels for hours.
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
        # The bindings load libcuda at the first call and raise this if there is none.
        raise InvalidArgument(
            f"there is no NVIDIA driver that could be used (libcuda.so.1: {_first_line(error)}); "
            "it comes with the system, not with pip: see nvidia-smi, or serve --device cpu"
        ) from error
    return driver


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
