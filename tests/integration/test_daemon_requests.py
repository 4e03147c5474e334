"""Every request of the protocol, and every way in which one can be bad."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from gpud.errors import LaunchConfigError
from gpud.server.handlers import residency
from gpud.wire import messages as wm
from gpud.wire.framing import frame
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import PTX, Client, World, launch, until


@pytest.fixture
async def world(world: World) -> World:
    kernels = {
        "forever": Behaviour(block_ns=None),
        "huge": Behaviour(refusal=LaunchConfigError("block", (32, 1, 1), "does not fit", limit=16)),
        "traps": Behaviour(trap_at=1, output=b"before\n"),
    }
    hosts = FakeHost(sms=4, kernels=kernels, auto=True), FakeHost(sms=2, auto=True)
    return await world.start(*hosts, max_jobs_per_session="8", session_memory="1 MiB")


async def test_welcome_says_what_there_is(world: World) -> None:
    client = await world.client()
    welcome = client.welcome
    assert welcome.version == wm.VERSION
    assert [device["sms"] for device in welcome.devices] == [4, 2]
    assert welcome.devices[0]["online_sms"] == "4"
    assert welcome.limits == {"message_bytes": 64 << 20, "jobs": 8, "memory_bytes": 1 << 20}
    assert welcome.daemon["pid"] == os.getpid()
    again = await world.client()
    assert again.session == client.session + 1


async def test_welcome_says_the_limit_of_the_device_with_most_memory() -> None:
    hosts = [FakeHost(sms=1, memory_bytes=size << 20, arrays="copied") for size in (512, 1024, 256)]
    async with World() as world:
        await world.start(*hosts, session_memory="50 %", memory="100 %")
        welcome = (await world.client()).welcome
        assert welcome.limits["memory_bytes"] == 512 << 20


async def test_a_newer_client_is_spoken_to_in_our_version(world: World) -> None:
    client = world.connect()
    welcome = await client.ask(lambda r: wm.Hello(r, 65535, "from the future"), wm.Welcome)
    assert welcome.version == wm.VERSION


@pytest.mark.parametrize(
    "first", [wm.Hello(1, 0, "old"), wm.Query(1, "status"), wm.Welcome(1, 1, 1, [], {}, {})]
)
async def test_what_is_no_hello_is_the_end(world: World, first: Any) -> None:
    client = world.connect()
    client.send(first)
    goodbye = await client.expect(wm.Goodbye)
    assert goodbye.error["code"] == "protocol"
    await client.end()


async def test_hello_twice(world: World) -> None:
    client = await world.client()
    error = await client.refused(lambda r: wm.Hello(r, 1, "again"))
    assert "first message" in error["message"]


# -- programs -------------------------------------------------------------------------------------


async def test_compile_and_measure(world: World) -> None:
    client = await world.client()
    compiled = await client.compile(PTX.format(name="k"), names=["k"])
    assert compiled.names == {"k": 0}
    assert compiled.kernels[0]["name"] == "k"
    assert compiled.kernels[0]["parameters"] == [["p", "uint", 8, 8, 0]]
    assert await client.measure(compiled.module) == 1
    again = await client.compile(PTX.format(name="k"))
    assert again.module != compiled.module  # variables are a module's own
    assert len(world.host.modules) == 1


@pytest.mark.parametrize(
    ("source", "code"),
    [("", "empty-source"), (".version 8.0\nnonsense", "ptx-syntax"), ("  \n ", "empty-source")],
)
async def test_programs_that_do_not_compile(world: World, source: str, code: str) -> None:
    client = await world.client()
    assert (await client.refused(lambda r: wm.Compile(r, 0, source, ())))["code"] == code


async def test_a_kernel_that_the_program_does_not_have(world: World) -> None:
    client = await world.client()
    source = PTX.format(name="k")
    error = await client.refused(lambda r: wm.Compile(r, 0, source, ("nothere",)))
    assert error["code"] == "kernel-not-found"


async def test_programs_are_answered_in_order_and_compiled_once(world: World) -> None:
    clients = [await world.client() for _ in range(3)]
    for client in clients:
        client.send(wm.Compile(1000, 0, PTX.format(name="same"), ()))
        client.send(wm.Compile(1001, 0, PTX.format(name="other"), ()))
    for client in clients:
        for request in (1000, 1001):
            await client.expect(wm.Compiled, lambda m: m.request == request)  # noqa: B023
    assert world.daemon.compiler.compiled == 2


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda r, m: wm.Measure(r, m + 99, 0, (1, 1, 1), 0), "unknown-name"),
        (lambda r, m: wm.Measure(r, m, 7, (1, 1, 1), 0), "unknown-name"),
        (lambda r, m: wm.Measure(r, m, 0, (0, 1, 1), 0), "protocol"),
        (lambda r, m: wm.ReadSymbol(r, m, "nothere", 0, 1), "unknown-name"),
        (lambda r, m: wm.ReadSymbol(r, m, "table", 60, 8), "invalid-argument"),
        (lambda r, m: wm.ReadSymbol(r, m, "table", 1 << 62, 1), "invalid-argument"),
        (lambda r, m: wm.WriteSymbol(r, m, "table", 64, b"x"), "invalid-argument"),
        (lambda r, m: wm.WriteSymbol(r, m + 1, "table", 0, b"x"), "unknown-name"),
        (lambda r, m: wm.Compile(r, 9, "x", ()), "unknown-name"),
        (lambda r, m: wm.Allocate(r, 9, 1), "unknown-name"),
        (lambda r, m: wm.Allocate(r, 0, 0), "protocol"),
        (lambda r, m: wm.Allocate(r, 0, 1 << 63), "out-of-memory"),
        (lambda r, m: wm.Resize(r, (1, 1)), "invalid-argument"),
        (lambda r, m: wm.Resize(r, (1, 1), (1, 1), (1, 1)), "invalid-argument"),
        (lambda r, m: wm.Resize(r, (1, 77), (1, 1)), "unknown-name"),
        (lambda r, m: wm.Resize(r, (99, 1), None, (1, 1)), "unknown-name"),
        (lambda r, m: wm.Cancel(r, (1, 77)), "unknown-name"),
        (lambda r, m: wm.Cancel(r, (99, 1)), "unknown-name"),
    ],
)
async def test_refused_requests(world: World, make: Callable[[int, int], Any], code: str) -> None:
    client = await world.client()
    table = ".global .align 4 .b8 table[64];\n.visible .entry"
    compiled = await client.compile(PTX.format(name="k").replace(".visible .entry", table))
    client.submit(1, await client.kernel("forever"))
    error = await client.refused(lambda r: make(r, compiled.module))
    assert error["code"] == code
    assert error["message"]
    await client.measure(compiled.module)  # the connection goes on


async def test_a_kernel_that_fits_no_sm_keeps_the_fields_of_its_error(world: World) -> None:
    client = await world.client()
    compiled = await client.compile(PTX.format(name="huge"))
    error = await client.refused(lambda r: wm.Measure(r, compiled.module, 0, (32, 1, 1), 0))
    assert error["code"] == "launch-config"
    assert error["fields"]["limit"] == 16


async def test_symbols(world: World) -> None:
    client = await world.client()
    table = ".global .align 4 .b8 table[64];\n.visible .entry"
    module = (await client.compile(PTX.format(name="k").replace(".visible .entry", table))).module
    await client.ask(lambda r: wm.WriteSymbol(r, module, "table", 8, b"hello"), wm.Answer)
    answer = await client.ask(lambda r: wm.ReadSymbol(r, module, "table", 7, 7), wm.Answer)
    assert answer.value == b"\0hello\0"


async def test_variables_of_an_image_are_an_array_that_only_unloading_frees(world: World) -> None:
    client = await world.client()
    table = ".global .align 4 .b32 table[2] = {7, 8};\n.visible .entry"
    image = PTX.format(name="k").replace(".visible .entry", table).encode()
    compiled = await client.ask(lambda r: wm.Compile(r, 0, "", (), images=(image,)), wm.Compiled)
    arena = await client.expect(wm.Arena)
    at = compiled.addresses["table"] - arena.base
    with mmap.mmap(client.descriptors[0], arena.size) as memory:
        assert memory[at : at + 8] == bytes([7, 0, 0, 0, 8, 0, 0, 0])
        memory[at] = 9
        read = wm.ReadSymbol(5, compiled.module, "table", 0, 5)
        assert (await client.ask(lambda r: read._replace(request=r), wm.Answer)).value[0] == 9
        client.send(wm.Free(0, compiled.addresses["table"]))
        refused = (await client.expect(wm.Failed)).error
        assert refused["code"] == "invalid-argument"
        assert "unload the module" in refused["message"]
        client.send(wm.Unload(compiled.module))
        assert await client.allocate(8) == compiled.addresses["table"]
        assert memory[at : at + 8] == bytes(8)


async def test_an_unloaded_module_is_unknown_and_leaves_the_host(world: World) -> None:
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module, 8)
    client.send(wm.Unload(module))
    error = await client.refused(lambda r: wm.Measure(r, module, 0, (32, 1, 1), 0))
    assert error["code"] == "unknown-name"
    assert (await client.finished(1)).state == "done"
    await until(lambda: not world.host.modules)
    client.send(wm.Unload(module))
    assert (await client.expect(wm.Failed)).error["code"] == "unknown-name"
    client.submit(2, module)
    assert (await client.finished(2)).error["code"] == "unknown-name"


async def test_the_host_has_the_modules_that_were_used_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are loaded again when they are needed; those that jobs use stay."""
    monkeypatch.setattr(residency, "MOST_LOADED", 2)
    client = await world.client()
    first = await client.kernel("forever")
    client.submit(1, first, stream=7, quota=(1, 1))
    second, third, fourth = [await client.kernel(name) for name in ("b", "c", "d")]
    assert set(world.host.modules) == {first, fourth}
    client.submit(2, second, 8)
    assert (await client.finished(2)).state == "done"
    assert set(world.host.modules) == {first, second}
    await client.measure(third, 64)
    client.submit(3, second, 8)
    assert (await client.finished(3)).state == "done"
    assert set(world.host.modules) >= {first, second}
    for module in (second, third, fourth):
        client.send(wm.Unload(module))
    await client.query("status")
    world.host.kernels["forever"] = Behaviour()


