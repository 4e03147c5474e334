"""The model's functions at addresses, as native code calls them: what ``cuGetProcAddress`` gives.

A call from native code is the same as one by name: it is counted, may be made to fail, and checks
what it is given. A misuse cannot be raised through native code: the next call by name raises it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as real

if TYPE_CHECKING:
    from tests.driver_model.model_driver import ModelDriver

_P, _U, _L = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64
_KINDS: dict[str, Any] = {
    name: ctypes.CFUNCTYPE(ctypes.c_int, *arguments)
    for name, arguments in {
        "cuLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P),
        "cuMemcpyDtoHAsync": (_P, _L, ctypes.c_size_t, _P),
        "cuEventRecord": (_P, _P),
        "cuLaunchHostFunc": (_P, _P, _P),
        "cuGraphLaunch": (_P, _P),
    }.items()
}


class EntryPoints:
    """Addresses of the functions that native code calls."""

    def __init__(self, driver: ModelDriver) -> None:
        self._driver = driver
        self._made: dict[str, Any] = {}

    def cuGetProcAddress(self, symbol: bytes, version: int, flags: int) -> Any:
        found = real.CUdriverProcAddressQueryResult
        name = symbol.decode()
        if version > self._driver.contexts.version:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE
        if name not in _KINDS:
            return 0, found.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        made = self._made.setdefault(name, self._function(name))
        address = ctypes.cast(made, ctypes.c_void_p).value
        return address, found.CU_GET_PROC_ADDRESS_SUCCESS

    def _function(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            try:
                given = [argument or 0 for argument in arguments]
                return int(getattr(self._driver, name)(*given)[0])
            except BaseException as error:  # noqa: BLE001 - nothing passes through native code
                self._driver.raised = error
                return int(real.CUresult.CUDA_ERROR_UNKNOWN)

        return _KINDS[name](called)
