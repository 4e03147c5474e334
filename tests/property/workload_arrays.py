"""Arrays in a workload's memory, as a client places them, checked against a list of them."""

from __future__ import annotations

from gpud_client.workloads.memory import ALIGNMENT, MemoryRange


class Arrays:
    """Arrays in a range of memory.

    Attributes:
        alive: (offset, bytes) of each, in the order of their making.
    """

    def __init__(self, size: int) -> None:
        self._range = MemoryRange(0, size, ())
        self.alive: list[tuple[int, int]] = []

    def allocate(self, size: int) -> int | None:
        """Make an array; returns its offset, None if no gap is large enough."""
        found = self._range.take(size)
        whole = -(-size // ALIGNMENT) * ALIGNMENT
        taken = sorted(self.alive)
        ends = [0, *(at + held for at, held in taken)]
        gaps = [
            (start, end)
            for start, end in zip(ends, [*(at for at, _ in taken), self._range.size], strict=True)
            if end - start >= whole
        ]
        if found is None:
            assert not gaps, f"no room for {size} bytes, and {gaps} are free"
            return None
        assert any(start <= found <= end - whole for start, end in gaps), "arrays overlap"
        self.alive.append((found, whole))
        assert self._range.used == sum(held for _, held in self.alive), "wrong count"
        return found

    def free(self, index: int) -> None:
        """Free one of them, counted around; none if there is none."""
        if self.alive:
            self._range.give_back(*self.alive.pop(index % len(self.alive)))

    def grow(self, size: int) -> None:
        """Make the range larger."""
        self._range.grow(size)
