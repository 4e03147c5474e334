"""How many bytes are used of each device, by each user there, and how many their limits leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpud.core.memory.allocator import require

__all__ = ["UsedBytes"]


class UsedBytes:
    """Bytes that are used, and the limits of devices, users and sessions, all in bytes.

    What a session uses is said by whoever asks, who has its arrays.

    Args:
        device_limits: of each device.
        user_limits: of each user over all sessions, by device.
        session_limits: of each session, by device.

    Attributes:
        by_device: used of each device, its zone included.
        session_limits: of each session, by device.
        zones: of that the zone.
    """

    def __init__(
        self,
        device_limits: Sequence[int],
        user_limits: Sequence[int],
        session_limits: Sequence[int],
    ) -> None:
        self._device_limits = tuple(device_limits)
        self._user_limits = tuple(user_limits)
        self.session_limits = tuple(session_limits)
        self.by_device = [0] * len(self._device_limits)
        self.zones = [0] * len(self._device_limits)
        self._by_user: dict[tuple[int, int], int] = {}  # (user, device); absent is 0

    def count(self, user: int, device: int, size: int) -> None:
        """Count ``size`` bytes more, or less if it is negative."""
        self.by_device[device] += size
        key = (user, device)
        users = self._by_user.get(key, 0) + size
        if users:
            self._by_user[key] = users
        else:
            self._by_user.pop(key, None)

    def set_zone(self, device: int, size: int) -> None:
        """Count ``size`` bytes for the zone of a device, instead of what it had.

        Raises:
            InternalError: the device has less.
        """
        used = self.by_device[device] - self.zones[device] + size
        require(used <= self._device_limits[device], "a zone does not fit")
        self.by_device[device], self.zones[device] = used, size

    def left(self, user: int, device: int, own: int) -> tuple[int, str]:
        """Return how many more bytes a session may use, and the limit that is reached first.

        Args:
            user: has the session.
            device: on which.
            own: bytes that the session uses there.
        """
        users = self._by_user.get((user, device), 0)
        # The first of equal ones is named: raising another would change nothing.
        return min(
            (self._device_limits[device] - self.by_device[device], "device"),
            (self._user_limits[device] - users, "user"),
            (self.session_limits[device] - own, "session"),
            key=lambda limit: limit[0],
        )

    def most_of_one(self, device: int) -> tuple[int, str]:
        """Return the most that a session may ever use of a device, and the limit that says so."""
        limits = (self._user_limits[device], "user"), (self.session_limits[device], "session")
        return min(limits, key=lambda limit: limit[0])

    def validate(self, by_session: Mapping[tuple[int, int, int], int]) -> None:
        """Check the counts against the bytes of each session, by (session, user, device).

        Raises:
            InternalError: they are not the same, or a limit is exceeded.
        """
        by_device = list(self.zones)
        by_user: dict[tuple[int, int], int] = {}
        for (_, user, device), size in by_session.items():
            by_device[device] += size
            by_user[user, device] = by_user.get((user, device), 0) + size
            require(size <= self.session_limits[device], "a session is over its limit")
        require(by_device == self.by_device, "bytes of devices are lost or counted twice")
        counted = {key: used for key, used in by_user.items() if used}
        require(counted == self._by_user, "users' bytes")
        within = map(int.__le__, self.by_device, self._device_limits)
        require(all(within), "a device is over its limit")
        for (_, device), used in counted.items():
            require(used <= self._user_limits[device], "a user is over the limit")
