"""Hostile clients of a daemon: one act at a time, chosen from a seed; for `soak`.

    python -m campaigns.soak.hostile_clients SOCKET SEED SECONDS ACT...

Each act opens its own connections, speaks the protocol directly, and tracks which answers the
daemon owes (`campaigns.fuzz.live`); it returns its outcome in a few words. Acts follow each
other at random intervals, until the seconds are over or standard input is closed. Then the counts
by act and outcome are printed as JSON; unexpected outcomes are listed under ``problems``.

The process has one thread, so that it can fork clients to kill, and keeps only counts. If it is
root, its connections belong to another user.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from random import Random
from typing import Any

from campaigns.fuzz.live import KERNEL, Talk, Unanswered, fuzz_connection
from gpud.wire import messages as wm
from gpud.wire.messages import CLIENT_PROTOCOL
from tests.support.daemon_process import NOBODY

_HEAD = ".version 8.0\n.target sm_75\n.address_size 64\n"
SOURCES = {
    "trap": _HEAD + ".visible .entry k(.param .u64 p)\n{\n  trap;\n  ret;\n}\n",
    "assert": """
extern "C" __device__ void __assertfail(
    const char* message, const char* file, unsigned line, const char* function, size_t size);
extern "C" __global__ void k(long long p) {
    if (p != 42) __assertfail("p == 42", "soak.cu", 4, "k", 1);
}
""",
    "endless": _HEAD
    + """.visible .global .align 4 .u32 never;