async def test_a_module_waits_for_its_jobs(world: World) -> None:
    client = await world.client()
    module = await client.kernel("forever")
    client.submit(1, module)
    client.send(wm.Unload(module))
    await client.query("status")
    assert world.host.modules
    world.host.kernels["forever"] = Behaviour()


# -- memory ---------------------------------------------------------------------------------------


async def test_arrays(world: World) -> None:
    client = await world.client()
    first = await client.allocate(100)
    arena = await client.expect(wm.Arena)
    assert arena.device == 0
    assert arena.base <= first < arena.base + arena.size
    second = await client.allocate(5000)
    assert second >= first + 4096
    assert not any(type(message) is wm.Arena for message in client.received)
    with mmap.mmap(client.descriptors[0], arena.size) as memory:
        offset = second - arena.base
        memory[offset : offset + 5000] = b"x" * 5000
        client.send(wm.Free(0, second))
        third = await client.allocate(8192)
        assert third == second
        assert memory[offset : offset + 8192] == bytes(8192)
    assert world.host.arenas[client.session][:2] == (arena.base, arena.size)
    other = await client.allocate(1, device=1)
    assert (await client.expect(wm.Arena)).base <= other
    assert len(client.descriptors) == 2
    assert os.fstat(client.descriptors[0]).st_size == arena.size


