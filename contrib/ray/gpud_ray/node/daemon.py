"""The node's gpud: which one it is, the session with it, and items that run in that session."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

import gpud_client as gc
from gpud.errors import DeviceLost, Draining, GpudError
from gpud_ray.items import InOut, Item, Out
from gpud_ray.node.config import DaemonConfig
from gpud_ray.node.gpu_figures import GPUFigures
from gpud_ray.node.outcome import Done, Failed, NodeFault, NoRoom, Outcome
from gpud_ray.placement.gpu_reading import GPUReading

__all__ = ["NodeDaemon"]

_MOST_KERNELS = 256
_ANSWER_S = 10.0


class NodeDaemon:
    """A session with the node's gpud that is opened again whenever it is lost."""

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self._figures = GPUFigures()
        self._session: gc.AsyncSession | None = None
        self._kernels: OrderedDict[tuple[str, str, int], asyncio.Task[gc.AsyncKernel]]
        self._kernels = OrderedDict()
        self._opening: asyncio.Task[None] | None = None
        self.problem = "it has not been reached yet"
        self.pid: int | None = None

    @property
    def address(self) -> str:
        """The daemon's socket, or which one it starts."""
        if self._session is not None:
            return self._session.path
        return self._config.socket or ", ".join(self._config.private) or "the default socket"

    async def read(self, reserved: Mapping[int, int]) -> tuple[GPUReading, ...]:
        """Return a reading of each GPU; none while the daemon does not answer.

        It is connected to, or started again, in the background.
        """
        session = self._session
        if self._config.absent:
            self.problem = "this node has none"
            return ()
        if session is None:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open())
            return ()
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = await session.query("status")
        except (GpudError, TimeoutError) as error:
            self._lose(session, f"it does not answer: {error}")
            return ()
        if status["draining"]:
            self.problem = "it is draining"
            return ()
        return self._figures.read(status["devices"], reserved)

    async def run(self, item: Item, device: int, *, alone: bool) -> Outcome:
        """Run an item on a device, and say how that ended; ``alone``: the node has no other."""
        begin = time.monotonic()
        session, began = self._session, False
        if session is None:
            return NodeFault(f"the node's gpud is not there: {self.problem}", may_have_run=False)
        try:
            arguments, results = await self._arrays(session, item, device)
            kernel = await self._kernel(session, item, device)
            call = item.call
            job = await kernel.submit(
                call.grid, call.block, arguments, shared=call.shared, weight=call.weight,
                reservation=call.reservation, quota=call.quota, timeout=call.timeout,
                stream=session.stream(), device=device,
            )  # fmt: skip
            began = True
            await job.result()
            kernel_s = (await job.stats).get("run_s")
            values = [await _values(array) for array in results]
        except (gc.ConnectionLost, Draining) as error:
            self._lose(session, str(error))
            return NodeFault(f"the node's gpud ended: {error}", may_have_run=began)
        except DeviceLost as error:
            return NodeFault(f"the node's device was lost: {error}", may_have_run=began)
        except gc.OutOfMemory as error:
            return NoRoom(str(error), alone)
        except GpudError as error:
            return Failed(str(error), error.code, may_have_run=began)
        except (TypeError, ValueError) as error:
            return Failed(str(error), "invalid-argument", may_have_run=began)
        return Done(tuple(values), device, time.monotonic() - begin, kernel_s)

    async def close(self) -> None:
        """End the session, and the daemon if it is private."""
        if self._opening is not None:
            self._opening.cancel()
            with suppress(asyncio.CancelledError):
                await self._opening
        if self._session is not None:
            await self._session.close()

    # -- steps

    async def _open(self) -> None:
        config = self._config
        try:
            if config.private:
                session = await gc.alocal(config.private)
            else:
                session = await gc.aconnect(config.socket, name="gpud-ray")
        except (GpudError, ValueError, OSError) as error:
            self.problem = str(error)
            return
        self.pid = int(session.daemon["pid"])
        self._kernels.clear()
        self._session, self.problem = session, ""

    def _lose(self, session: gc.AsyncSession, why: str) -> None:
        if self._session is session:
            self._session, self.problem, self.pid = None, why, None
            self._kernels.clear()
            self._ending = asyncio.ensure_future(session.close())

    async def _arrays(
        self, session: gc.AsyncSession, item: Item, device: int
    ) -> tuple[list[Any], list[gc.AsyncArray]]:
        """Make the item's arguments on the device, and return those that become results, too."""
        arguments: list[Any] = []
        results = []
        for one in item.call.args:
            if isinstance(one, Out):
                results.append(await session.zeros(one.shape, one.dtype, device=device))
                arguments.append(results[-1])
            elif isinstance(one, InOut):
                results.append(await session.array(one.values, device=device))
                arguments.append(results[-1])
            elif isinstance(one, np.ndarray):
                arguments.append(await session.array(one, device=device))
            else:
                arguments.append(one)
        return arguments, results

    async def _kernel(self, session: gc.AsyncSession, item: Item, device: int) -> gc.AsyncKernel:
        key = item.call.source, item.call.kernel, device
        task = self._kernels.get(key)
        if task is None:
            task = asyncio.create_task(
                session.kernel(item.call.source, item.call.kernel, device=device)
            )
            self._kernels[key] = task
            if len(self._kernels) > _MOST_KERNELS:
                self._kernels.popitem(last=False)
        else:
            self._kernels.move_to_end(key)
        return await asyncio.shield(task)


async def _values(array: gc.AsyncArray) -> Any:
    """Return an array's values: a view where its memory is shared, which Ray copies once."""
    return await array.numpy() if array.device.arrays == "shared" else await array.get()
