"""Every limit: what is over it is refused in precise words, and nothing of it stays counted."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpud.server.hosts.task_turns import TaskTurns
from gpud.server.ipc.stream import MESSAGES_PER_TURN
from gpud.server.state import arenas as arenas_module
from gpud.server.state.quota import ARRAY_BYTES, FOLLOWED_BYTES, JOB_BYTES, Quota, User
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import PTX, Client, World, launch, until

pytestmark = pytest.mark.ci

ALICE, BOB = 70001, 70002
MIB = 1 << 20

LIMITS = {
    "max_connections": "12",
    "max_user_connections": "5",
    "max_jobs_per_session": "20",
    "max_jobs_per_user": "30",
    "session_host_memory": "4 MiB",
    "user_host_memory": "6 MiB",
    "session_memory": "16 MiB",
    "user_memory": "24 MiB",
    "memory": "64 MiB",
    "max_program_bytes": "64 KiB",
}


@pytest.fixture
async def world(world: World) -> World:
    kernels = {"forever": Behaviour(block_ns=None)}
    return await world.start(FakeHost(sms=4, kernels=kernels, auto=True), **LIMITS)


def user_of(world: World, client: Client) -> User:
    return world.daemon.state.sessions[client.session].user


async def say(client: Client, message: Any) -> None:
    """Send a message that may be larger than the socket's buffer."""
    data = wm.CLIENT_PROTOCOL.encode(message)
    await asyncio.get_running_loop().sock_sendall(client.sock, data)


async def refused(client: Client, make: Callable[[int], Any]) -> dict[str, Any]:
    """`Client.refused` for such a message."""
    request = client.next_request()
    await say(client, make(request))
    return (await client.expect(wm.Failed, lambda m: m.request == request)).error


async def nothing_is_counted(world: World) -> None:
    daemon = world.daemon
    for client in world.clients:
        client.close()
    await until(lambda: not daemon.state.sessions and not daemon.connections)
    assert not len(daemon.state.users)
    assert not daemon.state.arenas.used_bytes(0)


def in_words(error: dict[str, Any], limit: str, value: int | None = None) -> None:
    assert error["code"] == "limit"
    assert error["fields"]["limit"] == limit
    if value is not None:
        assert error["fields"]["value"] == value
        assert str(value) in error["message"]
    assert ";" in error["message"], "it says what to do"


# -- connections and jobs --------------------------------------------------------------------------


async def test_connections_of_a_user(world: World) -> None:
    for _ in range(5):
        await world.client(ALICE)
    world.peers[world.accepted] = world.peers[0]
    extra = world.connect()
    in_words((await extra.expect(wm.Goodbye)).error, "max_user_connections", 5)
    await extra.end()
    bob = await world.client(BOB)  # there is room for others
    assert (await bob.query("status"))["clients"] == 6
    world.clients[0].close()
    await until(lambda: len(world.daemon.connections) == 5)
    await world.client(ALICE)
    await nothing_is_counted(world)


async def test_jobs_of_a_session_and_of_a_user(world: World) -> None:
    first, second, bob = [await world.client(uid) for uid in (ALICE, ALICE, BOB)]
    modules = [await client.kernel("forever") for client in (first, second, bob)]
    for number in range(1, 21):
        first.submit(number, modules[0])
    first.submit(21, modules[0])
    in_words((await first.finished(21)).error, "max_jobs_per_session", 20)
    for number in range(1, 11):
        second.submit(number, modules[1])
    second.submit(11, modules[1])
    in_words((await second.finished(11)).error, "max_jobs_per_user", 30)
    bob.submit(1, modules[2])
    await bob.query("status")
    assert len(world.daemon.state.jobs) == 31
    await second.ask(lambda r: wm.Cancel(r, (second.session, 10)), wm.Answer)
    await second.finished(10)
    second.submit(12, modules[1])
    await second.query("status")
    assert len(world.daemon.state.jobs) == 31
    await nothing_is_counted(world)


# -- host memory -----------------------------------------------------------------------------------


async def test_queued_launches(world: World) -> None:
    client = await world.client(ALICE)
    module = await client.kernel("forever")
    chain = [launch(module)] * 4096

    async def submit(number: int, launches: list[Any]) -> None:
        data = wm.CLIENT_PROTOCOL.encode_records(launches)
        await say(client, wm.Submit(number, 0, data))

    for number in range(1, 4):
        await submit(number, chain)  # the same again costs little
    await submit(4, chain[:-1])
    await submit(5, chain[:-2])
    await submit(6, chain[:-3])
    error = (await client.finished(6)).error
    in_words(error, "session_host_memory", 4 * MIB)
    daemon = world.daemon
    kept = user_of(world, client).host_memory
    count = len(daemon.state.jobs)
    assert 4 <= count <= 5
    used = kept.used_bytes
    assert 0 < used <= 4 * MIB
    for number in range(1, count + 1):
        await client.ask(lambda r: wm.Cancel(r, (client.session, number)), wm.Answer)  # noqa: B023
        await client.finished(number)
    assert kept.used_bytes < used / 100, "the module's alone are left"
    await submit(7, chain[:-4])
    await client.query("status")
    assert len(daemon.state.jobs) == 1
    await nothing_is_counted(world)


