"""The claim loop of a persistent kernel, run through every interleaving there is.

Problem: docs/explanation/persistent-form.md says that with two claim slots one barrier per task
block is enough, whatever is released or added while the kernel runs. No run of a real kernel could
show that; a small model of the loop can be explored completely.

Model: two launches of one persistent block each, two warps a block (warp 0 leads), a shared
counter. The host lowers the first launch's limit, or not, at any moment, and then starts the second
launch on the same counter, or not. A step is one access to shared state: reading the limit,
claiming, writing a slot, arriving at the barrier, passing it, reading a slot (and running the task
block, or leaving). A depth-first search visits each reachable state once.

Properties: both warps of a block run the same task blocks; each task block below the counter was
run exactly once and no other; if the job was grown, none is left; nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import pytest

LEAVE = 99
# Where a warp is: about to do one of these, not launched yet, or gone.
LOOK, CLAIM, WRITE, ARRIVE, PASS, READ, IDLE, GONE = range(8)


class Warp(NamedTuple):
    """One warp: its place, its claim, the slot to use next, the barrier phase that it waits for."""

    at: int
    claim: int = LEAVE
    slot: int = 0
    phase: int = 0


class State(NamedTuple):
    """Everything that the warps and the host share, and where each of them is."""

    warps: tuple[Warp, ...]  # two of the first launch, two of the second
    ran: tuple[tuple[int, ...], ...]  # by warp 0, by warp 1: how often each task block
    limits: tuple[int, ...] = (1, 0)
    slots: tuple[int, ...] = (0, 0, 0, 0)  # two a block
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
    """The host's two decisions, each of which it may also leave out."""
    if state.host == 0:
        yield state._replace(host=1)
        yield state._replace(host=1, limits=(0, state.limits[1]))
    elif state.host == 1:
        yield state._replace(host=2)
        warps = (*state.warps[:2], Warp(LOOK), Warp(ARRIVE))
        yield state._replace(host=2, limits=(state.limits[0], 1), warps=warps, grown=True)


def warp_step(state: State, who: int, *, slots: int, claim_first: bool) -> State | None:
    """The warp's next step, None if it has to wait or is not there."""
    warp, block, total = state.warps[who], who // 2, len(state.ran[0])
    slot = 2 * block + warp.slot % slots
    if warp.at == LOOK:
        released = state.limits[block] <= 0
        if claim_first and released:  # the planted fault: a claim is taken and then dropped
            state = state._replace(counter=state.counter + 1)
        warp = warp._replace(at=WRITE, claim=LEAVE) if released else warp._replace(at=CLAIM)
    elif warp.at == CLAIM:
        claim = state.counter if state.counter < total else LEAVE
        state = state._replace(counter=state.counter + 1)
        warp = warp._replace(at=WRITE, claim=claim)
    elif warp.at == WRITE:
        state = state._replace(slots=put(state.slots, slot, warp.claim))
        warp = warp._replace(at=ARRIVE)
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
        warp = Warp(GONE if claim == LEAVE else again, LEAVE, 1 - warp.slot, warp.phase)
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


def explore(*, total: int, slots: int, claim_first: bool = False) -> int:
    """Visits every reachable state and returns how many there are."""
    nothing = (0,) * total
    start = State((Warp(LOOK), Warp(ARRIVE), Warp(IDLE), Warp(IDLE)), (nothing, nothing))
    seen, stack = {start}, [start]
    while stack:
        state = stack.pop()
        after = list(host_steps(state))
        for who in range(len(state.warps)):
            moved = warp_step(state, who, slots=slots, claim_first=claim_first)
            if moved is not None:
                after.append(moved)
        if not after:
            check_end(state)
        for new in after:
            if new not in seen:
                seen.add(new)
                stack.append(new)
    return len(seen)


def test_two_slots_and_one_barrier_are_right() -> None:
    assert explore(total=3, slots=2) > 10_000


def test_one_slot_is_a_race() -> None:
    with pytest.raises(ProtocolError):
        explore(total=3, slots=1)


def test_a_claim_that_is_dropped_is_found() -> None:
    with pytest.raises(ProtocolError, match="claimed"):
        explore(total=3, slots=2, claim_first=True)
