"""Checked driver calls, and that every called function exists in the real bindings."""

from __future__ import annotations

import inspect
import os
import re
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver as real

import gpud.device.cuda
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import ENVIRONMENT, STICKY, Driver, DriverError, open_driver
from gpud.device.cuda.driver.semaphore import Semaphore
from gpud.device.cuda.memory.pool import DeviceBlock
from gpud.device.host.__main__ import DeviceSettings, open_device
from gpud.device.spec import parse_device
from gpud.errors import DeviceLost, InvalidArgument
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import PROGRAM, device_of, drive, launches

FOLDER = Path(gpud.device.cuda.__file__).parent
ARENA = 1 << 20
CALL = re.compile(r'call\(\s*"(cu\w+)"')


def called() -> set[str]:
    return {name for path in FOLDER.rglob("*.py") for name in CALL.findall(path.read_text())}


def test_every_function_that_is_called_is_in_the_bindings() -> None:
    names = called()
    assert len(names) > 40
    assert [name for name in names if not hasattr(real, name)] == []


def test_the_model_takes_the_arguments_that_the_bindings_take() -> None:
    model = SteppedDriver()
    for name in called():
        stated = (getattr(real, name).__doc__ or "").splitlines()[0]
        inside = stated[stated.index("(") + 1 : stated.rindex(")")]
        inside = re.sub(r"\[[^()]*?\](?=,|$)", "", inside)
        modelled = inspect.signature(model.function(name)).parameters
        assert len(modelled) == len([part for part in inside.split(",") if part]), stated


def test_sticky_statuses_are_statuses() -> None:
    missing = [n for n in STICKY if f"CUDA_ERROR_{n}" not in real.CUresult.__members__]
    assert missing == []


@pytest.mark.parametrize("status", ["ILLEGAL_ADDRESS", "LAUNCH_FAILED", "ECC_UNCORRECTABLE"])
def test_a_dead_context_is_a_lost_device(status: str) -> None:
    fake = SteppedDriver()
    fake.lose(status)
    with pytest.raises(DeviceLost, match=f"cuInit reports CUDA_ERROR_{status}"):
        Driver(fake).call("cuInit", 0)


def test_programs_that_ask_for_one_connection_get_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(real, "cuInit", lambda flags: (real.CUresult.CUDA_SUCCESS,))
    open_driver()
    assert {name: os.environ[name] for name in ENVIRONMENT} == ENVIRONMENT


@pytest.mark.parametrize("status", ["NO_DEVICE", "UNKNOWN"])
def test_a_gpu_that_does_not_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    fake = SteppedDriver()
    fake.lose(status)
    monkeypatch.setattr(real, "cuInit", fake.cuInit)
    with pytest.raises(InvalidArgument, match="see nvidia-smi"):
        open_driver()


def test_any_other_status_is_an_error_with_its_name() -> None:
    fake = SteppedDriver()
    fake.fail(1, "NOT_PERMITTED")
    with pytest.raises(DriverError, match="cuInit failed: CUDA_ERROR_NOT_PERMITTED") as caught:
        Driver(fake).call("cuInit", 0)
    assert (caught.value.function, caught.value.status) == ("cuInit", "NOT_PERMITTED")
    assert Driver(fake).call("cuInit", 0) is None


@pytest.mark.skipif(find_library("cuda") is not None, reason="here there is a driver")
def test_without_a_driver_it_says_what_is_missing() -> None:
    for opened in (open_driver, lambda: open_device(parse_device("cuda:0"), DeviceSettings())):
        with pytest.raises(InvalidArgument, match=r"no NVIDIA driver .*libcuda.* not with pip"):
            opened()


def test_a_gpu_that_is_not_there_is_refused() -> None:
    fake = SteppedDriver()
    with pytest.raises(InvalidArgument, match="no cuda:1: the driver shows 1 GPU here"):
        CUDADevice(1, driver=Driver(fake))


def test_opening_that_fails_anywhere_leaves_nothing() -> None:
    whole = SteppedDriver()
    device = CUDADevice(driver=Driver(whole), watch=False)
    names = list(whole.calls)
    device.close()
    optional = 0
    for nth, name in enumerate(names, 1):
        if name.endswith(("Destroy", "Unload")):
            continue  # what the driver does not take back, nobody can give
        fake = SteppedDriver()
        fake.fail(nth, "NOT_SUPPORTED")
        try:
            device = CUDADevice(driver=Driver(fake), watch=False)
        except DriverError:
            assert not +fake.alive, (nth, fake.alive)
        else:
            # Without the linker, programs are loaded as they are; without addresses of functions,
            # launches are queued one by one.
            assert (
                name.startswith("cuLink")
                or "no green contexts" in device.partitions.why
                or (name == "cuGetProcAddress" and device.batches is None)
            )
            optional += 1
            fake.fail(0, "")
            device.close()
            assert not +fake.alive, (nth, fake.alive)
    assert optional > 15


def test_waiting_blocks_instead_of_spinning() -> None:
    fake = SteppedDriver()
    CUDADevice(driver=Driver(fake), watch=False).close()
    assert fake.contexts.flags & int(real.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC)


def test_a_semaphore_ends_a_wait_and_takes_all_posts() -> None:
    semaphore = Semaphore()
    assert not semaphore.wait(0)
    semaphore.post()
    semaphore.post()
    assert semaphore.wait(None)
    assert not semaphore.wait(0.001)


def everything(fake: SteppedDriver, descriptor: int) -> None:
    """Use all functions of a device."""
    with device_of(fake) as device:
        arena = device.map_arena(descriptor, ARENA)
        arena.commit(0, 100)
        arena.download(0, 100)
        module = device.load(PROGRAM, (arena.address, ARENA))
        device.occupancy(module.kernel("persistent_a"), (32, 1, 1), 100 << 10)
        module.symbol("table")[:4] = b"abcd"
        assert module.symbol("table").tobytes()[:4] == b"abcd"
        DeviceBlock(device.context, 100).free()
        assert device.uuid
        for what in ("pswe", "pp"):
            job = ResizableRun(device, launches(device, what, total=8))
            job.resize(2)
            fake.run(20)
            device.watcher.poll()
            job.resize(1)
            if what == "pp":
                job.kill()
            drive(fake, device, job)
        again = device.prepare(launches(device, "pp", total=8))
        for _ in range(3):  # then as a graph
            job = ResizableRun(device, again)
            job.resize(2)
            drive(fake, device, job)
        offline, online = (ResizableRun(device, launches(device, "p"), exclusive=n) for n in (0, 1))
        for job in (offline, online):
            job.resize(2)
            fake.run(20)
        offline.clear([3])
        for job in (online, offline):
            drive(fake, device, job)
        arena.release(0, 100)
        arena.close()
        os.close(device.zone.lend(100))


@pytest.mark.skipif(find_library("cuda") is not None, reason="here they would do something")
def test_the_bindings_take_what_the_model_takes(tmp_path: Path) -> None:
    file = tmp_path / "arena"
    file.write_bytes(bytes(ARENA))
    seen: dict[str, tuple[Any, ...]] = {"cuInit": (0,)}
    fake = SteppedDriver(2)
    with file.open("r+b") as opened:
        everything(fake, opened.fileno())
    seen |= fake.seen
    assert called() - set(seen) <= {"cuMemGetInfo"}  # asked when something fails
    for name, arguments in seen.items():
        # They convert every argument, and then find that there is no driver.
        with pytest.raises(RuntimeError, match=r"dlopen|NVIDIA driver"):
            getattr(real, name)(*arguments)
