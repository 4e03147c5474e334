"""The scheduler's settings."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gpud.errors import InvalidArgument
from gpud.units import Share, share

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Settings of one scheduler, constant during its life.

    Attributes:
        policy: a name in `gpud.core.policies.POLICIES`.
        offline_floor: CapSM of each device, or a percentage of it, that online jobs must leave to
            all offline jobs together. 0 for none.
        hold_ns: how long capacity freed by an online job is held back from offline jobs.
        grace_ns: how long a job being ended may keep running before it is killed, or, if it is not
            killable or the kill has no effect, its device host is replaced.
        max_jobs_per_session: the most unfinished jobs in one session.
        max_preparations: after how many hosts in a row that were lost while being prepared for a
            job the job fails.
        debug: check every invariant after every event. Slow.

    Raises:
        InvalidArgument: a value is out of range.
    """

    policy: str = "reservations"
    offline_floor: Share = 0
    hold_ns: int = 0
    grace_ns: int = 2_000_000_000
    max_jobs_per_session: int = 100_000
    max_preparations: int = 3
    debug: bool = False

    def __post_init__(self) -> None:
        self.floor(1)
        for name in ("hold_ns", "grace_ns", "max_jobs_per_session", "max_preparations"):
            value = getattr(self, name)
            least = 1 if name.startswith("max_") else 0
            if value < least:
                raise InvalidArgument(f"{name} must be {least} or more, not {value}")

    def floor(self, sms: int) -> Fraction:
        """Return `offline_floor` in CapSM for a device of ``sms`` SMs, at most ``sms``."""
        text = str(self.offline_floor).strip()
        if not text.rstrip("% ").strip("0."):
            return Fraction(0)
        try:
            return min(Fraction(share(self.offline_floor, capacity=sms)), Fraction(sms))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"offline_floor: {error}") from None
