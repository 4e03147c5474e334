"""The claim loop of a persistent kernel, run through every interleaving there is.

Problem: docs/explanation/persistent-form.md says that with two claim slots one barrier per task
block is enough, whatever is released or added while the kernel runs. No run of a real kernel could
show that; a small model of the loop can be explored completely.

Model: two launches of one persistent block each, two warps a block (warp 0 leads), a shared
counter. The host tells the first launch's block to release, or not, at any moment, and then starts
the second launch on the same counter, or not. A step is one access to shared state: reading the
bit that says whether the block stays, claiming, writing a slot, arriving at the barrier, passing
it, reading a slot (and running the task block, or leaving). What only a leader reads and writes,
the last task block that its block holds and its claim in advance, is its own. A depth-first search
visits each reachable state once.

Properties: both warps of a block run the same task blocks; each task block below the counter was
run exactly once and no other; if the job was grown, none is left; nobody waits for ever. That with
claims of one task block, of several, and in advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import pytest

LEAVE = 99
NONE = -1
# Where a warp is: about to do one of these, not launched yet, or gone. `AGAIN` and `ADVANCE`: look
# at the bit before a claim in advance, and claim.
LOOK, CLAIM, WRITE, AGAIN, ADVANCE, ARRIVE, PASS, READ, IDLE, GONE = range(10)


class Warp(NamedTuple):
    """One warp: its place, its claim, the slot to use next, the barrier phase that it waits for.

    A leader also has the last task block that its block holds, and what it claimed in advance, or
    `NONE`.
    """

    at: int
    claim: int = LEAVE
    slot: int = 0
    phase: int = 0
    last: int = NONE
    ahead: int = NONE


class State(NamedTuple):
    """Everything that the warps and the host share, and where each of them is."""

    warps: tuple[Warp, ...]  # two of the first launch, two of the second
    ran: tuple[tuple[int, ...], ...]  # by warp 0, by warp 1: how often each task block
    stays: tuple[bool, ...] = (True, False)  # a bit for each block
    slots: tuple[int, ...] = (LEAVE,) * 4  # two a block
    arrived: tuple[int, ...] = (0, 0)
    phases: tuple[int, ...] = (0, 0)
    counter: int = 0
    host: int = 0
    grown: bool = False


T = TypeVar("T")


def put(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])


class ProtocolError(AssertionError):
    """A property does not hold in some interleaving."""


def host_steps(state: State) -> Iterator[State]:
    """The host's decisions, each of which it may also leave out."""
    if state.host == 0:
        yield state._replace(host=1)
        yield state._replace(host=1, stays=(False, state.stays[1]))
    elif state.host == 1:
        yield state._replace(host=2)
        warps = (*state.warps[:2], Warp(LOOK), Warp(ARRIVE))
        yield state._replace(host=2, stays=(state.stays[0], True), warps=warps, grown=True)


class Rules(NamedTuple):
    """How the loop is: as it is by default, or with a fault."""

    slots: int = 2
    chunk: int = 1
    ahead: int = 0
    claim_first: bool = False
    """A claim is taken and then dropped if the block is released."""
    drop_held: bool = False
    """A block that is released leaves with what it holds."""


def hold(warp: Warp, first: int, count: int, total: int) -> Warp:
    """The leader with a claim of ``count`` task blocks, to be published."""
    last = min(first + count, total) - 1
    return warp._replace(at=WRITE, claim=first if first < total else LEAVE, last=last, ahead=NONE)


def look(state: State, warp: Warp, block: int, rules: Rules) -> tuple[State, Warp]:
    """The leader finds what its block holds, or whether it may claim."""
    released = not state.stays[block]
    if not (rules.drop_held and released):
        if warp.ahead != NONE:
            return state, hold(warp, warp.ahead, rules.ahead, len(state.ran[0]))
        previous = state.slots[2 * block + (warp.slot + 1) % 2]
        if previous < warp.last:
            return state, warp._replace(at=WRITE, claim=previous + 1)
    if rules.claim_first and released:
        state = state._replace(counter=state.counter + 1)
    return state, (
        warp._replace(at=WRITE, claim=LEAVE, last=NONE) if released else warp._replace(at=CLAIM)
    )


