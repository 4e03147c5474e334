"""The compile process as a process: answers, errors, limits, and its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpud.compiler.process.child_process import as_gpud_error
from gpud.compiler.process.main import compile_job
from gpud.compiler.process.messages import (
    COMPILE_PROTOCOL,
    MAX_FRAME_BYTES,
    CompileDone,
    CompileFailed,
    CompileJob,
    CompileReady,
)
from gpud.errors import (
    CompileError,
    EmptySource,
    InternalError,
    InvalidArgument,
    KernelNotFound,
    KernelRejected,
    PTXSyntaxError,
    from_wire,
)
from gpud.wire.framing import HEADER_BYTES, FrameDecoder, frame
from gpud.wire.message_table import Sender
from gpud.wire.packed_rows import PackedRows

SCALE = 'extern "C" __global__ void scale(float a, float* x) { x[threadIdx.x] *= a; }'
TEMPLATE = "template <class T> __global__ void fill(T* x, T a) { x[threadIdx.x] = a; }"
# 2^24 different templates: minutes of work.
ENDLESS = """
template <int N, long M> struct F {
    static const long v = F<N - 1, 2 * M>::v ^ F<N - 1, 2 * M + 1>::v;
};
template <long M> struct F<0, M> { static const long v = M; };
extern "C" __global__ void k(long* x) { *x = F<24, 1>::v; }
"""


COMMAND = [sys.executable, "-m", "gpud.compiler.process.main", "--fd"]


class Front:
    """The other end of its socket."""

    def __init__(self, *options: str) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), *options], pass_fds=[theirs.fileno()]
            )
        self.socket.settimeout(60)
        self.decoder = FrameDecoder(MAX_FRAME_BYTES)

    def send(self, job: CompileJob) -> None:
        self.socket.sendall(COMPILE_PROTOCOL.encode(job))

    def receive(self) -> Any:
        while True:
            for body in self.decoder.frames():
                message = COMPILE_PROTOCOL.decode(body, Sender.DAEMON)
                if type(message) is not CompileReady:
                    return message
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.decoder.feed(data)

    def close(self) -> None:
        self.socket.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def cache_dir(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture
def front() -> Iterator[Front]:
    found = Front()
    yield found
    found.close()


def test_programs_come_back_in_order_and_errors_do_not_end_it(front: Front, cache_dir: str) -> None:
    jobs = [
        CompileJob(1, SCALE, cache_dir=cache_dir),
        CompileJob(2, "not C++", cache_dir=cache_dir),
        CompileJob(3, TEMPLATE, names=("fill<float>", "fill<int>"), cache_dir=cache_dir),
        CompileJob(4, SCALE, cache_dir=cache_dir),
    ]
    for job in jobs:
        front.send(job)
    found = [front.receive() for _ in jobs]
    assert [one.ticket for one in found] == [1, 2, 3, 4]
    assert isinstance(found[1], CompileFailed)
    assert isinstance(from_wire(found[1].error), CompileError)
    described = PackedRows(found[0].descriptions)[0]
    assert [size for _, _, size, _, _ in described["parameters"]] == [4, 8]
    assert found[3] == found[0]._replace(ticket=4)
    assert set(found[2].names) == {"fill<float>", "fill<int>"}
    assert len(list(Path(cache_dir).glob("*.entry"))) == 2


def test_it_ends_when_the_front_closes(front: Front) -> None:
    front.socket.close()
    assert front.process.wait(20) == 0


def test_it_ends_when_the_front_closes_in_the_middle_of_a_compilation(front: Front) -> None:
    front.send(CompileJob(1, ENDLESS, cache_dir=""))
    _wait_until_it_computes(front.process.pid)
    front.socket.close()
    assert front.process.wait(20) == 0


def test_ctrl_c_in_the_terminal_does_not_end_it(front: Front) -> None:
    front.send(CompileJob(1, SCALE, cache_dir=""))
    assert front.receive().ticket == 1  # it has started
    front.process.send_signal(signal.SIGINT)
    front.send(CompileJob(2, SCALE, cache_dir=""))
    assert front.receive().ticket == 2


def test_its_memory_is_limited() -> None:
    front = Front("--memory-bytes", str(3 << 30))
    try:
        front.send(CompileJob(1, SCALE, cache_dir=""))
        assert front.receive().ticket == 1
        limits = Path(f"/proc/{front.process.pid}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
        assert line.split()[3] == str(3 << 30)
    finally:
        front.close()


def test_what_is_no_job_is_answered_if_it_has_a_ticket(front: Front) -> None:
    body = COMPILE_PROTOCOL.encode(CompileJob(7, SCALE, form="round"))[4:]
    front.socket.sendall(frame(body))
    found = front.receive()
    assert (found.ticket, type(found)) == (7, CompileFailed)
    assert "round" in found.error["message"]


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (CompileJob(1, "  ", cache_dir=""), EmptySource),
        (CompileJob(1, ".version nonsense", cache_dir=""), PTXSyntaxError),
        (CompileJob(1, SCALE, names=("other",), cache_dir=""), KernelNotFound),
        (CompileJob(1, SCALE, options=("-DN=\0",), cache_dir=""), InvalidArgument),
        (CompileJob(1, SCALE, arch="sm_1", cache_dir=""), CompileError),
        (
            CompileJob(1, ".version 8.0\n.target sm_90\n.visible .entry k() { ret; }", sm=75,
                       cache_dir=""),
            KernelRejected,
        ),
    ],
    ids=["empty", "ptx", "name", "option", "arch", "target"],
)  # fmt: skip
def test_every_refusal_is_an_error_of_the_tree(job: CompileJob, kind: type[Exception]) -> None:
    found = compile_job(job)
    assert isinstance(found, CompileFailed)
    assert isinstance(from_wire(found.error), kind)


@pytest.mark.parametrize(("sm", "target"), [(None, 75), (80, 80), (90, 90), (99, 90)])
def test_cuda_is_compiled_for_the_device(sm: int | None, target: int) -> None:
    done = compile_job(CompileJob(1, SCALE, sm=sm, cache_dir=""))
    assert isinstance(done, CompileDone)
    assert f".target sm_{target}\n" in done.ptx


def test_without_a_cache_folder_nothing_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert isinstance(compile_job(CompileJob(1, SCALE, cache_dir="")), CompileDone)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(compile_job(CompileJob(1, SCALE, cache_dir=str(tmp_path / "x"))), CompileDone)
    assert list((tmp_path / "x").glob("*.entry")) != []


def _wait_until_it_computes(pid: int) -> None:
    """Returns when a process has taken a second of processor time."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 1:
            return
        select.select([], [], [], 0.05)
    pytest.fail("the process did not get to work")


@pytest.mark.parametrize("within_a_stage", [False, True])
def test_memory_that_ran_out_is_told_as_that(within_a_stage: bool) -> None:
    error: Exception = MemoryError()
    if within_a_stage:
        internal = InternalError("the compiler failed in stage 'parse'", stage="parse")
        internal.__cause__ = error
        error = internal
    found = as_gpud_error(error)
    assert type(found) is CompileError
    assert "out of memory" in str(found)


def test_a_large_source_is_read_as_a_small_one_is() -> None:
    """With its code the message has 16 parts, whose header has more than one byte."""
    for source in (SCALE, SCALE + "\n// " + "x" * 200_000):
        job = CompileJob(7, source, cache_dir="")
        body = COMPILE_PROTOCOL.encode(job)[HEADER_BYTES:]
        assert COMPILE_PROTOCOL.decode(body, Sender.CLIENT) == job
