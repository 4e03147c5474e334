"""Lanes on the CPU device, through the ring: what runs, what is reported, and what is refused."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch
from gpud.device.lane_sites import check_site
from gpud.errors import AdmissionError, InvalidArgument, KernelTrap, LimitExceeded
from gpud.wire import lane_ring as ring
from tests.unit.cpu.scheduling.lane_driver import LIMIT_S, LaneDriver


def number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def test_a_launch_runs_and_is_reported() -> None:
    with LaneDriver() as lane:
        first = lane.launch("put", lane.pointer() + number(7), (5, 1, 1))
        number_, status, accepted, began, ended = lane.complete(first)
        assert (number_, status) == (0, ring.DONE)
        assert lane.slices_at_end == lane.lane.slices
        assert 0 < accepted <= began <= ended
        assert lane.words[:6].tolist() == [7] * 5 + [0]


def test_launches_run_in_order_however_many_are_written_at_once() -> None:
    with LaneDriver() as lane:
        site = lane.site("put")
        for value in range(500):
            lane.write(site, lane.pointer() + number(value), (3, 1, 1))
        lane.publish()
        lane.complete(499)
        assert lane.words[:3].tolist() == [499] * 3


def test_the_ring_wraps_around() -> None:
    with LaneDriver() as lane:
        lane.words[0] = 0
        last = 0
        for _ in range(5):
            site = lane.site("add")
            for _ in range(700):
                last = lane.write(site, lane.pointer(), (1, 1, 1))
            lane.publish()
            lane.complete(last)
        assert lane.words[0] == 3500


def test_every_launch_is_woken_for_after_sleep() -> None:
    with LaneDriver() as lane:
        lane.site("add")
        for count in range(200):
            lane.wait(lambda: lane.word(ring.LISTENING))
            lane.complete(lane.launch("add", lane.pointer()))
            assert lane.words[0] == count + 1


def test_large_parameters_follow_in_the_next_slots_across_the_end_of_the_ring() -> None:
    with LaneDriver() as lane:
        values = np.arange(64, dtype=np.uint32)
        for index in range(500):
            packed = lane.pointer() + (values + index).tobytes()
            lane.complete(lane.launch("sum", packed))
            assert lane.words[0] == int((values + index).sum())


def test_grids_of_three_dimensions_have_the_coordinates_of_the_users_grid() -> None:
    with LaneDriver() as lane:
        for grid in ((3, 5, 7), (1, 2, 3), (9, 1, 1), (1, 1, 4)):
            lane.words[:] = 0
            lane.complete(lane.launch("where", lane.pointer(), grid))
            x, y, z = grid
            wanted = [i + 100 * j + 10000 * k for k in range(z) for j in range(y) for i in range(x)]
            assert lane.words[: x * y * z].tolist() == wanted


def test_a_launch_that_traps_fails_alone() -> None:
    with LaneDriver() as lane:
        lane.site("put")
        bad = lane.launch("wrong", lane.pointer(), (8, 1, 1))
        good = lane.launch("put", lane.pointer() + number(9))
        assert lane.complete(bad)[1] == ring.SEE_MESSAGE
        assert lane.complete(good)[1] == ring.DONE
        assert lane.words[0] == 9
        [ended] = lane.ended
        assert (ended.number, ended.state) == (bad, "failed")
        assert isinstance(ended.error, KernelTrap)
        assert "wrong" in str(ended.error)
        assert "(3, 0, 0)" in str(ended.error)
        assert ended.progress[1] == 8


def test_a_lane_that_ends_between_two_runs_has_no_further_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LaneDriver() as lane:
        monkeypatch.setattr(lane, "launch_ended", lambda launch: lane.lane.end())
        lane.launch("wrong", lane.pointer(), (8, 1, 1))
        assert lane.over.wait(LIMIT_S)
        lane.wait(lambda: not lane.lane._turning)
        assert lane.lane._run is None
        assert lane.word(ring.COMPLETED) == 1, "the launch was reported before the lane ended"
        lane.lane.close()
        assert lane.lane.activity() is None


def test_what_follows_a_failure_does_not_begin_until_it_was_seen() -> None:
    with LaneDriver() as lane:
        lane.flags = ring.flags(0)
        lane.site("put")
        failed = lane.launch("wrong", lane.pointer(), (8, 1, 1))
        behind = [lane.launch("put", lane.pointer(at) + number(at)) for at in (1, 2)]
        lane.flags = ring.flags(None)
        lane.complete(lane.launch("put", lane.pointer(3) + number(3)))
        lane.flags = ring.flags(1)
        lane.complete(lane.launch("put", lane.pointer(4) + number(4)))
        assert [(one.number, one.state, one.behind) for one in lane.ended] == [
            (failed, "failed", None),
            *((one, "failed", failed) for one in behind),
        ]
        assert lane.words[1:5].tolist() == [0, 0, 3, 4]


def test_a_launch_site_that_comes_between_two_runs_is_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LaneDriver() as lane:
        runs: list[object] = []
        added: list[int] = []
        put = LaunchSpec(lane.module.kernel("put"), "persistent", (1, 1, 1), (1, 1, 1), b"")

        def between(_: EndedLaunch) -> None:
            lane.lane.add_site(put, added.append)
            runs.append(lane.lane._run)

        monkeypatch.setattr(lane, "launch_ended", between)
        lane.complete(lane.launch("wrong", lane.pointer(), (8, 1, 1)))
        lane.wait(lambda: added)
        assert runs == [None], "who ends a run begins the next one"
        lane.sites["put"] = added[0]
        assert lane.complete(lane.launch("put", lane.pointer() + number(9)))[1] == ring.DONE


def test_output_comes_with_the_launch_that_printed_it() -> None:
    with LaneDriver() as lane:
        last = lane.launch("put", lane.pointer() + number(0))
        for value in range(5):
            lane.launch("print", number(value), (2, 1, 1))
            last = lane.launch("put", lane.pointer() + number(value))
        lane.complete(last)
        assert [one.output for one in lane.ended] == [b"%d;%d;" % (v, v) for v in range(5)]
        assert {one.state for one in lane.ended} == {"done"}
        assert [one.number for one in lane.ended] == [1, 3, 5, 7, 9]


def test_a_running_and_a_waiting_launch_can_be_cancelled() -> None:
    with LaneDriver() as lane:
        lane.site("put")
        lane.words[0] = 0
        endless = lane.launch("spin", lane.pointer())
        waiting = lane.launch("put", lane.pointer(1) + number(1))
        after = lane.launch("put", lane.pointer(2) + number(2))
        lane.wait(lambda: lane.word(ring.BEGUN) == 1)
        lane.lane.cancel(waiting)
        lane.lane.cancel(endless)
        lane.complete(after)
        assert [(one.number, one.state) for one in lane.ended] == [
            (endless, "cancelled"),
            (waiting, "cancelled"),
        ]
        assert lane.words[:3].tolist() == [0, 0, 2]


def test_a_lane_without_slices_goes_on_when_it_has_some() -> None:
    with LaneDriver(slices=0) as lane:
        first = lane.launch("put", lane.pointer() + number(4))
        assert lane.word(ring.COMPLETED) == 0
        lane.lane.resize(32)
        lane.complete(first)
        for slices in (64, 1, 33, 0, 7) * 5:
            lane.lane.resize(slices)
            if slices:
                lane.complete(lane.launch("put", lane.pointer() + number(slices), (40, 1, 1)))
                assert lane.words[39] == slices


def test_resizes_during_launches_lose_no_task_block() -> None:
    with LaneDriver() as lane:
        lane.site("add")
        stop = threading.Event()

        def resize() -> None:
            sizes = (64, 3, 0, 32, 1)
            at = 0
            while not stop.is_set():
                at += 1
                lane.lane.resize(sizes[at % 5])

        thread = threading.Thread(target=resize)
        thread.start()
        last = 0
        for _ in range(100):
            last = lane.launch("add", lane.pointer(), (20, 1, 1))
        lane.complete(last)
        stop.set()
        thread.join()
        assert lane.words[0] == 2000


def test_the_end_of_a_lane_ends_what_runs() -> None:
    with LaneDriver() as lane:
        lane.launch("spin", lane.pointer())
        lane.wait(lambda: lane.word(ring.BEGUN))
        lane.lane.kill()
        assert lane.over.wait(LIMIT_S)
        assert lane.ended[0].state == "cancelled"
        assert lane.word(ring.ENDED) == 1


def test_form_whole_is_refused_with_the_reason() -> None:
    with LaneDriver() as lane:
        spec = LaunchSpec(lane.module.kernel("put"), "whole", (1, 1, 1), (1, 1, 1), b"")
        with pytest.raises(InvalidArgument, match="form whole"):
            lane.lane.add_site(spec, lambda _: None)


def test_launch_sites_that_do_not_fit_are_refused_and_take_no_number() -> None:
    with LaneDriver(slices=1) as lane:  # 1/32 SM; two blocks of 1,024 threads fit on an SM
        with pytest.raises(AdmissionError, match="open a lane with 1/2 SM or more"):
            lane.site("put", block=1024)
        assert lane.site("put", block=32) == 0
        spec = LaunchSpec(lane.module.kernel("put"), "persistent", (1, 1, 1), (1, 1, 1), b"")
        check_site(spec, ring.MOST_SITES - 1)
        with pytest.raises(LimitExceeded, match="the lane has 1024 launch sites"):
            check_site(spec, ring.MOST_SITES)


WRONG = {
    "number": ({"number": 5}, (1, 1, 1), "launch 1 was to come, not 5"),
    "site": ({"site": 99}, (1, 1, 1), "no launch site 99"),
    "size": ({"size": 13}, (1, 1, 1), "13 bytes"),
    "empty": ({}, (0, 1, 1), "the grid of launch 1"),
    "large": ({}, (1 << 31, 1, 1), "the grid of launch 1"),
    "product": ({}, (65536, 65536, 65536), "the grid of launch 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_nonsense_ends_the_lane_with_the_reason_and_no_other(name: str) -> None:
    changed, grid, reason = WRONG[name]
    with LaneDriver() as lane:
        lane.complete(lane.launch("put", lane.pointer() + number(1)))
        lane.write(lane.site("put"), lane.pointer() + number(2), grid, changed)
        lane.publish()
        assert lane.over.wait(LIMIT_S)
        assert reason in str(lane.lane.error)
        assert lane.words[0] == 1


def test_a_head_beyond_the_ring_and_a_record_cut_short_end_the_lane() -> None:
    for head in (ring.SLOTS + 1, 0xFFFFFFFF):
        with LaneDriver() as lane:
            lane.site("put")
            lane.publish(head)
            assert lane.over.wait(LIMIT_S)
            assert "slots are said to be written" in str(lane.lane.error)
    with LaneDriver() as lane:
        lane.write(lane.site("sum"), struct.pack("<Q64I", 0, *range(64)), (1, 1, 1))
        lane.publish(1)
        assert lane.over.wait(LIMIT_S)
        assert "fewer are written" in str(lane.lane.error)


def test_a_run_that_is_over_retires_no_other_run_of_its_lane() -> None:
    with LaneDriver() as lane:
        lane.complete(lane.launch("add", lane.pointer()))
        before = lane.lane._run
        assert before is not None
        lane.lane.cancel(lane.launch("spin", lane.pointer(1)))  # its end begins another run
        lane.wait(lambda: lane.ended)
        lane.wait(lambda: lane.lane._run is not None and lane.lane._run is not before)
        before.retire()
        before.end()
        assert not lane.lane._lane["retire"]
        lane.complete(lane.launch("add", lane.pointer()))
        assert lane.words[0] == 2


def test_a_cancel_while_another_one_is_reported_is_not_lost() -> None:
    looking, added = threading.Event(), threading.Event()

    class Skips(set[int]):
        """As it is looked through, it waits for somebody to add to it."""

        def __iter__(self) -> Iterator[int]:
            for one in super().__iter__():
                looking.set()
                added.wait(0.05)
                yield one

    with LaneDriver(sms=1) as lane:
        site = lane.site("add")
        held = lane.launch("hold", lane.pointer(1) + lane.pointer(2))
        numbers = [lane.write(site, lane.pointer(), (1, 1, 1)) for _ in range(3)]
        flags = lane.pointer(3) + lane.pointer(4)
        numbers.append(lane.write(lane.site("hold"), flags, (1, 1, 1)))
        numbers += [lane.write(site, lane.pointer(), (1, 1, 1)) for _ in range(2)]
        lane.publish()
        lane.wait(lambda: lane.words[2])
        lane.lane.cancel(numbers[0])
        lane.lane._skips = Skips((numbers[0], numbers[2]))
        lane.words[1] = 1
        assert looking.wait(LIMIT_S)
        lane.lane.cancel(numbers[4])
        added.set()
        lane.words[3] = 1  # before that the launch that is cancelled cannot have begun
        lane.complete(numbers[-1])
        assert [one.number - held for one in lane.ended] == [1, 3, 5]
        assert lane.words[0] == 2


def test_a_larger_launch_site_cancels_no_launch_that_has_no_slices() -> None:
    with LaneDriver(sms=1, slices=1) as lane:
        begun = lane.launch("hold", lane.pointer() + lane.pointer(1), (3, 1, 1))
        lane.wait(lambda: lane.words[1])
        lane.lane.resize(0)
        lane.words[0] = 1
        lane.wait(lambda: not lane.lane.held)
        spec = LaunchSpec(lane.module.kernel("sum"), "persistent", (1, 1, 1), (1, 1, 1), b"")
        added: list[int] = []
        lane.lane.add_site(spec, added.append)  # its parameters need a larger run
        lane.lane.resize(1)
        assert lane.complete(begun)[:2] == (begun, ring.DONE)
        assert lane.words[1] == 3
        lane.wait(lambda: added)
