"""A daemon that is restarted, or killed: what of a session goes on with the next one."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from campaigns.client_kills.clients import SOURCE as RAW_SOURCE
from gpud.wire import messages as wm
from tests.support.raw_client import Raw

pytestmark = pytest.mark.ci

TIMEOUT_S = 60.0
SOURCE = r"""
__device__ int calls;
extern "C" __global__ void add(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
extern "C" __global__ void follow(float** from, float* to) { to[0] = from[0][1]; }
extern "C" __global__ void spin(volatile int* stop) { while (!*stop) { } }
"""


class Daemon:
    """A daemon in a process of its own, which can be started again at the same path."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "s")
        self._notify = folder / "n"
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, *options: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(str(self._notify))
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "gpud", "serve", "--socket", self.path, "--config",
                     os.devnull, "--device", "cpu:1", "--exit-with-parent", *options],
                    env={**os.environ, "NOTIFY_SOCKET": str(self._notify)},
                    stdout=log, stderr=log,
                )  # fmt: skip
            assert select.select([ready], [], [], TIMEOUT_S)[0], self._log.read_text()
        self._notify.unlink()

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(TIMEOUT_S)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@pytest.fixture
def daemon(short_folder: Path) -> Iterator[Daemon]:
    made = Daemon(short_folder)
    yield made
    made.kill()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="gpud-"))
    yield folder
    shutil.rmtree(folder)


def test_a_workload_ends_with_its_daemon_and_says_so(daemon: Daemon) -> None:
    with gc.connect(daemon.path, reconnect=True) as gpu:
        work = gpu.workload("1MiB", "1MiB")
        kept = work.zeros(4)
        with work.iteration() as turn:
            scratch = turn.zeros(4)
            daemon.kill()
            daemon.start()
            gpu.zeros(1)  # waits for the next daemon
            for array in (kept, scratch):
                with pytest.raises(ValueError, match="ended with its daemon"):
                    array.get()
        with pytest.raises(gc.UnknownName, match="open another one"):
            work.zeros(4)
        with pytest.raises(gc.UnknownName, match="open another one"):
            work.iteration().__enter__()
        work.close()
        with gpu.workload("1MiB", "1MiB") as again, again.iteration() as turn:
            assert turn.zeros(4).get().tolist() == [0.0] * 4


