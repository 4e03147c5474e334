"""How long task blocks take, from what the gang sees of its launches anyway.

Problem: how blocks claim depends on how long a task block takes (`gpud.device.claim_size`). Nothing
on the device measures that, and a call to the driver to ask would cost more than it is worth.

Approach: add up, from look to look, the time that the resident blocks of the current stage had.
When all of its task blocks are done, that by their number is the time of one, with its claim. It is
kept with the kernel, by block shape; the next run of the stage, and chains that are made later,
claim by it.

Properties:
* ``never_short``: a task block is not taken to be shorter than it is: blocks count until they are
  seen to have left, and a span between two looks in which the stage changed counts wholly for both
  stages that were seen. Only blocks that came and went between two looks are missed;
* a stage that began and ended between two looks is not measured;
* looking calls no driver.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

from gpud.device.cuda.launch.chain import Chain

__all__ = ["BlockTimer"]

_NONE = -1


class BlockTimer:
    """The block times of one run's stages."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._spent_ns: dict[int, int] = {}
        self._stage = _NONE
        self._at_ns = 0
        self._blocks = 0

    def begin(self, now_ns: int, stage: int, launched: int) -> None:
        """At ``now_ns`` nothing was on the device, and since then blocks of ``stage`` may be."""
        self._at_ns, self._stage, self._blocks = now_ns, stage, launched

    def poll(self, now_ns: int, stage: int, blocks: int, launched: int) -> None:
        """``stage`` is the current one.

        Args:
            now_ns: the time.
            stage: which.
            blocks: of those that were launched for it and are not over, those that have not left.
            launched: all of those.
        """
        if self._stage == _NONE:
            return
        if stage == self._stage:
            self._add(stage, now_ns, max(self._blocks, blocks))
        else:
            self._add(self._stage, now_ns, self._blocks)
            self._keep(self._stage)
            self._add(stage, now_ns, launched)
        self._at_ns, self._stage, self._blocks = now_ns, stage, blocks

    def drained(self, now_ns: int, stage: int, *, done: bool) -> None:
        """Nothing is on the device any more; ``done``: ``stage`` has no task block left."""
        if self._stage == _NONE:
            return
        self._add(self._stage, now_ns, self._blocks)
        if done or stage != self._stage:
            self._keep(self._stage)
        self._stage = _NONE

    def _add(self, stage: int, now_ns: int, blocks: int) -> None:
        spent = (now_ns - self._at_ns) * blocks
        self._spent_ns[stage] = self._spent_ns.get(stage, 0) + spent

    def _keep(self, number: int) -> None:
        spent_ns = self._spent_ns.pop(number, 0)
        stage = self._chain.stages[number]
        if spent_ns and stage.form == "persistent":
            stage.kernel.block_ns[stage.block] = spent_ns / stage.total
            self._chain.tune(number)
