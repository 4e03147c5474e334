"""Starts what waits, and takes borrowed cores back for GPU tasks.

Approach: after every event each queue is gone through in its fair order, tasks with GPUs first, and
what fits is started. For a GPU task the cores are decided first, then a node whose GPUs and cores
it fits on. If only cores are missing, CPU tasks that borrow them are frozen, or stopped where they
cannot be frozen, and go to the front of the CPU queue; from there a stopped task starts on
whichever node suits, a frozen one where it is.

A task that has waited longer than ``patience_ns`` at the head of its queue has a node kept for it,
on which nothing else starts, so that tasks that need little cannot pass one that needs much for
ever.

Source: the patent's steps 2, 8, 9, 10, 12 and 14.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from gpud.tasks.core import commands as out
from gpud.tasks.core import events as ev
from gpud.tasks.core.core_search import CoreSearch, first_cores
from gpud.tasks.core.fair_queue import FairQueue
from gpud.tasks.core.lifecycle import TaskInput, TaskState
from gpud.tasks.core.node import NodeRecord
from gpud.tasks.core.record import Stop, TaskRecord
from gpud.tasks.core.task_table import TaskTable

__all__ = ["Placement"]


class Placement:
    """Gives the tasks of a table cores and GPUs, and takes them back."""

    def __init__(self, table: TaskTable) -> None:
        self._table = table
        self._settings = table.settings
        self._nodes = table.nodes
        self._queues = table.queues
        self._claimed: dict[int, None] = {}  # nodes where a GPU task lacks nothing but cores
        self._starts = 0
        self._freed = False  # whether cores came free for a task that could not start yet

    def split(self) -> None:
        """Divide the GPUs between single-GPU and multi-GPU tasks.

        Of several nodes whole ones are for multi-GPU tasks; of one, as many GPUs as their part of
        it, in whole multiples of the least that such a task has.
        """
        most, permille = self._settings.multi_gpus, self._settings.multi_part_permille
        left = sum(node.gpus for node in self._nodes.values()) * permille // 1000
        fit = [node for node in self._nodes.values() if node.gpus >= most]
        for node in self._nodes.values():
            node.multi = 0
        for node in fit:
            gpus = node.gpus
            if len(fit) == 1:
                node.multi = min(left, gpus) // most * most
            elif gpus <= left:
                node.multi, left = gpus, left - gpus

    # -- what tasks have

    def give_back(self, task: TaskRecord, node: NodeRecord) -> None:
        """Take everything back that a task has on its node."""
        self._give_cores(task, node, 0)
        if task.is_gpu:
            self._table.queue_of(task).take(task.terms.user, -task.terms.gpus)
        node.remove(task)

    # -- decisions

    def place(self) -> None:
        """Start what fits."""
        self._claimed = {}
        if any(node.gpu_names for node in self._nodes.values()):
            self._pass(self._queues["multi"], self._start_gpu)
            while self._pass(self._queues["gpu"], self._start_gpu):
                # Its queue may be empty now, so that the others may borrow, and vice versa.
                if not self._pass(self._queues["multi"], self._start_gpu):
                    break
        self._pass(self._queues["cpu"], self._start_cpu)

    def _pass(self, queue: FairQueue, start: Callable[[TaskRecord], bool]) -> bool:
        """Start what fits from a queue; returns whether anything was started."""
        refused: dict[Any, None] = {}  # what fits on no node, nor does it later in this pass
        any_started, started = False, True
        for kept in self._kept(queue):
            any_started = start(kept) or any_started
        while started and len(queue) and self._room(queue):
            started = False
            for number, task in enumerate(queue.candidates(self._settings.lookahead)):
                shape = self._shape(task)
                if shape in refused:
                    continue
                if start(task):
                    any_started = started = True
                    break
                refused[shape] = None
                if not number and self._keep(task) and start(task):
                    any_started = started = True
                    break
            if self._freed and not started:  # for one of them, and another one may fit now
                self._freed, started = False, True
                refused.clear()
        return any_started

    def _room(self, queue: FairQueue) -> bool:
        """Whether anything at all may fit: with many tasks waiting there mostly is no room."""
        nodes = self._nodes.values()
        if queue is self._queues["cpu"]:
            return any(node.free_cpus for node in nodes)
        return any(used < 1 for node in nodes for used in node.gpu_used)

    def _shape(self, task: TaskRecord) -> Any:
        if task.state is TaskState.FROZEN:
            return task.id
        cores = task.terms.cores
        return self._first_cores(task) if cores is None else cores, task.terms.gpus, cores is None

    def _keep(self, task: TaskRecord) -> bool:
        """Keep a node for the head of a queue if it has waited for too long; returns whether."""
        if self._table.now_ns - task.queued_ns < self._settings.patience_ns:
            return False
        if task.state is TaskState.FROZEN or self._kept(self._table.queue_of(task)):
            return False
        nodes = [
            node
            for node in self._nodes.values()
            if task.is_gpu not in node.kept
            and len(node.cpus) >= (task.terms.cores or 1)
            and node.gpus >= task.terms.gpus
        ]
        if nodes:
            best = max(nodes, key=lambda one: (len(one.usable_gpus()), len(one.free_cpus), -one.id))
            best.kept[task.is_gpu] = task.id
        return bool(nodes)

    def _kept(self, queue: FairQueue) -> list[TaskRecord]:
        """Return the tasks of a queue for which a node is kept: one at most."""
        kept = [
            self._table.tasks[number]
            for node in self._nodes.values()
            for number in node.kept.values()
        ]
        return [task for task in kept if self._table.queue_of(task) is queue]

    # -- CPU tasks

    def _start_cpu(self, task: TaskRecord) -> bool:
        if task.state is TaskState.FROZEN:
            node = self._nodes[_place(task)]
            if task.halved_for in node.tasks or not self._may_start(node, task):
                return False
            if not node.fits_cpu(task.cores, lends=self._lends(node)):
                return False
            self._thaw(task, node)
            return True
        task.cores = task.terms.cores or 1
        fits = [
            (self._borrows(node, task.cores), len(node.free_cpus), node.id)
            for node in self._nodes.values()
            if self._may_start(node, task) and node.fits_cpu(task.cores, lends=self._lends(node))
        ]
        if not fits:
            return False
        self._start(task, self._nodes[min(fits)[2]], (), task.cores)
        return True

    def _may_start(self, node: NodeRecord, task: TaskRecord) -> bool:
        return node.kept.get(task.is_gpu, task.id) == task.id

    def _borrows(self, node: NodeRecord, cores: int) -> bool:
        return not node.fits_cpu(cores, lends=False)

    def _lends(self, node: NodeRecord) -> bool:
        """Whether CPU tasks may borrow here; on a node that is kept for one of them, it may."""
        if False in node.kept:
            return True
        if self._settings.lend_idle:
            return node.id not in self._claimed
        return not (self._queues["gpu"] or self._queues["multi"])

    # -- GPU tasks

    def _first_cores(self, task: TaskRecord) -> int:
        """Return the cores to start with; those that were asked for are not searched for."""
        terms, settings = task.terms, self._settings
        if terms.cores is not None:
            return terms.cores
        heavy = terms.weights_bytes is not None and terms.weights_bytes >= settings.weights_bytes
        complex_ = terms.complexity is not None and terms.complexity >= settings.complexity
        known = self._table.needs.known(terms.user, terms.program, terms.category)
        return first_cores(
            known, terms.gpus, start_cores=settings.start_cores,
            fewer=terms.pipelined + heavy, more=int(complex_),
        )  # fmt: skip

    def _cores_on(self, task: TaskRecord, node: NodeRecord, cores: int) -> int:
        """Limit cores that nobody asked for to those that come with the GPUs."""
        if task.terms.cores is not None or not node.gpus:
            return cores
        with_gpus = len(node.cpus) * task.terms.gpus / node.gpus
        return min(cores, max(1, int(with_gpus)))

    def _start_gpu(self, task: TaskRecord) -> bool:
        cores = self._first_cores(task)
        multi = task.terms.gpus >= self._settings.multi_gpus
        lends = not self._queues["gpu" if multi else "multi"]
        at_once: list[tuple[int, int, tuple[int, ...]]] = []
        claimed: list[int] = []
        by_stopping: list[tuple[int, NodeRecord, list[TaskRecord]]] = []
        for node in self._nodes.values():
            if not self._may_start(node, task):
                continue
            gpus = node.gpus_for(task, multi=multi, lends=lends or node.kept.get(True) == task.id)
            if gpus is None:
                continue
            missing = self._cores_on(task, node, cores) - len(node.free_cpus)
            if missing <= 0:
                at_once.append((len(node.usable_gpus()), node.id, gpus))
            elif not at_once:
                claimed.append(node.id)
                victims = self._victims(node, missing - node.stopping_cores)
                if victims is not None:
                    by_stopping.append((len(victims), node, victims))
        if at_once:
            _, number, gpus = min(at_once)
            node = self._nodes[number]
            self._start(task, node, gpus, self._cores_on(task, node, cores))
            return True
        if by_stopping:
            _, node, victims = min(by_stopping, key=lambda one: (one[0], one[1].id))
            for victim in victims:
                self._preempt(victim, node, f"its cores are needed by GPU task {task.id}")
            gpus = node.gpus_for(task, multi=multi, lends=lends or node.kept.get(True) == task.id)
            if gpus is not None and self._cores_on(task, node, cores) <= len(node.free_cpus):
                self._start(task, node, gpus, self._cores_on(task, node, cores))
                return True
            self._freed = any(victim.state is TaskState.FROZEN for victim in victims)
        self._claimed.update(dict.fromkeys(claimed))
        return False

    def _victims(self, node: NodeRecord, missing: int) -> list[TaskRecord] | None:
        """Return borrowers that have so many cores together; None: there are not enough yet."""
        if missing <= 0:
            return []  # they are being stopped already
        found, later_ns = [], []
        for task in node.borrowers():
            if task.state is not TaskState.RUNNING:
                continue
            from_ns = task.since_ns + self._settings.least_run_ns
            if from_ns > self._table.now_ns:
                later_ns.append(from_ns)
                continue
            found.append(task)
            missing -= len(task.cpus)
            if missing <= 0:
                return found
        if later_ns:
            self._table.wake_at(min(later_ns))
        return None

    def cores_for(self, task: TaskRecord, node: NodeRecord) -> int:
        """Return how many more cores a running GPU task could get now."""
        most = self._cores_on(task, node, len(node.cpus)) - len(task.cpus)
        free = len(node.free_cpus)
        if free < 1 <= most and node.freezes:
            victims = self._victims(node, 1)
            free = sum(len(victim.cpus) for victim in victims or ())
        return max(0, min(most, free))

    def resize(self, task: TaskRecord, cores: int) -> None:
        """Give a running GPU task so many cores, freezing borrowers if that needs it."""
        if cores == len(task.cpus):
            return
        node = self._nodes[_place(task)]
        missing = cores - len(task.cpus) - len(node.free_cpus)
        for victim in (self._victims(node, missing) or ()) if missing > 0 else ():
            self._preempt(victim, node, f"its cores are needed by GPU task {task.id}")
        self.set_cores(task, node, min(cores, len(task.cpus) + len(node.free_cpus)))

    # -- starting, freezing, thawing

    def set_cores(self, task: TaskRecord, node: NodeRecord, cores: int) -> None:
        """Give a running task so many cores; they must be free."""
        task.cores = cores
        self._give_cores(task, node, cores)
        self._table.changed[task.id], self._table.dirty = task, True
        self._table.send(out.SetCores(task.id, task.cpus))

    def _give_cores(self, task: TaskRecord, node: NodeRecord, cores: int) -> None:
        before = len(task.cpus)
        node.give_cores(task, cores)
        if not task.is_gpu and cores != before:
            self._table.queue_of(task).take(task.terms.user, Fraction(cores - before))

    def _start(self, task: TaskRecord, node: NodeRecord, gpus: tuple[int, ...], cores: int) -> None:
        self._occupy(task, node, gpus, cores)
        task.attempt += 1
        task.reason = ""
        self._table.send(
            out.StartTask(task.id, task.attempt, node.id, task.cpus, task.gpus, task.part)
        )
        self._begin(task, node)

    def _occupy(
        self, task: TaskRecord, node: NodeRecord, gpus: tuple[int, ...], cores: int
    ) -> None:
        self._table.leave(task)
        self._starts += 1
        task.front, task.order, task.cores, task.halved_for = False, self._starts, cores, None
        node.add(task, gpus)
        self._give_cores(task, node, cores)
        if task.is_gpu:
            self._table.queue_of(task).take(task.terms.user, task.terms.gpus)
        self._table.step(task, TaskInput.START)

    def _begin(self, task: TaskRecord, node: NodeRecord) -> None:
        """Watch a task that has begun to run."""
        self._table.watch_limit(task)
        if not task.is_gpu:
            return
        if task.terms.cores is None:
            most = self._cores_on(task, node, len(node.cpus))
            task.search = CoreSearch(len(task.cpus), most, literal=self._settings.literal_search)
        self.measure(task)

    def restore(self, task: TaskRecord, event: ev.TaskRestored) -> None:
        """Take over a task that runs already."""
        node = self._nodes[event.node or 0]
        known = [cpu for cpu in event.cpus if cpu in node.free_cpus]
        cores = min(len(event.cpus), len(node.free_cpus))
        # Its own processors are to be the ones that it gets.
        node.free_cpus = (
            [*known, *(cpu for cpu in node.free_cpus if cpu not in known)]
            if task.is_gpu
            else [*(cpu for cpu in node.free_cpus if cpu not in known), *known]
        )
        self._occupy(task, node, event.gpus, 0 if event.frozen else cores)
        node.free_cpus.sort()
        task.ran_ns = event.ran_ns
        if event.frozen:
            task.cores = task.terms.cores or 1
            self._table.step(task, TaskInput.FREEZE)
            task.front = True
            self._table.enter(task)
            return
        if task.cpus != event.cpus:
            self._table.send(out.SetCores(task.id, task.cpus))
        self._begin(task, node)

    def measure(self, task: TaskRecord) -> None:
        """Have the next window of a GPU task measured."""
        self._table.send(out.MeasureWindow(task.id, task.attempt, self._settings.window_ns))

    def stop(self, task: TaskRecord, by: TaskInput, reason: str) -> None:
        """Have all processes of a task ended; what it becomes then is up to ``by``."""
        task.stop = Stop(by, reason)
        if task.state is TaskState.FROZEN:
            self._table.leave(task)
        self._table.step(task, TaskInput.STOP)
        self._nodes[_place(task)].stopping_cores += len(task.cpus)
        self._table.send(out.StopTask(task.id, reason, requeue=by is TaskInput.REQUEUE))

    def _preempt(self, task: TaskRecord, node: NodeRecord, reason: str) -> None:
        """Take the cores of a CPU task for a GPU task; it goes to the front of its queue."""
        if self._freezes(task, node):
            self.freeze(task, node, reason)
        else:
            self.stop(task, TaskInput.REQUEUE, reason)

    def _freezes(self, task: TaskRecord, node: NodeRecord) -> bool:
        frozen = sum(
            one.memory_bytes for one in node.tasks.values() if one.state is TaskState.FROZEN
        )
        room = node.memory_bytes * self._settings.frozen_permille // 1000 - frozen
        return node.freezes and (not node.memory_bytes or task.memory_bytes <= room)

    def freeze(self, task: TaskRecord, node: NodeRecord, reason: str) -> None:
        """Suspend a CPU task, and queue it at the front."""
        self._table.step(task, TaskInput.FREEZE)
        self._give_cores(task, node, 0)
        task.front, task.queued_ns, task.reason = True, self._table.now_ns, reason
        self._table.enter(task)
        self._table.send(out.FreezeTask(task.id, reason))

    def _thaw(self, task: TaskRecord, node: NodeRecord) -> None:
        self._table.leave(task)
        self._starts += 1
        task.front, task.order, task.halved_for, task.reason = False, self._starts, None, ""
        node.tasks[task.id] = node.tasks.pop(task.id)  # it is the last that was started
        self._give_cores(task, node, task.cores)
        self._table.step(task, TaskInput.THAW)
        self._table.send(out.ThawTask(task.id, task.cpus))
        self._table.watch_limit(task)


def _place(task: TaskRecord) -> int:
    assert task.node is not None, f"{task.what} is nowhere"
    return task.node
