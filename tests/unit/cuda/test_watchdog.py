"""Driver calls that wait for kernels: runs make way for them and lose nothing by it."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.driver.machine_code import MachineCode
from gpud.device.cuda.driver.watchdog import DriverWatchdog
from gpud.device.cuda.execution.watcher import Watcher
from gpud.device.cuda.launch.launch_records import Slot
from gpud.device.interface import LaunchSpec
from gpud.errors import DeviceLost
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cuda.model_runs import PROGRAM, device_of, drive, launches, ran_once

_LONG_S = 60.0
ENDLESS = 1_000_000


class AtRest(SteppedDriver):
    """Loads when the device is idle, and waits for that."""

    waits_for_rest = False

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        ends = time.monotonic() + _LONG_S
        while name == "cuModuleLoadDataEx" and self.waits_for_rest and self.resident:
            assert time.monotonic() < ends, "waits for ever"
            if not self.step():
                time.sleep(0)


def impatient_watchdog(device: CUDADevice, seconds: float = 0.0) -> DriverWatchdog:
    watchdog = device.context.watchdog = DriverWatchdog(seconds)
    watchdog.arm(device.launches.halt, device.watcher.wake)
    return watchdog


@pytest.mark.parametrize("seed", range(3))
def test_runs_make_way_for_a_load_that_waits_and_go_on(seed: int) -> None:
    fake = AtRest(seed)
    with device_of(fake) as device:
        offline = ResizableRun(device, launches(device, "p", total=ENDLESS))
        online = ResizableRun(device, launches(device, "ppp", total=40), priority=1)
        impatient_watchdog(device)
        offline.resize(8)
        online.resize(4)
        fake.run(60 + 40 * seed)
        fake.waits_for_rest = True
        device.load(PROGRAM)
        fake.waits_for_rest = False
        done = offline.progress[1]
        assert done < ENDLESS
        assert not offline.exhausted
        drive(fake, device, online)
        assert online.error is None
        assert online.progress == (120, 120, 120)
        until(lambda: fake.step() and offline.progress[1] > done)
        offline.resize(10)
        for _ in range(200):
            fake.step()
            device.watcher.poll()
        assert fake.on_sms("persistent").total() == offline.held == 10
        run: Any = offline._run
        own = run._tracker.on_device.job(0)
        offline.end()
        drive(fake, device, offline)
        claims = [claim for _, job, claim in fake.ran if job == own]
        assert sorted(claims) == list(range(len(claims)))


@pytest.mark.parametrize("seed", range(5))
def test_whenever_all_blocks_are_halted_every_task_block_runs_once(seed: int) -> None:
    fake, when = SteppedDriver(seed), random.Random(seed)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "ppsp", total=20))
        job.resize(2)
        for _ in range(4000):
            if job.done:
                break
            fake.step()
            if when.random() < 0.05:
                device.launches.halt()
            if when.random() < 0.05:
                job.resize(when.randrange(1, 7))
            device.watcher.poll()
        assert job.error is None
        assert job.done
        ran_once(fake, [20] * 4)


def test_a_launch_begun_during_a_halt_is_not_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        first, second = (
            ResizableRun(device, launches(device, "p", total=ENDLESS)) for _ in range(2)
        )
        first.resize(2)
        fake.run(20)
        (old,) = device.launches._active
        write = Slot.write

        def halted_meanwhile(slot: Slot, *of_launch: int) -> None:
            write(slot, *of_launch)
            device.launches.halt()

        with monkeypatch.context() as during:
            during.setattr(Slot, "write", halted_meanwhile)
            second.resize(2)
        new = next(launch for launch in device.launches._active if launch is not old)
        told = {launch: not launch.slot.orders[:, 0].any() for launch in (old, new) if launch.slot}
        assert told == {old: old.untold_exits, new: new.untold_exits} == {old: True, new: False}
        for job in (first, second):
            job.end()
            drive(fake, device, job)
        assert not device.launches._active


def test_a_finished_launch_is_not_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        jobs = [ResizableRun(device, launches(device, "p", total=ENDLESS)) for _ in range(2)]
        for job in jobs:
            job.resize(2)
        jobs[1].end()
        fake.run(200)
        halt, give = Slot.halt, device.launches.records.give
        given: list[Slot] = []
        threads: list[threading.Thread] = []

        def gives(slot: Slot) -> None:
            given.append(slot)
            give(slot)

        def halts(slot: Slot) -> None:
            threads.append(threading.Thread(target=device.watcher.poll))
            threads[-1].start()
            threads[-1].join(0.02)  # it may have to wait for this thread
            assert slot not in given, "what lies there may be another's"
            halt(slot)

        with monkeypatch.context() as during:
            during.setattr(Slot, "halt", halts)
            during.setattr(device.launches.records, "give", gives)
            device.launches.halt()
            for thread in threads:
                thread.join()
        assert jobs[1].done
        assert len(given) == 1
        jobs[0].end()
        drive(fake, device, jobs[0])


def test_the_first_runs_need_nothing_that_the_driver_may_wait_for() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        sequences = [device.prepare(launches(device, what)) for what in ("pp", "s")]
        before = len(fake.calls)
        for priority in (0, 1):
            for sequence in sequences:
                job = ResizableRun(device, sequence, priority=priority)
                job.resize(1)
                fake.run(20)
                job.resize(3)
                drive(fake, device, job)
        assert not [name for name in fake.calls[before:] if "Alloc" in name or "Create" in name]


def test_a_call_that_returns_in_time_disturbs_no_run() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        impatient_watchdog(device, _LONG_S)
        job = ResizableRun(device, launches(device, "p", total=50))
        job.resize(2)
        fake.run(10)
        device.load(PROGRAM)
        (launch,) = device.launches._active
        assert (launch.untold_exits, launch.limit) == (False, 2)
        drive(fake, device, job)
        ran_once(fake, [50])


def test_nothing_is_begun_while_a_call_is_stuck() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        watchdog = impatient_watchdog(device)
        job, ended = (ResizableRun(device, launches(device, "p", total=20)) for _ in range(2))
        with watchdog.blocking_call("cuMemAlloc"):
            until(lambda: watchdog.stuck)
            job.resize(2)
            ended.resize(2)
            ended.end()
            assert device.watcher.poll() is not None
            assert "persistent_a" not in {launch.name for launch in fake.launches}
            assert (job.held, job.done, ended.held, ended.done) == (2, False, 0, True)
            assert not device.watcher.busy
        assert not watchdog.stuck
        drive(fake, device, job)
        ran_once(fake, [20])


def test_a_lost_device_fails_waiting_gangs() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        watchdog = impatient_watchdog(device)
        job = ResizableRun(device, launches(device, "p", total=20))
        with watchdog.blocking_call("cuMemAlloc"):
            until(lambda: watchdog.stuck)
            job.resize(2)
        dead, fake.dead = fake.dead, fake._status("ILLEGAL_ADDRESS")
        device.watcher.poll()
        assert isinstance(job.error, DeviceLost)
        fake.dead = dead


def test_an_internal_error_in_the_watcher_fails_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        job, other = (ResizableRun(device, launches(device, "p", total=20)) for _ in range(2))
        for one in (job, other):
            one.resize(2)

        def fails() -> None:
            raise ZeroDivisionError("here")

        with monkeypatch.context() as patch:
            patch.setattr(device.launches, "is_over", lambda launch: fails())
            device.watcher.poll()
        for one in (job, other):
            assert isinstance(one.error, DeviceLost)
            assert "ZeroDivisionError: here" in str(one.error)
        fake.run()


def test_a_failing_callback_does_not_end_the_watcher(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[None] = []

    def tell() -> None:
        told.append(None)
        if len(told) == 1:
            raise ZeroDivisionError("there")

    watcher = Watcher(threading.RLock())
    watcher.defer(tell)
    watcher.defer(tell)
    watcher.start()
    watcher.wake()
    until(lambda: len(told) > 1)  # it looks again by itself
    watcher.close()
    assert "ZeroDivisionError: there" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyError(4711), ValueError("4711 is not a valid CUresult")])
def test_a_status_that_the_bindings_do_not_know_ends_the_device(error: Exception) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:

        def unknown(*_: Any) -> Any:
            raise error  # as versions of the bindings do

        for name in ("cuEventQuery", "cuMemGetInfo"):
            fake.__dict__[name] = unknown
        with pytest.raises(DeviceLost, match=r"cuMemGetInfo reports a status .* 4711"):
            device.context.free_bytes()
        with pytest.raises(DeviceLost, match=r"cuEventQuery reports a status .* 4711"):
            device.driver.is_over(1)
        error = ValueError("no such flag")
        with pytest.raises(ValueError, match="flag"):
            device.context.free_bytes()


def test_machine_code_is_made_once_and_apart_from_the_load() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        before = fake.calls.count("cuLinkCreate")
        device.load(PROGRAM)
        device.load(PROGRAM, (0, 1 << 20))
        assert fake.calls.count("cuLinkCreate") == before + 1
        assert fake.calls.index("cuLinkComplete") < fake.calls.index("cuModuleLoadDataEx")
        assert fake.calls.count("cuLinkDestroy") == before + 1


@pytest.mark.parametrize("function", ["cuLinkCreate", "cuLinkAddData", "cuLinkComplete"])
def test_a_program_that_the_linker_rejects_is_loaded_as_ptx(function: str) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        fake.fail(1, "UNKNOWN_TO_US", function)
        job = ResizableRun(device, launches(device, "p"))
        job.resize(1)
        drive(fake, device, job)
        made = fake.calls.count("cuLinkCreate") - (function == "cuLinkCreate")
        assert fake.calls.count("cuLinkDestroy") == made


def test_little_machine_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        monkeypatch.setattr("gpud.device.cuda.driver.machine_code._MOST_BYTES", 100)
        code, driver = MachineCode(), device.driver
        texts = [f"{number:0>39}" for number in range(3)]
        assert [code.of(driver, text) for text in texts] == [f"{t}\0".encode() for t in texts]
        made = fake.calls.count("cuLinkCreate")
        code.of(driver, texts[2])
        code.of(driver, texts[1])
        assert fake.calls.count("cuLinkCreate") == made
        code.of(driver, texts[0])
        assert fake.calls.count("cuLinkCreate") == made + 1


def test_only_kernels_with_shared_memory_ask_for_the_most_of_it() -> None:
    found: dict[int, int] = {}

    class Dividing(SteppedDriver):
        def before(self, name: str, arguments: tuple[Any, ...]) -> None:
            if name == "cuFuncSetAttribute":
                function, which, value = arguments
                if which.name.endswith("CARVEOUT"):
                    found[function] = value

    fake = Dividing()
    with device_of(fake) as device:
        (gate,) = found
        module = device.load(PROGRAM)
        handles = {
            name: module.kernel(name).handle for name in ("persistent_a", "sliced_c", "plain_e")
        }
        assert found == {gate: 100}
        device.occupancy(module.kernel("persistent_a"), (32, 1, 1), 64)
        assert found == {gate: 100, handles["persistent_a"]: 100}, "dynamic shared memory"
        fake.modules.attributes["SHARED_SIZE_BYTES"] = 1024
        other = device.load(PROGRAM)
        handles = {
            name: other.kernel(name).handle for name in ("persistent_b", "sliced_c", "plain_e")
        }
        assert set(found) >= {handles["persistent_b"], handles["sliced_c"]}
        assert handles["plain_e"] not in found
        specs = [LaunchSpec(module.kernel("plain_e"), "unmodified", (1, 1, 1), (1, 1, 1), bytes(8))]
        assert device.prepare(specs).total == 1


def test_a_limit_follows_what_the_call_takes_on_an_idle_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watchdog, idle, halted, clock = DriverWatchdog(), [True], threading.Event(), [0.0]
    monkeypatch.setattr("gpud.device.cuda.driver.watchdog.time.monotonic", lambda: clock[0])

    def call(function: str, seconds: float, size: int = 0) -> None:
        with watchdog.blocking_call(function, size):
            clock[0] += seconds

    assert watchdog.limit_s("cuGreenCtxCreate") == 5e-3
    call("cuGreenCtxCreate", 0.02)
    call("cuMemHostAlloc", 0.004, 1 << 20)
    call("cuMemHostAlloc", 0.001, 1 << 20)
    assert watchdog.limit_s("cuGreenCtxCreate") == pytest.approx(0.1)
    assert watchdog.limit_s("never called") == pytest.approx(0.1)
    assert watchdog.limit_s("cuMemHostAlloc", 1 << 10) == pytest.approx(0.02)
    assert watchdog.limit_s("cuMemHostAlloc", 1 << 22) == pytest.approx(0.08)
    assert watchdog.limit_s("cuMemHostAlloc", 1 << 40) == 1.0
    watchdog.arm(halted.set, lambda: None, lambda: idle[0])
    call("cuGreenCtxCreate", 3.0)
    assert watchdog.limit_s("cuGreenCtxCreate") == 1.0, "those on an idle device are timed, too"
    idle[0] = False
    call("cuMemHostAlloc", 3.0, 1 << 20)
    assert watchdog.limit_s("cuMemHostAlloc", 1 << 20) == pytest.approx(0.02), "it may have waited"


def test_opening_a_device_times_the_calls_that_are_guarded_later() -> None:
    with device_of(SteppedDriver()) as device:
        timed = device.context.watchdog._longest
        assert {
            "cuMemAlloc", "cuMemHostAlloc", "cuModuleLoadDataEx", "cuFuncSetAttribute",
            "cuStreamCreateWithPriority", "cuGreenCtxCreate",
        } <= timed.keys()  # fmt: skip


def test_a_device_with_an_endless_kernel_is_not_closed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    class Hanging(SteppedDriver):
        def before(self, name: str, arguments: tuple[Any, ...]) -> None:
            if name == "cuStreamSynchronize" and not ended.is_set() and self.resident:
                ended.wait(_LONG_S)

    monkeypatch.setattr("gpud.device.cuda.device._CLOSING_S", 0.05)
    fake = Hanging()
    device = CUDADevice(driver=Driver(fake), watch=False)
    job = ResizableRun(device, launches(device, "w", total=2))
    job.resize(2)
    fake.run(3)
    before = len(fake.calls)
    with pytest.raises(DeviceLost, match=r"still runs a kernel 0\.05 s after"):
        device.close()
    assert set(fake.calls[before:]) == {"cuCtxSetCurrent", "cuStreamSynchronize"}
    ended.set()
