"""Hosts that say nothing, on fake ones: silent, starting for ever, compiling for ever; blame."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gpud.device.host import messages as hm
from gpud.errors import ProtocolError
from gpud.processes.culprits import MOST_TRIES
from gpud.server.daemon import Daemon
from gpud.server.hosts.interface import HostLimits
from gpud.server.hosts.quarantine import Quarantine
from gpud.server.hosts.validation import check_reply
from gpud.server.ipc.child_process import ChildProcess
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import LOOP, PTX, World, launch, until

pytestmark = pytest.mark.ci


class Deaf(FakeHost):
    """A host that does not hear some commands, for as long as the test says."""

    def __init__(self, *, deaf_to: tuple[type, ...] = (), **of_the_host: Any) -> None:
        super().__init__(**of_the_host)
        self.deaf_to = deaf_to
        self.deaf_to_entry = ""

    def handle(self, message: Any) -> None:
        to_entry = self.deaf_to_entry and self.deaf_to_entry == getattr(message, "entry", "")
        if isinstance(message, self.deaf_to) or to_entry:
            self.commands.append(message)
        else:
            super().handle(message)


async def test_a_host_that_does_not_answer_is_replaced(world: World) -> None:
    host = Deaf(sms=2)
    await world.start(host, host_timeout="500 ms")
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module)
    client.submit(2, module)
    await until(lambda: host.jobs)
    host.deaf_to = (hm.ReadProgress,)
    lost = await client.finished(1)
    host.deaf_to = ()
    assert "hung: it has not answered for 0.5 s" in lost.error["message"]
    await until(lambda: host.jobs)
    host.run()
    assert (await client.finished(2)).state == "done"


async def test_a_host_whose_thread_for_memory_is_stuck_is_replaced(world: World) -> None:
    """It reads commands and answers; but who wants memory mapped would wait for ever."""
    host = Deaf(sms=2)
    await world.start(host, host_timeout="500 ms")
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module)
    client.submit(2, module)
    await until(lambda: host.jobs)
    host.deaf_to = (hm.Ping, hm.OpenArena, hm.CloseArena)
    lost = await client.finished(1)
    host.deaf_to = ()
    assert "hung: what maps its memory has been at one thing for 0.5 s" in lost.error["message"]
    assert lost.error["fields"]["culprit"] is None, "it ran alone, but it did not do this"
    await until(lambda: host.jobs)
    host.run()
    assert (await client.finished(2)).state == "done"


async def test_memory_of_a_devices_own_may_wait_for_its_kernels(world: World) -> None:
    host = Deaf(sms=2, arrays="copied")
    await world.start(host, host_timeout="200 ms")
    client = await world.client()
    client.submit(1, await client.kernel("k"))
    await until(lambda: host.jobs)
    host.deaf_to, host.commands = (hm.Ping,), []
    # It is asked again only after it was silent for the whole limit.
    await until(lambda: sum(type(command) is hm.Ping for command in host.commands) == 3)
    device = world.daemon.devices[0]
    assert device.restarts == 0
    host.run()
    assert (await client.finished(1)).state == "done"
    await until(lambda: device.failures)
    assert "what maps its memory" in device.failures[0]


async def test_a_host_of_which_nothing_answers_is_said_to_hang(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Deaf(sms=2)
    await world.start(host, host_timeout="500 ms")

    def hears(message: Any) -> None:
        if isinstance(message, hm.Ping):  # it is asked this second: the first has been answered
            host.deaf_to = (hm.Ping, hm.ReadProgress)
        Deaf.handle(host, message)

    monkeypatch.setattr(host, "handle", hears)
    device = world.daemon.devices[0]
    await until(lambda: device.failures)
    assert device.failures == ["hung: it has not answered for 0.5 s"]


async def test_who_compiles_for_ever_costs_the_others_one_host(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, trials = Deaf(sms=2), []
    await world.start(host, host_timeout="500 ms", compile_timeout="3 s")
    device = world.daemon.devices[0]

    async def start(child: ChildProcess) -> None:
        trials.append(Deaf(sms=2, deaf_to=(hm.MeasureKernel,)))
        child.attach(trials[-1].connect())

    monkeypatch.setattr(device._quarantine, "_start", start)
    monkeypatch.setattr(device._quarantine, "_limit_s", 0.2)
    monkeypatch.setattr(device._watchdog, "_limits", device._limits._replace(compile=0.5))
    client, hostile = await world.client(), await world.client()
    module = await client.kernel("k")
    client.submit(1, module, 100)
    client.submit(2, module)
    await until(lambda: host.jobs)
    slow = (await hostile.compile(PTX.format(name="slow"))).module
    host.deaf_to_entry = "slow"
    refused = await hostile.refused(lambda r: wm.Measure(r, slow, 0, (32, 1, 1), 0))
    assert refused["code"] == "compile"
    assert "compiling slow for blocks of 32 x 1 x 1 ends the device's host" in refused["message"]
    lost = await client.finished(1)
    assert lost.error["fields"]["culprit"] is None
    await until(lambda: host.jobs)
    host.run()
    assert (await client.finished(2)).state == "done"
    assert (len(trials), device.restarts) == (MOST_TRIES, 1)
    refused = await hostile.refused(lambda r: wm.Measure(r, slow, 0, (32, 1, 1), 0))
    assert refused["code"] == "compile"
    assert (len(trials), device.restarts) == (MOST_TRIES, 1), "it is not tried again"
    for trial in trials:
        trial.close()


async def test_a_host_that_compiles_for_ever_is_replaced_and_the_kernel_is_suspected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Deaf(sms=2)
    # No trials on fake hosts: what is suspected is kept here.
    suspected: list[Any] = []
    monkeypatch.setattr(
        Quarantine, "suspect", lambda self, case, reason: suspected.append((case, reason))
    )
    await world.start(host, host_timeout="500 ms", compile_timeout="3 s")
    device = world.daemon.devices[0]
    monkeypatch.setattr(device._watchdog, "_limits", device._limits._replace(compile=0.5))
    client = await world.client()
    module = (await client.compile(PTX.format(name="k"))).module
    host.deaf_to = (hm.MeasureKernel,)
    measured = asyncio.ensure_future(client.measure(module))
    await until(lambda: suspected)
    host.deaf_to = ()
    assert await measured == 1, "the next host is asked again"
    case, reason = suspected[0]
    assert (case.entry, case.block) == ("k", (32, 1, 1))
    assert "hung: it was compiling k for blocks of 32 x 1 x 1" in reason
    assert device.failures[0] == reason


NONSENSE: dict[type, tuple[Any, ...]] = {
    hm.MeasureKernel: (0, -1, 1 << 16, "4", None, [1], True),
    hm.ReadVariable: (None, b"", b"12345", "1234"),
    hm.ReadProgress: (
        None,
        5,
        [5],
        [[5, 0, 1]],
        [["5", 0, 1, 0, 0]],
        [[77, 0, 1, 0, 0]],
        [[5, 2, 1, 0, 0]],
        [[5, 0, 1, -1, 0]],
        [[5, 0, 1, 0, -1]],
    ),
    hm.OpenArena: (None, 5),
    hm.LoadModule: (0, b""),
    hm.WriteVariable: (False,),
}


@pytest.mark.parametrize("kind", NONSENSE)
async def test_a_reply_that_cannot_be_is_seen(kind: Any) -> None:
    fields: dict[type, tuple[Any, ...]] = {
        hm.MeasureKernel: (1, 5, "k", (32, 1, 1), 0),
        hm.ReadProgress: (1, (5,)),
        hm.OpenArena: (1, 9, 4096, 4096),
    }
    command = kind(*fields.get(kind, (1, 5, "name", 0, 4)[: len(kind._fields)]))
    good = {
        hm.MeasureKernel: 4, hm.ReadVariable: b"1234", hm.OpenArena: 4096,
        hm.ReadProgress: [[5, 0, 1, 9, 0]],
    }  # fmt: skip
    check_reply(command, good.get(kind))
    for value in NONSENSE[kind]:
        with pytest.raises(ProtocolError):
            check_reply(command, value)


@pytest.mark.parametrize("how", ["occupancy", "refusal", "end"])
async def test_a_host_that_says_what_cannot_be_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    host = FakeHost(sms=2)
    await world.start(host)
    client = await world.client()
    module = (await client.compile(PTX.format(name="k"))).module
    device = world.daemon.devices[0]
    told = 0

    def lies(event: Any) -> None:
        nonlocal told
        measured = bool(host.commands) and isinstance(host.commands[-1], hm.MeasureKernel)
        lie: Any = None
        if how == "end" and isinstance(event, hm.RunEnded):
            lie = event._replace(error={"code": 5})
        elif how != "end" and measured and isinstance(event, hm.Replied):
            lie = hm.Refused(event.ticket, {}) if how == "refusal" else event._replace(value=0)
        if lie is not None and not told:
            told, event = told + 1, lie
        FakeHost._send(host, event)

    monkeypatch.setattr(host, "_send", lies)
    assert await client.measure(module) == 1, "the next host is asked"
    number = 1
    if how == "end":
        number = 2
        client.submit(1, module)
        await until(lambda: host.jobs)
        host.run()
        assert (await client.finished(1)).error["code"] == "device-lost"
    assert told == 1
    await until(lambda: device.restarts == 1)
    assert "sent what cannot be" in device.failures[0]
    client.submit(number, module)
    await until(lambda: host.jobs)
    host.run()
    assert (await client.finished(number)).state == "done"


async def test_a_host_says_nothing_of_jobs_that_are_not_its_own(world: World) -> None:
    hosts = [FakeHost(sms=2), FakeHost(sms=2)]
    await world.start(*hosts)
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module, 100)
    await until(lambda: hosts[0].jobs)
    (number,) = hosts[0].jobs
    hosts[1]._send(hm.SlicesHeld(number, 0, 0, exhausted=True))
    hosts[1]._send(hm.RunEnded(number, None, True, b"not so", 100, 100, 0, 0))
    await client.query("status")
    hosts[0].run()
    finished = await client.finished(1)
    assert (finished.state, finished.output) == ("done", b"")
    assert [device.restarts for device in world.daemon.devices] == [0, 0]


async def test_a_request_is_not_asked_for_ever(world: World) -> None:
    host = Deaf(sms=2)
    await world.start(host)
    client = await world.client()
    module = (await client.compile(PTX.format(name="k"))).module
    host.dies_at = 1

    class Dies:
        """Forgets what it was told each time, and so dies at its first command again."""

        def __len__(self) -> int:
            return 1

        def append(self, command: Any) -> None:
            asked.append(type(command))

    asked: list[type] = []
    host.commands = Dies()  # type: ignore[assignment]
    error = await client.refused(lambda r: wm.Measure(r, module, 0, (32, 1, 1), 0))
    assert error["code"] == "device-lost"
    assert len(asked) == 3
    host.dies_at, host.commands = None, []
    assert await client.measure(module) == 1


async def test_a_module_that_was_unloaded_meanwhile_is_not_loaded_again(world: World) -> None:
    host = Deaf(sms=2)
    await world.start(host)
    client = await world.client()
    module = (await client.compile(PTX.format(name="k"))).module
    host.deaf_to = (hm.LoadModule,)
    client.send(wm.Measure(99, module, 0, (32, 1, 1), 0))
    await until(lambda: any(type(command) is hm.LoadModule for command in host.commands))
    client.send(wm.Unload(module))
    await client.query("status")
    host.deaf_to, host.commands = (), []
    host.die()
    failed = await client.expect(wm.Failed)
    assert "unloaded meanwhile" in failed.error["message"]
    assert not [command for command in host.commands if type(command) is hm.LoadModule]


async def test_a_host_that_starts_for_ever_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(sms=2, auto=True)
    silent: list[socket.socket] = []

    def connect() -> socket.socket:
        if not silent:
            ours, theirs = socket.socketpair()
            silent.append(theirs)
            ours.setblocking(False)
            return ours
        return host.connect()

    monkeypatch.setattr(HostLimits, "__new__", _short(HostLimits.__new__))
    world.hosts = [host]
    world.daemon = Daemon(
        world.config(devices=["cpu:2"], host_timeout="500 ms"), connect=[connect], validate=True
    )
    await world.daemon.start()
    silent[0].close()
    device = world.daemon.devices[0]
    assert "hung: it has not started within 0.2 s" in device.failures[0]
    client = await world.client()
    client.submit(1, await client.kernel("k"))
    assert (await client.finished(1)).state == "done"


def _short(make: Any) -> Any:
    def new(cls: Any, silent: float = 30.0, compile: float = 60.0, start: float = 0.2) -> Any:  # noqa: A002
        return make(cls, silent, compile, start)

    return new


async def test_a_job_is_not_blamed_for_what_happens_while_something_is_compiled(
    world: World,
) -> None:
    host = Deaf(sms=2)
    await world.start(host)
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module, 100)
    await until(lambda: host.jobs)
    other = (await client.compile(PTX.format(name="other"))).module
    host.deaf_to = (hm.MeasureKernel,)
    client.send(wm.Measure(99, other, 0, (32, 1, 1), 0))
    await until(lambda: [c for c in host.commands if getattr(c, "entry", "") == "other"])
    host.die()
    lost = await client.finished(1)
    assert lost.error["fields"]["culprit"] is None
    assert "only one" not in lost.error["message"]


async def test_the_only_job_of_a_host_is_named(world: World) -> None:
    await world.start(FakeHost(sms=2, auto=True))
    client = await world.client()
    module = await client.kernel("k")
    for number in (1, 2):
        client.submit(number, module)
        await client.finished(number)
    world.host.auto = False
    client.submit(3, module, 100)
    await until(lambda: world.host.jobs)
    world.host.die()
    lost = await client.finished(3)
    assert lost.error["fields"]["culprit"] == f"{client.session}.3"
    assert f"job {client.session}.3 was the only one that ran on it" in lost.error["message"]


async def test_a_killable_job_that_does_not_end_costs_only_itself(world: World) -> None:
    host = FakeHost(sms=2, behaviour=Behaviour(occupancy=1))
    host.kernels["endless"] = Behaviour(block_ns=None)
    await world.start(host, grace="2 s")
    client = await world.client()
    endless = (await client.compile(LOOP.format(name="endless"))).module
    await client.measure(endless)
    module = await client.kernel("k")
    client.submit(1, endless, 1, quota=(1, 1), timeout_ns=10**8, stream=1)
    client.submit(2, module, 100, quota=(1, 1), stream=2)
    finished = await client.finished(1)
    assert finished.error["code"] == "job-timeout"
    assert [type(c) for c in host.commands if isinstance(c, hm.KillJob)] == [hm.KillJob]
    assert world.daemon.devices[0].restarts == 0
    host.run()
    assert (await client.finished(2)).state == "done"


async def test_what_could_not_be_sent_any_more_runs_on_the_next_host(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is gone, and nobody knows yet: a job that is started then has not begun."""
    host = FakeHost(sms=2, auto=True)
    await world.start(host)
    client = await world.client()
    module = await client.kernel("k")
    device = world.daemon.devices[0]
    assert device.process is not None
    monkeypatch.setattr(device.process, "alive", False)
    client.submit(1, module, launches=[launch(module)] * 2)
    await until(lambda: device.jobs._unsent)
    monkeypatch.undo()
    host.die()
    assert (await client.finished(1)).state == "done"


async def test_a_job_whose_host_ends_each_time_it_is_made_ready_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(sms=2)
    await world.start(host)
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module, 1000)
    client.submit(2, module)
    await until(lambda: host.jobs)
    received: list[type] = []

    def dies(message: Any) -> None:
        received.append(type(message))
        if isinstance(message, hm.LoadModule):
            host.die()
        else:
            FakeHost.handle(host, message)

    monkeypatch.setattr(host, "handle", dies)
    host.die()
    await client.finished(1)
    finished = await client.finished(2)
    assert finished.error["code"] == "device-lost"
    assert "lost 3 times while job" in finished.error["message"]
    assert received.count(hm.LoadModule) == 3
    assert hm.StartRun not in received
