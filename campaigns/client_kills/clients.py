"""Clients that are killed at random moments, for `client_kills` and the tests.

    python -m campaigns.client_kills.clients SOCKET

A small process that forks clients and kills them: it loads neither NumPy nor the client library,
so that a client costs a millisecond. It reads one line for each round: ``[SEED, COUNT, NAME...]``.
It then forks COUNT clients at once, each with one of the `DEATHS` named, or of all, kills each with
SIGKILL after a random time, waits for them, and prints the deaths, the time of the last kill, and
the time when the operating system had ended them all (monotonic).

The clients speak the protocol directly, so that they can also send parts of frames.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from gpud.wire import lane_ring as ring
from gpud.wire import messages as wm
from tests.support.raw_client import Raw
from tests.support.raw_lane import RawLane

SOURCE = """
.version 8.0
.target sm_75
.address_size 64
.global .align 4 .b8 room[4096];
.visible .entry work(.param .u64 p)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, 0;
$again:
  mad.lo.u32 %r2, %r1, 1664525, %r2;
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, 100000;
  @%p1 bra $again;
  st.global.u32 [%rd2], %r2;
  ret;
}
"""
"""A task block of it takes some 0.1 ms."""

ENDLESS = SOURCE.replace("setp.lt.u32 %p1, %r1, 100000", "setp.ne.u32 %p1, %r1, %r1").replace(
    "@%p1 bra", "@!%p1 bra"
)

_LATEST_S = 0.15  # a client is killed within this time


# -- deaths ----------------------------------------------------------------------------------------


def _connected(client: Raw, chance: random.Random) -> None:
    del client, chance


def _half_a_hello(client: Raw, chance: random.Random) -> None:
    data = wm.CLIENT_PROTOCOL.encode(wm.Hello(1, 1, "half of one"))
    client.sock.sendall(data[: chance.randrange(1, len(data))])


def _half_a_frame(client: Raw, chance: random.Random) -> None:
    client.hello()
    data = wm.CLIENT_PROTOCOL.encode(wm.Submit(1, 0, bytes(1 << 20)))
    client.sock.sendall(data[: chance.randrange(1, len(data))])


def _idle(client: Raw, chance: random.Random) -> None:
    del chance
    client.hello()


def _compiling(client: Raw, chance: random.Random) -> None:
    client.hello()
    source = SOURCE.replace("1664525", str(chance.randrange(1 << 30)))  # in no cache
    client.send(wm.Compile(1, 0, source, ()))


def _measuring(client: Raw, chance: random.Random) -> None:
    client.hello()
    module = client.ask(lambda r: wm.Compile(r, 0, SOURCE, ()), wm.Compiled).module
    client.send(wm.Measure(99, module, 0, (32 * chance.randrange(1, 9), 1, 1), 0))


def _allocating(client: Raw, chance: random.Random) -> None:
    client.hello()
    for request in range(200):
        client.send(wm.Allocate(request, 0, chance.randrange(1, 1 << 20)))


def _writing(client: Raw, chance: random.Random) -> None:
    client.hello()
    size = chance.randrange(1 << 20, 16 << 20)
    address = client.allocate(size)
    with client.map() as memory:
        at = address - client.arena.base
        while True:
            memory[at : at + size] = bytes(size)


def _running(client: Raw, chance: random.Random) -> None:
    client.hello()
    module, address = client.module(SOURCE), client.allocate(4096)
    client.submit(module, address, chance.randrange(1, 4000))


def _online(client: Raw, chance: random.Random) -> None:
    client.hello()
    module, address = client.module(SOURCE), client.allocate(4096)
    client.submit(module, address, chance.randrange(1, 4000), reservation=(1, 1))


def _queued(client: Raw, chance: random.Random) -> None:
    client.hello()
    module, address = client.module(SOURCE), client.allocate(4096)
    for number in range(200):
        client.submit(module, address, chance.randrange(1, 40), stream=number % 3)


def _blocked(client: Raw, chance: random.Random) -> None:
    client.hello()
    module, address = client.module(SOURCE), client.allocate(4096)
    client.submit(module, address, 4000)
    for number in range(1, 200):
        after = tuple((client.session, chance.randrange(1, number + 1)) for _ in range(3))
        client.submit(module, address, 1, stream=number, after=after)


def _waiting(client: Raw, chance: random.Random) -> None:
    del chance
    client.hello()
    for request in range(100):
        client.send(wm.Query(request, "trace"))


def _never_reading(client: Raw, chance: random.Random) -> None:
    del chance
    client.hello()
    while True:
        client.send(wm.Query(1, "jobs"))


def _freeing(client: Raw, chance: random.Random) -> None:
    client.hello()
    while True:
        client.send(wm.Free(0, client.allocate(chance.randrange(1, 1 << 22))))


def _symbols(client: Raw, chance: random.Random) -> None:
    client.hello()
    module = client.module(SOURCE)
    while True:
        size = chance.randrange(1, 4096)
        client.ask(lambda r: wm.WriteSymbol(r, module, "room", 0, bytes(size)), wm.Answer)  # noqa: B023
        client.ask(lambda r: wm.ReadSymbol(r, module, "room", 0, size), wm.Answer)  # noqa: B023


def _lane(client: Raw, launches: int, source: str = SOURCE) -> tuple[RawLane, int, bytes]:
    """Open a lane, and have launches in it; returns it, a launch site, and parameters."""
    client.hello()
    module, address = client.module(source), client.allocate(4096)
    lane = RawLane.open(client, 1, (1, 8))
    block = (32, 1, 1)
    site = client.ask(lambda r: wm.PrepareLaunch(r, 1, module, 0, block, 0), wm.Answer).value
    parameters = address.to_bytes(8, "little")
    for _ in range(launches):
        lane.write(site, parameters, (40, 1, 1))
    lane.publish()
    return lane, site, parameters


def _opening_a_lane(client: Raw, chance: random.Random) -> None:
    client.hello()
    client.send(wm.OpenLane(1, 0, (1, chance.choice((1, 8)))))


def _idle_in_a_lane(client: Raw, chance: random.Random) -> None:
    _lane(client, chance.randrange(2))


def _running_in_a_lane(client: Raw, chance: random.Random) -> None:
    _lane(client, chance.randrange(1, 1000))


def _endless_in_a_lane(client: Raw, chance: random.Random) -> None:
    _lane(client, chance.randrange(1, 3), ENDLESS)


def _filling_a_lane(client: Raw, chance: random.Random) -> None:
    lane, site, parameters = _lane(client, 1)
    while True:
        while lane.head - lane.word(ring.TAIL) & 0xFFFFFFFF >= ring.SLOTS:
            time.sleep(0.0001)
        lane.write(site, parameters, (chance.randrange(1, 4), 1, 1))
        lane.publish()


def _nonsense_in_a_lane(client: Raw, chance: random.Random) -> None:
    lane, _, _ = _lane(client, 3)
    lane.publish(chance.randrange(1 << 32))


DEATHS: dict[str, Callable[[Raw, random.Random], None]] = {
    "connected": _connected,
    "half a hello": _half_a_hello,
    "half a frame": _half_a_frame,
    "idle": _idle,
    "compiling": _compiling,
    "measuring": _measuring,
    "allocating": _allocating,
    "writing": _writing,
    "with a running job": _running,
    "with an online job": _online,
    "with queued jobs": _queued,
    "with blocked jobs": _blocked,
    "waiting for answers": _waiting,
    "never reading": _never_reading,
    "freeing": _freeing,
    "with symbols": _symbols,
    "opening a lane": _opening_a_lane,
    "in an idle lane": _idle_in_a_lane,
    "running in a lane": _running_in_a_lane,
    "endless in a lane": _endless_in_a_lane,
    "filling a lane": _filling_a_lane,
    "with nonsense in a lane": _nonsense_in_a_lane,
}
"""What a client does until it is killed."""


# -- the process that kills ------------------------------------------------------------------------


def main() -> int:
    """Fork and kill clients, a round for each line."""
    path = sys.argv[1]
    for line in sys.stdin:
        seed, count, *names = json.loads(line)
        print(json.dumps(_round(path, random.Random(seed), count, names)), flush=True)
    return 0


def _round(path: str, chance: random.Random, count: int, names: list[str]) -> dict[str, Any]:
    deaths = [chance.choice(names or list(DEATHS)) for _ in range(count)]
    seeds = [chance.randrange(1 << 30) for _ in range(count)]
    began = time.monotonic()
    when = sorted(
        (began + chance.random() * _LATEST_S, _fork(path, death, random.Random(seed)))
        for death, seed in zip(deaths, seeds, strict=True)
    )
    for at, pid in when:
        time.sleep(max(0.0, at - time.monotonic()))
        os.kill(pid, signal.SIGKILL)  # safe: an unreaped child keeps its pid
    killed_ns = time.monotonic_ns()
    ended = [os.waitpid(pid, 0)[1] for _, pid in when]
    return {
        "deaths": deaths,
        "killed_ns": killed_ns,
        "reaped_ns": time.monotonic_ns(),
        "others": sum(status != signal.SIGKILL for status in ended),
    }


def _fork(path: str, death: str, chance: random.Random) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        client = Raw(path)
        DEATHS[death](client, chance)
        while True:
            time.sleep(60)
    except BaseException as error:  # noqa: BLE001 - the child must not return
        os.write(2, f"a client was refused ({death}): {error!r}\n".encode())
        os._exit(1)
    finally:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