async def test_jobs_to_follow(world: World) -> None:
    client = await world.client(ALICE)
    module = await client.kernel("forever")
    client.submit(1, module)
    await client.query("status")
    kept = user_of(world, client).host_memory
    before = kept.used_bytes
    client.submit(2, module, after=((client.session, 1),) * 4096)
    await client.query("status")
    launches = 42  # as its device gets them
    assert kept.used_bytes == before + JOB_BYTES + 4096 * FOLLOWED_BYTES + launches
    await client.ask(lambda r: wm.Cancel(r, (client.session, 2)), wm.Answer)
    await client.finished(2)
    assert kept.used_bytes == before
    await nothing_is_counted(world)


async def test_each_array_is_counted(world: World) -> None:
    client = await world.client(ALICE)
    first = await client.allocate(1)
    kept = user_of(world, client).host_memory
    before = kept.used_bytes
    arrays = [await client.allocate(1) for _ in range(3)]
    assert kept.used_bytes == before + 3 * ARRAY_BYTES
    error = await client.refused(lambda r: wm.Allocate(r, 0, 1 << 40))
    assert error["code"] == "out-of-memory"
    client.submit(1, await client.kernel("forever"))
    for array in (first, *arrays):
        client.send(wm.Free(0, array))
    await client.query("status")
    assert kept.used_bytes > before, "a job may use them"
    await client.ask(lambda r: wm.Cancel(r, (client.session, 1)), wm.Answer)
    await client.finished(1)
    (session,) = world.daemon.state.sessions.values()
    (module,) = session.modules.values()
    assert kept.used_bytes == module.program.size_bytes
    await nothing_is_counted(world)


