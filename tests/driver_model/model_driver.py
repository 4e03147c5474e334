"""Calls of the model by name: who may call, what fails on demand, and what was called."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cuda.bindings import driver as real

from tests.driver_model.contexts import Contexts
from tests.driver_model.green_contexts import GreenContexts
from tests.driver_model.handles import Handles, Misuse
from tests.driver_model.memory import Memory
from tests.driver_model.modules import Modules, Programs
from tests.driver_model.streams import Streams

__all__ = ["Misuse", "ModelDriver"]

WITHOUT_CONTEXT = ("cuInit", "cuDevice", "cuDriver", "cuCtxSetCurrent", "cuCtxPushCurrent")
WAITING = (
    "cuCtxSetLimit", "cuMemFree", "cuMemFreeHost", "cuModuleUnload", "cuCtxSynchronize",
)  # fmt: skip
"""What waits for everything that runs, whatever else it does."""


@functools.cache
def values_of(name: str) -> int:
    """How many values the bindings give for a function besides the status, as they state it."""
    stated = (getattr(real, name).__doc__ or "").partition("Returns\n")[2]
    return len(re.findall(r"^\w+ : ", stated.partition("See Also\n")[0], re.MULTILINE))


class ModelDriver:
    """The model, without what runs launches.

    Args:
        programs: loads programs and runs their kernels.
        device: attributes of the device, functions and the driver that are not those of an H100
            with few SMs; see `Contexts` and `Modules`.
        memory_bytes: of the device.
        granule: what memory is created and mapped in.
        initialised: whether somebody has called ``cuInit`` before.

    Attributes:
        contexts, memory, streams, modules, green: the parts.
        handles: of all of them.
        fail_at: the number of the call that fails, from 1; 0: none.
        fail_with: its status.
        only: the only functions that are counted for ``fail_at``; empty: all.
        counted: how many were.
        calls: names, in order.
        seen: the arguments of the first call of each.
        dead: the status that all calls have from now on; None: the context lives.
        waits: calls that waited for the device while kernels were there.
    """

    def __init__(
        self,
        programs: Programs,
        device: Mapping[str, int],
        *,
        memory_bytes: int = 1 << 30,
        granule: int = 1 << 21,
        name: bytes = b"Model GPU",
        initialised: bool = True,
    ) -> None:
        self.handles = Handles()
        self.lock = threading.RLock()
        self.contexts = Contexts(self, device, name, memory_bytes)
        self.memory = Memory(self, memory_bytes, granule)
        self.streams = Streams(self)
        self.modules = Modules(self, programs, device)
        self.green = GreenContexts(self, device)
        self.fail_at = 0
        self.fail_with = "UNKNOWN_TO_US"
        self.only: tuple[str, ...] = ()
        self.counted = 0
        self.calls: list[str] = []
        self.seen: dict[str, tuple[Any, ...]] = {}
        self.dead: Any = None
        self.waits: list[str] = []
        self._initialised = initialised

    # -- time

    def moved(self, stream: Any) -> None:
        """Something was put on a stream, or something on it is over."""
        raise NotImplementedError

    def wait(self, done: Callable[[], bool], only: Any = None) -> None:
        """Have time pass until ``done``, on the stream ``only`` if that is given."""
        raise NotImplementedError

    def wait_for_all(self) -> None:
        """Have time pass as a call does that waits for the device by the way."""
        raise NotImplementedError

    @property
    def resident(self) -> int:
        """Blocks or kernels that are on the device."""
        raise NotImplementedError

    # -- the door

    def function(self, name: str) -> Callable[..., Any]:
        """What the model has for a function of the driver.

        Raises:
            AttributeError: nothing.
        """
        for part in (self.contexts, self.memory, self.streams, self.modules, self.green):
            found: Callable[..., Any] | None = getattr(part, name, None)
            if found is not None:
                return found
        raise AttributeError(f"the model has no {name}")

    def __getattr__(self, name: str) -> Any:
        if not (name[:2] == "cu" and name[2:3].isupper()):
            return getattr(real, name)  # enumerations, structures
        function = self.function(name)
        return lambda *arguments: self._called(name, function, arguments)

    def _called(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        self.calls.append(name)
        self.seen.setdefault(name, arguments)
        refused = self._refusal(name)
        if refused is not None:
            return (refused, *[None] * values_of(name))
        if name in WAITING:
            if self.resident:
                self.waits.append(name)
            self.wait_for_all()
        self.before(name, arguments)
        found = function(*arguments)
        if isinstance(found, real.CUresult):
            return (found, *[None] * values_of(name))
        values = found if isinstance(found, tuple) else () if found is None else (found,)
        assert len(values) == values_of(name), f"the bindings give other values for {name}"
        return (real.CUresult.CUDA_SUCCESS, *values)

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A call is about to do what it does; for tests that look on."""

    def _refusal(self, name: str) -> Any:
        """The status with which a call ends before it begins; None: it may begin."""
        if self.dead is not None:
            return self.dead
        if not self._initialised and name != "cuInit":
            return real.CUresult.CUDA_ERROR_NOT_INITIALIZED
        self._initialised = True
        if not name.startswith(WITHOUT_CONTEXT) and not self.contexts.is_current:
            return real.CUresult.CUDA_ERROR_INVALID_CONTEXT
        if not self.only or name in self.only:
            self.counted += 1
            if self.counted == self.fail_at:
                return self._status(self.fail_with)
        return None

    @staticmethod
    def _status(name: str) -> Any:
        known = real.CUresult.__members__
        return known.get(f"CUDA_ERROR_{name}", real.CUresult.CUDA_ERROR_INVALID_VALUE)

    def lose(self, status: str = "ILLEGAL_ADDRESS") -> None:
        """The context dies: from now on every call says so."""
        self.dead = self._status(status)

    def fail(self, nth: int, status: str, *only: str) -> None:
        """Have the ``nth`` call from now on fail, of all or of those named."""
        self.counted, self.fail_at, self.fail_with, self.only = 0, nth, status, only

    # -- what tests ask

    @property
    def alive(self) -> Any:
        """How many of each kind of thing there are that was not given back."""
        return self.handles.alive
