"""A queue of tasks that is fair between users: dominant resource fairness in one queue.

Each queue has one resource that its tasks compete for, cores or GPUs, so the dominant share of a
user is what all its running tasks have of it. Next is the first task of the user who has least.
Tasks that were stopped for others, or lost, go before all others, the oldest first.

Properties:
    least_first: of two users with a task that fits, the one who has less gets the next start;
    in_order: tasks of one user that need the same start in the order in which they were queued;
    front_first: a task at the front comes before those that are not.

Source: the patent's step 7; Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

from gpud.tasks.core.record import TaskRecord

__all__ = ["FairQueue"]


class FairQueue:
    """Waiting tasks, and what each user has.

    Attributes:
        has: what each user's running tasks have of the queue's resource.
    """

    def __init__(self) -> None:
        self.has: dict[str, Fraction] = {}
        self._front: OrderedDict[int, TaskRecord] = OrderedDict()
        self._users: dict[str, OrderedDict[int, TaskRecord]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, task: TaskRecord) -> None:
        """Append a task to its user's; one with `TaskRecord.front` goes before all others."""
        if task.front:
            self._front[task.id] = task
            self._front.move_to_end(task.id, last=False)
        else:
            self._users.setdefault(task.terms.user, OrderedDict())[task.id] = task
        self._count += 1

    def remove(self, task: TaskRecord) -> None:
        """Remove a task that is in the queue."""
        if task.front:
            del self._front[task.id]
        else:
            tasks = self._users[task.terms.user]
            del tasks[task.id]
            if not tasks:
                del self._users[task.terms.user]
        self._count -= 1

    def take(self, user: str, amount: Fraction) -> None:
        """Count what a task of a user has got, or given back if negative."""
        left = self.has.get(user, Fraction(0)) + amount
        if left:
            self.has[user] = left
        else:
            self.has.pop(user, None)

    def candidates(self, lookahead: int) -> Iterator[TaskRecord]:
        """Yield tasks in the order in which they are to be considered.

        Args:
            lookahead: how many of each user, so that one that does not fit stops no others.
        """
        yield from list(self._front.values())
        nothing = Fraction(0)
        users = sorted(
            self._users.items(),
            key=lambda one: (self.has.get(one[0], nothing), next(iter(one[1].values())).queued_ns),
        )
        for _, tasks in users:
            yield from list(islice(tasks.values(), lookahead))

    def __iter__(self) -> Iterator[TaskRecord]:
        yield from self._front.values()
        for tasks in self._users.values():
            yield from tasks.values()