async def test_the_limit_of_a_session(world: World) -> None:
    client = await world.client()
    await client.allocate(1 << 19)
    error = await client.refused(lambda r: wm.Allocate(r, 0, 1 << 20))
    assert error["code"] == "out-of-memory"
    assert error["fields"]["available_bytes"] == 1 << 19
    await client.allocate(1 << 19)


@pytest.mark.parametrize("address", [0, 1 << 44, (1 << 64) - 1])
async def test_freeing_what_is_no_array(world: World, address: int) -> None:
    client = await world.client()
    client.send(wm.Free(0, address))
    assert (await client.expect(wm.Failed)).error["code"] == "unknown-name"
    array = await client.allocate(1)
    client.send(wm.Free(0, array))
    client.send(wm.Free(0, array))
    assert (await client.expect(wm.Failed)).error["code"] == "unknown-name"


async def test_another_sessions_array_is_unknown(world: World) -> None:
    client, other = await world.client(), await world.client()
    array = await client.allocate(1)
    other.send(wm.Free(0, array))
    assert (await other.expect(wm.Failed)).error["code"] == "unknown-name"


async def test_memory_is_freed_after_the_jobs_that_were_submitted_before(world: World) -> None:
    client = await world.client()
    module = await client.kernel("forever")
    array = await client.allocate(1 << 20)
    client.submit(1, module)
    client.send(wm.Free(0, array))
    error = await client.refused(lambda r: wm.Allocate(r, 0, 4096))
    assert error["code"] == "out-of-memory"
    world.host.kernels["forever"] = Behaviour(block_ns=1)
    world.host.die()  # ends the job
    assert (await client.finished(1)).state == "failed"
    assert await client.allocate(1 << 20) == array