async def test_sources_that_wait_for_the_compiler(world: World) -> None:
    client = await world.client(ALICE)
    source = "/*" + "x" * (3 * MIB // 2) + "*/"
    requests = [900 + at for at in range(4)]
    for request in requests:
        await say(client, wm.Compile(request, 0, f"{source}{request}", ()))
    answers = [await client.expect(wm.Failed) for _ in requests]
    limits = [one for one in answers if one.error["code"] == "limit"]
    assert 2 <= len(limits) <= 3
    assert requests[0] not in [one.request for one in limits]
    in_words(limits[0].error, "session_host_memory", 4 * MIB)
    assert await client.kernel("k")
    await nothing_is_counted(world)


async def test_modules_and_the_sum_over_a_users_sessions(world: World) -> None:
    clients = [await world.client(ALICE) for _ in range(3)]
    error: dict[str, Any] = {}
    made = []
    for client in clients:
        for _ in range(1000):
            request = client.next_request()
            client.send(wm.Compile(request, 0, PTX.format(name="k"), ()))
            await until(lambda: client.received or client.closed)  # noqa: B023
            answer = client.received.pop(0)
            if type(answer) is wm.Failed:
                error = answer.error
                break
            made.append((client, answer.module))
    in_words(error, "user_host_memory", 6 * MIB)
    client, module = made[-1]
    client.send(wm.Unload(module))
    assert (await client.compile(PTX.format(name="k"))).module
    await nothing_is_counted(world)
    assert not world.daemon.state.modules


async def test_requests_that_wait_for_the_host(world: World) -> None:
    client = await world.client(ALICE)
    table = ".global .align 4 .b8 table[2097152];\n.visible .entry"
    source = PTX.format(name="k").replace(".visible .entry", table)
    module = (await client.compile(source)).module
    for request in range(800, 810):
        client.send(wm.ReadSymbol(request, module, "table", 0, 2 * MIB))
    answers = [await client.expect(wm.Failed, lambda m: m.request >= 800) for _ in range(8)]
    in_words(answers[-1].error, "session_host_memory", 4 * MIB)


async def test_half_a_message(world: World) -> None:
    """What is not whole is kept, and counted; a third such connection is too much."""
    halves = []
    for _ in range(3):
        half = await world.client(ALICE)
        halves.append(half)
        half.raw((3 * MIB).to_bytes(4, "little"))
        for _ in range(24):
            if not half.closed:
                half.sock.setblocking(False)
                try:
                    await asyncio.get_running_loop().sock_sendall(half.sock, bytes(MIB // 8 - 4096))
                except (BrokenPipeError, ConnectionResetError):
                    break
    goodbye = await halves[-1].expect(wm.Goodbye)
    in_words(goodbye.error, "user_host_memory", 6 * MIB)
    await until(lambda: halves[-1].closed)
    assert not halves[0].closed
    assert (await (await world.client(BOB)).query("status"))["clients"] == 3
    await nothing_is_counted(world)


async def test_a_reader_that_never_reads(world: World) -> None:
    hog, bob = await world.client(ALICE), await world.client(BOB)
    await hog.ask(wm.Follow, wm.Answer)
    hog.pause()
    daemon = world.daemon
    records = daemon.state.records
    while hog.session in daemon.state.sessions:
        records.add_event(0, "noise", ALICE, ("text", "x" * 100_000))
        await asyncio.sleep(0)
    assert (await bob.query("status"))["sessions"] == 1
    assert len(daemon.state.users) == 1


async def test_costly_questions_do_not_hold_up_the_others(world: World) -> None:
    """A turn ends when back pressure, or its time, says so."""
    fast, other = await world.client(ALICE), await world.client(BOB)
    daemon = world.daemon
    for _ in range(900):
        daemon.state.records.add_event(0, "noise", ALICE, ("text", "x" * 2000))
    question = wm.CLIENT_PROTOCOL.encode(wm.Query(7, "events"))
    fast.raw(question * MESSAGES_PER_TURN)
    await other.query("status")
    answered = sum(1 for message in fast.received if type(message) is wm.Answer)
    assert answered < MESSAGES_PER_TURN
    await until(lambda: sum(1 for m in fast.received if type(m) is wm.Answer) == MESSAGES_PER_TURN)


def test_quotas_add_up() -> None:
    user = Quota(100, "user_host_memory", "user")
    one, two = (Quota(80, "session_host_memory", "session", user) for _ in range(2))
    one.charge(60, "it")
    with pytest.raises(Exception, match="session_host_memory"):
        one.charge(21, "it")
    with pytest.raises(Exception, match="user_host_memory"):
        two.charge(41, "it")
    assert (one.used_bytes, two.used_bytes, user.used_bytes) == (60, 0, 60)
    two.charge(40, "it")
    assert two.force_charge(10) is not None
    two.force_charge(-10)
    two.close()
    two.uncharge(40)
    assert user.used_bytes == 60
    one.uncharge(60)
    assert user.used_bytes == 0


def test_turns() -> None:
    queue = TaskTurns()
    order: list[str] = []
    open_: dict[str, Callable[[], None]] = {}

    def ask(party: str, name: str, at_once: bool = False) -> None:
        def on_turn(done: Callable[[], None]) -> None:
            order.append(name)
            if at_once:
                done()
            else:
                open_[name] = done

        queue.submit(party, on_turn)

    for name in ("a1", "a2"):
        ask("a", name)
    for number in range(5000):  # no recursion
        ask("a", f"quick{number}", at_once=True)
    ask("a", "a3")
    ask("b", "b1")
    assert order == ["a1", "b1"]
    open_["b1"]()
    open_["a1"]()
    assert order == ["a1", "b1", "a2"]
    open_["a2"]()
    assert order[-1] == "a3"
    assert len(order) == 5004
    assert len(queue) == 1
    open_["a3"]()
    assert not len(queue)


# -- device memory ---------------------------------------------------------------------------------


async def test_module_variables_are_device_memory(world: World) -> None:
    client = await world.client(ALICE)
    table = ".global .align 4 .b8 table[{}];\n.visible .entry"

    def source(size: int) -> str:
        return PTX.format(name="k").replace(".visible .entry", table.format(size))

    module = (await client.compile(source(10 * MIB))).module
    error = await client.refused(lambda r: wm.Compile(r, 0, source(7 * MIB), ()))
    assert error["code"] == "out-of-memory"
    assert error["fields"]["limit"] == "session"
    error = await client.refused(lambda r: wm.Allocate(r, 0, 7 * MIB))
    assert error["fields"]["available_bytes"] == 6 * MIB
    other = await world.client(ALICE)
    await other.allocate(12 * MIB)
    error = await client.refused(lambda r: wm.Allocate(r, 0, 3 * MIB))
    assert error["fields"]["limit"] == "user"
    client.send(wm.Unload(module))
    await client.allocate(12 * MIB)
    world.daemon.state.arenas._ledger.validate()
    await nothing_is_counted(world)


async def test_memory_outside_of_the_arrays_is_given_back_then_its_writer_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas_module, "SLACK_BYTES", 1 * MIB)
    daemon = world.daemon
    hoarder, other = await world.client(ALICE), await world.client(BOB)
    maps = []
    arena_bytes = 0
    for client in (hoarder, other):
        address = await client.allocate(2 * MIB)
        arena = await client.expect(wm.Arena)
        arena_bytes = arena.size
        memory = mmap.mmap(client.descriptors[0], arena_bytes)
        maps.append(memory)
        at = address - arena.base
        memory[at : at + 2 * MIB] = b"x" * (2 * MIB)
        daemon.connections.end_excessive(daemon.state.arenas.find_excess())
    at = 8 * MIB  # not in an array
    for look in range(arenas_module.MOST_STRIKES):
        await until(lambda: not daemon.state.arenas._freer._under_way)
        assert maps[0][at] == 0, "it was given back"
        maps[0][at : at + 4 * MIB] = b"y" * (4 * MIB)
        assert not hoarder.closed
        daemon.connections.end_excessive(daemon.state.arenas.find_excess())
        if not look:
            # What is in arrays stays, and new arrays wait until the rest reads as zero.
            address = await hoarder.allocate(12 * MIB)
            start = address % arena_bytes
            assert maps[0][start : start + 4 * MIB] == bytes(4 * MIB)
            hoarder.send(wm.Free(0, address))
            await hoarder.query("status")
    goodbye = await hoarder.expect(wm.Goodbye)
    in_words(goodbye.error, "session_memory", 2 * MIB)
    await hoarder.end()
    assert not other.closed
    assert maps[1][:1]
    assert (await other.query("status"))["sessions"] == 1
    for memory in maps:
        memory.close()


async def test_who_stops_to_hoard_is_forgiven(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas_module, "SLACK_BYTES", 1 * MIB)
    daemon = world.daemon
    client = await world.client()
    await client.allocate(4096)
    arena = await client.expect(wm.Arena)
    with mmap.mmap(client.descriptors[0], arena.size) as memory:
        for _ in range(2 * arenas_module.MOST_STRIKES):
            memory[8 * MIB : 12 * MIB] = b"y" * (4 * MIB)
            daemon.connections.end_excessive(daemon.state.arenas.find_excess())
            await until(lambda: not daemon.state.arenas._freer._under_way)
            daemon.connections.end_excessive(daemon.state.arenas.find_excess())
    assert (await client.query("status"))["sessions"] == 1


# -- compiling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        (PTX.format(name="k").replace("ret;", "add.u32 %r1, %r1, %r1;\n" * 4000 + "ret;"), ""),
        (f".global .b8 x[{1 << 62}];\n", "bytes"),
        (".global .u32 x" + "[1000000]" * 20 + ";\n", "bytes"),
        (".global .align 1073741824 .b8 x[4];\n", "bytes of alignment"),
        (".visible .entry x() {\n .shared .b8 y" + "[1000000]" * 20 + ";\n ret; }\n", "bytes of"),
    ],
    ids=["program", "variable", "dimensions", "alignment", "shared"],
)
async def test_sizes_of_programs(world: World, source: str, limit: str) -> None:
    client = await world.client()
    if not source.lstrip().startswith(".version"):
        head, _, body = PTX.format(name="k").partition(".visible")
        source = f"{head}{source}.visible{body}"
    error = await refused(client, lambda r: wm.Compile(r, 0, source, ()))
    assert error["code"] == "limit", error
    assert error["fields"]["limit"].startswith(limit or "max_program_bytes")
    assert "may have" in error["message"] or "allows" in error["message"]
    assert await client.kernel("k")


