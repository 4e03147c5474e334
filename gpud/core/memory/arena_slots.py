"""The slots of addresses in which arenas lie.

Slots are counted from the one that is used first. Those that were given back are taken before those
that were never used, and a session that keeps its addresses takes the one in which they lie.

Properties:
    apart: no two arenas share a slot, until one is given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpud.core.memory.allocator import PAGE_BYTES, require
from gpud.errors import InvalidArgument, LimitExceeded
from gpud.units import Address

__all__ = ["FIRST_ADDRESS", "ArenaSlots"]

FIRST_ADDRESS: Final = 1 << 44
_END_ADDRESS: Final = 5 << 44
"""All slots lie between these. Linux maps programs above and libraries far above, on x86-64 and on
AArch64 with address spaces of 47 bits or more."""


class ArenaSlots:
    """Slots of one size.

    Args:
        slot_bytes: the size of each.
        first: the slot that is used first, modulo the number of slots.
    """

    def __init__(self, slot_bytes: int, first: int) -> None:
        self.slot_bytes = slot_bytes
        self._count = (_END_ADDRESS - FIRST_ADDRESS) // slot_bytes
        self._first = first
        self._free: list[int] = []  # used before and free again
        self._next = 0
        self._ahead: set[int] = set()  # used, from the next one on

    def take(self) -> Address:
        """Take any slot; returns its first address.

        Raises:
            LimitExceeded: every slot is taken.
        """
        if self._free:
            return self._address(self._free.pop())
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        if self._next >= self._count:
            raise LimitExceeded(
                f"{self._next} arenas are all that addresses suffice for; try again when "
                "another session has ended, or lower the daemon's memory setting",
                limit="memory",
                value=self._next,
            )
        self._next += 1
        return self._address(self._next - 1)

    def take_at(self, address: int) -> Address:
        """Take the slot in which an address lies; returns its first address.

        Raises:
            InvalidArgument: the address is no array's, or its slot is taken.
        """
        if not FIRST_ADDRESS <= address < FIRST_ADDRESS + self._count * self.slot_bytes:
            raise InvalidArgument(f"arrays lie in other addresses than {address:#x}")
        if address % PAGE_BYTES:
            raise InvalidArgument(f"arrays begin at whole pages, not at {address:#x}")
        slot = self._slot_of(address)
        if slot in self._free:
            self._free.remove(slot)
        elif slot < self._next or slot in self._ahead:
            raise InvalidArgument(f"the addresses about {address:#x} are another session's")
        else:
            self._ahead.add(slot)
        return self._address(slot)

    def give_back(self, address: Address) -> None:
        """Give back the slot that begins at ``address``."""
        slot = self._slot_of(address)
        if slot in self._ahead:
            self._ahead.remove(slot)
        else:
            self._free.append(slot)

    def validate(self, taken: Iterable[Address]) -> None:
        """Check that exactly the slots that begin at ``taken`` are, each once.

        Raises:
            InternalError: they are not.
        """
        every = sorted([*map(self._slot_of, taken), *self._free])
        used = sorted(self._ahead.union(range(self._next)))
        require(every == used, "slots are lost or used twice")

    def _address(self, slot: int) -> Address:
        return Address(FIRST_ADDRESS + (slot + self._first) % self._count * self.slot_bytes)

    def _slot_of(self, address: int) -> int:
        return ((address - FIRST_ADDRESS) // self.slot_bytes - self._first) % self._count
