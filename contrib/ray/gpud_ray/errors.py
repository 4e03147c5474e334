"""The errors of gpud-ray, and the reports that say where an item ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpud.errors import ConnectionLost, GpudError

__all__ = ["Attempt", "ItemFailed", "NoCluster", "Report"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One node's try at an item.

    Attributes:
        node: Ray's id of the node.
        ended: Why it ended; ``"done"`` of the one that succeeded.
        may_have_run: Whether its kernel has run, at least in part, or that cannot be known.
    """

    node: str
    ended: str
    may_have_run: bool


@dataclass(frozen=True, slots=True)
class Report:
    """How an item ended.

    Attributes:
        item: The item's id.
        node: Ray's id of the node that ran it; empty if none did.
        device: Which of the node's devices ran it; None if none did.
        attempts: All tries, in order.
        placed_s: From the submission to the head's last answer.
        ran_s: How long the last node took, from the item's arrival to its results.
        kernel_s: How long its kernel ran on the device; None if it did not end.
    """

    item: str
    node: str = ""
    device: int | None = None
    attempts: tuple[Attempt, ...] = ()
    placed_s: float = 0.0
    ran_s: float = 0.0
    kernel_s: float | None = None

    @property
    def may_have_run_twice(self) -> bool:
        """Whether more than one node may have run its kernel. Results came from one only."""
        return sum(attempt.may_have_run for attempt in self.attempts) > 1


class ItemFailed(GpudError):
    """An item has ended without results; the message says why."""

    code = "ray-item-failed"
    fields: ClassVar[Mapping[str, str]] = {
        "item": "the item's id",
        "cause": "code of the error with which its last attempt ended, as in gpud's reference",
        "attempts": "how many nodes tried it",
        "may_have_run_twice": "whether more than one node may have run its kernel",
    }
    item: str | None
    cause: str | None
    attempts: int | None
    may_have_run_twice: bool | None

    def __init__(
        self,
        message: str,
        *,
        item: str | None = None,
        cause: str | None = None,
        attempts: int | None = None,
        may_have_run_twice: bool | None = None,
    ) -> None:
        super().__init__(
            message, item=item, cause=cause, attempts=attempts,
            may_have_run_twice=may_have_run_twice,
        )  # fmt: skip


class NoCluster(ConnectionLost):
    """There is no Ray cluster, or none with a head of gpud-ray."""

    code = "ray-no-cluster"