BOMB = """template<int N, int M> struct B { using a = typename B<N-1, 2*M>::t; \
using t = typename B<N-1, 2*M+1>::t; };
template<int M> struct B<0, M> { using t = int; };
extern "C" __global__ void k() { B<40, 0>::t x; }"""


async def test_a_hostile_source_stalls_neither_the_event_loop_nor_another_user() -> None:
    async with World() as one:
        await one.start(FakeHost(sms=4, auto=True), compile_timeout="3 s")
        alice, bob = await one.client(ALICE), await one.client(BOB)
        await bob.kernel("warm")
        alice.send(wm.Compile(777, 0, BOMB, ()))
        for number in range(10):
            alice.send(wm.Compile(800 + number, 0, BOMB + f"// {number}", ()))
        for number in range(3):
            await bob.kernel(f"k{number}")
        # However long that took, it did not have to wait for all of the others'.
        assert sum(type(message) is wm.Failed for message in alice.received) < 11
        failed = await alice.expect(wm.Failed, lambda m: m.request == 777)
        assert failed.error["code"] == "compile"


async def test_the_compile_processes_have_their_limits() -> None:
    async with World() as one:
        await one.start(FakeHost(sms=4, auto=True), compile_memory_bytes="768 MiB")
        client = await one.client()
        await client.kernel("k")
        (pid,) = one.daemon.compiler.pids
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()  # noqa: ASYNC240
        found = {line[:26].strip(): line[26:].split()[0] for line in limits}
        assert found["Max address space"] == str(768 * MIB)
        assert found["Max core file size"] == "0"
