"""A session reaches nothing of another user's, whatever it says: every message, every topic."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gpud_client as gc
from gpud.compiler.cache import Cache, cache_key
from gpud.compiler.process.allowlist import check_headers, check_includes, check_options
from gpud.compiler.process.landlock import confine
from gpud.compiler.process.main import ProcessRules, compile_job
from gpud.compiler.process.messages import CompileFailed, CompileJob
from gpud.errors import InvalidArgument
from gpud.server.ipc.listener import listen
from gpud.units import SessionId
from gpud.wire import messages as wm
from gpud.wire.message_table import Sender
from gpud.wire.socket_path import check_fallback_folder
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import PTX, Client, World, launch, until
from tests.support.raw_client import Raw

pytestmark = pytest.mark.ci

ALICE, BOB = 70001, 70002
SECRET = "a_kernel_that_only_alice_knows"
WITH_TABLE = PTX.replace(
    ".visible .entry", ".global .align 4 .b8 table[64];\n.visible .entry"
)  # {name} is left


class Scene:
    """Alice has one of everything; Bob may look."""

    def __init__(self, world: World, alice: Client, bob: Client) -> None:
        self.world = world
        self.alice = alice
        self.bob = bob
        self.module = self.own = self.array = self.workload = 0
        self.lane, self.own_lane = 2, 1

    @property
    def job(self) -> tuple[int, int]:
        return self.alice.session, 1

    async def set_up(self) -> None:
        compiled = await self.alice.compile(WITH_TABLE.format(name=SECRET))
        self.module = compiled.module
        await self.alice.measure(self.module)
        self.array = await self.alice.allocate(1 << 16)
        self.alice.submit(1, self.module, quota=(1, 1))
        await until(lambda: self.world.host.jobs)
        self.alice.send(wm.OpenLane(self.lane, 0, (1, 1)))
        await self.alice.expect(wm.LaneOpened)
        self.own = await self.bob.kernel("k")
        opening = await self.alice.ask(
            lambda r: wm.OpenWorkload(r, 1, 4096, 4096, 4096, 1), wm.WorkloadOpened
        )
        self.workload = opening.workload

    def state(self) -> Any:
        """What Alice has, as the daemon sees it."""
        daemon = self.world.daemon
        session = daemon.state.sessions[self.alice.session]
        record, lane = session.jobs[1].record, session.jobs[self.lane]
        assert record is not None
        assert lane.record is not None
        reaching = {type(one) for one in self.world.host.commands if lane.id == _job_of(one)}
        (workload,) = daemon.state.workloads.all.values()
        return (
            (workload.number, workload.need, workload.lent, workload.iterations, workload.ending),
            list(session.modules),
            [dict(module.measured) for module in session.modules.values()],
            daemon.state.arenas._ledger.nearest(session.number, 0, self.array),
            record.state,
            record.quota,
            (lane.record.state, lane.sites, reaching),
            session.host_memory.used_bytes,
        )


def _job_of(command: Any) -> int | None:
    return getattr(command, "job", None)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with World() as world:
        kernels = {SECRET: Behaviour(block_ns=None)}
        copies = FakeHost(sms=4, kernels=kernels, auto=True, arrays="copied")
        await world.start(copies, FakeHost(sms=1, auto=True), others="sums")
        one = Scene(world, await world.client(ALICE), await world.client(BOB))
        await one.set_up()
        yield one


Make = Callable[[Scene, int], Any]


def _query(topic: str, scene: Scene, request: int) -> Any:
    del scene
    return wm.Query(request, topic)


def _hides_alice(value: Any) -> bool:
    return SECRET not in str(value) and str(ALICE) not in str(value)


UNANSWERED = object()
"""What nobody hears of: the lane may have ended meanwhile."""

REACHING: dict[str, list[tuple[Make, Any]]] = {
    # What Bob may say of what is Alice's, and the code of the error, or a check of the answer.
    "Measure": [(lambda s, r: wm.Measure(r, s.module, 0, (1, 1, 1), 0), "unknown-name")],
    "Why": [(lambda s, r: wm.Why(r, s.job), "unknown-name")],
    "Unload": [(lambda s, r: wm.Unload(s.module), "unknown-name")],
    "ReadSymbol": [(lambda s, r: wm.ReadSymbol(r, s.module, "table", 0, 64), "unknown-name")],
    "WriteSymbol": [(lambda s, r: wm.WriteSymbol(r, s.module, "table", 0, b"x"), "unknown-name")],
    "Allocate": [(lambda s, r: wm.Allocate(r, 0, 64, s.array), "invalid-argument")],
    "Free": [(lambda s, r: wm.Free(0, s.array), "unknown-name")],
    "Upload": [(lambda s, r: wm.Upload(0, s.array, 0, 1), "unknown-name")],
    "Download": [(lambda s, r: wm.Download(r, 0, s.array, 0, 1), "unknown-name")],
    "ExportArray": [(lambda s, r: wm.ExportArray(r, 0, s.array, 0, 0), "unknown-name")],
    "Resize": [
        (lambda s, r: wm.Resize(r, s.job, None, (1, 2)), "unknown-name"),
        (lambda s, r: wm.Resize(r, s.job, (1, 2), None), "unknown-name"),
    ],
    "Cancel": [(lambda s, r: wm.Cancel(r, s.job), "unknown-name")],
    "Describe": [
        (lambda s, r: wm.Describe(r, (s.job,) * 4096), lambda value: set(value) == {None})
    ],
    "Submit": [
        (lambda s, r: submission(2, s.module), "unknown-name"),
        (lambda s, r: submission(3, s.own, after=(s.job,)), "done"),
    ],
    "Query": [(partial(_query, topic), _hides_alice) for topic in wm.TOPICS],
    "AskHistory": [
        (lambda s, r: wm.AskHistory(r), _hides_alice),
        (lambda s, r: wm.AskHistory(r, by="user"), _hides_alice),
        (lambda s, r: wm.AskHistory(r, str(ALICE)), "invalid-argument"),
    ],
    "Follow": [(lambda s, r: wm.Follow(r), lambda value: value is None)],
    "BeginIteration": [(lambda s, r: wm.BeginIteration(r, s.workload), "unknown-name")],
    "EndIteration": [(lambda s, r: wm.EndIteration(s.workload), "unknown-name")],
    "GrowWorkload": [(lambda s, r: wm.GrowWorkload(r, s.workload, 8192), "unknown-name")],
    "CloseWorkload": [(lambda s, r: wm.CloseWorkload(r, s.workload), "unknown-name")],
    "FitWorkload": [(lambda s, r: wm.FitWorkload(s.workload, 4096, 0, 0), "unknown-name")],
    "RegionMoved": [(lambda s, r: wm.RegionMoved(s.workload, 0), "unknown-name")],
}

REACHING |= {
    "PrepareLaunch": [
        (lambda s, r: wm.PrepareLaunch(r, s.lane, s.own, 0, (32, 1, 1), 0), "unknown-name"),
        (lambda s, r: wm.PrepareLaunch(r, s.lane, s.module, 0, (32, 1, 1), 0), "unknown-name"),
        (
            lambda s, r: wm.PrepareLaunch(r, s.own_lane, s.module, 0, (32, 1, 1), 0),
            "unknown-name",
        ),
    ],
    "CancelLaunch": [(lambda s, r: wm.CancelLaunch(s.lane, 0), "unknown-name")],
    "CloseLane": [(lambda s, r: wm.CloseLane(s.lane), UNANSWERED)],
}

REACHING |= {
    # What is for administrators, of whom Bob is none.
    "Pause": [
        (lambda s, r: wm.Pause(r, [], True), "invalid-argument"),
        (lambda s, r: wm.Pause(r, [0], False), "invalid-argument"),
    ],
    "SetSetting": [(lambda s, r: wm.SetSetting(r, "log_level", "debug"), "invalid-argument")],
    "Reload": [(lambda s, r: wm.Reload(r), "invalid-argument")],
    "Drain": [(lambda s, r: wm.Drain(r), "invalid-argument")],
}

UNNUMBERED = (
    wm.Unload, wm.Free, wm.Upload, wm.EndIteration, wm.FitWorkload, wm.RegionMoved, wm.CancelLaunch,
)  # fmt: skip
"""What is refused with request 0."""

HARMLESS = {
    "Hello": "refused in a session",
    "OpenLane": "asks for a share of one's own; nothing of others can be named",
    "OpenWorkload": "asks for memory of one's own; nothing of others can be named",
    "Compile": "makes a module of one's own; nothing of others can be named",
    "Resume": "numbers one's own jobs, before the first; nothing of others can be named",
    "StreamFailure": "speaks of a stream of one's own; nothing of others can be named",
}


def submission(number: int, module: int, **more: Any) -> wm.Submit:
    return wm.Submit(number, 0, wm.CLIENT_PROTOCOL.encode_records([launch(module)]), **more)


def test_the_table_has_every_message() -> None:
    said = {cls.__name__ for cls in wm.CLIENT_PROTOCOL.by_code.values()}
    senders = wm.CLIENT_PROTOCOL._senders
    ours = {name for name in said if senders[getattr(wm, name)] is Sender.CLIENT}
    assert ours == set(REACHING) | set(HARMLESS)


@pytest.mark.parametrize("name", REACHING)
async def test_nothing_of_another_users_is_reached(scene: Scene, name: str) -> None:
    scene.bob.send(wm.OpenLane(scene.own_lane, 0, (1, 1)))
    await scene.bob.expect(wm.LaneOpened)
    before = scene.state()
    for make, expected in REACHING[name]:
        request = scene.bob.next_request()
        message = make(scene, request)
        scene.bob.send(message)
        if isinstance(message, wm.Submit):
            finished = await scene.bob.finished(message.number)
            found = finished.state if finished.error is None else finished.error["code"]
            assert found == expected
            continue
        if expected is UNANSWERED:
            await scene.bob.query("jobs")  # which is answered after it was handled
            continue
        numbered = 0 if type(message) in UNNUMBERED else request
        answer = await scene.bob.expect(
            wm.Failed if isinstance(expected, str) else wm.Answer,
            lambda one: one.request == numbered,  # type: ignore[attr-defined]  # noqa: B023
        )
        if isinstance(expected, str):
            error = answer.error  # type: ignore[attr-defined]
            assert error["code"] == expected
            assert SECRET not in str(error)
        else:
            assert expected(answer.value), answer  # type: ignore[attr-defined]
    assert scene.state() == before
    assert not [one for one in scene.alice.received if type(one) is not wm.Arena]


async def test_a_user_manages_the_jobs_of_all_their_sessions_but_modules_are_a_sessions(
    scene: Scene,
) -> None:
    """Section 9: identity is the user. What the scheduler has can be managed; names are local."""
    again = await scene.world.client(ALICE)
    rows = (await again.query("jobs"))["jobs"]
    assert [row["kernels"] for row in rows] == [[SECRET]] or SECRET in str(rows)
    await again.ask(lambda r: wm.Resize(r, scene.job, None, (2, 1)), wm.Answer)
    for make in (
        lambda r: wm.ReadSymbol(r, scene.module, "table", 0, 1),
        lambda r: wm.Measure(r, scene.module, 0, (1, 1, 1), 0),
    ):
        assert (await again.refused(make))["code"] == "unknown-name"
    again.send(wm.Free(0, scene.array))
    assert (await again.expect(wm.Failed)).error["code"] == "unknown-name"
    await again.ask(lambda r: wm.Cancel(r, scene.job), wm.Answer)
    assert (await scene.alice.finished(1)).state == "cancelled" or scene.world.host.jobs


async def test_memory_that_another_session_had_reads_as_zero(scene: Scene) -> None:
    """The file is a session's own, so not even the pages are the same; slots are used again."""
    await scene.bob.allocate(1 << 16)
    arena = await scene.bob.expect(wm.Arena)
    with mmap.mmap(scene.bob.descriptors[0], arena.size) as memory:
        memory[: 1 << 16] = b"s" * (1 << 16)
    scene.bob.close()
    await until(lambda: len(scene.world.daemon.state.sessions) == 1)
    carol = await scene.world.client(70003)
    await carol.allocate(1 << 16)
    theirs = await carol.expect(wm.Arena)
    assert theirs.base == arena.base
    with mmap.mmap(carol.descriptors[0], theirs.size) as memory:
        assert memory[: 1 << 16] == bytes(1 << 16)


