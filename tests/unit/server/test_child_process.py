"""The reasons reported for the end of a child process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpud.device.host.messages import HOST_PROTOCOL, Ping
from gpud.errors import GpudError
from gpud.server.ipc import child_process
from gpud.server.ipc.child_process import ChildProcess
from gpud.server.ipc.stream import Outbox


def new_child(on_end: Callable[[str], None]) -> ChildProcess:
    """One that has not begun."""
    outbox = Outbox(asyncio.get_running_loop())
    return ChildProcess("child", HOST_PROTOCOL, outbox, handlers={}, on_end=on_end)


async def reason_of(code: str) -> str:
    """Start Python with this program; what its end is said to be."""
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    one = new_child(over.set_result)
    await one.start(["-c", code])
    try:
        return await asyncio.wait_for(over, 60)
    finally:
        await one.close(60)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        (
            "import os; print('it is\\nall over', flush=True); os._exit(3)",
            "ended with exit status 3: all over",
        ),
        ("import os; print('well', flush=True); os._exit(0)", "ended with exit status 0"),
    ],
)
async def test_how_it_ended(code: str, reason: str) -> None:
    assert await reason_of(code) == reason


@pytest.fixture
def score() -> int:
    """What a child of this process should have, by which the system decides whom to end."""
    return min(1000, 500 + int(Path("/proc/self/oom_score_adj").read_text()))


async def test_a_child_goes_before_the_daemon_where_memory_runs_out(score: int) -> None:
    program = f"while int(open('/proc/self/oom_score_adj').read()) != {score}: pass"
    assert await reason_of(program) == "ended with exit status 0"


async def test_an_end_for_want_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = tmp_path / "vmstat"
    counts.write_text("nr_free_pages 7\noom_kill 3\n")
    monkeypatch.setattr(child_process, "_VMSTAT", counts)
    program = (
        f"import os; open({str(counts)!r}, 'w').write('oom_kill 4\\n'); "
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    )
    assert await reason_of(program) == "was ended by SIGKILL, as the system ran out of memory"
    monkeypatch.setattr(child_process, "_VMSTAT", tmp_path / "none")
    assert child_process.oom_kills() == 0


async def test_everybody_hears_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever comes of telling one of them."""
    ends: list[str] = []
    errors: list[GpudError | None] = []
    one = new_child(ends.append)
    ours, theirs = socket.socketpair()
    with theirs:
        one.attach(ours)
        one.request(Ping, lambda value, error: value.bug)
        one.request(Ping, lambda value, error: errors.append(error))
        one.kill("was killed")
    assert ends == ["was killed"]
    assert str(errors[0]) == "the child was killed"
    assert "AttributeError" in caplog.text
