"""Estimates how long a stage's task blocks take, from the polls that the run makes anyway.

Problem: how many task blocks a block claims at once depends on how long one takes
(`gpud.device.claim_size`). Nothing on the device measures that, and a driver call to ask would cost
more than it is worth.

Approach: integrate the number of resident blocks of the current stage over time, from poll to poll.
When all task blocks of the stage are done, the integral divided by their number is the time of one,
its claim included. The kernel keeps it, by block shape; the next run of the stage, and sequences
that are prepared later, choose their claims by it.

Properties:
* ``never_short``: the estimate is not shorter than the true time: blocks count until they are
  seen to have left, and an interval between two polls in which the stage changed counts in full for
  both stages. Only blocks that came and went between two polls are missed;
* a stage that began and ended between two polls is not measured;
* polling makes no driver call.
"""

from __future__ import annotations

from gpud.device.cuda.launch.sequence import CUDASequence

__all__ = ["BlockTimer"]

_NONE = -1


class BlockTimer:
    """Times the task blocks of one run's stages."""

    def __init__(self, sequence: CUDASequence) -> None:
        self._sequence = sequence
        self._spent_ns: dict[int, int] = {}
        self._stage = _NONE
        self._at_ns = 0
        self._blocks = 0

    def begin(self, now_ns: int, stage: int, launched: int) -> None:
        """Start timing: ``stage`` was launched at ``now_ns`` or later, on an idle device."""
        self._at_ns, self._stage, self._blocks = now_ns, stage, launched

    def poll(self, now_ns: int, stage: int, blocks: int, launched: int) -> None:
        """Count the interval since the last poll.

        Args:
            now_ns: the time.
            stage: the current stage.
            blocks: how many blocks of its unfinished launches have not left.
            launched: how many blocks these launches have in all.
        """
        if self._stage == _NONE:
            return
        if stage == self._stage:
            self._add(stage, now_ns, max(self._blocks, blocks))
        else:
            self._add(self._stage, now_ns, self._blocks)
            self._record(self._stage)
            self._add(stage, now_ns, launched)
        self._at_ns, self._stage, self._blocks = now_ns, stage, blocks

    def drained(self, now_ns: int, stage: int, *, done: bool) -> None:
        """Stop timing, as nothing is on the device; ``done``: ``stage`` has no task block left."""
        if self._stage == _NONE:
            return
        self._add(self._stage, now_ns, self._blocks)
        if done or stage != self._stage:
            self._record(self._stage)
        self._stage = _NONE

    def _add(self, stage: int, now_ns: int, blocks: int) -> None:
        spent = (now_ns - self._at_ns) * blocks
        self._spent_ns[stage] = self._spent_ns.get(stage, 0) + spent

    def _record(self, number: int) -> None:
        spent_ns = self._spent_ns.pop(number, 0)
        stage = self._sequence.stages[number]
        if spent_ns and stage.form == "persistent":
            stage.kernel.block_ns[stage.block] = spent_ns / stage.total
            self._sequence.tune(number)
