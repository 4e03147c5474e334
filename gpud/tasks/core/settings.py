"""The settings of the tasks' scheduler."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gpud.errors import InvalidArgument

__all__ = ["Settings"]

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Settings:
    """Settings of one scheduler. Parts of a whole are in permille, so that all of it is exact.

    Attributes:
        start_cores: for each GPU of a task for which nothing is known.
        window_ns: how long utilisation is measured before cores are changed.
        literal_search: whether cores are searched for by the source's literal rule, see
            `gpud.tasks.core.core_search`.
        weights_bytes: a task whose weights are at least this large starts with one core less.
        complexity: a task whose CPU complexity is at least this starts with one more.
        multi_gpus: a task with at least so many GPUs belongs to the queue of multi-GPU tasks.
        multi_part_permille: the part of a cluster's GPUs that is theirs at first.
        lend_idle: whether CPU tasks may take idle cores also while GPU tasks wait, as long as these
            lack GPUs; the source's rule lends only while no GPU task waits.
        split_gpus: whether GPUs are split into those for single-GPU and multi-GPU tasks, as the
            source has it; else both may have all.
        least_run_ns: for how long a CPU task runs before it is frozen or stopped for a GPU task.
        frozen_permille: the part of a node's memory that frozen tasks may have together.
        patience_ns: a task that has waited longer than this at the head of its queue has what
            comes free on one node kept for it.
        bandwidth_permille: a CPU task that uses more of the memory's bandwidth is halved,
        fall_permille: if a GPU task's utilisation has fallen by this part of its best.
        most_losses: a task that was lost with its node or shepherd more often than this fails.
        lookahead: how many tasks of each user are looked at for one that fits.
        debug: check every invariant after every event. Slow.

    Raises:
        InvalidArgument: a value is out of range.
    """

    start_cores: int = 4
    window_ns: int = 90 * _SECOND_NS
    literal_search: bool = False
    weights_bytes: int = 1 << 29
    complexity: int = 50
    multi_gpus: int = 4
    multi_part_permille: int = 500
    lend_idle: bool = True
    split_gpus: bool = False
    least_run_ns: int = 30 * _SECOND_NS
    frozen_permille: int = 500
    patience_ns: int = 7 * 24 * 3600 * _SECOND_NS
    bandwidth_permille: int = 750
    fall_permille: int = 100
    most_losses: int = 3
    lookahead: int = 64
    debug: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = (
                1 if field.name in ("start_cores", "window_ns", "multi_gpus", "lookahead") else 0
            )
            most = 1000 if field.name.endswith("_permille") else None
            if value < least or (most is not None and value > most):
                bounds = f"{least} or more" if most is None else f"{least} to {most}"
                raise InvalidArgument(f"{field.name} must be {bounds}, not {value}")
