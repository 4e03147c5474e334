"""Chooses how many task blocks a persistent block claims at once, from how long they take.

Problem: a claim is a round trip to memory, half a microsecond or more, before each task block. For
a task block of 100 us that is nothing, for one of 1 us it is much. But a persistent block runs all
it has claimed before it leaves, so larger claims delay releases; and at the end of a launch some
blocks still hold task blocks when others find none.

Approach: claim several task blocks in advance, as many as the target release time allows, and no
more than keep the end of the launch balanced.

Terms: the *spare* time is what the target release time allows beyond the task block that runs when
the release is requested, less the delay until the persistent block sees the request.

Algorithm: the target release time is 5 us and 1.1 block times. With nothing claimed in advance a
release takes one block time, and `_SIGNAL_NS` until the block sees it; so the spare time is
5 us - `_SIGNAL_NS` + 0.1 block times. As many task blocks as fit into it are claimed at once, and
as many are prefetched before the last of those ends. Each resident block is to have `_ROUNDS` such
claims left, so that the last one is no more than a few percent of its work.

Properties:
* ``long``: task blocks of 3 us and more are claimed one at a time;
* ``in_time``: what a block may have claimed in advance takes no longer than the spare time;
* ``balanced``: every resident block has `_ROUNDS` claims or more to go, or claims one at a time;
* task blocks of unknown duration are claimed one at a time.

`_SIGNAL_NS` is a guess until it is measured.
"""

from __future__ import annotations

from typing import Final

from gpud.compiler.abi.control_words import ONE_AT_A_TIME, Claims

__all__ = ["choose_claims"]

_TARGET_NS: Final = 5_000
_TARGET_PART: Final = 0.1
_SIGNAL_NS: Final = 2_500
_ROUNDS: Final = 16
_MOST: Final = 64
"""Most task blocks of a claim: shared among so many, its cost is negligible."""


def choose_claims(block_ns: float | None, left: int, resident: int) -> Claims:
    """Choose how the persistent blocks of a launch claim task blocks.

    Args:
        block_ns: how long a persistent block takes for a task block, the claim included; None:
            unknown.
        left: task blocks that are not claimed yet.
        resident: the most persistent blocks that will run them.
    """
    if block_ns is None or block_ns <= 0 or resident < 1:
        return ONE_AT_A_TIME
    spare_ns = _TARGET_NS - _SIGNAL_NS + _TARGET_PART * block_ns
    held = min(int(spare_ns / block_ns), left // (resident * _ROUNDS), _MOST)
    return Claims(held, held) if held else ONE_AT_A_TIME
