"""PyTorch takes turns with a GPU's memory: its allocator asks gpud, and its optimisers tell turns.

    memory = pytorch.install(gpu, persistent="2GiB", temporary="1GiB")
    ...  # the training loop as it was
    memory.close()

Approach: PyTorch has a place for an allocator of others, which is two functions at addresses
(``torch.cuda.memory.CUDAPluggableAllocator``). They are made here from Python functions, so that
nothing has to be compiled. An iteration ends when ``step()`` of an optimiser has ended, which
PyTorch reports to a hook; the next begins there, once this program has its turn.

Source: PyTorch 2.15, ``torch.cuda.memory`` and ``torch.optim.optimizer``. Its allocator functions
cannot fail by raising: what went wrong is logged and raised at the end of the iteration.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Unpack

from gpud.errors import InvalidArgument
from gpud_client.adapters.framework import FrameworkMemory, Terms

__all__ = ["Callbacks", "follow_steps", "install"]

_LOG = logging.getLogger("gpud_client")

_ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
)  # size, device, stream
_FREE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
)  # pointer, size, device, stream
_RECORD = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)  # pointer, stream

_installed: list[Callbacks] = []  # kept for ever: PyTorch has their addresses


def install(
    session: Any, optimiser: Any = None, *, steps: bool = True, **terms: Unpack[Terms]
) -> FrameworkMemory:
    """Have PyTorch allocate on the GPU in a workload; with ``steps`` waits for the first turn.

    What is allocated until the first step has ended is profiled then, as is the next iteration.

    Args:
        session: the connection to the daemon, as `gpud_client.connect` returns it.
        optimiser: whose steps end iterations; None: every optimiser's.
        steps: whether steps of optimisers do; False: the program says its iterations itself, with
            `FrameworkMemory.iteration`.
        terms: of the workload, see `FrameworkMemory`.

    Raises:
        InvalidArgument: PyTorch has used the GPU already, or cannot use one at all.
        ImportError: PyTorch is not installed.
        OutOfMemory: the GPU can never hold it.
    """
    import torch

    make = getattr(torch._C, "_cuda_customAllocator", None)
    if make is None:
        raise InvalidArgument(
            f"PyTorch {torch.__version__} was built without CUDA: install a build with it"
        )
    if steps:
        terms.setdefault("profiled_iterations", 2)
    memory = FrameworkMemory(session, **terms)
    callbacks = Callbacks(memory)
    _installed.append(callbacks)
    allocator = make(callbacks.allocate_address, callbacks.free_address)
    allocator.set_record_stream_fn(callbacks.record_stream_address)
    try:
        torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(allocator))
    except RuntimeError as error:
        memory.close()
        raise InvalidArgument(
            f"PyTorch has an allocator that was used already ({error}): install the adapter "
            "before anything is on the GPU, and once in a process"
        ) from error
    if steps:
        follow_steps(memory, optimiser)
        memory.begin()
    return memory


def follow_steps(memory: FrameworkMemory, optimiser: Any = None) -> None:
    """Have iterations end, and the next begin, when ``step()`` of an optimiser has ended.

    Args:
        memory: whose iterations they are, until it is closed.
        optimiser: whose steps; None: every optimiser's.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def stepped(stepping: Any, *_: Any) -> None:
        if memory.closed:
            hook.remove()
        elif optimiser is None or stepping is optimiser:
            memory.step()

    hook = register_optimizer_step_post_hook(stepped)


class Callbacks:
    """A memory's functions as PyTorch calls them: at addresses, from any thread.

    Args:
        memory: allocates.
        device: PyTorch's number of the memory's GPU.

    Attributes:
        allocate_address, free_address, record_stream_address: of the functions.
    """

    def __init__(self, memory: FrameworkMemory, device: int = 0) -> None:
        self._memory = memory
        self._device = device
        self._functions = (_ALLOCATE(self._allocate), _FREE(self._free), _RECORD(self._record))
        addresses = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self._functions]
        self.allocate_address, self.free_address, self.record_stream_address = addresses

    def _allocate(self, size: int, device: int, stream: int | None) -> int | None:
        try:
            if device != self._device:
                raise InvalidArgument(
                    f"PyTorch allocates on cuda:{device}, and the adapter serves "
                    f"cuda:{self._device}: use one GPU in a process"
                )
            return self._memory.allocate(size, stream or 0)
        except Exception as error:  # noqa: BLE001 - nothing passes through PyTorch's code
            self._note(f"allocate {size} bytes", error)
            return None

    def _free(self, address: int | None, size: int, device: int, stream: int | None) -> None:
        try:
            if address is not None:
                self._memory.free(address)
        except Exception as error:  # noqa: BLE001 - nothing passes through PyTorch's code
            self._note(f"free {size} bytes", error)

    def _record(self, address: int | None, stream: int | None) -> None:
        if address is not None:
            self._memory.use_on(address, stream or 0)

    def _note(self, what: str, error: Exception) -> None:
        _LOG.error("gpud cannot %s for PyTorch: %s", what, error)
        if self._memory.failure is None:
            self._memory.failure = error
