"""``with`` and ``async with`` blocks of classes that have steps of entering and leaving them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from gpud_client.connection.faces import Awaited, Blocking
from gpud_client.connection.pending import Operation

__all__ = ["AwaitedContext", "BlockingContext"]


class _Context:
    """The steps of a ``with`` block, whether it blocks or is awaited."""

    _channel: Any

    def _enter(self) -> Operation[None]:
        yield from ()

    def _leave(self, error: BaseException | None) -> Operation[None]:
        """Leave the block, which ``error`` ends, if any."""
        raise NotImplementedError


class BlockingContext(_Context, Blocking):
    """Makes a ``with`` block of a class's `_enter` and `_leave`."""

    def __enter__(self) -> Self:
        self._channel.run(self._enter())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.run(self._leave(error))


class AwaitedContext(_Context, Awaited):
    """Makes an ``async with`` block of a class's `_enter` and `_leave`."""

    async def __aenter__(self) -> Self:
        await self._channel.run(self._enter())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.run(self._leave(error))
