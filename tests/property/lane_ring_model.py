"""A model of who sleeps and who wakes at a lane's ring, and a search of all its interleavings.

Modelled are one client thread, the threads of two virtual SMs, and the words on which they meet:
`gpud.wire.lane_ring`, `gpud_client.launch.lane_completions` and
`gpud.device.cpu.sm.lane_launches`. Each step is one access to memory that another thread uses, or
one system call. The order of accesses is that of the program: where a store must not be overtaken
by a later load, both sides have a full barrier.

The search visits every reachable state. It fails where ``completed`` runs backwards, and where
nobody can go on though launches are left: a wake-up was lost. Two earlier versions of the protocol,
which had these faults, and one of its client, are kept as planted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

NONE = -1
RUNNING, ASLEEP = 0, 1


class Fault(Exception):
    """A state that must never be reached."""


class Model(NamedTuple):
    """What is searched.

    Attributes:
        launches: how many the client writes.
        total: task blocks of each.
        ahead: launches that the client writes before it waits for the first of them.
        clears: the device sets a word ``waiting`` back when it wakes the client (a fault).
        looks_twice: the client takes a launch that ends after its look for one about which a
            message is on its way (a fault).
        reports_late: a launch is over for the other SM before it is reported (a fault).
    """

    launches: int = 2
    total: int = 1
    ahead: int = 1
    clears: bool = False
    looks_twice: bool = False
    reports_late: bool = False


State = dict[str, Any]
SMS = (0, 1)


def search(model: Model) -> int:
    """Visit every state; return how many there are.

    Raises:
        Fault: the model has one.
    """
    first: State = {
        "head": 0, "completed": 0, "wanted": 0, "waiting": 0, "listening": 0,  # in the ring
        "tail": 0, "current": NONE, "pulling": 0, "next": 0, "done": 0, "woken": 0,
        "bell0": 0, "bell1": 0,
        "c": "write", "c_on": RUNNING, "c_at": 0, "c_now": 0,
        **{f"{name}{sm}": value for sm in SMS for name, value in (
            ("s", "look"), ("on", RUNNING), ("mine", NONE), ("old", 0), ("seen", 0), ("counts", 0),
        )},
    }  # fmt: skip
    keys = tuple(first)
    start = tuple(first.values())
    seen = {start: None}
    frontier = [start]
    while frontier:
        values = frontier.pop()
        state = dict(zip(keys, values, strict=True))
        stuck = True
        for who in ("c", *SMS):
            for following in _steps(model, state, who):
                stuck = False
                after = tuple(following[key] for key in keys)
                if after not in seen:
                    seen[after] = None
                    frontier.append(after)
        if stuck and state["c"] != "over":
            raise Fault(f"a wake-up was lost: {state}")
    return len(seen)


def _steps(model: Model, state: State, who: str | int) -> Iterator[State]:
    after = dict(state)
    moved = _client(model, after) if who == "c" else _sm(model, after, int(who))
    if moved:
        yield after


def _client(model: Model, s: State) -> bool:
    """Do the client's next step; returns whether there was one."""
    at = s["c"]
    if s["c_on"] is ASLEEP or at == "over":
        return False
    if at == "write":
        s["head"] += 1
        s["c"] = "ring"
    elif at == "ring":
        if s["listening"]:
            asleep = [sm for sm in SMS if s[f"on{sm}"] is ASLEEP and s[f"counts{sm}"]]
            if asleep:
                s[f"on{asleep[0]}"] = RUNNING
        more = s["head"] < model.launches and s["head"] - s["c_at"] < model.ahead
        s["c"] = "write" if more else "look"
    elif at == "look":
        if s["completed"] > s["c_at"]:
            s["c_at"] += 1
            s["c"] = "write" if s["head"] < model.launches else "look"
            if s["c_at"] == model.launches:
                s["c"] = "over"
        else:
            s["c"] = "twice" if model.looks_twice else "want"
    elif at == "twice":
        if s["completed"] > s["c_at"]:
            s["c_on"] = ASLEEP  # and nobody sends a message
        s["c"] = "want"
    elif at == "want":
        s["wanted"] = s["c_at"] + 1
        s["c"] = "wait" if model.clears else "again"
    elif at == "wait":
        s["waiting"] = 1
        s["c"] = "again"
    elif at == "again":
        s["c_now"] = s["completed"]
        s["c"] = "look" if s["c_now"] > s["c_at"] else "sleep"
    elif at == "sleep":  # one step: the kernel compares the word under a lock
        if s["completed"] == s["c_now"]:
            s["c_on"] = ASLEEP
        s["c"] = "look"
    return True


