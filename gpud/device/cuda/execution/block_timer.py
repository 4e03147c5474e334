"""Estimates how long a launch's task blocks take, from the polls that the run makes anyway.

Problem: how many task blocks a block claims at once depends on how long one takes
(`gpud.device.claim_size`). Nothing on the device measures that, and a driver call to ask would cost
more than it is worth.

Approach: integrate the number of resident blocks of the current launch over time, from poll to
poll. When all its task blocks are done, the integral divided by their number is the time of one,
its claim included. The kernel keeps it, by block shape; the next run of the launch, and sequences
that are prepared later, choose their claims by it.

Properties:
* ``never_short``: the estimate is not shorter than the true time: blocks count until they are
  seen to have left, and an interval between two polls in which the current launch changed counts in
  full for both launches. Only blocks that came and went between two polls are missed;
* a launch that began and ended between two polls is not measured;
* polling makes no driver call.
"""

from __future__ import annotations

from gpud.device.cuda.launch.sequence import CUDASequence

__all__ = ["BlockTimer"]

_NONE = -1


class BlockTimer:
    """Times the task blocks of one run's launches."""

    def __init__(self, sequence: CUDASequence) -> None:
        self._sequence = sequence
        self._spent_ns: dict[int, int] = {}
        self._number = _NONE
        self._at_ns = 0
        self._blocks = 0

    def begin(self, now_ns: int, number: int, launched: int) -> None:
        """Start timing: launch ``number`` began at ``now_ns`` or later, on an idle device."""
        self._at_ns, self._number, self._blocks = now_ns, number, launched

    def poll(self, now_ns: int, number: int, blocks: int, launched: int) -> None:
        """Count the interval since the last poll.

        Args:
            now_ns: the time.
            number: of the current launch.
            blocks: how many blocks of its unfinished launches have not left.
            launched: how many blocks these launches have in all.
        """
        if self._number == _NONE:
            return
        if number == self._number:
            self._add(number, now_ns, max(self._blocks, blocks))
        else:
            self._add(self._number, now_ns, self._blocks)
            self._record(self._number)
            self._add(number, now_ns, launched)
        self._at_ns, self._number, self._blocks = now_ns, number, blocks

    def drained(self, now_ns: int, number: int, *, done: bool) -> None:
        """Stop timing, as nothing is on the device; ``done``: the launch has none left."""
        if self._number == _NONE:
            return
        self._add(self._number, now_ns, self._blocks)
        if done or number != self._number:
            self._record(self._number)
        self._number = _NONE

    def _add(self, number: int, now_ns: int, blocks: int) -> None:
        spent = (now_ns - self._at_ns) * blocks
        self._spent_ns[number] = self._spent_ns.get(number, 0) + spent

    def _record(self, number: int) -> None:
        spent_ns = self._spent_ns.pop(number, 0)
        prepared = self._sequence.prepared[number]
        if spent_ns and prepared.form == "persistent":
            prepared.kernel.block_ns[prepared.block] = spent_ns / prepared.total
            self._sequence.tune(number)
