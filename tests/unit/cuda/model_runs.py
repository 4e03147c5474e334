"""Helpers for runs on the model of the driver: a program, devices, and stepping time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.interface import LaunchSpec
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun

_HIDDEN = "(.param .u64 x, .param .u64 gpud_loop_control)"
_LOOP = ".reg .b32 %gpud_loop_ahead; .shared .align 16 .b8 gpud_loop_slots[16];"
PROGRAM = f"""
.version 8.0
.target sm_75
.address_size 64
.global .align 8 .b8 table[16];
.const .align 8 .b8 gpud_arena[16];
.visible .entry persistent_a{_HIDDEN} {{ {_LOOP} ret; }}
.visible .entry persistent_b{_HIDDEN} {{ {_LOOP} ret; }}
.visible .entry sliced_c{_HIDDEN} {{ ret; }}
.visible .entry whole_d{_HIDDEN} {{ ret; }}
.visible .entry plain_e(.param .u64 x) {{ ret; }}
"""

_FORMS = {"p": "persistent", "s": "sliced", "w": "whole", "e": "unmodified"}
_KERNELS = {"p": "persistent_a", "s": "sliced_c", "w": "whole_d", "e": "plain_e"}


@contextmanager
def device_of(
    fake: SteppedDriver, *, by_sm: bool = True, graphs: bool = True
) -> Iterator[CUDADevice]:
    """A device on the model, without a watcher thread; checks that it is closed without leaks.

    A lost device is not closed, as in a device host.
    """
    device = CUDADevice(driver=Driver(fake), by_sm=by_sm, graphs=graphs, watch=False)
    yield device
    fake.fail(0, "")
    device.close()
    assert not +fake.alive, fake.alive


def launches(device: CUDADevice, what: str, total: int = 10) -> list[LaunchSpec]:
    """One launch of ``total`` task blocks for each letter: p, s, w, e."""
    module = device.load(PROGRAM)
    return [
        LaunchSpec(module.kernel(_KERNELS[letter]), form, (total, 1, 1), (32, 1, 1), bytes(8))  # type: ignore[arg-type]
        for letter, form in ((letter, _FORMS[letter]) for letter in what)
    ]


def drive(
    fake: SteppedDriver, device: CUDADevice, job: ResizableRun | None = None, rounds: int = 4000
) -> None:
    """Step time until the job is done, or nothing happens any more."""
    for _ in range(rounds):
        if job is not None and job.done:
            return
        stepped = fake.step()
        device.watcher.poll()
        if not stepped and (job is None or job.slices == 0):
            return
    assert job is None or job.done, (job.progress, job.slices, job.held, fake.calls[-20:])


def ran_once(fake: SteppedDriver, totals: list[int]) -> None:
    """Assert that every task block of every launch ran once, launch after launch."""
    claims = [claim for _, _, claim in fake.ran]
    at = 0
    for total in totals:
        part = claims[at : at + total]
        assert sorted(part) == list(range(total)), (part, claims)
        at += total
    assert at == len(claims)
