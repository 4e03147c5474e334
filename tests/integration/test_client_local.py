"""Private daemons: `gpud_client.local` and `gpud_client.alocal`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.support.processes import gone

pytestmark = pytest.mark.ci

FILL = 'extern "C" __global__ void fill(int* x, int v) { x[threadIdx.x] = v; }'
SPIN = 'extern "C" __global__ void spin(volatile int* x) { while (!*x) {} }'
TIMEOUT_S = 60.0


def test_it_ends_with_the_block() -> None:
    with gc.local("cpu:1") as gpu:
        pid, path = int(gpu.daemon["pid"]), Path(gpu.path)
        assert gpu.device.sms == 1
        x = gpu.zeros(4, np.int32)
        gpu.kernel(FILL, "fill").submit(1, 4, (x, 5)).result(TIMEOUT_S)
        assert x.get().tolist() == [5] * 4
    assert gone(pid, 0)
    assert not path.parent.exists()


def test_several_and_nested() -> None:
    with gc.local(("cpu:1", "cpu:2"), policy="equal") as outer, gc.local("cpu:1") as inner:
        assert [device.sms for device in outer.devices] == [1, 2]
        assert outer.daemon["policy"] == "equal"
        assert inner.daemon["policy"] != "equal"
        assert outer.path != inner.path
        for gpu in (outer, inner):
            x = gpu.zeros(4, np.int32, device=len(gpu.devices) - 1)
            gpu.kernel(FILL, "fill").submit(1, 4, (x, 5)).result(TIMEOUT_S)
            assert x.get().tolist() == [5] * 4
        with gc.connect(outer.path) as guest:
            assert guest.number == 2


# Python 3.12 warns of every fork of a process with threads; that is what is tested.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_it_alone() -> None:
    with gc.local("cpu:1") as gpu:
        child = os.fork()
        if not child:
            gpu.close()
            os._exit(0)
        os.waitpid(child, 0)
        gc.connect(gpu.path).close()


def test_an_error_in_the_block_ends_it_too() -> None:
    found: list[int] = []

    def fail() -> None:
        with gc.local("cpu:1") as gpu:
            found.append(int(gpu.daemon["pid"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gone(found[0], 0)


@pytest.mark.parametrize(
    ("device", "options", "said"),
    [("quantum", {}, "quantum"), ("cpu:1", {"no_such_setting": 1}, "no-such-setting")],
)
def test_it_says_why_it_did_not_start(device: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)ended at once.*{said}"):
        gc.local(device, **options)


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpud_client.local_daemon._NEEDED", ("uvloop", "no_such_library.part"))
    with pytest.raises(gc.MissingDependency, match=r"pip install .*\[daemon\]'"):
        gc.local()


def test_the_daemon_dies() -> None:
    gpu = gc.local("cpu:1")
    try:
        x = gpu.zeros(1, np.int32)
        job = gpu.kernel(SPIN, "spin").submit(1, 1, (x,))
        os.kill(int(gpu.daemon["pid"]), signal.SIGKILL)
        with pytest.raises(gc.ConnectionLost, match="lost"):
            job.result(TIMEOUT_S)
        with pytest.raises(gc.ConnectionLost):
            gpu.query("status")
    finally:
        gpu.close()


def test_it_ends_with_its_parent() -> None:
    program = (
        "import gpud_client as gc, os, sys\n"
        "gpu = gc.local('cpu:1')\n"
        "print(gpu.daemon['pid'], gpu.path, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, path = parent.stdout.readline().split()
        assert not gone(int(pid), 0)
        parent.kill()
    assert gone(int(pid))
    assert not Path(path).parent.exists()


def test_a_script_that_forgets_to_close() -> None:
    program = "import gpud_client as gc\ngpu = gc.local('cpu:1')\nprint(gpu.daemon['pid'])\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.stderr == ""
    assert gone(int(done.stdout), 0)


def test_async() -> None:
    async def main() -> int:
        async with gc.alocal("cpu:1") as gpu:
            x = await gpu.zeros(4, np.int32)
            job = await (await gpu.kernel(FILL, "fill")).submit(1, 4, (x, 5))
            await job
            assert (await x.get()).tolist() == [5] * 4
            return int(gpu.daemon["pid"])

    assert gone(asyncio.run(main()), 0)


def test_async_cancelled_while_the_daemon_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, cancelled = threading.Event(), threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object, **__: object) -> subprocess.Popen[bytes]:
        starting.set()
        assert cancelled.wait(TIMEOUT_S)
        started.append(real(["sleep", str(TIMEOUT_S)]))
        return started[0]

    async def main() -> None:
        task = asyncio.ensure_future(gc.alocal("cpu:1"))
        assert await asyncio.to_thread(starting.wait, TIMEOUT_S)
        task.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    asyncio.run(main())
    assert started[0].returncode is not None
