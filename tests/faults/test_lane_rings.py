"""Hostile rings: whatever a client writes in its lane, that lane ends and the others run on.

A million at a live daemon come from `python -m campaigns.run rings`.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator

import pytest

import gpud_client as gc
from campaigns.rings import hostile, run
from gpud.wire import lane_ring as ring
from tests.support.raw_lane import RawLane
from tests.unit.cpu.scheduling.lane_driver import LIMIT_S, LaneDriver

RINGS = 200
EDGES = (0, 1, 2, 31, 127, 128, 1023, 1024, 1025, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
WORDS = (ring.HEAD, ring.TAIL, ring.COMPLETED, ring.BEGUN, ring.LISTENING, ring.WANTED)


def scribble(lane: LaneDriver, chance: random.Random) -> None:
    """Change the ring at random: words, fields of a record, or whole slots."""
    value = chance.choice(EDGES) if chance.random() < 0.7 else chance.getrandbits(32)
    what = chance.randrange(4)
    if what == 0:
        struct.pack_into("<I", lane.map, chance.choice(WORDS[1:]), value)
    elif what == 1:
        at = ring.SLOTS_AT + lane.head % ring.SLOTS * ring.SLOT_BYTES
        struct.pack_into("<I", lane.map, at + 4 * chance.randrange(8), value)
    elif what == 2:
        at = ring.SLOTS_AT + chance.randrange(ring.SLOTS) * ring.SLOT_BYTES
        lane.map[at : at + ring.SLOT_BYTES] = chance.randbytes(ring.SLOT_BYTES)
    else:
        lane.publish(value)


def test_random_rings_disturb_nobody() -> None:
    chance = random.Random("lanes")
    with LaneDriver() as good:
        good.lane.resize(16)
        good.site("add")
        for count in range(RINGS):
            bad = good.another(16)
            site = bad.site("put")
            for _ in range(chance.randrange(1, 30)):
                if chance.random() < 0.5:
                    bad.write(site, bad.pointer(8) + bytes(4), (1, 1, 1))
                    bad.publish()
                scribble(bad, chance)
            good.complete(good.launch("add", good.pointer()))
            assert good.words[0] == count + 1
            bad.lane.kill()
            assert bad.over.wait(LIMIT_S)


def test_records_that_change_while_they_are_read_end_the_lane_at_most() -> None:
    chance = random.Random(7)
    with LaneDriver() as good:
        good.lane.resize(16)
        good.site("add")
        for count in range(max(5, RINGS // 20)):
            bad = good.another(16)
            site = bad.site("sum")
            stop = threading.Event()

            def flip(bad: object = bad, stop: threading.Event = stop) -> None:
                assert isinstance(bad, LaneDriver)
                while not stop.is_set():
                    at = ring.SLOTS_AT + chance.randrange(64) * ring.SLOT_BYTES
                    field = chance.randrange(6)
                    struct.pack_into("<I", bad.map, at + 4 * field, chance.choice(EDGES))

            thread = threading.Thread(target=flip)
            thread.start()
            for _ in range(20):
                bad.write(site, bad.pointer(8) + bytes(256), (1, 1, 1))
                bad.publish()
            good.complete(good.launch("add", good.pointer()))
            stop.set()
            thread.join()
            assert good.words[0] == count + 1
            bad.lane.kill()
            assert bad.over.wait(LIMIT_S)


@pytest.fixture(scope="module")
def gpu() -> Iterator[gc.Session]:
    with gc.local("cpu:2", log_level="error", grace="30 s") as session:
        yield session


@pytest.mark.ci
def test_a_live_daemon_ends_hostile_lanes_and_no_other(gpu: gc.Session) -> None:
    found = run.measure(gpu, 4000, seed=7)
    assert not found["wrong"]
    assert found["rings"] >= 4000
    assert set(found["by_kind"]) >= set(hostile.BREAKS)
    assert found["beside_launches"] > 10


@pytest.mark.ci
def test_the_campaign_notices_what_is_wrong(
    gpu: gc.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(client: hostile.Hostile, lane: RawLane, sites: list[int]) -> str:
        hostile.Hostile._grid(client, lane, sites)
        return "an error that it does not have"

    def harmless(client: hostile.Hostile, lane: RawLane, sites: list[int]) -> str:
        client._right(lane, sites[0])
        lane.publish()
        return "anything"

    monkeypatch.setattr(hostile, "PATIENCE_S", 0.5)
    for name, rule, told in (
        ("planted", other, "not with 'an error that it does not have'"),
        ("no fault", harmless, "hung: no fault"),
    ):
        monkeypatch.setattr(hostile, "BREAKS", {name: rule})
        found = run.measure(gpu, 1000, seed=7)
        assert len(found["wrong"]) == 1
        assert told in found["wrong"][0]
