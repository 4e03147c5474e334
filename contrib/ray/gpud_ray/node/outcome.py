"""How a node's try at an item ended, as its agent tells the one that forwarded the item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Done", "Failed", "NoRoom", "NodeFault", "Outcome"]


@dataclass(frozen=True, slots=True)
class Done:
    """Its kernel has run.

    Attributes:
        results: The arrays of its `Out` and `InOut` arguments, in their order.
        device: Which of the node's devices ran it.
        ran_s: From the item's arrival to its results.
        kernel_s: How long the kernel ran on the device.
    """

    results: tuple[Any, ...]
    device: int
    ran_s: float
    kernel_s: float | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The item itself is at fault: no node would do better.

    Attributes:
        reason: For people.
        cause: The code of gpud's error.
        may_have_run: Whether its kernel had begun.
    """

    reason: str
    cause: str
    may_have_run: bool


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The node's memory was full; nothing has run.

    Attributes:
        reason: For people.
        alone: Whether the node had no other item: then waiting for its items to end is vain, and
            what holds the memory, or limits it, is somebody else's.
    """

    reason: str
    alone: bool


@dataclass(frozen=True, slots=True)
class NodeFault:
    """The node is at fault, such as its gpud that has ended; another node may do better."""

    reason: str
    may_have_run: bool


Outcome = Done | Failed | NoRoom | NodeFault