def test_a_lane_ends_with_its_daemon_and_says_so(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    with gc.connect(daemon.path, reconnect=True) as gpu:
        module = gpu.module(SOURCE)
        add, spin = module.kernel("add"), module.kernel("spin")
        x, y, stop = gpu.array([1, 2], "float32"), gpu.zeros(2, "float32"), gpu.zeros(1, "int32")
        lane = gpu.lane(reservation=1)
        add.submit(1, 2, (1.0, x, y, 2), stream=lane).result(TIMEOUT_S)
        running = spin.submit(1, 1, (stop,), stream=lane)
        behind = add.submit(1, 2, (1.0, x, y, 2), stream=lane)
        name = f"lane {gpu.number}.{lane._number}"

        def restart() -> None:
            daemon.kill()
            daemon.start()

        restarting = threading.Timer(0.2, restart)
        restarting.start()
        for job in (running, behind):
            error = job.exception(TIMEOUT_S)
            assert isinstance(error, gc.ConnectionLost)
            assert "the lane has ended with its daemon" in str(error)
        restarting.join(TIMEOUT_S)
        assert lane.closed
        with pytest.raises(gc.ConnectionLost, match=r"open another with gpu.lane\("):
            add.submit(1, 2, (1.0, x, y, 2), stream=lane)
        lane.close()
        assert y.get().tolist() == [1, 2]  # waits for the next daemon; values are kept
        assert name in caplog.text
        with gpu.lane(reservation=1) as again:
            add.submit(1, 2, (1.0, x, y, 2), stream=again).result(TIMEOUT_S)
        assert y.get().tolist() == [2, 4]


def test_a_daemon_that_is_restarted_waits_for_no_idle_lane(daemon: Daemon) -> None:
    with gc.connect(daemon.path, reconnect=True) as gpu:
        add = gpu.kernel(SOURCE, "add")
        x, y = gpu.array([1, 2], "float32"), gpu.zeros(2, "float32")
        lane = gpu.lane(reservation=1)
        add.submit(1, 2, (1.0, x, y, 2), stream=lane).result(TIMEOUT_S)
        began = time.monotonic()
        daemon.kill(signal.SIGTERM)
        assert time.monotonic() - began < 20  # jobs would have 30 s
        daemon.start()
        with pytest.raises(gc.GpudError, match=r"open another with gpu.lane\("):
            add.submit(1, 2, (1.0, x, y, 2), stream=lane)
        lane.close()
        with gpu.lane(reservation=1) as again:
            add.submit(1, 2, (1.0, x, y, 2), stream=again).result(TIMEOUT_S)
        assert y.get().tolist() == [2, 4]


def test_everything_goes_on_after_a_kill(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    n = 5000
    with gc.connect(daemon.path, reconnect=True) as gpu:
        module = gpu.module(SOURCE)
        add = module.kernel("add")
        x, y = gpu.array(np.arange(n, dtype=np.float32)), gpu.zeros(n, "float32")
        pointers = gpu.array(np.array([y.ptr], np.uint64))
        view = y.numpy()
        launch = add.call(n // 256 + 1, 256, (np.float32(2), x, y, np.int32(n)))
        gpu.sequence([launch]).result(TIMEOUT_S)
        gpu.sequence([launch, launch]).result(TIMEOUT_S)
        stop = gpu.zeros(1, "int32")
        stream = gpu.stream(on_error="continue")
        running = module.kernel("spin").submit(1, 32, (stop,), quota=1, stream=stream)
        while running.state != "running":
            pass
        args = (np.float32(1), x, y, np.int32(n))
        queued = [add.submit(n // 256 + 1, 256, args, quota=1, stream=stream) for _ in range(3)]
        following = gpu.sequence([launch], after=[queued[-1]], quota=1)
        kept = gpu.zeros(1, "float32")
        address, number = y.ptr, gpu.number
        daemon.kill()
        daemon.start()
        with pytest.raises(gc.ConnectionLost, match=r"\(spin\) had begun.*submit it again"):
            running.result(TIMEOUT_S)
        for job in (*queued, following):
            job.result(TIMEOUT_S)
        assert y.ptr == address
        np.testing.assert_array_equal(y.get(), (6 + 3 + 2) * np.arange(n, dtype=np.float32))
        np.testing.assert_array_equal(view, y.get())
        # What was prepared before, and pointers that lie in arrays, are still right.
        gpu.sequence([launch]).result(TIMEOUT_S)
        gpu.sequence([launch, launch]).result(TIMEOUT_S)
        view[0] = 5
        np.testing.assert_array_equal(y.get()[:3], [5, 17, 34])
        module.kernel("follow").submit(1, 1, (pointers, kept)).result(TIMEOUT_S)
        assert kept.get()[0] == 17
        assert module.symbol("calls", "int32").get()[0] == 0
        gpu.zeros(n).free()
        assert "3 jobs" not in caplog.text
        assert f"session {number} goes on" in caplog.text
        assert "4 jobs submitted again; lost: job" in caplog.text
        assert "the value of calls" in caplog.text


def test_a_restart_runs_what_had_not_begun(daemon: Daemon) -> None:
    with gc.connect(daemon.path, reconnect=True) as gpu:
        module = gpu.module(SOURCE)
        add, spin = module.kernel("add"), module.kernel("spin")
        x, y, stop = (
            gpu.array(np.ones(4, np.float32)),
            gpu.zeros(4, "float32"),
            gpu.zeros(1, "int32"),
        )
        args = (np.float32(1), x, y, np.int32(4))
        add.submit(1, 32, args).result(TIMEOUT_S)
        stream = gpu.stream(on_error="continue")
        running = spin.submit(1, 32, (stop,), quota=1, stream=stream)
        while running.state != "running":
            pass
        waiting = add.submit(1, 32, args, quota=1, stream=stream)
        daemon.signal(signal.SIGTERM)
        while not gpu.query("status")["draining"]:
            pass
        refused = add.submit(1, 32, args, quota=1, stream=stream)
        daemon.signal(signal.SIGTERM)  # no more waiting for what runs
        assert daemon.process is not None
        daemon.process.wait(TIMEOUT_S)
        daemon.start()
        waiting.result(TIMEOUT_S)
        refused.result(TIMEOUT_S)
        assert running.exception(TIMEOUT_S) is not None
        np.testing.assert_array_equal(y.get(), [3, 3, 3, 3])


def test_without_it_every_call_says_what_to_do(daemon: Daemon) -> None:
    with gc.connect(daemon.path) as gpu:
        x = gpu.zeros(4)
        daemon.kill()
        daemon.start()
        for use in (lambda: gpu.query("status"), x.get, lambda: gpu.zeros(3)):
            with pytest.raises(gc.ConnectionLost, match=r"connect again.*reconnect=True"):
                use()


def test_no_daemon_comes_back(daemon: Daemon) -> None:
    with gc.connect(daemon.path, reconnect=0.3) as gpu:
        daemon.kill()
        with pytest.raises(gc.ConnectionLost, match=r"no other daemon was there within 0\.3 s"):
            gpu.query("status")
    daemon.start()


def test_other_devices(daemon: Daemon) -> None:
    with gc.connect(daemon.path, reconnect=True) as gpu:
        gpu.zeros(3)
        daemon.kill()
        daemon.start("--device", "cpu:2")
        with pytest.raises(gc.ConnectionLost, match="other devices"):
            gpu.query("status")


def test_other_settings_of_the_same_devices(daemon: Daemon) -> None:
    with gc.connect(daemon.path, reconnect=True) as gpu:
        array = gpu.zeros(3)
        daemon.kill()
        daemon.start("--offline-floor", "25%")
        assert array.get().tolist() == [0, 0, 0]
        assert gpu.device.online_sms == Fraction(3, 4)
        assert array.device == gpu.device


def test_closing_while_there_is_no_daemon(daemon: Daemon) -> None:
    with gc.connect(daemon.path, reconnect=True) as gpu:
        gpu.zeros(3)
        daemon.kill()
    assert gpu.closed
    daemon.start()


async def test_asyncio(daemon: Daemon) -> None:
    async with gc.aconnect(daemon.path, reconnect=True) as gpu:
        kernel = await gpu.kernel(SOURCE, "add")
        x, y = await gpu.array(np.ones(4, np.float32)), await gpu.zeros(4, "float32")
        args: Any = (np.float32(1), x, y, np.int32(4))
        await (await kernel.submit(1, 32, args)).result(TIMEOUT_S)
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        await (await kernel.submit(1, 32, args)).result(TIMEOUT_S)
        np.testing.assert_array_equal(await y.get(), [2, 2, 2, 2])
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        np.testing.assert_array_equal(await y.get(), [2, 2, 2, 2])


@pytest.mark.parametrize(("version", "agreed"), [(1, 1), (2, 2), (7, 2)])
def test_clients_of_other_versions(daemon: Daemon, version: int, agreed: int) -> None:
    """An older client runs a job as ever, a newer one is told what both speak."""
    client = Raw(daemon.path)
    welcome = client.ask(lambda r: wm.Hello(r, version, "another"), wm.Welcome)
    assert welcome.version == agreed
    client.session = welcome.session
    module, address = client.module(RAW_SOURCE), client.allocate(4096)
    client.submit(module, address, 1)
    assert client.expect(wm.Finished).state == "done"
    client.close()


def test_a_client_without_a_version_is_told_so(daemon: Daemon) -> None:
    client = Raw(daemon.path)
    with pytest.raises((RuntimeError, OSError), match="versions begin at 1"):
        client.ask(lambda r: wm.Hello(r, 0, "another"), wm.Welcome)
    client.close()
