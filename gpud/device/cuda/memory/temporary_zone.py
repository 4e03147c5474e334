"""The memory that programs with a context of their own map in their turns, one after the other.

Problem: a framework's kernels run in its own process, with addresses of that process. What lives
within an iteration has to be the same memory for all such programs, or its size would count for
each of them.

Approach: one allocation without an address, which the device host owns and exports. A program
imports it when its turn begins, maps it, and gives both up before its turn ends. Between two turns
it is zeroed here, through a mapping that exists only meanwhile.

Properties:
* there is one allocation at a time, as large as was asked for last;
* what is lent reads as zero;
* the allocation of a host that was lost stays until the program that has it gives it up.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.staging import Staging
from gpud.device.cuda.memory.virtual_memory import Reserve, VirtualMemory
from gpud.errors import DeviceLost, InvalidArgument

__all__ = ["TemporaryZone"]


class TemporaryZone:
    """The allocation. For one thread at a time.

    Args:
        reserve: finds memory when none is left.
        staging: zeroes memory.

    Attributes:
        size: bytes; 0: there is none.
    """

    def __init__(self, context: Context, reserve: Reserve, staging: Staging) -> None:
        self._parts = context, reserve, staging
        self._handle: Any = None
        self.size = 0

    @cached_property
    def _memory(self) -> VirtualMemory:
        # Made when a program wants it: a GPU without it serves all others.
        return VirtualMemory(*self._parts)

    def lend(self, size: int) -> int:
        """Return a descriptor of the allocation, which the caller closes.

        Args:
            size: bytes that it is to have, 1 or more; rounded up to whole granules.

        Raises:
            OutOfMemory: the device has too little left; there is no allocation then.
            InvalidArgument: the driver cannot export memory.
        """
        granule = self._memory.size
        size = -(-size // granule) * granule
        if size != self.size:
            self.free()
            self._handle, self.size = self._memory.create(size, exportable=True), size
            self.clear()
        try:
            return self._memory.export(self._handle)
        except DriverError as error:
            raise InvalidArgument(
                f"the driver exports no memory for programs to map ({error}): their workloads "
                "cannot have temporary memory on this GPU"
            ) from error

    def clear(self) -> None:
        """Zero all of it; nobody has it mapped. If that fails, there is no allocation any more."""
        if self.size:
            try:
                self._memory.clear(self._handle, self.size)
            except BaseException:
                self.free()  # or the next program would read it
                raise

    def free(self) -> None:
        """Give the memory back, as soon as no program has it any more.

        Raises:
            DeviceLost: it cannot be freed.
        """
        handle, self._handle, self.size = self._handle, None, 0
        if handle is not None:
            try:
                self._memory.release(handle)
            except DriverError as error:
                raise DeviceLost(f"the temporary zone cannot be freed: {error}") from error
