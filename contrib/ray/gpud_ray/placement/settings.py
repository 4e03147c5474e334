"""The settings of head, nodes and clients: declared once, for Python and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from gpud.errors import InvalidArgument
from gpud_ray.placement.idle_rate import IdleMemory

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How often nodes report, when they count as lost, and how items are placed.

    Attributes:
        period_s: Between two heartbeats of a node.
        stale_beats: After so many periods without one, a node gets an item only if no other can
            take it.
        missed_beats: After so many, the node is lost: what it had is placed again.
        head_wait_s: How long an item waits for a head that does not answer; then it fails.
        place_wait_s: How long an item waits while no node is there that could ever take it, be
            it idle: none at all, or none with as large a GPU; then it fails.
        room_wait_s: How long an item waits for room on nodes that could take it; then it fails.
            0: no limit.
        in_flight_per_gpu: Items that a GPU is given at a time; more wait at the head. 0: no limit.
        attempts: On how many nodes an item is tried, if those before it are lost. 1: once.
        memory: What of the memory counts as idle: its free ``"capacity"``, or its unused
            ``"bandwidth"``.
    """

    period_s: float = 0.25
    stale_beats: int = 3
    missed_beats: int = 40
    head_wait_s: float = 30.0
    place_wait_s: float = 60.0
    room_wait_s: float = 0.0
    in_flight_per_gpu: int = 8
    attempts: int = 3
    memory: IdleMemory = "capacity"

    def __post_init__(self) -> None:
        for name, least in (("period_s", 0.01), ("head_wait_s", 0.0), ("place_wait_s", 0.0),
                            ("room_wait_s", 0.0),
                            ("stale_beats", 1), ("missed_beats", 2), ("in_flight_per_gpu", 0),
                            ("attempts", 1)):  # fmt: skip
            value = getattr(self, name)
            if not least <= value < float("inf"):
                raise InvalidArgument(f"setting {name} is {least:g} or more, not {value!r}")
        if self.missed_beats <= self.stale_beats:
            raise InvalidArgument(
                f"setting missed_beats ({self.missed_beats}) is over stale_beats "
                f"({self.stale_beats}): a node is stale before it is lost"
            )

    @property
    def stale_s(self) -> float:
        """The age of a heartbeat, in seconds, at which its node is stale."""
        return self.period_s * self.stale_beats

    @property
    def lost_s(self) -> float:
        """The age of a heartbeat, in seconds, at which its node is lost."""
        return self.period_s * self.missed_beats

    def changed(self, assignments: Iterable[str]) -> Settings:
        """Return these settings with some changed, each written ``name=value``.

        Raises:
            InvalidArgument: There is no such setting, or it cannot have that value.
        """
        kinds = get_type_hints(Settings)
        changes: dict[str, Any] = {}
        for assignment in assignments:
            name, equals, text = (part.strip() for part in assignment.partition("="))
            if not equals:
                raise InvalidArgument(f"a setting is written name=value, not {assignment!r}")
            if name not in kinds:
                raise InvalidArgument(f"no setting {name!r}; there are {', '.join(kinds)}")
            changes[name] = _value(name, text, kinds[name])
        return replace(self, **changes)


def _value(name: str, text: str, kind: Any) -> Any:
    if choices := get_args(kind):
        if text not in choices:
            named = " or ".join(map(repr, choices))
            raise InvalidArgument(f"setting {name} is {named}, not {text!r}")
        return text
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise InvalidArgument(f"setting {name} is {wanted}, not {text!r}") from None