# -- submissions ----------------------------------------------------------------------------------


async def test_submissions_of_both_kinds(world: World) -> None:
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module)
    client.submit(2, module, quota=(3, 2))
    client.submit(3, module, reservation=(2, 1), deadline_ns=10**9, timeout_ns=10**12)
    client.submit(4, module, launches=[launch(module)] * 10, stream=7, after=((client.session, 1),))
    for number in (1, 2, 3, 4):
        finished = await client.finished(number)
        assert finished.state == "done"
        assert finished.error is None
        assert finished.progress == ((40, 40) if number == 4 else (4, 4))
        assert finished.stats["queued_s"] >= 0
        assert finished.stats["run_s"] >= 0
        assert finished.stats["capsm_seconds"] > 0


async def test_a_kernel_that_traps(world: World) -> None:
    client = await world.client()
    client.submit(1, await client.kernel("traps"))
    finished = await client.finished(1)
    assert finished.state == "failed"
    assert finished.error["code"] == "kernel-trap"
    assert finished.error["fields"]["task_block"] == [1, 0, 0]
    assert finished.output == b"before\n"
    row = (await client.ask(wm.AskHistory, wm.Answer)).value["rows"][-1]
    assert row["state"] == "failed"
    assert row["error"]["code"] == "kernel-trap"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"reservation": (1, 1), "quota": (1, 1)}, "invalid-argument"),
    ({"reservation": (5, 1)}, "admission"),
    ({"quota": (1, 9)}, "admission"),
    ({"weight": 0}, "protocol"),
    ({"weight": 1001}, "protocol"),
    ({"device": 9}, "unknown-name"),
    ({"device": 1}, "invalid-argument"),  # the module is on another
    ({"after": ((1, 1),)}, "invalid-argument"),
    ({"after": ((1, 500),)}, "invalid-argument"),
    ({"launches": []}, "protocol"),
    ({"launches": [launch(99)]}, "unknown-name"),
    ({"launches": [launch(1)._replace(kernel=3)]}, "unknown-name"),
    ({"launches": [launch(1, blocks=0)]}, "protocol"),
    ({"launches": [launch(1)._replace(grid=(1 << 31, 2, 1))]}, "launch-config"),
    ({"launches": [launch(1, threads=64)]}, "unknown-name"),  # not measured
    ({"launches": [launch(1, threads=0)]}, "protocol"),
    ({"launches": [launch(1, parameters=bytes(4))]}, "invalid-argument"),
    ({"launches": [launch(1, parameters=bytes(12))]}, "invalid-argument"),
]


