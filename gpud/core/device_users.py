"""The users of one device: their accounts, and in which order their waiting jobs come.

The terms are those of `gpud.core.users`.
"""

from __future__ import annotations

from gpud.core.job import JobRecord
from gpud.core.users import Account, UserRecord

__all__ = ["DeviceUsers"]


class DeviceUsers:
    """The accounts of a device. Their sums are changed by `gpud.core.device.DeviceRecord`.

    Attributes:
        accounts: of each user with jobs, or who had some, by user.
        has_caps: whether any of these has a cap.
        sharing: how many users have offline jobs here.
        changed: the factors of the users (`gpud.core.user_weights`) may have to change.
        weighed_ns, weighed_online: when they were last computed, and for which ``online``.
        online: the amount that online jobs have had of the device on the average, lately.
        online_seen, online_seen_ns: the amount x ns that they had had when that was last computed.
    """

    __slots__ = (
        "_sms", "_tag", "accounts", "changed", "has_caps", "online", "online_seen",
        "online_seen_ns", "sharing", "weighed_ns", "weighed_online",
    )  # fmt: skip

    def __init__(self, now_ns: int) -> None:
        self.accounts: dict[int, Account] = {}
        self.has_caps = False
        self.sharing = 0
        self.changed = False
        self.weighed_ns = self.online_seen_ns = now_ns
        self.online = self.online_seen = self.weighed_online = 0
        self._sms = 0
        self._tag = 0  # of the last job to start of those that waited

    def account(self, user: UserRecord) -> Account:
        """Return a user's account, made at the first call."""
        account = self.accounts.get(user.number)
        if account is None:
            highest = max((one.factor for one in self.accounts.values()), default=1)
            account = self.accounts[user.number] = Account(user, self._sms, highest)
            self.has_caps = self.has_caps or account.reserve is not None
        return account

    def change(self, user: UserRecord) -> None:
        """Apply what is said of a user."""
        if user.number in self.accounts:
            self.accounts[user.number].set_caps(user, self._sms)
            self.has_caps = any(one.reserve is not None for one in self.accounts.values())
            self.changed = True

    def set_sms(self, sms: int) -> None:
        """Compute all caps for a device of this size."""
        self._sms = sms
        for account in self.accounts.values():
            account.set_caps(account.user, sms)

    def count_offline(self, account: Account, change: int) -> None:
        """Count an offline job that has come, or gone."""
        before = account.offline_jobs
        account.offline_jobs += change
        self.sharing += (account.offline_jobs > 0) - (before > 0)
        self.changed = True

    def take_tag(self, user: UserRecord) -> int:
        """Return the tag of a user's offline job that was unblocked."""
        return self.account(user).tag(self._tag)

    def note_start(self, job: JobRecord) -> None:
        """Take notice that a job which waited has started: who comes later is not behind it."""
        self._tag = max(self._tag, job.tag)

    def is_capped(self, job: JobRecord) -> bool:
        """Whether its user's cap keeps an offline job from having more, or from its start."""
        return job.account.is_full((1 if job.started else job.least) * job.slice)
