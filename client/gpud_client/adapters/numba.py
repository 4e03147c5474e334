"""Numba takes turns with a GPU's memory, through its interface for external memory managers.

    memory = numba.install(gpu, persistent="2GiB", temporary="1GiB")
    weights = cuda.to_device(...)  # what is made outside of iterations persists
    for batch in batches:
        with memory.iteration():
            ...
    memory.close()

Source: Numba's documentation, "External Memory Management (EMM) Plugin interface", version 1.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any, Unpack

from gpud.errors import GpudError
from gpud_client.adapters.framework import FrameworkMemory, Terms

__all__ = ["install", "manager_class"]

_LOG = logging.getLogger("gpud_client")
_VERSION = 1
"""Of Numba's interface."""


def install(session: Any, **terms: Unpack[Terms]) -> FrameworkMemory:
    """Have Numba allocate on the GPU in a workload; call it before Numba has used the GPU.

    `FrameworkMemory.iteration` is an iteration.

    Args:
        session: the connection to the daemon, as `gpud_client.connect` returns it.
        terms: of the workload, see `FrameworkMemory`.

    Raises:
        ImportError: Numba is not installed.
        OutOfMemory: the GPU can never hold it.
    """
    from numba import cuda

    memory = FrameworkMemory(session, **terms)
    cuda.set_memory_manager(manager_class(memory))
    return memory


def manager_class(memory: FrameworkMemory) -> Any:
    """Return the class that Numba makes an instance of for each context."""
    from numba import cuda

    base: Any = cuda.HostOnlyCUDAMemoryManager

    class Manager(base):  # type: ignore[misc]
        """Allocates on the GPU by ``memory``; page-locked memory is Numba's own."""

        def initialize(self) -> None:
            """Prepare nothing: the memory is there."""

        def memalloc(self, size: int) -> Any:
            """Allocate; the memory is freed when nothing refers to it."""
            # Numba does not say on which stream: what is freed is used when all have caught up.
            address = memory.allocate(size, None)
            return cuda.MemoryPointer(
                self.context, ctypes.c_void_p(address), size, finalizer=_freeing(memory, address)
            )

        def get_ipc_handle(self, memory: Any) -> Any:
            """Refuse: other processes have the same memory in their turns."""
            raise NotImplementedError(
                "memory of a workload is not shared with other processes by Numba"
            )

        def get_memory_info(self) -> Any:
            """Return what the workload has free, and has in all."""
            return cuda.MemoryInfo(*memory.info())

        @property
        def interface_version(self) -> int:
            """Of Numba's interface."""
            return _VERSION

    return Manager


def _freeing(memory: FrameworkMemory, address: int) -> Callable[[], None]:
    def free() -> None:
        try:
            memory.free(address)
        except GpudError as error:  # it is called in a finalizer
            _LOG.error("gpud cannot free memory for Numba: %s", error)
            memory.failure = memory.failure or error

    return free
