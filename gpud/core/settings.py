"""The scheduler's settings."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gpud.errors import InvalidArgument
from gpud.units import Share, share

__all__ = ["Settings"]


_SECOND_NS = 1_000_000_000
_LEAST = {
    "hold_ns": 0,
    "rebalance_hold_ns": 1,
    "rebalance_limit": 1,
    "grace_ns": 0,
    "max_preparations": 1,
}


@dataclass(frozen=True)
class Settings:
    """Settings of one scheduler; times and the limit change by `gpud.core.events.TimesChanged`.

    Attributes:
        policy: a name in `gpud.core.policies.POLICIES`.
        offline_floor: CapSM of each device, or a percentage of it, that online jobs must leave to
            all offline jobs together. 0 for none.
        hold_ns: how long capacity freed by an online job is held back from offline jobs.
        rebalance_hold_ns: how long offline jobs must have been as they are before they give up
            capacity for each other.
        rebalance_limit: how often in a second, at most, a job gives up capacity for other offline
            jobs.
        grace_ns: how long a job being ended may keep running before it is killed, or, if it is not
            killable or the kill has no effect, its device host is replaced.
        max_preparations: after how many hosts in a row that were lost while being prepared for a
            job the job fails.
        work_conserving: whether a job may do more work than its quota where nobody needs the time.
        debug: check every invariant after every event. Slow.

    Raises:
        InvalidArgument: a value is out of range.
    """

    policy: str = "reservations"
    offline_floor: Share = 0
    hold_ns: int = 0
    rebalance_hold_ns: int = 100_000_000
    rebalance_limit: int = 5
    grace_ns: int = 2_000_000_000
    max_preparations: int = 3
    work_conserving: bool = False
    debug: bool = False

    def __post_init__(self) -> None:
        self.floor(1)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise InvalidArgument(f"{name} must be {least} or more, not {value}")

    @property
    def turn_ns(self) -> int:
        """Return for how long a job keeps what it has after it started, or gave up some of it."""
        return _SECOND_NS // self.rebalance_limit

    def floor(self, sms: int) -> Fraction:
        """Return `offline_floor` in CapSM for a device of ``sms`` SMs, at most ``sms``."""
        text = str(self.offline_floor).strip()
        if not text.rstrip("% ").strip("0."):
            return Fraction(0)
        try:
            return min(Fraction(share(self.offline_floor, capacity=sms)), Fraction(sms))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"offline_floor: {error}") from None
