"""Fails the n-th call of a device's interface, and checks what must hold after each failure."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from campaigns.host_failures.device_calls import Calls, HostInProcess
from campaigns.host_failures.load import Load
from gpud.core.replay import steps
from tests.integration import daemon_world
from tests.integration.daemon_world import World

MOST_CALLS = 2000
until = partial(daemon_world.until, pause_s=0.001)


class Injection:
    """A daemon on a host in this process, and the failures that were injected."""

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.calls = Calls()
        self.failed: Counter[str] = Counter()
        self.hosts = HostInProcess(self.calls)
        self.most = 0
        self.last: str | None = None

    async def start(self) -> None:
        log = str(self.world.folder / "events")
        await self.world.start(self.hosts, event_log=log, grace="3 s")  # type: ignore[arg-type]
        await self.run()  # everything is compiled once

    async def run(self) -> list[Load]:
        """Two sessions with work of every kind, and their end."""
        loads = [Load(self.world.daemon.address, seed) for seed in (1, 2)]
        try:
            await asyncio.gather(*(self._session(load) for load in loads))
        finally:
            for load in loads:
                load.close()
            await until(lambda: not self.world.daemon.state.sessions)
        return loads

    async def _session(self, load: Load) -> None:
        await load.open()
        await load.round()
        assert await load.read("step", 4) == 1, "what was written to a constant outlives a host"
        await load.read("served")

    async def fail(self, at: int) -> bool:
        """Have one call fail during `run`; whether one did."""
        world = self.world
        restarts = world.daemon.devices[0].restarts
        self.calls.fail(at, self.kind)
        loads = await self.run()
        self.last = failed = self.calls.failed
        self.most = max(self.most, len(self.calls.names))
        self.calls.fail(0, "")
        lost = world.daemon.devices[0].restarts - restarts
        self._judge(failed, lost, loads)
        await self._well()
        if failed is not None:
            self.failed[failed] += 1
        return failed is not None

    def _judge(self, failed: str | None, lost: int, loads: list[Load]) -> None:
        """Who may have failed because of that."""
        outcomes = sum((load.outcomes for load in loads), Counter[str]())
        refused = sum((load.refused for load in loads), Counter[str]())
        assert sum(outcomes.values()) == 12, outcomes
        bad = sum(n for code, n in outcomes.items() if code not in ("done", "job-cancelled"))
        if failed is None:
            assert (bad, lost) == (0, 0), (outcomes, refused)
        elif lost:
            assert lost == 1, (failed, self.hosts.ended)
            allowed = {"done", "job-cancelled", "device-lost", *self._codes()}
            assert set(outcomes) <= allowed, (failed, outcomes)
        else:
            assert self.kind != "lost", (failed, outcomes)
            assert bad + sum(refused.values()) <= 2, (failed, outcomes, refused)

    def _codes(self) -> set[str]:
        return {"launch-config"} if self.kind == "error" else {"internal"}

    async def _well(self) -> None:
        """Everything that the sessions had is given back, and the scheduler is at rest."""
        daemon = self.world.daemon
        await until(lambda: daemon.devices[0].state == "ready")
        scheduler = daemon.runner.scheduler
        scheduler.validate()
        assert not scheduler.jobs
        assert not scheduler.sessions
        assert not daemon.state.jobs
        assert not daemon.runner.broken
        device = scheduler.devices[0]
        assert (device.allocated, device.charged) == (0, 0)
        loader = daemon.devices[0]._loader
        for known in (loader._texts, loader._written, loader._gone):
            assert not known
        await until(lambda: not loader.compiling)  # for jobs that were cancelled
        host = self.hosts.host
        await until(lambda: not host._modules)
        await until(lambda: not host._memory._arenas)
        assert not host._jobs

    def check_log(self) -> None:
        """A replay of all that happened gives the same commands."""
        log = self.world.folder / "events"
        assert self.world.daemon.runner._log is not None
        self.world.daemon.runner._log.flush()
        lines = Path(log).read_text().splitlines()
        assert len(lines) > 100
        assert json.loads(lines[0])["gpud_event_log"]
        wrong = [step.line for step in steps(lines) if not step.agrees]
        assert not wrong


async def inject(kind: str, numbers: Any) -> Injection:
    """Fail these calls one after the other, until there is none of that number."""
    async with World() as world:
        injection = Injection(world, kind)
        await injection.start()
        for number in numbers:
            try:
                if not await injection.fail(number):
                    break
            except BaseException as error:
                error.add_note(f"call {number}, {injection.last}: {kind}")
                raise
        injection.check_log()
    return injection