@pytest.mark.parametrize(("more", "code"), BAD)
async def test_refused_submissions(world: World, more: dict[str, Any], code: str) -> None:
    client = await world.client()
    module = await client.kernel("k")
    assert module == 1
    assert client.session == 1
    client.submit(1, module, **more)
    finished = await client.finished(1)
    assert finished.state == "failed"
    assert finished.error["code"] == code, finished.error
    assert finished.error["message"]
    client.submit(2, module)
    assert (await client.finished(2)).state == "done"


async def test_whole_sms_are_as_many_as_the_device_can_part(world: World) -> None:
    client = await world.client()
    module = await client.kernel("forever")
    client.submit(1, module, reservation=(3, 1), exclusive=True)
    await until(lambda: world.host.jobs)
    assert (await client.query("jobs"))["jobs"][0]["allocation"] == "3"


async def test_the_last_sequence_is_kept_however_large_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpud.server.state.session._SEQUENCE_BYTES", 1)
    client = await world.client()
    module = await client.kernel()
    for number, blocks in enumerate((4, 5, 5), 1):
        client.submit(number, module, launches=[launch(module), launch(module, blocks - 1)])
        assert (await client.finished(number)).state == "done"
        (kept,) = world.daemon.state.sessions[client.session].sequences.values()
        assert kept.total == 4 + blocks - 1


async def test_what_a_running_job_had_grows_while_it_runs(world: World) -> None:
    client = await world.client()
    client.submit(1, await client.kernel("forever"))
    await until(lambda: world.host.jobs)
    had = []
    for _ in range(2):
        await asyncio.sleep(0.01)
        answer = await client.ask(lambda r: wm.Describe(r, ((client.session, 1),)), wm.Answer)
        had.append(answer.value[0]["capsm_seconds"])
    assert 0 < had[0] < had[1]


async def test_which_launch_of_a_chain_is_bad(world: World) -> None:
    client = await world.client()
    module = await client.kernel("k")
    bad = launch(module)._replace(grid=(1 << 31, 2, 1))
    client.submit(1, module, launches=[launch(module), bad])
    finished = await client.finished(1)
    assert finished.error["message"].startswith("launch 1:")
    assert finished.error["fields"]["parameter"] == "grid"


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgpack.packb(5), msgpack.packb([5]), msgpack.packb([[1, 2]]), b"\x91"]
)
async def test_launches_that_are_none(world: World, data: bytes) -> None:
    client = await world.client()
    client.send(wm.Submit(1, 0, data))
    finished = await client.finished(1)
    assert finished.error["code"] == "protocol"


@pytest.mark.parametrize("numbers", [(2,), (1, 1), (1, 3)])
async def test_job_numbers_that_do_not_count_on(world: World, numbers: tuple[int, ...]) -> None:
    client = await world.client()
    module = await client.kernel("k")
    *good, bad = numbers
    for number in good:
        client.submit(number, module)
        assert (await client.finished(number)).state == "done"
    client.submit(bad, module)
    assert (await client.finished(bad)).error["code"] == "invalid-argument"
    client.submit(good[-1] + 1 if good else 1, module)
    assert (await client.finished(good[-1] + 1 if good else 1)).state == "done"


async def test_a_grid_that_cannot_meet(world: World) -> None:
    client = await world.client()
    text = PTX.format(name="k").replace("%ctaid.x", "%envreg1")
    module = (await client.compile(text)).module
    most = 4 * await client.measure(module)
    client.submit(1, module, most)
    assert (await client.finished(1)).state == "done"
    client.submit(2, module, most + 1)
    error = (await client.finished(2)).error
    assert error["code"] == "launch-config"
    assert f"{most} such blocks fit" in error["message"]


async def test_the_number_of_a_job_that_runs_is_never_said_to_have_finished(world: World) -> None:
    client = await world.client()
    module = await client.kernel("forever")
    client.submit(1, module)
    client.submit(1, module)
    assert (await client.expect(wm.Failed)).error["code"] == "invalid-argument"
    assert not any(type(message) is wm.Finished for message in client.received)


