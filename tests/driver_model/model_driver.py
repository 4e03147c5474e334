"""Calls of the model by name: who may call, failures on demand, and a log of calls."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cuda.bindings import driver as real

from tests.driver_model.contexts import Contexts
from tests.driver_model.entry_points import EntryPoints
from tests.driver_model.graphs import Graphs
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
"""Calls that wait for everything that runs, whatever else they do."""


@functools.cache
def values_of(name: str) -> int:
    """How many values the bindings return for a function besides the status, by its docstring."""
    stated = (getattr(real, name).__doc__ or "").partition("Returns\n")[2]
    return len(re.findall(r"^\w+ : ", stated.partition("See Also\n")[0], re.MULTILINE))


class ModelDriver:
    """The model; a subclass runs the launches.

    Args:
        programs: loads programs and runs their kernels.
        device: attributes of the device, functions and the driver that are not those of an H100
            with few SMs; see `Contexts` and `Modules`.
        memory_bytes: of the device.
        granule: the unit of allocation and mapping.
        initialised: whether ``cuInit`` was called before.

    Attributes:
        contexts, memory, streams, graphs, modules, green, entry_points: the parts.
        raised: a misuse by native code, for the next call by name to raise; None: there was none.
        handles: of all of them.
        fail_at: the number of the call that fails, from 1; 0: none.
        fail_with: its status.
        only: the functions whose calls are counted for ``fail_at``; empty: all.
        counted: how many calls were counted.
        calls: names, in order.
        seen: the arguments of the first call of each.
        dead: the status of all calls from now on; None: the context is alive.
        waits: calls that waited for the device while kernels were running.
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
        self.graphs = Graphs(self)
        self.modules = Modules(self, programs, device)
        self.green = GreenContexts(self, device)
        self.entry_points = EntryPoints(self)
        self.raised: BaseException | None = None
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
        """An item was put on a stream, or one on it is over."""
        raise NotImplementedError

    def wait(self, done: Callable[[], bool], only: Any = None) -> None:
        """Let time pass until ``done``, on the stream ``only`` if that is given."""
        raise NotImplementedError

    def wait_for_all(self) -> None:
        """Wait for the device, as the calls in `WAITING` do."""
        raise NotImplementedError

    @property
    def resident(self) -> int:
        """How many blocks or kernels are on the device."""
        raise NotImplementedError

    # -- calls

    def function(self, name: str) -> Callable[..., Any]:
        """The model's function of this name.

        Raises:
            AttributeError: it has none.
        """
        for part in (
            self.contexts, self.memory, self.streams, self.graphs, self.modules, self.green,
            self.entry_points,
        ):  # fmt: skip
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
        if self.raised is not None:
            error, self.raised = self.raised, None
            raise error
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
        """Called before each call has its effect; for tests that observe."""

    def _refusal(self, name: str) -> Any:
        """The status with which a call fails before it has any effect; None: it does not."""
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
        """Have the context die: from now on every call has this status."""
        self.dead = self._status(status)

    def fail(self, nth: int, status: str, *only: str) -> None:
        """Have the ``nth`` call from now on fail, of all or of those to the functions ``only``."""
        self.counted, self.fail_at, self.fail_with, self.only = 0, nth, status, only

    # -- for tests

    @property
    def alive(self) -> Any:
        """How many objects of each kind were created and not destroyed."""
        return self.handles.alive
