"""What programs with contexts of their own keep goes to host memory and back, over the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import gpud_client as gc
from gpud.device.cpu.device import CPUDevice
from gpud.wire import messages as wm
from gpud_client.adapters.mapped_workload import MappedWorkload, open_mapped
from tests.gpu.served_daemon import Served
from tests.integration.mapped_programs import MIB, Program, running, usage
from tests.integration.workload_programs import gpuctl
from tests.support.waiting import until

pytestmark = pytest.mark.ci

SIZES: dict[str, Any] = {
    "persistent": "20MiB", "temporary": "6MiB", "offset": "2MiB", "movable": True,
}  # fmt: skip
"""Two of them fit beside the temporary memory."""

FALLIBLE = (
    "cuMemHostAlloc", "cuStreamCreateWithPriority", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
    "cuStreamSynchronize", "cuMemUnmap", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
)  # fmt: skip
"""What a move calls, but for what fails only where all fails."""


def train(program: Program, value: int, iterations: int) -> bool:
    """Keep weights and, freed in the next iteration, a gradient; use scratch; grow at the end."""
    memory, right = program.memory, True
    weights = gradient = more = 0
    for number in range(iterations):
        with memory.iteration():
            if not number:
                weights = memory.allocate(9 * MIB)
                program.fill(weights, 9 * MIB, value)
            else:
                right &= program.holds(gradient, 3 * MIB, value + number)
                memory.free(gradient)
            scratch = memory.allocate(4 * MIB)
            program.fill(scratch, 4 * MIB, 255)
            gradient = memory.allocate(3 * MIB)
            program.fill(gradient, 3 * MIB, value + number + 1)
            right &= program.holds(weights, 9 * MIB, value)
            memory.free(scratch)
            if number == iterations // 2:
                more = memory.allocate(5 * MIB)
                program.fill(more, 5 * MIB, value)
            elif more:
                right &= program.holds(more, 5 * MIB, value)
    return right


def is_away(program: Program) -> bool:
    """Whether a program has given its memory of the GPU up."""
    memory = program.memory
    return memory._kept.away and memory._persistent.backed_bytes + memory._profile.backed_bytes > 0


def test_three_programs_keep_more_than_the_gpu_has(served: Served, cpu: CPUDevice) -> None:
    programs = [Program(served, cpu, **SIZES) for _ in range(3)]
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            found = usage(served)
            seen.update(row["place"] for row in found["workloads"])
            device = found["devices"][0]
            assert device["persistent_bytes"] + device["temporary_bytes"] <= device["size_bytes"]

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        right = list(pool.map(lambda one: train(programs[one], 10 * one + 1, 20), range(3)))
        over.set()
        looking.result()
    assert right == [True] * 3
    assert {"on the device", "in host memory"} <= seen
    moved = usage(served)["moved"]
    assert moved["moved_bytes"] >= 9 * MIB
    assert moved["moving_s"] > 0
    until(lambda: sum(map(is_away, programs)) == 1)
    (away,) = [one for one in programs if is_away(one)]
    # Nothing of the GPU is left in it, but for the addresses.
    assert away.driver.alive["piece"] == away.driver.alive["mapping"] == 0
    assert usage(served)["moved"]["away_bytes"] >= 9 * MIB
    with away.memory.iteration():
        assert not away.memory._kept.away
    for program in programs:
        program.close()
    assert usage(served)["moved"]["away_bytes"] == 0
    with served.connect() as gpu:
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


def test_what_is_away_is_used_within_iterations(served: Served, cpu: CPUDevice) -> None:
    with pytest.raises(ValueError, match="give persistent and temporary"):
        Program(served, cpu, movable=True)
    with running(served, cpu, **SIZES) as program:
        memory = program.memory
        with pytest.raises(gc.GpudError, match="is movable: allocate within an iteration"):
            memory.allocate(100)
        with memory.iteration():
            kept = memory.allocate(100)
            program.fill(kept, 100, 3)
        with pytest.raises(gc.GpudError, match="is movable: allocate within an iteration"):
            memory.allocate(100)
        with memory.iteration():
            assert program.holds(kept, 100, 3)
        memory.free(kept)  # bookkeeping, wherever it is


class Scene:
    """Two programs that have had a turn and fill the GPU, and a third that waits for its first.

    Attributes:
        address: of what the first one keeps.
        kept: the one that has had the first turn, and is asked to make room.
        asked: what it was asked for and has not done.
        waiting: the third.
        began: whether that has its turn.
    """

    def __init__(self, served: Served, cpu: CPUDevice) -> None:
        self.served = served
        self.kept, self.second, self.waiting = (Program(served, cpu, **SIZES) for _ in range(3))
        self.asked: list[bool] = []
        self._on_move = self.kept.memory.workload.on_move
        self.kept.memory.workload.on_move = self.asked.append
        addresses = []
        for one in (self.kept, self.second):
            with one.memory.iteration():
                addresses.append(one.memory.allocate(9 * MIB))
                one.fill(addresses[-1], 9 * MIB, 7)
        self.address = addresses[0]
        self.began = threading.Event()
        self._thread = threading.Thread(target=self._begin)
        self._thread.start()
        until(lambda: self.asked == [True])
        assert not self.began.is_set()

    def _begin(self) -> None:
        self.waiting.memory.begin()
        self.began.set()

    def move(self) -> None:
        """Have the program do what it was asked for."""
        self._on_move(self.asked.pop(0))

    def turn(self) -> None:
        """Wait for the turn of the third program, and end it."""
        assert self.began.wait(20)
        self.waiting.memory.end()

    def close(self) -> None:
        self.kept.memory.workload.on_move = self._on_move
        for one in (self.kept, self.waiting, self.second):
            one.close()
        self._thread.join(20)
        until(lambda: usage(self.served)["workloads"] == [])
        assert usage(self.served)["moved"]["away_bytes"] == 0


@pytest.fixture
def scene(served: Served, cpu: CPUDevice) -> Iterator[Scene]:
    one = Scene(served, cpu)
    try:
        yield one
    finally:
        one.close()


def test_what_was_not_asked_for_is_refused(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.waiting.memory.workload.moved(0)
    until(lambda: "is not to be moved: wait to be asked" in caplog.text)
    scene.kept.memory.workload.moved(1 << 40)
    until(lambda: "says that it has copied 1099511627776" in caplog.text)
    assert not scene.began.is_set()
    scene.move()
    scene.turn()


def test_who_does_not_move_is_named_and_can_be_ended(scene: Scene) -> None:
    name = scene.kept.memory.workload.id

    def late() -> list[Any]:
        with scene.served.connect() as gpu:
            events = gpu.query("events")["events"]
        return [one for one in events if one["event"] == "workload-moves-late"]

    before = len(late())
    until(lambda: len(late()) > before)
    assert late()[-1]["workload"] == name
    assert late()[-1]["for_s"] > 0.5
    scene.began.wait(1.5)
    assert len(late()) == before + 1, "once for each move"
    ended = gpuctl(scene.served, "workloads", "--end", name)
    assert ended.returncode == 0, ended.stderr
    scene.turn()
    scene.move()  # too late, which harms nobody
    with pytest.raises(gc.GpudError, match="the workload was ended"):
        scene.kept.memory.begin()


def test_a_program_that_dies_when_it_is_to_move_makes_room(scene: Scene) -> None:
    scene.kept.session.close()
    scene.turn()


def test_what_the_machine_has_no_memory_for_stays_on_the_gpu_and_its_workload_ends(
    scene: Scene,
) -> None:
    scene.kept.driver.fail(1, "OUT_OF_MEMORY", "cuMemHostAlloc")
    scene.move()
    scene.turn()
    with pytest.raises(gc.GpudError, match=r"could not be moved: its program .* moved_memory"):
        scene.kept.memory.begin()
    assert scene.kept.holds(scene.address, 9 * MIB, 7)


def test_what_the_gpu_has_no_memory_for_stays_away_and_its_workload_ends(scene: Scene) -> None:
    scene.move()
    scene.turn()
    driver = scene.kept.driver
    driver.memory.room_bytes = 5 * MIB
    with ThreadPoolExecutor() as pool:
        beginning = pool.submit(scene.kept.memory.begin)
        until(lambda: scene.asked == [False])
        scene.move()
        with pytest.raises(gc.GpudError, match=r"could not be moved: .* bytes were asked for"):
            beginning.result(20)
    assert driver.alive["mapping"] == 0
    driver.memory.room_bytes = 48 * MIB
    scene.kept.memory._kept.rescue()
    assert scene.kept.holds(scene.address, 9 * MIB, 7)


def test_what_was_away_is_on_the_gpu_again_when_the_daemon_has_ended(cpu: CPUDevice) -> None:
    served = Served(turn_slice="2ms", turn_linger="20ms")
    try:
        one = Scene(served, cpu)
        one.move()
        one.turn()
        assert not one.kept.bytes.reaches(one.address, 1)
    finally:
        served.close()
    with pytest.raises(gc.ConnectionLost):
        one.kept.memory.begin()
    assert one.kept.holds(one.address, 9 * MIB, 7), "so that the program can save it"
    for program in (one.kept, one.waiting, one.second):
        program.close()


@pytest.mark.parametrize("leaves", [True, False], ids=["leaving", "coming"])
def test_whichever_call_of_the_driver_fails_nothing_is_lost(
    served: Served, cpu: CPUDevice, *, leaves: bool
) -> None:
    with running(served, cpu, **SIZES) as program:
        memory, kept = program.memory, program.memory._kept
        addresses = []
        for sizes in ((5 * MIB, 1000, 3 * MIB), (7 * MIB,)):  # of the profile, and later
            with memory.iteration():
                addresses += [memory.allocate(size) for size in sizes]
        with memory.iteration():
            for address in addresses:
                program.fill(address, 1000, 9)
        memory._give_up_turn()
        failures, over = 0, False
        for nth in range(1, 60):
            if not leaves:
                kept._leave()
            program.driver.fail(nth, "OUT_OF_MEMORY", *FALLIBLE)
            try:
                kept._leave() if leaves else kept._come_back()
            except (gc.GpudError, RuntimeError):
                failures += 1
            over = program.driver.counted < nth
            program.driver.fail(0, "")
            if kept.away:
                assert program.driver.alive["mapping"] == 0
                kept._come_back()
            assert all(program.holds(address, 1000, 9) for address in addresses)
            if over:
                break
        assert over
        assert failures > 5


def test_a_request_before_the_program_knows_its_workload_is_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come before the thread that has opened the workload has added it, or just after."""
    told: list[tuple[str, int, str]] = []
    monkeypatch.setattr(
        MappedWorkload, "moved", lambda work, size, error="": told.append((work.id, size, error))
    )
    with served.connect() as gpu:
        core, terms = gpu._core, (gpu.devices[0], (MIB, MIB, 0), 1, 2 * MIB)
        first = open_mapped(gpu, *terms, movable=True)
        early = first._number + 1
        core._handle(wm.MoveRegion(early, True))
        assert (told, core.moves) == ([], {early: True})
        second = open_mapped(gpu, *terms, movable=True)
        assert second._number == early
        assert (told, core.moves) == ([(second.id, 0, "")], {}), "no framework has its memory yet"
        core._handle(wm.MoveRegion(first._number, True))
        assert (told[1:], core.moves) == ([(first.id, 0, "")], {})
        first.close()
        second.close()