async def test_more_jobs_than_allowed(world: World) -> None:
    client = await world.client()
    module = await client.kernel("forever")
    for number in range(1, 10):
        client.submit(number, module)
    assert (await client.finished(9)).error["code"] == "limit"


# -- messages that are none ------------------------------------------------------------------------

CODE = wm.CLIENT_PROTOCOL.codes


@pytest.mark.parametrize(
    ("values", "request_number"),
    [
        ([CODE[wm.Query], 5, "no such topic"], 5),
        ([CODE[wm.Query], 5], 5),
        ([CODE[wm.Query], "five", "status"], 0),
        ([CODE[wm.Query], -1, "status"], 0),
        ([CODE[wm.Query], 1 << 40, "status"], 0),
        ([CODE[wm.Query], 5, "status", 0, "more"], 5),
        ([CODE[wm.Allocate], 5, 0, "big"], 5),
        ([CODE[wm.Measure], 5, 1, 0, [1, 1], 0], 5),
        ([CODE[wm.Welcome], 5, 1, 1, [], {}, {}], 5),
        ([99, 5], 5),
        ([], 0),
        ("text", 0),
        ({"a": 1}, 0),
        (None, 0),
    ],
)
async def test_bad_content_costs_the_message_only(
    world: World, values: Any, request_number: int
) -> None:
    client = await world.client()
    client.raw(frame(msgpack.packb(values)))
    failed = await client.expect(wm.Failed)
    assert failed.request == request_number
    assert failed.error["code"] == "protocol"
    assert (await client.query("status"))["clients"] == 1


async def test_a_submission_with_bad_content_is_a_job_that_failed(world: World) -> None:
    client = await world.client()
    module = await client.kernel("k")
    client.raw(frame(msgpack.packb([CODE[wm.Submit], 1, 0, 5])))
    assert (await client.finished(1)).error["code"] == "protocol"
    client.submit(2, module)
    assert (await client.finished(2)).state == "done"


@pytest.mark.ci
async def test_bad_content_in_the_name_of_a_job_that_runs_does_not_end_it(world: World) -> None:
    client = await world.client()
    module = await client.kernel("forever")
    client.submit(1, module)
    bad = frame(msgpack.packb([CODE[wm.Submit], 1, 0, 5]))
    client.raw(bad + wm.CLIENT_PROTOCOL.encode(wm.Query(7, "status")))
    failed = await client.expect(wm.Failed)
    assert (failed.request, failed.error["code"]) == (0, "protocol")
    assert (await client.expect(wm.Answer)).request == 7  # what came behind it is read
    client.send(wm.Cancel(8, (client.session, 1)))
    assert (await client.finished(1)).state == "cancelled"


