"""A hostile client of a live daemon: opens lanes, and writes what it should not into their rings.

Problem: 10^6 rings are to be tried, and opening a lane takes milliseconds.

Approach: most of what a stranger can write is harmless to a lane, which then runs on: words that
only the device should write, slots that were not offered, odd parameters and grids, records that
change while they are read. So a lane goes through many such rings, each with a record that the
device reads. Then comes one that breaks a rule, and the lane must end with the error that names it.
Lanes are opened ahead, a few at a time.

Terms:
    ring: a state of a lane's memory that was published, and that the device has read.
"""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from gpud.wire import lane_ring as ring
from gpud.wire import messages as wm
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from tests.support.raw_client import Raw
from tests.support.raw_lane import RawLane

__all__ = ["BREAKS", "Hostile"]

SOURCE = r"""
struct Big { unsigned values[64]; };
extern "C" __global__ void put(unsigned* out, unsigned value) { out[blockIdx.x & 63] = value; }
extern "C" __global__ void sum(unsigned* out, Big big) {
    unsigned all = 0;
    for (int i = 0; i < 64; i++) all += big.values[i];
    out[64] = all;
}
"""
PATIENCE_S = 20.0
AHEAD = 4  # lanes that are opened ahead
HARMLESS = 12  # rings before the one that breaks a rule, at the mean
_SHARE = (1, 8)
_EDGES = (0, 1, 2, 31, 127, 128, 1023, 1024, 1025, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_DEVICES = (ring.TAIL, ring.COMPLETED, ring.BEGUN, ring.ENDED, ring.LISTENING)  # its words
_WORDS = {
    "head": ring.HEAD, "tail": ring.TAIL, "completed": ring.COMPLETED, "begun": ring.BEGUN,
    "ended": ring.ENDED, "listening": ring.LISTENING,
}  # fmt: skip
_MASK = 0xFFFFFFFF
_GRIDS = ((1, 1, 1), (64, 1, 1), (2, 3, 4), (1, 1, 200), (65_536, 1, 1))


class Wrong(Exception):
    """The daemon did not do what it should."""


class Hostile:
    """One connection, and its lanes one after the other.

    Args:
        path: the daemon's socket.
        chance: chooses.

    Attributes:
        rings: how many were tried, by what they were.
        lanes: how many were ended.
        session: its number.
    """

    def __init__(self, path: str, chance: random.Random) -> None:
        self.chance = chance
        self.rings: dict[str, int] = {}
        self.lanes = 0
        self._breaks: list[str] = []
        self._client = client = Raw(path)
        client.hello()
        self.session = client.session
        self._module = client.ask(lambda r: wm.Compile(r, 0, SOURCE, ()), wm.Compiled).module
        for kernel in range(2):
            client.ask(self._measuring(kernel), wm.Measured)
        self._array = client.allocate(4096)
        self._decoder = FrameDecoder()
        self._sent = 0
        self._opened: list[tuple[RawLane, list[int]]] = []
        self._lanes: dict[int, RawLane] = {}
        self._sites: dict[int, list[int]] = {}
        self._requests: dict[int, int] = {}
        self._ended: dict[int, str] = {}
        client.sock.setblocking(False)

    def close(self) -> None:
        """Leave with lanes open."""
        self._client.close()

    # -- messages

    def _measuring(self, kernel: int) -> Callable[[int], wm.Measure]:
        return lambda request: wm.Measure(request, self._module, kernel, (1, 1, 1), 0)

    def _open_one(self) -> None:
        """Ask for a lane and its two launch sites, and wait for nothing."""
        self._sent += 1
        number = self._sent
        self._send(wm.OpenLane(number, 0, _SHARE))
        self._sites[number] = []
        for kernel in range(2):
            request = 1000 + 2 * number + kernel
            self._requests[request] = number
            self._send(wm.PrepareLaunch(request, number, self._module, kernel, (1, 1, 1), 0))

    def _send(self, message: Any) -> None:
        data = wm.CLIENT_PROTOCOL.encode(message)
        while data:
            try:
                data = data[self._client.sock.send(data) :]
            except BlockingIOError:
                self._read(1.0)

    def _read(self, timeout_s: float) -> None:
        """Take in what the daemon has sent."""
        if not select.select([self._client.sock], [], [], timeout_s)[0]:
            return
        data, descriptors, _, _ = socket.recv_fds(self._client.sock, 1 << 16, 64)
        if not data:
            raise Wrong("the daemon has closed the connection")
        self._client.descriptors += descriptors
        self._decoder.feed(data)
        for body in self._decoder.frames():
            self._handle(wm.CLIENT_PROTOCOL.decode(body, Sender.DAEMON))

    def _handle(self, message: Any) -> None:
        kind = type(message)
        if kind is wm.LaneOpened:
            descriptor = self._client.descriptors.pop(1)  # the first is the arena's
            self._lanes[message.number] = RawLane(descriptor, message.size, message.number)
        elif kind is wm.Answer:
            number = self._requests.pop(message.request)
            self._sites[number].append(message.value)
            if len(self._sites[number]) == 2:
                self._opened.append((self._lanes.pop(number), self._sites.pop(number)))
        elif kind is wm.Finished:
            self._ended[message.number] = (message.error or {}).get("message", message.state)
        elif kind is not wm.LaunchEnded:
            raise Wrong(f"the daemon has sent {message!r:.300}")

    def _await(self, what: str, lane: RawLane, test: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        tries = 0
        while not test():
            tries += 1
            if tries < 200:
                os.sched_yield()
                continue
            self._read(0.001)
            if time.monotonic() > end:
                words = {name: lane.word(at) for name, at in _WORDS.items()}
                raise Wrong(
                    f"hung: {what}, in lane {lane.number}, with {lane.launches} launches: {words}"
                )

    # -- rings

    def try_one_lane(self) -> None:
        """Have a lane go through harmless rings, and then through one that ends it.

        Raises:
            Wrong: the daemon did not do what it should.
        """
        while self._sent - self.lanes < AHEAD:
            self._open_one()
        end = time.monotonic() + PATIENCE_S
        while not self._opened:
            self._read(0.1)
            if time.monotonic() > end:
                raise Wrong("a lane was not opened")
        lane, sites = self._opened.pop(0)
        put, sum_ = sites
        for _ in range(self.chance.randrange(2 * HARMLESS)):
            self._harmless(lane, put, sum_)
        self._await("its launches", lane, lambda: self._is_done(lane))
        if lane.number in self._ended:
            raise Wrong(f"a harmless ring has ended a lane: {self._ended[lane.number]}")
        if not self._breaks:  # each once before any comes again: also a short run tries them all
            self._breaks = self.chance.sample(list(BREAKS), len(BREAKS))
        name = self._breaks.pop()
        expected = BREAKS[name](self, lane, sites)
        self._count(name)
        self._await(name, lane, lambda: self._has_ended(lane))
        error = self._ended.pop(lane.number)
        if expected not in error:
            raise Wrong(f"{name}: the lane has ended with {error!r}, not with {expected!r}")
        self.lanes += 1
        self._read(0)

    def _is_done(self, lane: RawLane) -> bool:
        # A message about its end comes only after that: it is asked for now and then.
        return lane.word(ring.COMPLETED) == lane.launches & _MASK or lane.number in self._ended

    def _has_ended(self, lane: RawLane) -> bool:
        self._read(0)
        return lane.number in self._ended

    def _count(self, name: str) -> None:
        self.rings[name] = self.rings.get(name, 0) + 1

    def _value(self) -> int:
        chance = self.chance
        return chance.choice(_EDGES) if chance.random() < 0.7 else chance.getrandbits(32)

    def _harmless(self, lane: RawLane, put: int, sum_: int) -> None:
        """Offer a record that is right, in a ring that is odd."""
        chance = self.chance
        name = chance.choice(_HARMLESS)
        self._count(name)
        if lane.launches - lane.word(ring.COMPLETED) & _MASK > ring.SLOTS // 8:
            self._await("room", lane, lambda: self._is_done(lane))
        if name == "words of the device":
            lane.words[chance.choice(_DEVICES) // 4] = self._value()
        elif name == "words of the client":
            lane.words[ring.WANTED // 4] = self._value()
        elif name == "slots that are not offered":
            at = lane.slot(lane.head + chance.randrange(8, ring.SLOTS - 256))
            lane.map[at : at + ring.SLOT_BYTES] = chance.randbytes(ring.SLOT_BYTES)
        elif name == "completions":
            at = ring.COMPLETIONS_AT + chance.randrange(ring.SLOTS) * ring.COMPLETION_BYTES
            lane.map[at : at + ring.COMPLETION_BYTES] = chance.randbytes(ring.COMPLETION_BYTES)
        grid, limit, goes_on = (1, 1, 1), 0, 0
        out = self._array
        if name == "terms":
            limit, goes_on = self._value(), chance.choice((0, 1, self._value()))
        elif name == "grids":
            grid = chance.choice(_GRIDS)
        elif name == "pointers":
            out = chance.choice((0, 1, self._array + 4096, chance.getrandbits(64)))
        big = name == "large parameters"
        parameters = struct.pack("<Q", out) + (chance.randbytes(256) if big else bytes(4))
        lane.write(sum_ if big else put, parameters, grid, limit, goes_on)
        lane.publish()

    # -- rings that break a rule: each returns a part of the error

    def _right(self, lane: RawLane, site: int, limit_ms: int = 0) -> int:
        return lane.write(site, struct.pack("<QI", self._array, 7), limit_ms=limit_ms)

    def _field(self, lane: RawLane, site: int, at: int, value: int) -> None:
        begin = self._right(lane, site)
        struct.pack_into("<I", lane.map, begin + at, value & _MASK)
        lane.publish()

    def _jump(self, lane: RawLane, sites: list[int]) -> str:
        ahead = self.chance.choice((ring.SLOTS + 1, 1 << 31, self.chance.randrange(1025, 1 << 32)))
        lane.publish(lane.head + ahead)
        return "slots are said to be written"

    def _backwards(self, lane: RawLane, sites: list[int]) -> str:
        lane.publish(lane.head - self.chance.randrange(1, 1 << self.chance.randrange(1, 31)))
        return "slots are said to be written"

    def _number(self, lane: RawLane, sites: list[int]) -> str:
        wrong = self._value()
        while wrong == lane.launches & _MASK:
            wrong = self._value()
        self._field(lane, sites[0], 0, wrong)
        return f"was to come, not {wrong}"

    def _site(self, lane: RawLane, sites: list[int]) -> str:
        wrong = max(2, self._value())
        self._field(lane, sites[0], 4, wrong)
        return f"no launch site {wrong}"

    def _size(self, lane: RawLane, sites: list[int]) -> str:
        wrong = self._value()
        self._field(lane, sites[0], 20, wrong if wrong != 12 else 13)
        return "are not the kernel's"

    def _grid(self, lane: RawLane, sites: list[int]) -> str:
        wrong = self.chance.choice((0, 0x80000000, 0xFFFFFFFF))
        self._field(lane, sites[0], 8 + 4 * self.chance.randrange(3), wrong)
        return "the grid of launch"

    def _product(self, lane: RawLane, sites: list[int]) -> str:
        begin = self._right(lane, sites[0])
        struct.pack_into("<3I", lane.map, begin + 8, 0x10000, 0x10000, self.chance.choice((1, 9)))
        lane.publish()
        return "too many task blocks"

    def _cut(self, lane: RawLane, sites: list[int]) -> str:
        before = lane.head
        lane.write(sites[1], struct.pack("<Q", self._array) + bytes(256))
        lane.publish(before + self.chance.randrange(1, ring.slots_of(264)))
        return "fewer are written"

    def _noise(self, lane: RawLane, sites: list[int]) -> str:
        at = ring.SLOTS_AT + self.chance.randrange(32) * ring.SLOT_BYTES
        lane.map[at:] = self.chance.randbytes(len(lane.map) - at)
        begin = lane.slot(lane.head)
        lane.map[begin : begin + ring.SLOT_BYTES] = self.chance.randbytes(ring.SLOT_BYTES)
        lane.publish(lane.head + self.chance.randrange(1, ring.SLOTS))
        return "the lane's ring holds what is no launch"

    def _flips(self, lane: RawLane, sites: list[int]) -> str:
        """Change records while they are read, until one is read that is wrong."""
        end = time.monotonic() + PATIENCE_S
        while lane.number not in self._ended:
            begin = self._right(lane, sites[0], limit_ms=1)  # its grid may become a large one
            lane.publish()
            for _ in range(self.chance.randrange(1, 12)):
                at = begin + 4 * self.chance.randrange(6)
                struct.pack_into("<I", lane.map, at, self._value())
            self._count("a record that changes while it is read")
            self._await("the flipped record", lane, lambda: self._is_read(lane))
            if time.monotonic() > end:  # all were read before they were changed
                self._field(lane, sites[0], 0, lane.launches + 1)
        return "the lane's ring holds what is no launch"

    def _is_read(self, lane: RawLane) -> bool:
        self._read(0)
        return lane.word(ring.TAIL) == lane.head & _MASK or lane.number in self._ended


_HARMLESS = (
    "words of the device", "words of the client", "slots that are not offered", "completions",
    "terms", "grids", "pointers", "large parameters", "nothing odd",
)  # fmt: skip
BREAKS: dict[str, Callable[[Hostile, RawLane, list[int]], str]] = {
    "head jumps ahead": Hostile._jump,
    "head runs backwards": Hostile._backwards,
    "a wrong number": Hostile._number,
    "an unknown site": Hostile._site,
    "a wrong size": Hostile._size,
    "an impossible grid": Hostile._grid,
    "a grid of too many blocks": Hostile._product,
    "a record that is cut": Hostile._cut,
    "noise": Hostile._noise,
    "records that change until one is wrong": Hostile._flips,
}
