"""A node: its processors and GPUs, who has which, and how they are divided between the queues.

Problem: GPU tasks must find cores at once, and idle cores must not be wasted; and likewise GPUs for
tasks with many of them.

Approach: a node's cores are the CPU queue's part and the GPU queue's part. A CPU task whose cores
do not fit in the CPU queue's part is a borrower; the tasks that started last are. When a GPU task
needs cores that are not free, borrowers give them back. GPU tasks may take free cores of either
part and are never stopped. GPUs are divided in the same way between single-GPU and multi-GPU tasks,
but none of these is stopped: what is lent returns as its task ends, and nothing new starts on it
while its owner's queue has tasks.

Terms:
    part [cores]: of the GPU queue: for each GPU the highest need that was found; before one was,
        the settings' ``start_cores``. One core is always the CPU queue's, if there are two. It is
        what tasks need and not what they have had: that could not grow once it is small.
    blocked [cores]: what a CPU task gave back for the bandwidth of a GPU task; no CPU task is
        started on them until that GPU task has ended.

Properties:
    exclusive: a processor is had by one task, a GPU by one, or by parts that add up to 1 at most;
    parts: cores of CPU tasks that are no borrowers fit in the CPU queue's part.

Source: the patent's steps 6, 8, 9 and 10.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from gpud.tasks.core.need_history import NeedHistory
from gpud.tasks.core.record import TaskRecord
from gpud.tasks.core.settings import Settings

__all__ = ["NodeRecord"]


class NodeRecord:
    """A node and the tasks that have something on it.

    Attributes:
        id: its number.
        cpus: its processors.
        free_cpus: those that no task has, in order.
        gpu_names: of its GPUs, by index.
        gpu_used: how much of each GPU tasks have.
        marked: GPUs on which nothing is to start, with the reasons.
        multi: how many of its GPUs are for multi-GPU tasks.
        tasks: that have cores or GPUs here, in the order in which they were started.
        blocked: cores that wait for the end of a GPU task, by its id.
        kept: the CPU task (False) and the GPU task (True) for which what comes free is kept: other
            tasks of that kind do not start here.
    """

    def __init__(self, node: int, settings: Settings, needs: NeedHistory) -> None:
        self.id = node
        self.cpus: tuple[int, ...] = ()
        self.free_cpus: list[int] = []
        self.gpu_names: tuple[str, ...] = ()
        self.gpu_used: list[Fraction] = []
        self.marked: dict[int, str] = {}
        self.memory_bytes = 0
        self.freezes = True
        self.multi = 0
        self.tasks: dict[int, TaskRecord] = {}
        self.blocked: dict[int, int] = {}
        self.kept: dict[bool, int] = {}
        self.cpu_cores = self.gpu_cores = self.stopping_cores = 0
        self._settings, self._needs = settings, needs

    def change(
        self, cpus: tuple[int, ...], gpus: tuple[str, ...], memory_bytes: int, *, freezes: bool
    ) -> None:
        """Take what the node has now; tasks keep what they have of it.

        A GPU is never taken away, as tasks may have it; one that is gone is marked.
        """
        assert gpus[: len(self.gpu_names)] == self.gpu_names, f"node {self.id} has lost a GPU"
        taken = {cpu for task in self.tasks.values() for cpu in task.cpus}
        self.cpus = cpus
        self.free_cpus = [cpu for cpu in cpus if cpu not in taken]
        self.gpu_used += [Fraction(0)] * (len(gpus) - len(self.gpu_names))
        self.gpu_names = gpus
        self.memory_bytes, self.freezes = memory_bytes, freezes

    # -- cores

    @property
    def gpus(self) -> int:
        """How many GPUs tasks can have, now or later."""
        return len(self.gpu_names) - len(self.marked)

    @property
    def gpu_part(self) -> int:
        """The GPU queue's part of the cores."""
        if not self.gpus:
            return 0
        each = self._needs.highest or self._settings.start_cores
        return min(int(each * self.gpus), max(1, len(self.cpus) - 1))

    @property
    def cpu_part(self) -> int:
        """The CPU queue's part of the cores."""
        return len(self.cpus) - self.gpu_part

    @property
    def borrowed(self) -> int:
        """How many cores of the GPU queue CPU tasks have."""
        return max(0, self.cpu_cores - self.cpu_part)

    def borrowers(self) -> list[TaskRecord]:
        """Return CPU tasks whose cores do not fit in the CPU queue's part, the last start first."""
        left = self.cpu_part
        found = []
        for task in self.tasks.values():
            if task.is_gpu or not task.has_cores:
                continue
            if len(task.cpus) <= left:
                left -= len(task.cpus)
            else:
                found.append(task)
        return found[::-1]

    def fits_cpu(self, cores: int, *, lends: bool) -> bool:
        """Whether a CPU task with so many cores may start now, borrowing if the node ``lends``."""
        room = len(self.free_cpus) - sum(self.blocked.values())
        if not lends:
            lent = max(0, self.gpu_cores - self.gpu_part)
            room = min(room, self.cpu_part - lent - self.cpu_cores)
        return cores <= room

    def give_cores(self, task: TaskRecord, cores: int) -> None:
        """Give a task so many of the free processors: the first to GPU tasks, the last to others.

        What it has already is counted and kept, and what is too much is taken.
        """
        has = list(task.cpus)
        if len(has) > cores:
            kept = has[:cores] if task.is_gpu else has[len(has) - cores :]
            self.free_cpus = sorted([*self.free_cpus, *(cpu for cpu in has if cpu not in kept)])
        else:
            kept, missing = has, cores - len(has)
            if missing:
                taken = self.free_cpus[:missing] if task.is_gpu else self.free_cpus[-missing:]
                assert len(taken) == missing, f"{task.what} is given cores that are not free"
                self.free_cpus = [cpu for cpu in self.free_cpus if cpu not in taken]
                kept = sorted([*has, *taken])
        if task.is_gpu:
            self.gpu_cores += len(kept) - len(has)
        else:
            self.cpu_cores += len(kept) - len(has)
        task.cpus = tuple(kept)

    # -- GPUs

    def usable_gpus(self) -> list[int]:
        """Return the GPUs that nobody has and nothing speaks against."""
        return [
            gpu for gpu, used in enumerate(self.gpu_used) if not used and gpu not in self.marked
        ]

    def gpus_for(self, task: TaskRecord, *, multi: bool, lends: bool) -> tuple[int, ...] | None:
        """Return the GPUs that a task may start on; None: there are not enough.

        Args:
            task: it has no GPUs yet.
            multi: whether it is a multi-GPU task.
            lends: whether it may borrow GPUs of the others.
        """
        if task.part is not None:
            # On the fullest GPU with room, so that others stay whole.
            room = [
                (1 - used, gpu)
                for gpu, used in enumerate(self.gpu_used)
                if used > 0 and used + task.part <= 1 and gpu not in self.marked
                if self._shared(gpu)
            ]
            if room:
                return (min(room)[1],)
        free, count = self.usable_gpus(), max(1, int(task.terms.gpus))
        own, others = self._used(multi=multi), self._used(multi=not multi)
        mine = self.multi if multi else self.gpus - self.multi
        lent = max(0, others - (self.gpus - mine))
        room_here = len(free) if lends else min(len(free), mine - lent - own)
        if not self._settings.split_gpus:
            room_here = len(free)
        return tuple(free[:count]) if count <= room_here else None

    def _shared(self, gpu: int) -> bool:
        return all(task.part is not None for task in self.tasks.values() if gpu in task.gpus)

    def _used(self, *, multi: bool) -> int:
        """Count the GPUs that tasks of one kind have."""
        used: dict[int, None] = {}
        for task in self.tasks.values():
            if task.gpus and (task.terms.gpus >= self._settings.multi_gpus) == multi:
                used.update(dict.fromkeys(task.gpus))
        return len(used)

    def add(self, task: TaskRecord, gpus: Iterable[int]) -> None:
        """Give a task its GPUs, and list it here."""
        task.node, task.gpus = self.id, tuple(gpus)
        for gpu in task.gpus:
            self.gpu_used[gpu] += task.part or 1
        self.tasks[task.id] = task

    def remove(self, task: TaskRecord) -> None:
        """Take back everything that a task has."""
        self.give_cores(task, 0)
        for gpu in task.gpus:
            self.gpu_used[gpu] -= task.part or 1
        del self.tasks[task.id]
        self.blocked.pop(task.id, None)
        task.node, task.gpus = None, ()
