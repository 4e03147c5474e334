"""CuPy takes turns with a GPU's memory: its allocator asks gpud, and the program says its turns.

    memory = cupy.install(gpu, persistent="2GiB", temporary="1GiB")
    weights = ...  # what is made outside of iterations persists
    for batch in batches:
        with memory.iteration():
            ...
    memory.close()

Source: CuPy 14, ``cupy.cuda.PythonFunctionAllocator`` and ``cupy.cuda.set_allocator``.
"""

from __future__ import annotations

import logging
from typing import Any, Unpack

from gpud.errors import GpudError, MissingDependency
from gpud_client.adapters.framework import FrameworkMemory, Terms

__all__ = ["functions", "install"]

_LOG = logging.getLogger("gpud_client")


def install(session: Any, **terms: Unpack[Terms]) -> FrameworkMemory:
    """Have CuPy allocate in a workload, instead of from its pool.

    Arrays from before stay where they are. `FrameworkMemory.iteration` is an iteration.

    Args:
        session: the connection to the daemon, as `gpud_client.connect` returns it.
        terms: of the workload, see `FrameworkMemory`.

    Raises:
        MissingDependency: CuPy is not installed.
        OutOfMemory: the GPU can never hold it.
    """
    try:
        import cupy
    except ImportError as error:
        raise MissingDependency("CuPy", extra="cupy", cause=str(error)) from error
    memory = FrameworkMemory(session, **terms)
    current = cupy.cuda.get_current_stream
    allocator = cupy.cuda.PythonFunctionAllocator(*functions(memory, lambda: int(current().ptr)))
    cupy.cuda.set_allocator(allocator.malloc)
    return memory


def functions(memory: FrameworkMemory, stream: Any) -> tuple[Any, Any]:
    """Return what CuPy calls to allocate, and to free.

    Args:
        memory: allocates.
        stream: returns the driver's number of the stream that the program uses now.
    """

    def allocate(size: int, device: int) -> int:
        return memory.allocate(size, stream())

    def free(address: int, device: int) -> None:
        try:
            memory.free(address)
        except GpudError as error:  # CuPy drops it: it calls this in a finalizer
            _LOG.error("gpud cannot free memory for CuPy: %s", error)
            memory.failure = memory.failure or error

    return allocate, free
