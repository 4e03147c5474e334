"""Decides which movable regions go to host memory, and which come back.

Approach: a region comes back when its workload waits and is the next with a movable region to have
a turn, while another one has the turn. Those whose turn is farthest make room for it: never the one
that has the turn, and never one whose turn comes sooner. Others that wait come back only into room
that is free. One region leaves and one comes back at a time, as a link has two directions. A window
that is to be smaller has the regions that lie behind its end leave.

The turn is held until the next region is there, unless that needs the room of the one that has the
turn (`holds`): a turn that ends before would leave the device idle.

Properties:
    pinned: the region of the workload that has the turn does not leave;
    lazy: nothing moves unless a workload waits whose region is away;
    alive: if the turn is free or held, and the next workload waits for its region, one is moving.
"""

from __future__ import annotations

from typing import NamedTuple

from gpud.core.workloads.turns import Phase, Turns
from gpud.core.workloads.window import Place, Window

__all__ = ["Plan", "holds", "plan"]


class Plan(NamedTuple):
    """What is to move now.

    Attributes:
        leaves: the workload whose region goes to host memory; None: none.
        returns: the workload whose region comes back, and to which position in the window.
    """

    leaves: int | None = None
    returns: tuple[int, int] | None = None


def plan(window: Window, turns: Turns, limit: int) -> Plan:
    """Return what is to move now.

    Args:
        window: of the device.
        turns: of the device.
        limit: the end of the window, or the one that it is to have.
    """
    waiting = [one for one in _upcoming(turns) if one in turns.waiting and one in window]
    pinned = _pinned(turns)
    leaving, returning = window.at(Place.LEAVING), window.at(Place.RETURNING)
    returns = None
    for one in () if returning else waiting:
        if window[one].place is Place.AWAY:
            start = window.find(window[one].total, limit, beside=pinned)
            if start is not None:
                returns = one, start
            break
    leaves = None if leaving or returns is not None else _victim(window, turns, limit)
    return Plan(leaves, returns)


def holds(window: Window, turns: Turns, limit: int) -> bool:
    """Return whether the turn is to go on until the next region has come back; as for `plan`."""
    following = turns.following()
    if following is None or following not in window or window[following].place is Place.HERE:
        return False
    if window[following].place is Place.RETURNING:
        return True
    pinned = _pinned(turns)
    others = [one for one in window if one != pinned]
    return window.find(window[following].total, limit, without=others) is not None


def _victim(window: Window, turns: Turns, limit: int) -> int | None:
    upcoming = [one for one in _upcoming(turns) if one in window]
    pinned = _pinned(turns)
    following = next((one for one in upcoming if one in turns.waiting and one != pinned), None)
    farthest = [
        one
        for one in reversed(upcoming)
        if one not in (pinned, following) and window[one].place is Place.HERE
    ]
    for one in farthest:
        start = window[one].start
        assert start is not None
        if start + window[one].total > limit:
            return one
    if following is None or window[following].place is not Place.AWAY:
        return None
    size = window[following].total
    if window.find(size, limit, without=window.at(Place.LEAVING)) is not None:
        return None
    for count in range(1, len(farthest) + 1):
        if window.find(size, limit, without=farthest[:count]) is not None:
            return farthest[0]
    return None


def _pinned(turns: Turns) -> int | None:
    """Return the workload whose region has to stay."""
    return turns.holder if turns.phase in (Phase.ITERATING, Phase.BETWEEN) else None


def _upcoming(turns: Turns) -> list[int]:
    """Return all workloads by their next turns: who has it, who wait, the others."""
    pinned = _pinned(turns)
    last = turns.holder if pinned is None else None  # its turn is over: it comes after all others
    rest = [one for one in turns.order if one not in (pinned, last)]
    order = [*rest, *(() if last is None else (last,))]
    waiting = [one for one in order if one in turns.waiting]
    idle = [one for one in order if one not in turns.waiting]
    return [*(() if pinned is None else (pinned,)), *waiting, *idle]