def warp_step(state: State, who: int, rules: Rules) -> State | None:
    """The warp's next step, None if it has to wait or is not there."""
    warp, block, total = state.warps[who], who // 2, len(state.ran[0])
    slot = 2 * block + warp.slot % rules.slots
    if warp.at == LOOK:
        state, warp = look(state, warp, block, rules)
    elif warp.at == CLAIM:
        warp = hold(warp, state.counter, rules.chunk, total)
        state = state._replace(counter=state.counter + rules.chunk)
    elif warp.at == WRITE:
        state = state._replace(slots=put(state.slots, slot, warp.claim))
        wants = rules.ahead > 0 and warp.claim == warp.last
        warp = warp._replace(at=AGAIN if wants else ARRIVE)
    elif warp.at == AGAIN:
        warp = warp._replace(at=ADVANCE if state.stays[block] else ARRIVE)
    elif warp.at == ADVANCE:
        warp = warp._replace(at=ARRIVE, ahead=state.counter)
        state = state._replace(counter=state.counter + rules.ahead)
    elif warp.at == ARRIVE:
        waiting = state.arrived[block] + 1
        if waiting == 2:
            phases = put(state.phases, block, 1 - state.phases[block])
            state = state._replace(phases=phases, arrived=put(state.arrived, block, 0))
        else:
            state = state._replace(arrived=put(state.arrived, block, waiting))
        warp = warp._replace(at=PASS)
    elif warp.at == PASS and state.phases[block] != warp.phase:
        warp = warp._replace(at=READ, phase=1 - warp.phase)
    elif warp.at == READ:
        claim = state.slots[slot]
        leads = who % 2 == 0
        again = LOOK if leads else ARRIVE
        at = GONE if claim == LEAVE else again
        warp = warp._replace(at=at, claim=LEAVE, slot=1 - warp.slot)
        if claim != LEAVE:
            ran = state.ran[who % 2]
            if ran[claim]:
                raise ProtocolError(f"task block {claim} is run twice")
            state = state._replace(ran=put(state.ran, who % 2, put(ran, claim, 1)))
    else:
        return None
    return state._replace(warps=put(state.warps, who, warp))


def check_end(state: State) -> None:
    """What must hold once nobody can take a step."""
    if any(warp.at not in {GONE, IDLE} for warp in state.warps):
        raise ProtocolError("a warp waits for ever")
    expected = tuple(int(number < state.counter) for number in range(len(state.ran[0])))
    if state.ran != (expected, expected):
        raise ProtocolError(f"claimed {expected}, run {state.ran}")
    if state.grown and not all(expected):
        raise ProtocolError("task blocks are left although somebody was there to run them")


def explore(total: int, rules: Rules) -> int:
    """Visits every reachable state and returns how many there are."""
    nothing = (0,) * total
    warps = (Warp(LOOK), Warp(ARRIVE), Warp(IDLE), Warp(IDLE))
    start = State(warps, (nothing, nothing))
    seen, stack = {start}, [start]
    while stack:
        state = stack.pop()
        after = list(host_steps(state))
        for who in range(len(state.warps)):
            moved = warp_step(state, who, rules)
            if moved is not None:
                after.append(moved)
        if not after:
            check_end(state)
        for new in after:
            if new not in seen:
                seen.add(new)
                stack.append(new)
    return len(seen)


@pytest.mark.parametrize(("chunk", "ahead"), [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1)])
def test_two_slots_and_one_barrier_are_right(chunk: int, ahead: int) -> None:
    assert explore(3, Rules(chunk=chunk, ahead=ahead)) > 5_000


@pytest.mark.parametrize(("chunk", "ahead"), [(1, 0), (1, 1)])
def test_one_slot_is_a_race(chunk: int, ahead: int) -> None:
    with pytest.raises(ProtocolError):
        explore(3, Rules(slots=1, chunk=chunk, ahead=ahead))


def test_a_claim_that_is_dropped_is_found() -> None:
    with pytest.raises(ProtocolError, match="claimed"):
        explore(3, Rules(claim_first=True))


@pytest.mark.parametrize(("chunk", "ahead"), [(2, 0), (1, 1)])
def test_a_block_that_leaves_with_what_it_holds_is_found(chunk: int, ahead: int) -> None:
    with pytest.raises(ProtocolError, match="claimed"):
        explore(3, Rules(chunk=chunk, ahead=ahead, drop_held=True))