LEAVES = """
extern "C" __global__ void leave() {
    extern __shared__ volatile unsigned room[];
    volatile unsigned own[64];
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) room[i] = 0x5ec2e7;
    for (int i = 0; i < 64; i++) own[(i + threadIdx.x) % 64] = 0x5ec2e7;
}
extern "C" __global__ void look(unsigned* found) {
    extern __shared__ volatile unsigned room[];
    volatile unsigned own[64];
    unsigned seen = 0;
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) seen |= room[i];
    for (int i = 0; i < 64; i++) seen |= own[(i + threadIdx.x) % 64];
    if (seen) atomicOr(found, seen);
}"""


def test_shared_and_local_memory_of_another_session_reads_as_zero() -> None:
    with gc.local("cpu:1", log_level="error") as gpu:
        for _ in range(3):
            with gc.connect(gpu.path) as one, gc.connect(gpu.path) as other:
                one.kernel(LEAVES, "leave").submit(64, 128, (), shared=16384).result(60)
                found = other.zeros(1, "uint32")
                other.kernel(LEAVES, "look").submit(64, 128, (found,), shared=16384).result(60)
                assert found.get()[0] == 0


async def test_a_client_cannot_say_where_results_are_kept(scene: Scene) -> None:
    assert "cache_dir" in CompileJob._fields
    assert not {"cache_dir", "path", "dump"} & set(wm.Compile._fields)