@pytest.mark.parametrize(
    "data",
    [
        frame(b"\xc1"),
        frame(b"\x92\x01"),
        frame(b"\x81\x01"),
        (1 << 31).to_bytes(4, "little"),
        bytes(4),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
@pytest.mark.parametrize("hello", [True, False])
async def test_a_broken_frame_is_the_end(world: World, data: bytes, hello: bool) -> None:
    client = await world.client() if hello else world.connect()
    other = await world.client()
    client.raw(data)
    assert (await client.expect(wm.Goodbye)).error["message"]
    await client.end()
    assert (await other.query("status"))["clients"] == 1


async def ask_everything(client: Client) -> None:
    for topic in wm.TOPICS:
        assert await client.query(topic), topic


async def test_queries(world: World) -> None:
    client = await world.client()
    await ask_everything(client)
    module = await client.kernel("forever")
    await client.allocate(1)
    client.submit(1, module, quota=(1, 1))
    client.submit(2, module, quota=(2, 1))
    client.submit(3, module, reservation=(1, 1), stream=3)
    await until(lambda: len(world.host.jobs) == 2)
    await ask_everything(client)
    rows = {row["id"]: row for row in (await client.query("jobs"))["jobs"]}
    name = f"{client.session}."
    assert rows[name + "1"]["state"] == "running"
    assert rows[name + "1"]["quota"] == "1"
    assert rows[name + "1"]["allocation"] == "1"
    assert rows[name + "1"]["progress"] == [0, 4]
    assert rows[name + "1"]["waits_for"] is None
    assert rows[name + "2"]["state"] == "blocked"
    assert rows[name + "2"]["waits_for"] == f"follows job {name}1 in its stream"
    assert rows[name + "3"]["kind"] == "online"
    answer = await client.ask(
        lambda r: wm.Describe(r, ((client.session, 3), (client.session, 77))), wm.Answer
    )
    assert answer.value[0]["id"] == name + "3"
    assert answer.value[1] is None
    status = await client.query("status")
    assert status["jobs"] == {"blocked": 1, "running": 2}
    assert status["devices"][0]["allocated"] == "2"
    kernels = (await client.query("kernels"))["kernels"]
    assert kernels[0]["jobs"] == 3
    assert kernels[0]["occupancy"] == [1]
    memory = (await client.query("memory"))["sessions"]
    assert memory[0]["used_bytes"] == 4096
    assert len((await client.query("events", 1))["events"]) == 1
    assert len((await client.query("jobs", 1))["jobs"]) == 1


async def test_progress_of_a_host_that_does_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await world.client()
    client.submit(1, await client.kernel("forever"))
    await until(lambda: world.host.jobs)
    monkeypatch.setattr(world.host, "handle", lambda command: None)
    assert (await client.query("jobs"))["jobs"][0]["progress"] == [0, 4]


async def test_follow(world: World) -> None:
    client, other = await world.client(), await world.client()
    module = await other.kernel("k")
    await client.ask(wm.Follow, wm.Answer)
    other.submit(1, module)
    await other.finished(1)
    event = (await client.expect(wm.Happened)).event
    assert event["event"] == "job-done"
    assert event["job"] == f"{other.session}.1"
    assert event["at_s"] > 1.6e9
    await client.ask(lambda r: wm.Follow(r, False), wm.Answer)
    other.submit(2, 1)
    await other.finished(2)
    await client.query("status")
    assert not any(type(message) is wm.Happened for message in client.received)


async def test_trace(world: World) -> None:
    client = await world.client()
    client.submit(1, await client.kernel("k"))
    await client.finished(1)
    events = (await client.query("trace"))["traceEvents"]
    counters = [event["args"] for event in events if event["ph"] == "C"]
    assert counters[0] == {f"{client.session}.1": 4.0}
    assert counters[-1] == {f"{client.session}.1": 0}
    runs = [event for event in events if event["ph"] == "X"]
    assert len(runs) == 1
    assert runs[0]["dur"] > 0


async def test_a_kernel_whose_name_no_host_would_read_is_refused(world: World) -> None:
    """A host that cannot read a command does nothing, and would be taken for hung."""
    client = await world.client()
    module = (await client.compile(PTX.format(name="k" * 4001))).module
    refusal = await client.refused(lambda r: wm.Measure(r, module, 0, (32, 1, 1), 0))
    assert refusal["code"] == "invalid-argument"
    assert "4001 characters" in refusal["message"]
    await client.kernel("k" * 4000)


async def test_launches_that_no_host_would_read_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpud.server.handlers.submission._MOST_SEQUENCE_BYTES", 1000)
    client = await world.client()
    module = await client.kernel()
    client.submit(1, module, launches=[launch(module)] * 50)
    finished = await client.finished(1)
    assert finished.error["code"] == "invalid-argument"
    assert "split the job" in finished.error["message"]
    client.submit(2, module)
    assert (await client.finished(2)).state == "done"


async def test_who_only_asks_is_in_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        asking, using = await world.client(), await world.client()
        await asking.query("status")
        await using.kernel("k")
        rows = (await asking.query("events"))["events"]
        opened = [row["session"] for row in rows if row["event"] == "session-opened"]
        assert opened == [using.session]
        asking.close()
        using.close()
        await until(lambda: not world.daemon.connections)
    ended = [one.getMessage() for one in caplog.records if " ended: " in one.getMessage()]
    assert len(ended) == 1
    assert ended[0].startswith(f"session {using.session} ")
