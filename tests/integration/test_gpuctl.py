"""gpuctl and gpud serve as programs: a real daemon on the CPU device, real kernels."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import until

GPUCTL = [sys.executable, "-c", "import sys; from gpud_client.cli import main; sys.exit(main())"]
GPUD = [sys.executable, "-m", "gpud"]
START_S = 60.0

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) printf("n is %d\n", n);
    if (i < n) y[i] = a * x[i] + y[i];
}
template <class T> __global__ void fill(T* x, T value) {
    x[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) { } }
extern "C" __global__ void slow(float* x) {
    if (threadIdx.x == 0 && blockIdx.x == 0) printf("it has begun\n");
    float v = 0;
    for (int i = 0; i < 200000; ++i) v = v * 0.5f + 1;
    if (threadIdx.x == 0) x[blockIdx.x % 64] = v;
}
extern "C" __global__ void trap() { asm("trap;"); }
"""


class Daemon(DaemonProcess):
    """A `gpud serve` process and gpuctl for it."""

    def __init__(self) -> None:
        super().__init__()
        self.source = self.folder / "kernels.cu"
        self.source.write_text(SAXPY)

    def start(self, *arguments: str, program: list[str] = GPUCTL) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*program, *arguments], env=self.environment, text=True, stdout=pipe, stderr=pipe
        )

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """gpuctl with these arguments; ended with the block, if it has not ended by itself."""
        with self.start(*arguments) as command:
            try:
                yield command
            finally:
                command.kill()

    def slow(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """A kernel that runs for minutes."""
        return self.running(
            "run", str(self.source), "slow", "-g", "1000000", "-b", "128", "-a", "zeros:f32:64",
            *arguments,
        )  # fmt: skip

    def gpuctl(self, *arguments: str) -> tuple[int, str, str]:
        with self.start(*arguments) as command:
            out, err = command.communicate(timeout=60)
        return command.returncode, out, err

    def json(self, *arguments: str) -> Any:
        status, out, err = self.gpuctl(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    def run(self, kernel: str, *arguments: str) -> tuple[int, str, str]:
        return self.gpuctl("run", str(self.source), kernel, *arguments)

    def job(self, state: str) -> str:
        """The id of a job in ``state``, waited for."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [row["id"] for row in self.json("ps")["jobs"] if row["state"] == state]
            return bool(found)

        until(there)
        return found[0]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon() as found:
        found.serve()
        yield found
        status = found.end()
        log = found.log.read_text()
    assert status == 0, log
    assert "Traceback" not in log, log


# -- run -----------------------------------------------------------------------------------------


def test_run_prints_output_arrays_and_figures(daemon: Daemon) -> None:
    status, out, err = daemon.run(
        "saxpy", "--grid", "4", "--block", "256", "--arg", "f32:2", "--arg", "arange:f32:1000",
        "--arg", "ones:f32:1000", "--arg", "1000", "--quota", "100%",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "n is 1000"
    assert "argument 1, float32 1000: 0 1 2 3 4 5 6 7 ..." in out
    assert "argument 2, float32 1000: 1 3 5 7 9 11 13 15 ..." in out
    assert "done: 4 of 4 task blocks, persistent form" in out


def test_run_reads_and_writes_files(daemon: Daemon, tmp_path: Path) -> None:
    x, y = tmp_path / "x.npy", tmp_path / "y.out"
    np.save(x, np.arange(512, dtype=np.float32))
    status, out, err = daemon.run(
        "saxpy", "-g", "2", "-b", "256", "-a", "0.5", "-a", f"file:{x}", "-a", "zeros:f32:512",
        "-a", "i32:512", "--output", f"2={y}", "--show", "0", "--json",
    )  # fmt: skip
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {
        "job", "state", "kernel", "form", "progress", "stats", "output", "arrays", "error",
    }  # fmt: skip
    assert found["state"] == "done"
    assert found["progress"] == [2, 2]
    assert found["output"] == "n is 512\n"
    assert [array["argument"] for array in found["arrays"]] == [1, 2]
    assert found["stats"]["run_s"] > 0
    np.testing.assert_array_equal(np.load(y), np.arange(512, dtype=np.float32) / 2)


def test_run_of_a_template_online_in_another_form(daemon: Daemon) -> None:
    status, out, err = daemon.run(
        "fill<double>", "-g", "2", "-b", "32", "-a", "zeros:f64:8x8", "-a", "f64:1.5",
        "--reservation", "1", "--exclusive", "--form", "sliced",
        "--progress", "independent", "--option=-DN=4",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "float64 8x8: 1.5 1.5" in out
    assert "sliced form" in out


@pytest.mark.parametrize(
    ("kernel", "arguments", "status", "words"),
    [
        ("saxpy", ["-a", "1"], 2, ["--help"]),
        ("saxpy", ["-a", "1", "-a", "null", "-a", "null", "-a", "x"], 2, ["--arg x"]),
        ("saxpy", ["-a", "1", "-a", "null", "-a", "null", "-a", "i64:1"], 2, ["--help"]),
        ("other", [], 1, ["no kernel 'other'", "undefined"]),
        ("trap", [], 1, ["failed", "trap"]),
        ("trap", ["--option=--no-such-option"], 1, ["no-such-option"]),
        ("trap", ["--quota", "1", "--reservation", "1"], 2, ["not both"]),
        ("trap", ["--quota", "1", "--exclusive"], 2, ["goes with --reservation"]),
        ("trap", ["--reservation", "100"], 1, ["100"]),
        ("trap", ["--device", "7"], 2, ["--device 7"]),
        ("trap", ["--shared", "10000000"], 1, ["shared"]),
        ("trap", ["--timeout", "0"], 2, ["--timeout"]),
        ("trap", ["--progress", "none"], 2, ["independent or blocks"]),
        ("trap", ["--output", "0=x.npy"], 2, ["0 arguments"]),
    ],
)
def test_run_of_what_cannot_be(
    kernel: str, arguments: list[str], status: int, words: list[str], daemon: Daemon
) -> None:
    found, _, err = daemon.run(kernel, "-g", "1", "-b", "32", *arguments)
    assert found == status, err
    assert err.startswith("gpuctl")
    assert "Traceback" not in err
    assert all(word in err for word in words), err


def test_run_sends_the_headers_that_a_file_includes(daemon: Daemon, tmp_path: Path) -> None:
    """Those beside the file, and in folders that are named; nvcc's options are no obstacle."""
    (tmp_path / "include" / "own").mkdir(parents=True)
    (tmp_path / "include" / "own" / "fill.h").write_text('#include "value.h"\nint main() {}')
    (tmp_path / "include" / "own" / "value.h").write_text("#define VALUE 7 + MORE")
    (tmp_path / "more.h").write_text("#define MORE 2")
    file = tmp_path / "x.cu"
    file.write_text(
        '#include <own/fill.h>\n#include "more.h"\n'
        "__global__ void fill(float* x) { x[threadIdx.x] = VALUE; }"
    )
    arguments = ("run", str(file), "fill", "-g", "1", "-b", "4", "-a", "zeros:f32:4")
    folder = ("-I", str(tmp_path / "include"))
    status, out, err = daemon.gpuctl(*arguments, *folder, "--option=-O3", "--option=-arch=sm_80")
    assert (status, err) == (0, "")
    assert "float32 4: 9 9 9 9" in out
    status, _, err = daemon.gpuctl(*arguments)
    assert status == 1
    assert "own/fill.h" in err
    assert "gpuctl run -I FOLDER" in err
    (tmp_path / "include" / "more.h").write_text("#define MORE 3")
    (tmp_path / "include" / "own" / "fill.h").write_text("#include <more.h>")
    status, _, err = daemon.gpuctl(*arguments, *folder)
    assert status == 2
    assert "include one of them by another name" in err


@pytest.mark.ci
def test_run_needs_no_name_of_the_only_kernel(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "x.cu"
    file.write_text("namespace a { __global__ void fill(float* x) { x[threadIdx.x] = 7; } }")
    arguments = (str(file), "-g", "1", "-b", "4", "-a", "zeros:f32:4")
    status, out, err = daemon.gpuctl("run", *arguments)
    assert (status, err) == (0, "")
    assert "float32 4: 7 7 7 7" in out
    file.write_text(file.read_text() + 'extern "C" __global__ void other(float* x) {}')
    status, _, err = daemon.gpuctl("run", *arguments)
    assert status == 2
    assert "has 2 kernels" in err
    assert all(name in err for name in ("fill", "other"))
    file.write_text("template <typename T> __global__ void fill(T* x) {}")
    status, _, err = daemon.gpuctl("run", *arguments)
    assert status != 0
    assert "no kernel" in err
    file.write_text("__global__ void fill(float* x) {}")
    status, _, err = daemon.gpuctl("run", *arguments[:-1], "zeros:f64:4")
    assert status == 0
    assert err.startswith("gpuctl: warning: argument 0 of fill: the array is float64")
    assert "Traceback" not in err


def test_run_of_a_file_that_is_none(daemon: Daemon, tmp_path: Path) -> None:
    status, _, err = daemon.gpuctl("run", str(tmp_path / "x.cu"), "k", "-g", "1", "-b", "1")
    assert status == 2
    assert "No such file" in err
    (tmp_path / "x.cu").write_text("__global__ void k() { return 1; }")
    status, _, err = daemon.gpuctl("run", str(tmp_path / "x.cu"), "k", "-g", "1", "-b", "1")
    assert status == 1
    assert err.count("x.cu(1)") == 1  # NVRTC's log, which begins with the error
    assert "kernel.cu" not in err
    (tmp_path / "x.cu").write_text("\n\nint f() { return 1; }\n__global__ void k() { f(); }")
    _, _, err = daemon.gpuctl("run", str(tmp_path / "x.cu"), "k", "-g", "1", "-b", "1")
    assert "'f', line 3, has no __device__" in err
    assert err.count("identifier") == 1


def test_kernels_have_the_names_that_people_write(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "x.cu"
    file.write_text("namespace lab { __global__ void plainly(float* x) { x[0] = 7; } }")
    status, _, err = daemon.gpuctl("run", str(file), "-g", "1", "-b", "4", "-a", "null")
    assert status == 1
    assert " in lab::plainly, " in err
    ended = [row["kernels"] for row in daemon.json("history")["jobs"]]
    assert ended[-1] == ["lab::plainly"]


@pytest.mark.ci
def test_run_into_a_pipe_says_once_why_it_waits(daemon: Daemon) -> None:
    assert daemon.gpuctl("pause")[0] == 0
    try:
        with daemon.slow() as command:
            assert command.stderr is not None
            said = command.stderr.readline()
            assert re.match(r"gpuctl: job \S+: it is waiting, for .*: device 0 is paused by ", said)
            command.send_signal(signal.SIGINT)
            _, err = command.communicate(timeout=60)
            assert err == ""
    finally:
        daemon.gpuctl("resume")


def test_run_with_a_timeout(daemon: Daemon) -> None:
    status, out, err = daemon.run(
        "slow", "-g", "100000", "-b", "128", "-a", "zeros:f32:64", "--timeout", "0.2", "--json"
    )
    assert status == 1
    assert "timeout" in err
    assert json.loads(out)["error"]["code"] == "job-timeout"


def test_ctrl_c_cancels_the_job(daemon: Daemon) -> None:
    with daemon.slow() as command:
        job = daemon.job("running")
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert err == ""
    assert out.startswith("it has begun\n")
    assert f"job {job} cancelled: " in out
    (row,) = [row for row in daemon.json("history")["jobs"] if row["id"] == job]
    assert row["state"] == "cancelled"


def plain(seen: bytes) -> bytes:
    """What a terminal was sent, without colours and movements."""
    return re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen)


def test_a_terminal_shows_what_is_being_done(daemon: Daemon) -> None:
    ours, theirs = os.openpty()
    seen = b""
    command = subprocess.Popen(
        [*GPUCTL, "run", str(daemon.source), "slow", "-g", "1000000", "-b", "128",
         "-a", "zeros:f32:64"],
        env={**daemon.environment, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    with command:
        os.close(theirs)
        try:
            while b"compiling slow in kernels.cu" not in plain(seen):
                assert select.select([ours], [], [], START_S)[0], seen
                seen += os.read(ours, 1 << 16)
            # "slow  ━━━  12345/1000000 task blocks, 2 CapSM": the count grows.
            while len(set(re.findall(rb"(\d+)/1000000 task blocks, 2 CapSM", plain(seen)))) < 3:
                assert select.select([ours], [], [], START_S)[0], seen
                seen += os.read(ours, 1 << 16)
        finally:
            command.send_signal(signal.SIGINT)
            # Whoever does not read a terminal stops its writers.
            while command.poll() is None and select.select([ours], [], [], START_S)[0]:
                with suppress(OSError):
                    os.read(ours, 1 << 16)
            os.close(ours)
    assert command.returncode == 130


# -- looking and managing ------------------------------------------------------------------------


@pytest.mark.ci
def test_run_says_what_is_lost_with_its_daemon() -> None:
    with Daemon() as own:
        process = own.serve()
        with own.slow() as command:
            job = own.job("running")
            process.kill()
            _, err = command.communicate(timeout=60)
    assert command.returncode == 1
    assert f"it has ended; job {job} and what it printed are lost" in err


def test_values_of_settings_may_begin_with_a_dash(daemon: Daemon) -> None:
    status, out, err = daemon.gpuctl("config", "set", "rebalance_limit", "-3")
    assert (status, out) == (1, "")
    assert err == "gpuctl: rebalance_limit must be a whole number from 1 to 100; not '-3'\n"


def test_settings_say_when_they_change(daemon: Daemon) -> None:
    _, shown, _ = daemon.gpuctl("config", "show")
    lines = {line.split()[0]: line.strip() for line in shown.splitlines() if line.strip()}
    assert lines["setting"].endswith("changes take effect")
    assert lines["grace"].endswith("at once")
    assert lines["policy"].endswith("at a restart")


@pytest.mark.ci
def test_a_job_is_seen_resized_and_cancelled_from_another_shell(daemon: Daemon) -> None:
    with daemon.slow("--quota", "100%") as command:
        job = daemon.job("running")
        (row,) = daemon.json("ps")["jobs"]
        assert (row["id"], row["kind"], row["quota"]) == (job, "offline", "2")
        assert row["kernels"] == ["slow"]
        assert row["progress"][1] == 1_000_000
        status = daemon.json("status")
        assert status["devices"][0]["sms"] == 2
        assert status["jobs"] == {"running": 1}
        assert any(kernel["name"] == "slow" for kernel in daemon.json("kernels")["kernels"])
        (session,) = daemon.json("memory")["sessions"]
        assert (session["session"], session["pid"]) == (row["session"], command.pid)

        assert daemon.json("resize", job, "--quota", "50%")["quota"] == "1"
        assert daemon.gpuctl("resize", job, "--reservation", "1")[0] == 1
        until(lambda: daemon.json("ps")["jobs"][0]["allocation"] == "1")

        assert daemon.gpuctl("cancel", job)[:2] == (0, f"job {job} is being ended\n")
        _, err = command.communicate(timeout=60)
        assert command.returncode == 1
        assert f"job {job} cancelled" in err
    assert daemon.gpuctl("cancel", job)[0] == 1
    assert job in daemon.gpuctl("ps", "--all")[1]


@pytest.mark.ci
def test_every_look_works_on_the_real_daemon(daemon: Daemon) -> None:
    assert daemon.run("saxpy", "-g", "1", "-b", "32", "-a", "1", "-a", "null", "-a", "null",
                      "-a", "0")[0] == 0  # fmt: skip
    for command in ("status", "ps", "kernels", "memory", "history", "events", "doctor"):
        status, out, err = daemon.gpuctl(command)
        assert (status, err) == (0, ""), command
        assert out
        assert isinstance(daemon.json(command), dict)
    status, out, err = daemon.gpuctl("top", "-c", "2", "--interval", "0.1", "--json")
    assert (status, err, len(out.splitlines())) == (0, "", 2)
    trace = json.loads(daemon.gpuctl("trace", "-o", "-")[1])
    assert {event["ph"] for event in trace["traceEvents"]} >= {"M", "C", "X"}


def test_events_are_followed(daemon: Daemon) -> None:
    with daemon.running("events", "--follow", "--json", "-n", "1") as command:
        assert command.stdout is not None
        json.loads(command.stdout.readline())  # it has connected
        assert daemon.run("trap", "-g", "1", "-b", "1")[0] == 1
        seen: list[dict[str, Any]] = []
        while not any(event.get("error") for event in seen):
            seen.append(json.loads(command.stdout.readline()))
        assert all("at_s" in event and "event" in event for event in seen)
        command.send_signal(signal.SIGINT)
        assert command.communicate(timeout=60)[1] == ""
    assert command.returncode == 130


# -- the daemon as a program ---------------------------------------------------------------------


@pytest.mark.ci
def test_the_event_log_of_a_daemon_replays(tmp_path: Path) -> None:
    log = tmp_path / "events"
    with Daemon() as daemon:
        daemon.serve("--event-log", str(log))
        shares = ["--quota", "100%"], ["--reservation", "1"], ["--quota", "50%", "--timeout", "0.1"]
        commands = [
            daemon.start("run", str(daemon.source), "slow", "-g", "3000", "-b", "128",
                         "-a", "zeros:f32:64", *share)
            for share in shares
        ]  # fmt: skip
        for command in commands:
            with command:
                command.communicate(timeout=60)
        assert daemon.end() == 0
        with daemon.start("replay", str(log), "--validate", "--json", program=GPUD) as replay:
            out, err = replay.communicate(timeout=60)
    assert (replay.returncode, err) == (0, "")
    found = json.loads(out)
    assert found["events"]["JobSubmitted"] == 3
    assert found["commands"]["FinishJob"] == 3
    assert found["differs_at_line"] is None
