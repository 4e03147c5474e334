"""Which parts of the sessions' arenas are workloads' memory."""

from __future__ import annotations

from gpud.units import SessionId

__all__ = ["Regions"]

_Key = tuple[SessionId, int, int]  # session, device, address


class Regions:
    """The parts of arenas that workloads have, by session, device and address.

    Attributes:
        counted: the bytes that the ledger counts for each; 0 for temporary memory.
        idle: the bytes of the temporary memory of workloads that do not have the turn.
    """

    def __init__(self) -> None:
        self.counted: dict[_Key, int] = {}
        self.idle: dict[_Key, int] = {}

    def counted_bytes(self, device: int) -> int:
        """Return the bytes that the ledger counts on a device."""
        return sum(size for (_, on, _), size in self.counted.items() if on == device)

    def idle_bytes(self, session: SessionId, device: int) -> int:
        """Return the bytes for which a session has addresses and must have no pages."""
        return sum(size for key, size in self.idle.items() if key[:2] == (session, device))

    def close_session(self, session: SessionId) -> None:
        """Forget those of a session."""
        for table in (self.counted, self.idle):
            for key in [key for key in table if key[0] == session]:
                del table[key]
