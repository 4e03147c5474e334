"""Workloads and their iterations as ``with`` blocks, and as ``async with`` blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from gpud_client.arrays import ArrayBase
from gpud_client.connection.contexts import AwaitedContext, BlockingContext
from gpud_client.workloads.turn import TurnBase
from gpud_client.workloads.workload import WorkloadBase

__all__ = ["AwaitedTurn", "AwaitedWorkload", "BlockingTurn", "BlockingWorkload"]

ArrayT = TypeVar("ArrayT", bound=ArrayBase)
BlockingT = TypeVar("BlockingT", bound="BlockingTurn[Any]")
AwaitedT = TypeVar("AwaitedT", bound="AwaitedTurn[Any]")


class BlockingTurn(TurnBase[ArrayT], BlockingContext):
    """The ``with`` block of an iteration."""


class AwaitedTurn(TurnBase[ArrayT], AwaitedContext):
    """The ``async with`` block of an iteration."""


class BlockingWorkload(WorkloadBase[ArrayT, BlockingT], BlockingContext):
    """What a workload has beside its operations, where methods block."""

    def iteration(self, last: bool = False) -> BlockingT:
        """Wait for the turn, in a ``with`` block; its value makes temporary arrays.

        Args:
            last: Close the workload when the block ends.
        """
        return self._turn_class(self, last)

    def iterations(self, count: int) -> Iterator[BlockingT]:
        """Go through ``count`` iterations; the last one closes the workload."""
        for number in range(count):
            with self.iteration(last=number == count - 1) as turn:
                yield turn


class AwaitedWorkload(WorkloadBase[ArrayT, AwaitedT], AwaitedContext):
    """What a workload has beside its operations, where methods are awaited."""

    def iteration(self, last: bool = False) -> AwaitedT:
        """Wait for the turn, in an ``async with`` block; see `Workload.iteration`."""
        return self._turn_class(self, last)

    async def iterations(self, count: int) -> AsyncIterator[AwaitedT]:
        """Go through ``count`` iterations; see `Workload.iterations`."""
        for number in range(count):
            async with self.iteration(last=number == count - 1) as turn:
                yield turn