# -- input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launches", "more", "code"),
    [
        ([launch(0)._replace(grid=(0, 1, 1))], {}, "protocol"),
        ([launch(0)._replace(block=(0, 1, 1))], {}, "protocol"),
        ([launch(0)._replace(grid=((1 << 32) - 1,) * 3)], {}, "launch-config"),
        ([launch(0)._replace(grid=(1 << 16, 1 << 16, 1))], {}, "launch-config"),
        ([launch(0)._replace(block=((1 << 32) - 1,) * 3)], {}, "unknown-name"),
        ([launch(0)._replace(shared=(1 << 32) - 1)], {}, "unknown-name"),
        ([launch(0)._replace(parameters=b"")], {}, "invalid-argument"),
        ([launch(0)._replace(parameters=bytes(1 << 16))], {}, "invalid-argument"),
        ([launch(0)._replace(kernel=65535)], {}, "unknown-name"),
        ([launch(0)] * 4097, {}, "protocol"),
        ([launch(0)], {"device": 255}, "unknown-name"),
        ([launch(0)], {"device": 1}, "invalid-argument"),  # its module is on device 0
        ([launch(0)], {"after": ((0, 0),)}, None),
        ([launch(0)], {"quota": ((1 << 63) - 1, 1)}, None),  # the device at most
        ([launch(0)], {"quota": (1, (1 << 63) - 1)}, "admission"),
        ([launch(0)], {"reservation": ((1 << 63) - 1, (1 << 63) - 2)}, None),
        ([launch(0)], {"stream": (1 << 32) - 1}, None),
        ([launch(0)], {"deadline_ns": (1 << 63) - 1, "timeout_ns": (1 << 63) - 1}, None),
        ([launch(0)], {"timeout_ns": 0}, None),
    ],
)
async def test_submissions_at_the_edges(
    launches: list[Any], more: dict[str, Any], code: str | None
) -> None:
    async with World() as world:
        await world.start(FakeHost(sms=4, auto=True), FakeHost(sms=2, auto=True))
        client = await world.client()
        module = await client.kernel("k")
        fitting = [one._replace(module=module) for one in launches]
        data = wm.CLIENT_PROTOCOL.encode_records(fitting)
        message = wm.CLIENT_PROTOCOL.encode(wm.Submit(1, more.pop("device", 0), data, **more))
        client.sock.settimeout(None)
        client.sock.setblocking(False)
        await until_sent(client, message)
        finished = await client.finished(1)
        if code is not None:
            assert finished.error is not None
            assert finished.error["code"] == code
        else:
            assert finished.state == "done" or finished.error["code"] in (
                "job-timeout",
                "admission",
            )
        client.submit(2, module)
        assert (await client.finished(2)).state == "done"