.visible .entry k(.param .u64 p)
{
  .reg .pred %p<2>;
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  mov.u64 %rd1, never;
$again:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra $again;
  ret;
}
""",
    "out-of-bounds": _HEAD
    + """.visible .entry k(.param .u64 p)
{
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], 1;
  ret;
}
""",
}
# Each further line doubles the compiler's work.
_BOMB = (
    "template<int N, int M> struct T { static const int v = T<N-1,2*M>::v + T<N-1,2*M+1>::v; };\n"
    "template<int M> struct T<0,M> { static const int v = M; };\n"
    'extern "C" __global__ void k(int* p) { *p = T<%d,1>::v; }'
)
_PATIENCE_S = 60.0
_MIB = 1 << 20


class HostileClients:
    """Runs acts and counts their outcomes.

    Args:
        path: the daemon's socket.
        seed: all decisions depend on it.
    """

    def __init__(self, path: str, seed: str) -> None:
        self._path = path
        self._random = Random(seed)
        self._seed = seed
        self._deaf: list[socket.socket] = []  # clients that do not read
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, name: str) -> None:
        """Run an act and count its outcome."""
        try:
            outcome = ACTS[name](self)
        except (Unanswered, OSError, AssertionError) as error:
            outcome = "problem"
            if len(self.problems) < 20:
                self.problems.append(f"{name}: {type(error).__name__}: {error}"[:600])
        self.outcomes[f"{name}: {outcome}"] += 1

    def connect(self) -> socket.socket:
        """Return a connection; as another user if this process is root."""
        sock = socket.socket(socket.AF_UNIX)
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        try:
            sock.connect(self._path)  # blocks while the listener's backlog is full
        except BaseException:
            sock.close()
            raise
        finally:
            if root:
                os.seteuid(0)
        sock.settimeout(_PATIENCE_S)
        return sock

    def talk(self) -> Talk:
        """Return a connection with a session."""
        talk = Talk(self.connect())
        talk.ask(wm.Hello(1, 1, "hostile"))
        return talk

    def close(self) -> None:
        """Close all connections."""
        for sock in self._deaf:
            sock.close()
        self._deaf.clear()

    # -- acts

    def _killed(self) -> str:
        """Let a client with running jobs die in the middle of a frame."""
        sock = self.connect()
        ready, says = os.pipe()
        pid = os.fork()
        if not pid:
            with suppress(BaseException):
                talk = Talk(sock)
                talk.ask(wm.Hello(1, 1, "to be killed"))
                module = kernel(talk, KERNEL)
                talk.ask(wm.Allocate(8, 0, 100_000))
                for number in range(1, 1 + self._random.randrange(8)):
                    talk.message(_submit(number, module, 2**31 - 1))
                frame = CLIENT_PROTOCOL.encode(_submit(9, module, 1))
                talk.send(frame[: self._random.randrange(1, len(frame))])
                while talk._unsent:
                    talk._turn(1.0)
                os.write(says, b"x")
                signal.pause()
            os._exit(1)
        os.close(says)
        sock.close()
        try:
            said = select.select([ready], [], [], _PATIENCE_S)[0] and os.read(ready, 1)
        finally:
            os.close(ready)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert said, "the client could not do its work"
        return "killed"

    def _garbage(self) -> str:
        """Fuzzed messages, whose answers are all checked."""
        seed = f"{self._seed}:{self._random.random()}"
        fuzz_connection(self.connect(), seed, 60, Counter(), {})
        return "accounted for"

    def _deaf_reader(self) -> str:
        """Send requests and never read the answers."""
        while len(self._deaf) >= 3:
            self._deaf.pop(0).close()
        sock = self.connect()
        self._deaf.append(sock)
        sock.settimeout(1.0)
        sock.sendall(CLIENT_PROTOCOL.encode(wm.Hello(1, 1, "never reads")))
        sock.sendall(CLIENT_PROTOCOL.encode(wm.Follow(2)))
        question = CLIENT_PROTOCOL.encode(wm.Query(3, "events")) * 200
        try:
            for _ in range(20):
                sock.sendall(question)
        except TimeoutError:
            return "not read from any more"
        except OSError:
            return "dropped"
        return "served"

    def _trap(self) -> str:
        return self._failing("trap", parameters=bytes(8))

    def _assert(self) -> str:
        return self._failing("assert", parameters=bytes(8))

    def _out_of_bounds(self) -> str:
        with closing(self.talk()) as talk:
            address = talk.ask(wm.Allocate(7, 0, 4096)).address
            arena = talk.latest[wm.Arena]
            away = self._random.choice(
                [1 << 40, arena.base + arena.size - address, -4096, -address]
            )
            where = (address + away) % (1 << 64) & ~3
            return run_kernel(talk, "out-of-bounds", parameters=where.to_bytes(8, "little"))

    def _endless(self) -> str:
        with closing(self.talk()) as talk:
            return run_kernel(talk, "endless", timeout_ns=self._random.randrange(10, 500) * 10**6)

    def _failing(self, name: str, **more: Any) -> str:
        with closing(self.talk()) as talk:
            return run_kernel(talk, name, **more)

    def _hog(self) -> str:
        """Allocates memory until none is left, writes to some of it, and disconnects."""
        with closing(self.talk()) as talk:
            size = self._random.choice([1, 16, 64]) * _MIB
            outcome = "had it all"
            for request in range(2, 200):
                answer = talk.ask(wm.Allocate(request, 0, size))
                if type(answer) is wm.Failed:
                    outcome = str(answer.error["code"])
                    break
            if talk.descriptors:
                arena = talk.latest[wm.Arena]
                most = min(arena.size, 32 * _MIB)
                with mmap.mmap(talk.descriptors[0], most) as memory:
                    for page in range(0, most, 4096):
                        memory[page] = 1
            return outcome

    def _bomb(self) -> str:
        """Return a program on which the compiler needs unbounded time or memory."""
        with closing(self.talk()) as talk:
            source = _BOMB % self._random.choice([18, 24, 30]) + f"\n// {self._random.random()}"
            answer = talk.ask(wm.Compile(2, 0, source, ()))
            return "compiled" if type(answer) is wm.Compiled else str(answer.error["code"])

    def _tiny_sessions(self) -> str:
        for _ in range(50):
            sock = self.connect()
            sock.sendall(CLIENT_PROTOCOL.encode(wm.Hello(1, 1, "short")))
            if self._random.randrange(2):
                sock.recv(1 << 16)
            sock.close()
        return "50 of them"

    def _silent(self) -> str:
        """Many connections that send nothing, or part of a frame's length."""
        socks = [self.connect() for _ in range(40)]
        for sock in socks[::2]:
            sock.sendall(b"\x08\0\0")
        for sock in socks:
            sock.close()
        return "40 of them"

    def _cancel_storm(self) -> str:
        with closing(self.talk()) as talk:
            module = kernel(talk, KERNEL)
            session = talk.account.session
            for number in range(1, 201):
                talk.message(_submit(number, module, self._random.choice([1, 2**31 - 1])))
                if self._random.randrange(2):
                    talk.message(wm.Cancel(number, (session, self._random.randint(1, number))))
            for number in range(1, 201):
                talk.message(wm.Cancel(number, (session, number)))
            talk.settle()
            states = {message.state for message in talk.finished.values()}
            assert len(talk.finished) == 200
            assert states <= {"done", "cancelled"}, states
            return "200 jobs ended"

    def _resizes(self) -> str:
        with closing(self.talk()) as talk:
            module = kernel(talk, KERNEL)
            session = talk.account.session
            talk.message(_submit(1, module, 2**31 - 1))
            for _ in range(100):
                quota = self._random.choice([(1, 2), (1, 1), (3, 2), (2, 1), (1, 64)])
                talk.message(wm.Resize(5, (session, 1), None, quota))
            talk.message(wm.Cancel(6, (session, 1)))
            talk.settle()
            return str(talk.finished[1].state)


