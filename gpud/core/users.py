"""Users: the weight and the caps of each, and accounts of what each has of a device.

Terms (units in brackets):
    reserve [amount]: the most that a user's online jobs may have together on a device;
    hold [amount]: the most that all jobs of a user may have together there;
    tag: orders the offline jobs that wait, as the start tags of start-time fair queueing, with one
        unit of service for each job.

Properties:
    in_turn: of jobs that wait, users' begin in turn, by weight; those of one in order of arrival;
    capped: no job is started or grows beyond a cap, counting blocks that have not left yet.
"""

from __future__ import annotations

from fractions import Fraction

from gpud.core.capacity import amount_of, to_fraction
from gpud.errors import AdmissionError, InvalidArgument
from gpud.units import share

__all__ = ["MOST_WEIGHT", "NO_ACCOUNT", "Account", "UserRecord"]

MOST_WEIGHT = 1000
_TAG_STEP = MOST_WEIGHT * 1000  # of a user of weight 1


class UserRecord:
    """What was said of a user.

    Attributes:
        number: identifies the user.
        name: for messages.
        weight: 1 or more.
        reserve, hold: caps as shares of each device; None for none.
    """

    __slots__ = ("hold", "name", "number", "reserve", "weight")

    def __init__(
        self,
        number: int,
        name: str = "",
        weight: int = 1,
        reserve: str | None = None,
        hold: str | None = None,
    ) -> None:
        if not 1 <= weight <= MOST_WEIGHT:
            raise InvalidArgument(f"a user's weight is from 1 to {MOST_WEIGHT}, not {weight}")
        self.number = number
        self.name = name or str(number)
        self.weight = weight
        self.reserve = reserve
        self.hold = hold


class Account:
    """What one user has of one device. Changed by `gpud.core.device.DeviceRecord` alone.

    Attributes:
        user: the user.
        reserve, hold: the caps, as amounts; None for none.
        allocated: sum of the allocations of its jobs.
        online: the part of it that online jobs have.
        charged: sum of what its jobs' blocks occupy, those that are leaving included.
        offline_jobs: how many there are, waiting ones included.
        factor: what weights are multiplied by.
        next_tag: the tag of its next job that waits.
    """

    __slots__ = (
        "allocated", "charged", "factor", "hold", "next_tag", "offline_jobs", "online", "reserve",
        "user",
    )  # fmt: skip

    def __init__(self, user: UserRecord, sms: int, factor: int = 1) -> None:
        self.allocated = self.online = self.charged = self.offline_jobs = self.next_tag = 0
        self.factor = factor
        self.set_caps(user, sms)

    def set_caps(self, user: UserRecord, sms: int) -> None:
        """Apply what is said of the user to a device with ``sms`` SMs."""
        self.user = user
        self.hold = _amount(user.hold, sms)
        self.reserve = _amount(user.reserve, sms)
        if self.hold is not None:
            self.reserve = self.hold if self.reserve is None else min(self.reserve, self.hold)

    def tag(self, now: int) -> int:
        """Return the tag of a job that begins to wait; ``now`` is that of the last to start."""
        tag = max(now, self.next_tag)
        self.next_tag = tag + _TAG_STEP // self.user.weight
        return tag

    def refuses(self, need: int, device: int, sms: int, *, online: bool) -> AdmissionError | None:
        """Return why a job can never have the amount that it needs, on ``sms`` SMs; or None."""
        for name, cap, counts in (("reserve", self.reserve, online), ("hold", self.hold, True)):
            if cap is not None and counts and need > cap:
                most = to_fraction(cap)
                return AdmissionError(
                    f"the job needs {to_fraction(need)} SMs, and user {self.user.name} may {name} "
                    f"{most} of the {sms} SMs of device {device}: ask for at most {most}, or have "
                    f"{name} raised for the user in the daemon's configuration (users, groups)",
                    requested=to_fraction(need),
                    capacity=most,
                )
        return None

    def admits(self, need: int) -> bool:
        """Whether the caps let an online job that needs an amount start now."""
        return self.reserve is None or self.online + need <= self.reserve

    def is_full(self, need: int) -> bool:
        """Whether the cap keeps an offline job from what it needs more."""
        return self.hold is not None and self.charged + need > self.hold


def _amount(text: str | None, sms: int) -> int | None:
    if text is None:
        return None
    if not text.strip().rstrip("% ").strip("0."):
        return 0
    return amount_of(min(Fraction(share(text, capacity=sms)), Fraction(sms)))


NO_ACCOUNT = Account(UserRecord(-1, "nobody"), 0)
"""That of jobs which are on no device yet."""