async def until_sent(client: Client, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client.sock, data)


async def test_a_number_twice_and_one_too_far(scene: Scene) -> None:
    scene.bob.submit(1, scene.own)
    assert (await scene.bob.finished(1)).state == "done"
    for number in (1, 3, (1 << 32) - 1):
        scene.bob.submit(number, scene.own)
        error = (await scene.bob.finished(number)).error
        assert error["code"] == "invalid-argument"
        assert "2" in error["message"]
    scene.bob.submit(2, scene.own)
    assert (await scene.bob.finished(2)).state == "done"


async def test_streams_by_the_thousand_leave_nothing(scene: Scene) -> None:
    for number in range(1, 3001):
        scene.bob.submit(number, scene.own, stream=(number * 2_654_435_761) % (1 << 32))
        if number % 50 == 0:
            await scene.bob.finished(number)
    record = scene.world.daemon.runner.scheduler.sessions[SessionId(scene.bob.session)]
    assert not record._last


# -- sources ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("--time=/tmp/x",), ("-time=/tmp/x",), ("--time", "/tmp/x"), ("-I/etc",), ("-I", "/etc"),
        ("--include-path=/etc",), ("-include=/etc/passwd",), ("--pre-include=/etc/passwd",),
        ("--fdevice-time-trace=/tmp/x",), ("--pch",), ("--create-pch=/tmp/x",), ("--pch-dir=/tmp",),
        ("--options-file=/etc/passwd",), ("@/etc/passwd",), ("/etc/passwd",), ("kernel.cu",),
        ("-dlto",), ("",), ("-DN=1", "etc"), ("-D", "N", "M"), ("-include", "/etc/passwd"),
        ("-fmad=false --time=/tmp/x",), ("--dump=/tmp",), ("-optix-ir",), ("-D",  "N", "-I/etc"),
        ("--version-ident=true",), ("-lineinfo/etc",), ("--use-local-env",), ("-\n",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_that_a_client_may_not_have(options: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"does not take|headers="):
        check_options(options)


@pytest.mark.parametrize(
    "options",
    [
        (), ("-DN=4",), ("-D", "N=4"), ("--define-macro=N=4",), ("-UN",), ("--std=c++20",),
        ("-std=c++17", "-G", "-lineinfo"), ("--use_fast_math",), ("--fmad=false",),
        ("--maxrregcount=32",), ("-w",), ("--diag-suppress=177",), ("-D", "PATH=/etc/passwd"),
        ("--device-as-default-execution-space", "-default-device"), ("-rdc=true",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_that_it_may(options: tuple[str, ...]) -> None:
    check_options(options)


@pytest.mark.parametrize(
    "source",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '  # \t include "/proc/self/environ"',
        '#inc\\\nlude "/etc/passwd"',
        '#inc\\  \r\nlude "/etc/passwd"',
        '#/* a */include/* b */"/etc/passwd"',
        '#include "a/../../etc/passwd"',
        '#include <../secret.h>',
        '??=include "/etc/passwd"',
        '%:include "/etc/passwd"',
        '#include_next "/etc/passwd"',
        '#import "/etc/passwd"',
        '#inc??/\nlude "/etc/passwd"',
        'const char* a = "/*";\n#/**/include /* */ "/etc/passwd"\nconst char* b = "*/";',
        '/* one\n */ /* two *//**/#include "/etc/passwd"',
        '#if __has_include("/etc/shadow")',
        "#if __has_include(</etc/shadow>)",
        '#if __has_include_next("/etc/shadow")',
        'int x;\n\t#include "/etc/passwd"\n',
        'int a;\r#include "/etc/passwd"',
        'int a;\f#include "/etc/passwd"',
        'int a; /* \n */ #include "/etc/passwd"',
        '#inc\\\rlude "/etc/passwd"',
        '#/*\r*/include "/etc/passwd"',
        'R"(#/*)"\n#include "/etc/passwd"\nconst char* s = "*/include <mma.h>";',
        'import "/etc/passwd";',
        "#if 1\r#elif __has_include\t(/**/</etc/shadow>)",
        '#embed "/etc/passwd"',
    ],
)  # fmt: skip
def test_headers_that_a_client_may_not_have(source: str) -> None:
    with pytest.raises(InvalidArgument, match="header's text"):
        check_includes(f"int a;\n{source}\nint b;", macros=True)


def test_headers_that_it_may_and_names_made_by_macros() -> None:
    source = '#include <cuda_fp16.h>\n#include "cub/cub.cuh"\n#if __has_include(<mma.h>)\n#endif\n'
    check_includes(source, macros=False)
    check_includes('const char* s = "include </etc/passwd>";', macros=False)
    check_includes("#ifdef __has_include\n#if defined(__has_include)\n#endif\n#endif", macros=False)
    check_includes('#include "../own.h"', macros=False, given={"../own.h": ""})
    check_options(("-include", "own.h"), {"own.h": ""})
    check_headers(["own.h", "a/b.cuh", "../own.h"])
    made = "#define X <cuda_fp16.h>\n#include X\n"
    check_includes(made, macros=True)
    with pytest.raises(InvalidArgument, match="by macros"):
        check_includes(made, macros=False)


@pytest.mark.parametrize(
    "source",
    [
        "#define H __has_include\n#if H(X)\n#endif",
        "#if __has_include(X)\n#endif",
        "#define C(a, b) a ## b\n#if C(__has,_include)(</etc/shadow>)\n#endif",
        "#define C(a, b) a %:%: b",
        "#define C(a, b) a ??=??= b",
        "#define C(a, b) a #\\\n# b",
    ],
)
def test_what_macros_may_make_is_refused_where_nothing_confines(source: str) -> None:
    check_includes(source, macros=True)
    with pytest.raises(InvalidArgument):
        check_includes(source, macros=False)
    refused = compile_job(CompileJob(1, source, cache_dir=""), ProcessRules(macros=False))
    assert isinstance(refused, CompileFailed)
    assert refused.error["code"] == "invalid-argument"
    own = compile_job(CompileJob(1, source, cache_dir="", trusted=True), ProcessRules(macros=False))
    assert not isinstance(own, CompileFailed) or own.error["code"] != "invalid-argument"


def test_a_macro_of_an_option_is_one_too() -> None:
    job = CompileJob(1, "#if H(X)\n#endif", options=("-DH=__has_include",), cache_dir="")
    refused = compile_job(job, ProcessRules(macros=False))
    assert isinstance(refused, CompileFailed)
    assert refused.error["code"] == "invalid-argument"


def test_an_error_does_not_say_whether_there_is_a_file(tmp_path: Path) -> None:
    """A folder cannot be opened as a file; the error is that of one which is not there."""
    told = []
    for name in (tmp_path, tmp_path / "none"):
        source = f'#define F "{name}"\n#include F\n'
        failed = compile_job(CompileJob(1, source, cache_dir=""))
        assert isinstance(failed, CompileFailed)
        texts = failed.error["message"], failed.error["fields"]["log"]
        told.append([text.replace(str(name), "NAME") for text in texts])
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["", 'a"\n#include "/etc/passwd', "a>b", "a\\b"])
def test_names_of_headers_cannot_hold_directives(name: str) -> None:
    with pytest.raises(InvalidArgument, match="no name of a header"):
        check_headers([name])


CONFINED = """
import sys, os
from gpud.compiler.process.landlock import confine
here, other = sys.argv[1:]
if not confine(["/usr/lib", "/lib"], [here]):
    print("no Landlock")
    sys.exit()
open(here + "/new", "w").write("mine")
os.rename(here + "/new", here + "/newer")
assert open(here + "/newer").read() == "mine"
for path in (other, "/proc/self/environ", "/dev/zero", "/etc/passwd"):
    try:
        open(path).close()
    except PermissionError:
        continue
    raise AssertionError(path)
for path in (os.path.dirname(other) + "/made", other):
    try:
        open(path, "w").close()
    except PermissionError:
        continue
    raise AssertionError(path)
print("confined")
"""


def test_a_confined_process_reaches_nothing_else(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "secret"
    here.mkdir()
    other.write_text("secret")
    command = [sys.executable, "-c", CONFINED, str(here), str(other)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() in ("confined", "no Landlock")
    assert confine.__doc__


def test_a_source_reads_no_file_of_the_daemons_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("THE SECRET\n")
    kernel = '\nextern "C" __global__ void k() {}'
    with gc.local("cpu:1", log_level="error") as gpu:
        for source in (
            f'#include "{secret}"',
            f'#define NAME "{secret}"\n#include NAME',
            '#define NAME "/proc/self/environ"\n#include NAME',
        ):
            with pytest.raises(gc.GpudError) as caught:
                gpu.kernel(source + kernel, "k")
            told = str(caught.value) + str(getattr(caught.value, "log", ""))
            assert "THE SECRET" not in told
            assert "PATH=" not in told
        with pytest.raises(gc.GpudError, match=r"does not take|headers="):
            gpu.kernel(kernel, "k", options=[f"--time={tmp_path}/times"])
        assert not (tmp_path / "times").exists()
        gpu.kernel(f"#include <cuda_fp16.h>\n{kernel}", "k")


# -- the cache -------------------------------------------------------------------------------------

KEY = cache_key(["key"])


def planted(folder: Path, how: str) -> None:
    """What another user could try to have taken for an entry."""
    entry = folder / f"{KEY.hex()}.entry"
    outside = folder.parent / "outside"
    if how == "a link":
        entry.rename(outside)
        entry.symlink_to(outside)
    elif how == "a hard link":
        os.link(entry, outside)
    elif how == "writable by others":
        entry.chmod(0o666)
    elif how == "a pipe":
        entry.unlink()
        os.mkfifo(entry)
    elif how == "a folder":
        entry.unlink()
        entry.mkdir()
    elif how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(entry, 70001, 70001)


@pytest.mark.parametrize(
    "how",
    ["a link", "a hard link", "writable by others", "a pipe", "a folder", "another user's"],
)
def test_an_entry_that_another_could_have_written_is_none(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "cache"
    Cache(folder).put(KEY, b"good")
    assert Cache(folder).get(KEY) == b"good"
    planted(folder, how)
    assert Cache(folder).get(KEY) is None


def test_a_folder_that_is_put_in_the_place_of_the_cache_is_not_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = Cache(folder)
    cache.put(KEY, b"good")
    folder.rename(tmp_path / "away")
    other = Cache(folder)
    other.put(KEY, b"bad")
    assert cache.get(KEY) == b"good"


# -- the socket ------------------------------------------------------------------------------------


@pytest.fixture
def fallback(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder in /tmp of a user whom nobody has: what is there is ours for the test."""
    user = 70000 + os.getpid()
    monkeypatch.setattr(os, "getuid", lambda: user)
    folder = Path(f"/tmp/gpud-{user}")
    yield folder
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        folder.rmdir()


def owned(folder: Path) -> None:
    if os.geteuid() == 0:
        os.chown(folder, os.getuid(), -1)


@pytest.mark.parametrize("how", ["a link", "not ours", "group", "all", "good"])
def test_the_fallback_folder_is_checked_by_both_sides(
    fallback: Path, tmp_path: Path, how: str
) -> None:
    if how == "a link":
        fallback.symlink_to(tmp_path)
    else:
        fallback.mkdir(mode=0o700)
    if how in ("group", "all", "good"):
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        owned(fallback)
        fallback.chmod({"group": 0o770, "all": 0o707, "good": 0o700}[how])
    path = fallback / "gpud.sock"
    if how == "good":
        check_fallback_folder(path)
        with pytest.raises(gc.ConnectionLost, match="no daemon listens"):
            gc.connect(path)
        return
    with pytest.raises(InvalidArgument, match="need not be a daemon of yours"):
        listen(path)
    with pytest.raises(gc.ConnectionLost, match="need not be a daemon of yours"):
        gc.connect(path)


def test_other_folders_are_somebodys_choice(tmp_path: Path) -> None:
    check_fallback_folder(tmp_path / "s")
    check_fallback_folder("/tmp/gpud-1x/s")


# -- a real second user ----------------------------------------------------------------------------


def intrude(path: str, session: int, array: int) -> str:
    """What another user finds; runs as that user."""
    client = Raw(path)
    client.hello()
    requests: list[Callable[[int], Any]] = [
        lambda r: wm.Cancel(r, (session, 1)),
        lambda r: wm.Resize(r, (session, 1), None, (1, 2)),
        lambda r: wm.ReadSymbol(r, 1, "room", 0, 4),
        lambda r: wm.WriteSymbol(r, 1, "room", 0, b"xxxx"),
        lambda r: wm.Measure(r, 1, 0, (32, 1, 1), 0),
    ]
    for make in requests:
        try:
            return f"answered: {client.ask(make, wm.Answer)}"
        except RuntimeError as error:
            if "there is no job" not in str(error) and "no module" not in str(error):
                return f"another error: {error}"
    client.send(wm.Free(0, array))
    for topic in wm.TOPICS:
        try:
            value = client.ask(lambda r: wm.Query(r, topic), wm.Answer).value  # noqa: B023
        except RuntimeError as error:  # the answer to Free
            if "no array" not in str(error):
                return f"another error: {error}"
            continue
        if "owners-program" in str(value) or "tick_of_the_owner" in str(value):
            return f"{topic} says {value}"
    return "nothing was reached"


def as_nobody(action: Callable[[], str]) -> str:
    """What ``action`` returns in a child process that is another user."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writer, action().encode())
        except BaseException as error:  # noqa: BLE001  (it must not go on as its parent)
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    os.waitpid(pid, 0)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_in_earnest() -> None:
    source = (
        '__device__ int room; extern "C" __global__ void tick_of_the_owner(int* p) '
        "{ p[blockIdx.x] = 1 + room; }"
    )
    with gc.local("cpu:2", log_level="error", socket_mode="0666") as gpu:
        folder = Path(str(gpu.path)).parent
        for parent in (folder, *folder.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                if parent != folder:
                    pytest.skip(f"others cannot come to {parent}")
                parent.chmod(0o711)
        with gc.connect(gpu.path, name="owners-program") as owner:
            kernel = owner.kernel(source, "tick_of_the_owner")
            array = owner.zeros(1 << 20, "int32")
            job = kernel.submit(1 << 20, 32, (array,))
            session = int(str(job.id).partition(".")[0])
            path = str(gpu.path)
            assert as_nobody(lambda: intrude(path, session, array.ptr)) == "nothing was reached"
            job.result(60)
            assert (array.get() == 1).all()


def test_a_socket_of_0600_is_for_its_user() -> None:
    with gc.local("cpu:1", log_level="error") as gpu:
        assert stat.S_IMODE(Path(str(gpu.path)).stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(gpu.path))