def kernel(talk: Talk, source: str) -> int:
    """Compile a source and measure its first kernel; returns the module.

    Raises:
        Unanswered: it was refused.
    """
    compiled = talk.ask(wm.Compile(2, 0, source, ()))
    if type(compiled) is not wm.Compiled:
        raise Unanswered(f"not compiled: {compiled.error}")
    measured = talk.ask(wm.Measure(3, compiled.module, 0, (32, 1, 1), 0))
    if type(measured) is not wm.Measured:
        raise Unanswered(f"not measured: {measured.error}")
    module: int = compiled.module
    return module


def run_kernel(talk: Talk, name: str, parameters: bytes = bytes(8), **more: Any) -> str:
    """Run one of `SOURCES`; returns the code of its error, or its state."""
    module = kernel(talk, SOURCES[name])
    talk.message(_submit(1, module, 4, parameters, **more))
    talk.settle()
    end = talk.finished[1]
    return str(end.state if end.error is None else end.error["code"])


def _submit(
    number: int, module: int, blocks: int, parameters: bytes = bytes(8), **more: Any
) -> wm.Submit:
    launch = wm.LaunchRecord(module, 0, (blocks, 1, 1), (32, 1, 1), 0, parameters)
    return wm.Submit(number, 0, CLIENT_PROTOCOL.encode_records([launch]), **more)


ACTS: dict[str, Callable[[HostileClients], str]] = {
    "killed": HostileClients._killed,
    "garbage": HostileClients._garbage,
    "never reads": HostileClients._deaf_reader,
    "trap": HostileClients._trap,
    "assert": HostileClients._assert,
    "out of bounds": HostileClients._out_of_bounds,
    "endless": HostileClients._endless,
    "memory hog": HostileClients._hog,
    "compile bomb": HostileClients._bomb,
    "tiny sessions": HostileClients._tiny_sessions,
    "silent": HostileClients._silent,
    "cancel storm": HostileClients._cancel_storm,
    "resizes": HostileClients._resizes,
}
_SELDOM = {"compile bomb": 0.05, "memory hog": 0.5, "endless": 0.5}


def main() -> int:
    """Run acts until the time is over."""
    path, seed, seconds, *names = sys.argv[1:]
    acts = HostileClients(path, seed)
    random = Random(seed)
    weights = [_SELDOM.get(name, 1.0) for name in names]
    end = time.monotonic() + float(seconds)
    for name in names:  # each at least once
        acts.run(name)
    while time.monotonic() < end:
        acts.run(random.choices(names, weights)[0])
        if select.select([sys.stdin], [], [], random.uniform(0, 0.3))[0]:
            break
    acts.close()
    print(json.dumps({"outcomes": dict(sorted(acts.outcomes.items())), "problems": acts.problems}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
