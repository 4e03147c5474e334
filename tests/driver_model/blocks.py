"""The behaviour of blocks in a `SteppedDriver`: rewritten kernels, reduced to what the device sees.

A block is a generator that yields wherever other blocks may run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi import fault_record as fault
from gpud.device.cuda.launch import gate
from gpud.device.cuda.placement import partitioner
from tests.driver_model.modules import Launch

if TYPE_CHECKING:
    from tests.driver_model.stepped_driver import SteppedDriver


class Block:
    """A block that is pending or resident, with its SM once it is resident."""

    def __init__(self, doing: Callable[[Block], Iterator[None]]) -> None:
        self.doing = doing(self)
        self.sm = -1


def blocks_of(device: SteppedDriver, launch: Launch) -> list[Block]:
    """The blocks of a launch, by the kernel's name."""
    name, values = launch.function.name, launch.values()
    gx, gy, gz = launch.grid
    count = gx * gy * gz
    kernel = _Kernel(device, name)
    if name == gate.GATE:
        assert count == 1
        return [Block(lambda _: kernel.gate(*values))]
    if name == partitioner.PROBE:
        return [Block(lambda block: kernel.probe(values[0], block)) for _ in range(count)]
    if name.startswith("persistent"):
        assert (gy, gz) == (1, 1)
        control = values[-1]
        return [
            Block(lambda block, n=n: kernel.persistent(control, n, block, count))  # type: ignore[misc]
            for n in range(count)
        ]
    if name.startswith(("sliced", "whole")):
        what = kernel.sliced
    else:
        return [Block(lambda block, n=n: kernel.plain(n, block)) for n in range(count)]  # type: ignore[misc]
    control = values[-1]
    return [Block(lambda block, n=n: what(control, n, block)) for n in range(count)]  # type: ignore[misc]


class _Kernel:
    """The blocks of one kernel."""

    def __init__(self, device: SteppedDriver, name: str) -> None:
        self._device = device
        self._name = name

    def persistent(self, control: int, index: int, block: Block, count: int) -> Iterator[None]:
        """Claim task blocks until it is told to release, or none is left; one of ``count``."""
        device = self._device
        job = device.u64(control + cw.JOB)
        yield
        status = device.u64(control + cw.STATUS)
        device.put16(
            status + cw.SM + 2 * index, self._device.reported_sms.get(block.sm, block.sm) + 1
        )
        order = control + cw.ORDER_BYTES * (index // cw.BLOCKS_A_PAIR)
        total = device.u32(job + cw.TOTAL)
        while True:
            released = not device.u32(order + cw.STAYS) >> index % cw.BLOCKS_A_PAIR & 1
            named = device.u32(order + cw.NAMED)
            if named:
                released |= bool(device.u32(job + named + block.sm // 32 * 4) >> block.sm % 32 & 1)
            if released:
                break
            claim = device.u32(job + cw.NEXT)
            device.put(job + cw.NEXT, claim + 1)
            if claim >= total:
                break
            yield
            kind = device.faults.get((self._name, claim))
            if kind is not None:
                self._fault(job, kind, claim)
                break
            self._ran(job, claim, block)
            device.put(job + cw.DONE, device.u32(job + cw.DONE) + 1)
            yield
            if device.u32(job + cw.KILL):
                break
        device.put8(status + cw.left_at(count) + index, 1)

    def sliced(self, control: int, index: int, block: Block) -> Iterator[None]:
        """Run one task block."""
        device = self._device
        job, claim = device.u64(control + cw.JOB), device.u32(control + cw.BASE) + index
        yield
        self._begun(control, index)
        kind = device.faults.get((self._name, claim))
        if kind is None:
            self._ran(job, claim, block)
        else:
            self._fault(job, kind, claim)

    def plain(self, index: int, block: Block) -> Iterator[None]:
        """Run, and report nothing."""
        yield
        self._ran(0, index, block)

    def gate(self, job: int, previous: int, run: int, number: int) -> Iterator[None]:
        """Open a launch, as `gpud.device.cuda.launch.gate` does."""
        device = self._device
        yield
        if device.u32(run + 4 * gate.STOP):
            return
        if previous:
            done = device.u32(previous + cw.DONE) == device.u32(previous + cw.TOTAL)
            if not done or device.u32(run + 4 * gate.HELPED) == number:
                return
        device.put(job + cw.NEXT, 0)
        yield
        device.put(run + 4 * gate.CURRENT, number)

    def probe(self, words: int, block: Block) -> Iterator[None]:
        """Record its SM."""
        yield
        number = min(self._device.reported_sms.get(block.sm, block.sm), cw.MOST_SMS)
        self._device.put(words + 64 + 4 * number, 1)

    def _begun(self, control: int, index: int) -> None:
        if index == 0:
            self._device.put(self._device.u64(control + cw.STATUS) + cw.BEGUN, 1)

    def _fault(self, job: int, kind: fault.FaultKind, claim: int) -> None:
        device = self._device
        device.put(job + cw.NEXT, max(device.u32(job + cw.NEXT), device.u32(job + cw.TOTAL)))
        if device.u32(job + fault.STATE) == fault.NO_FAULT:
            device.put(job + fault.KIND, kind)
            device.put(job + fault.SITE, 7)
            device.put(job + fault.CLAIM, claim)
            device.put(job + fault.ADDRESS, 0xDEAD00)
            device.put(job + fault.STATE, fault.COMPLETE)

    def _ran(self, job: int, claim: int, block: Block) -> None:
        self._device.ran.append((self._name, job, claim))
        self._device.where.append(block.sm)