def _sm(model: Model, s: State, sm: int) -> bool:
    """Do the next step of an SM's thread; returns whether there was one."""
    at = s[f"s{sm}"]
    if s[f"on{sm}"] is ASLEEP:
        return False

    def go(to: str) -> bool:
        s[f"s{sm}"] = to
        return True

    if at == "look":
        return go("pull" if s["current"] == NONE else "enter")
    if at == "pull":
        if s["pulling"]:
            return go("listen")
        s["pulling"] = 1
        return go("check")
    if at == "check":
        if s["current"] == NONE and s["head"] != s["tail"]:
            return go("accept")
        s["pulling"] = 0
        return go("look" if s["current"] != NONE else "listen")
    if at == "accept":
        s["next"] = s["done"] = 0
        s["current"] = s["tail"]
        s["tail"] += 1
        s["pulling"] = 0
        if model.total > 1:
            _ring_bell(s, 1 - sm)
        return go("look")
    if at == "enter":
        if s["current"] == NONE:
            return go("look")
        if s["next"] >= model.total:
            return go("listen")
        s["next"] += 1
        s[f"mine{sm}"] = s["current"]
        return go("run")
    if at == "run":
        s["done"] += 1
        return go("elect")
    return _end(model, s, sm, at, go)


def _end(model: Model, s: State, sm: int, at: str, go: Callable[[str], bool]) -> bool:
    mine = s[f"mine{sm}"]
    if at == "elect":
        if model.reports_late:
            if s["current"] == mine and s["done"] == model.total:
                s["current"] = NONE
                return go("store")
            return go("look")
        if s["current"] == mine and s["done"] == model.total:
            s["done"] += 1
            return go("store")
        return go("look")
    if at == "store":
        if mine + 1 < s["completed"]:
            raise Fault(f"completed runs backwards: {s}")
        s["completed"] = mine + 1
        return go("waits" if model.clears else "wants")
    if at == "waits":
        return go("wants" if s["waiting"] else "clear")
    if at == "wants":
        s[f"old{sm}"] = s["wanted"]
        due = mine + 1 >= s[f"old{sm}"]
        if model.clears:
            return go("unwait" if due else "clear")
        return go("wake" if due and s[f"old{sm}"] != s["woken"] else "clear")
    if at == "unwait":
        s["waiting"] = 0
        return go("wake")
    if at == "wake":
        s["woken"] = s[f"old{sm}"]
        s["c_on"] = RUNNING
        return go("clear")
    if at == "clear":
        if not model.reports_late:
            s["current"] = NONE
        return go("look")
    return _sleep(s, sm, at, go)


def _sleep(s: State, sm: int, at: str, go: Callable[[str], bool]) -> bool:
    if at == "listen":
        s[f"counts{sm}"] = int(s["current"] == NONE)
        s["listening"] += s[f"counts{sm}"]
        s[f"seen{sm}"] = s["tail"]
        return go("sleep")
    if at == "sleep":  # one step: both words are compared before the thread sleeps
        changed = s[f"counts{sm}"] and s["head"] != s[f"seen{sm}"]
        if not changed and not s[f"bell{sm}"]:
            s[f"on{sm}"] = ASLEEP
        return go("woken")
    assert at == "woken", at
    s["listening"] -= s[f"counts{sm}"]
    s[f"counts{sm}"] = s[f"bell{sm}"] = 0
    return go("look")


def _ring_bell(s: State, sm: int) -> None:
    s[f"bell{sm}"] = 1
    s[f"on{sm}"] = RUNNING
