"""How many task blocks a block claims at once, chosen from how long they take.

Problem: a claim is a way to memory and back, half a microsecond or more, before each task block.
For one of 100 us that is nothing, for one of 1 us it is much. But what a block holds it runs before
it leaves, so claims of several make releases slower; and at the end of a launch some blocks still
hold task blocks when others find none.

Approach: claims in advance, as many as the aim for releases leaves room for, and no more than keep
the end balanced.

Terms: the *spare* time is what the aim allows after the task block in which a release finds a
block, less what the release itself takes to get there and to be seen.

Algorithm: a release is to take 5 us and 1.1 block times. It takes one block time without anything
held, and `_WAY_NS` on its way; so the spare time is 5 us - `_WAY_NS` + 0.1 block times. As many
task blocks as fit into it may be held: claimed at once, and in advance of the end of those. Each
resident block is to have `_ROUNDS` such claims left, so that the last one is no more than a few
percent of its work.

Properties:
* ``long``: blocks of 3 us and more claim one at a time;
* ``in_time``: what a block may hold takes no longer than the spare time;
* ``balanced``: every resident block has `_ROUNDS` claims or more to go, or claims one at a time;
* what is not known to be short is claimed one at a time.

Source: design, sections 4.1 and 11.3, for the aim. `_WAY_NS` is a guess until it is measured.
"""

from __future__ import annotations

from typing import Final

from gpud.compiler.abi.control_words import ONE_AT_A_TIME, Claims

__all__ = ["choose_claims"]

_AIM_NS: Final = 5_000
_AIM_PART: Final = 0.1
_WAY_NS: Final = 2_500
_ROUNDS: Final = 16
_MOST: Final = 64
"""Of so many, a claim costs each next to nothing."""


def choose_claims(block_ns: float | None, left: int, resident: int) -> Claims:
    """How blocks claim in a launch.

    Args:
        block_ns: what a task block takes in a resident block, the claim included; None: unknown.
        left: task blocks to be claimed.
        resident: the most blocks that there will be to run them.
    """
    if block_ns is None or block_ns <= 0 or resident < 1:
        return ONE_AT_A_TIME
    spare_ns = _AIM_NS - _WAY_NS + _AIM_PART * block_ns
    held = min(int(spare_ns / block_ns), left // (resident * _ROUNDS), _MOST)
    return Claims(held, held) if held else ONE_AT_A_TIME
