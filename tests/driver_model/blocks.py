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
from gpud.device.cuda.program.by_value import (
    JOB_AT,
    LOOK_LIMIT,
    NEWS,
    NUMBER,
    RETURNED,
    RUN,
    SAID,
    VALUE_BYTES,
)
from gpud.device.cuda.program.fold_gate import UNDECIDED
from gpud.device.cuda.program.forward_news import HASH, NEVER
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
        structure = values[-2].to_bytes(VALUE_BYTES, "little")
        news, stack = _News(device, structure), _Stack(device, structure)
        return [
            Block(lambda block, n=n: kernel.persistent(control, n, block, count, news, stack))  # type: ignore[misc]
            for n in range(count)
        ]
    if name.startswith(("sliced", "whole")):
        what = kernel.sliced
    else:
        return [Block(lambda block, n=n: kernel.plain(n, block)) for n in range(count)]  # type: ignore[misc]
    control = values[-1]
    return [Block(lambda block, n=n: what(control, n, block)) for n in range(count)]  # type: ignore[misc]


class _News:
    """What a launch knows of news: `gpud.device.cuda.program.forward_news`, with its steps apart.

    Attributes:
        used: whether blocks read their orders only at news; else there always is some.
    """

    def __init__(self, device: SteppedDriver, structure: bytes) -> None:
        self._device = device
        self.used = device.reads_news
        self._limit, self._said, self._seen = (
            int.from_bytes(structure[at : at + size], "little")
            for at, size in ((LOOK_LIMIT, 4), (SAID, 8), (NEWS, 8))
        )
        self._read = 0
        self._run = int.from_bytes(structure[RUN : RUN + 8], "little")
        self._number = int.from_bytes(structure[NUMBER : NUMBER + 4], "little")

    def opens(self, job: int) -> Iterator[None]:
        """Open the launch or close it, if nobody has: `gpud.device.cuda.program.fold_gate`."""
        device, run = self._device, self._run
        if not run or device.u32(job + cw.NEXT) != UNDECIDED:
            return
        yield
        previous = job - cw.JOB_BYTES
        opens = device.u32(previous + cw.DONE) == device.u32(previous + cw.TOTAL)
        yield
        opens = opens and not device.u32(run + 4 * gate.STOP)
        opens = opens and device.u32(run + 4 * gate.HELPED) != self._number
        yield
        if device.u32(job + cw.NEXT) == UNDECIDED:
            device.put(job + cw.NEXT, 0 if opens else device.u32(job + cw.TOTAL))
            yield
            if opens:
                device.put(run + 4 * gate.CURRENT, self._number)

    def look(self, claim: int) -> Iterator[None]:
        """Forward the number of changes, if it is the turn of the block that ran ``claim``."""
        if self.used and claim * HASH % 2**32 <= self._limit:
            said = self._device.u32(self._said)
            yield
            self._device.put(self._seen, max(said, self._device.u32(self._seen)))

    @property
    def seen(self) -> int:
        """The news now."""
        if self.used:
            return self._device.u32(self._seen)
        self._read += 1
        return self._read % NEVER


_SEALED = 0xFFFFFFFF


class _Stack:
    """Claims of one task block in advance, and the stack to which released blocks return them.

    As `gpud.device.cuda.program.give_back`, in one step each: their own steps are those of
    ``tests/unit/test_claim_protocol.py``.

    Attributes:
        used: whether there is one, and blocks claim in advance.
    """

    def __init__(self, device: SteppedDriver, structure: bytes) -> None:
        self._device = device
        self._at = int.from_bytes(structure[RETURNED : RETURNED + 8], "little")
        ahead = int.from_bytes(structure[JOB_AT + cw.AHEAD : JOB_AT + cw.AHEAD + 4], "little")
        assert ahead in (0, 1) or not self._at, "the model claims one in advance"
        self.used = bool(self._at and ahead)

    def push(self, claim: int) -> bool:
        """Return a claim; False: the block has to run it."""
        device, at = self._device, self._at
        top, used, capacity, nodes = (device.u32(at + 4 * n) for n in range(4))
        device.put(at + 4, used + 1)
        if used >= capacity or top == _SEALED:
            return False
        node = nodes + used
        for n, word in enumerate((claim, 1, top)):
            device.put(at + 16 * node + 4 * n, word)
        device.put(at, node)
        return True

    def pop(self) -> int | None:
        """Take a claim, or seal the empty stack."""
        device, at = self._device, self._at
        top = device.u32(at)
        if top in (0, _SEALED):
            device.put(at, _SEALED)
            return None
        device.put(at, device.u32(at + 16 * top + 8))
        return device.u32(at + 16 * top)


class _Kernel:
    """The blocks of one kernel."""

    def __init__(self, device: SteppedDriver, name: str) -> None:
        self._device = device
        self._name = name

    def persistent(
        self, control: int, index: int, block: Block, count: int, news: _News, stack: _Stack
    ) -> Iterator[None]:
        """Claim task blocks until it is told to release, or none is left; one of ``count``."""
        device = self._device
        job = device.u64(control + cw.JOB)
        yield
        status = device.u64(control + cw.STATUS)
        device.put16(
            status + cw.SM + 2 * index, self._device.reported_sms.get(block.sm, block.sm) + 1
        )
        order = control + cw.ORDER_BYTES * (index // cw.BLOCKS_A_PAIR)
        yield from news.opens(job)
        claim, known = cw.NOTHING, NEVER
        total = device.u32(job + cw.TOTAL)
        advance: int | None = None
        while True:
            yield from news.look(claim)
            seen = news.seen
            if seen != known:
                if news.used:
                    yield
                released = not device.u32(order + cw.STAYS) >> index % cw.BLOCKS_A_PAIR & 1
                released |= bool(device.u32(status + cw.HALT))
                named = device.u32(order + cw.NAMED)
                if not named:
                    known = cw.NOTHING if released else seen
                else:
                    released |= bool(
                        device.u32(job + named + block.sm // 32 * 4) >> block.sm % 32 & 1
                    )
                if released and (advance is None or advance >= total or stack.push(advance)):
                    break
            if advance is None:
                claim = device.u32(job + cw.NEXT)
                device.put(job + cw.NEXT, claim + 1)
            else:
                claim, advance = advance, None
            if claim >= total:
                returned = stack.pop() if stack.used else None
                if returned is None:
                    break
                claim = returned
            if stack.used:
                advance = device.u32(job + cw.NEXT)
                device.put(job + cw.NEXT, advance + 1)
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
