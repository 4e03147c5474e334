"""The scheduler of tasks: which task runs where, with which cores and GPUs, event by event.

Problem: whole programs wait for cores and GPUs of one node or several. GPU tasks must get as many
cores as feed their GPUs and no more; CPU tasks are to fill what is left and give way; users are to
be served fairly; and every decision must be reproducible from a log.

Approach: one function, `TaskScheduler.handle`: an event in, commands out, no clock and no I/O. This
module follows a task from its submission to its end. `gpud.tasks.core.placement` starts what waits
and stops borrowers, `gpud.tasks.core.node` divides a node, `gpud.tasks.core.core_search` finds how
many cores a GPU task needs, `gpud.tasks.core.contention` halves what takes the memory's bandwidth.

The steps of the source, and where they are: 1 a submission, `gpud.tasks.core.events.TaskTerms`;
2 and 10 queues, `gpud.tasks.core.placement`; 3 and 4 `gpud.tasks.core.core_search`; 5 findings,
docs/explanation/tasks.md; 6, 8, 9 and 10 `gpud.tasks.core.node`; 7 `gpud.tasks.core.fair_queue`;
11 `gpud.tasks.core.contention`; 12 and 14 `gpud.tasks.core.placement`; 13 `FinishTask`.

Terms: those of `gpud.tasks.core.node`.

Properties (each holds after every event; tests.property.task_simulation checks them by name):
    exclusive, parts: see `gpud.tasks.core.node`;
    counted: a node's sums are those of its tasks;
    filed: a task that waits is in exactly one queue, one that has something is on exactly one node;
    once: no attempt of a task begins before the one before it has ended;
    only_cpu: no GPU task is frozen or stopped for others;
    least_run: no task is frozen or stopped for others before it has run for ``least_run_ns``;
    kept: a task that was submitted ends, or waits, or runs;
    awake: a task that fits when nothing is kept for others does not wait;
    equal_logs: equal events give equal commands.

Source: the patent on CPU/GPU task queues by the authors of CODA, "Towards Slimming and Co-locating
DNN and CPU Jobs" (Zhao et al., ICDCS 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from gpud.errors import InternalError
from gpud.tasks.core import commands as out
from gpud.tasks.core import events as ev
from gpud.tasks.core.contention import Contention
from gpud.tasks.core.core_search import CoreSearch
from gpud.tasks.core.fair_queue import FairQueue
from gpud.tasks.core.lifecycle import ENDED, WAITS, TaskInput, TaskState
from gpud.tasks.core.node import NodeRecord
from gpud.tasks.core.placement import Placement
from gpud.tasks.core.record import Stop, TaskRecord
from gpud.tasks.core.settings import Settings
from gpud.tasks.core.task_table import TaskTable
from gpud.tasks.core.validate import problems

__all__ = ["TaskScheduler"]

_HELD, _BLOCKED, _QUEUED = TaskState.HELD, TaskState.BLOCKED, TaskState.QUEUED
_RUNNING, _FROZEN, _STOPPING = TaskState.RUNNING, TaskState.FROZEN, TaskState.STOPPING


class TaskScheduler:
    """The state machine of all tasks and nodes. Not thread-safe.

    Attributes:
        tasks: those that have not ended, by id. Read-only.
        nodes: by number. Read-only.
        table: what the parts share. Read-only.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.table = TaskTable(self.settings)
        self.tasks, self.nodes = self.table.tasks, self.table.nodes
        self._followers: dict[int, list[int]] = {}  # tasks that are blocked, by whom
        self._armed_ns: int | None = None
        self.placement = Placement(self.table)
        self.contention = Contention(self.table, self.placement)
        self._handlers: Mapping[type, Callable[..., None]] = {
            ev.NodeChanged: self._node_changed,
            ev.NodeLost: self._node_lost,
            ev.GPUMarked: self._gpu_marked,
            ev.TaskSubmitted: self._submitted,
            ev.TaskRestored: self._restored,
            ev.TaskEnded: self._ended,
            ev.HoldRequested: self._hold_requested,
            ev.ReleaseRequested: self._release_requested,
            ev.CancelRequested: self._cancel_requested,
            ev.WindowMeasured: self._window_measured,
            ev.BandwidthMeasured: self.contention.measured,
            ev.MemoryMeasured: self._memory_measured,
            ev.NeedLearned: lambda event: self.table.needs.learn(
                event.user, event.program, event.category, event.cores
            ),
            ev.TimerFired: self._timer_fired,
        }

    @property
    def queues(self) -> Mapping[str, FairQueue]:
        """The queues by name; see `gpud.tasks.core.task_table`."""
        return self.table.queues

    @property
    def changed(self) -> Mapping[int, TaskRecord]:
        """Tasks that the last event changed, ended ones too; valid until the next event."""
        return self.table.changed

    def handle(self, event: ev.Event) -> list[out.Command]:
        """Apply one event and return the resulting commands, to be executed in order.

        Raises:
            InternalError: a bug in gpud: a lifecycle or an invariant was broken. The scheduler's
                state is then unspecified.
        """
        table = self.table
        table.next_event(event.now_ns)
        self._handlers[type(event)](event)
        self._run_timers()
        if table.dirty:
            table.dirty = False
            self.placement.place()
        if table.timers and table.timers[0][0] != self._armed_ns:
            self._armed_ns = table.timers[0][0]
            table.send(out.SetTimer(self._armed_ns))
        if self.settings.debug:
            self.validate()
        return table.out

    def validate(self) -> None:
        """Check every invariant; see `gpud.tasks.core.validate`.

        Raises:
            InternalError: one does not hold. The message says which, and for which object.
        """
        found = list(problems(self.tasks, self.nodes, self.queues, self._followers))
        if found:
            raise InternalError("; ".join(found), stage="tasks")

    # -- nodes

    def _node_changed(self, event: ev.NodeChanged) -> None:
        node = self.nodes.get(event.node)
        if node is None:
            node = self.nodes[event.node] = NodeRecord(event.node, self.settings, self.table.needs)
        node.change(event.cpus, event.gpus, event.memory_bytes, freezes=event.freezes)
        self.placement.split()
        self.table.dirty = True

    def _node_lost(self, event: ev.NodeLost) -> None:
        node = self.nodes.get(event.node)
        if node is None:
            return
        # The one that was started last first: each goes to the front of its queue.
        for task in list(node.tasks.values())[::-1]:
            self._over(task, ev.TaskEnded(
                event.now_ns, task.id, task.attempt, None, problem=event.reason, lost=True,
            ))  # fmt: skip
        del self.nodes[event.node]
        self.placement.split()
        self.table.dirty = True

    def _gpu_marked(self, event: ev.GPUMarked) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.gpu >= len(node.gpu_names):
            return
        if event.reason:
            node.marked[event.gpu] = event.reason
        else:
            node.marked.pop(event.gpu, None)
        self.placement.split()
        self.table.dirty = True

    def _memory_measured(self, event: ev.MemoryMeasured) -> None:
        for number, size in event.tasks:
            if number in self.tasks:
                self.tasks[number].memory_bytes = size

    # -- submissions

    def _submitted(self, event: ev.TaskSubmitted) -> None:
        self._new(event.task, event.terms, held=event.held)

    def _new(self, number: int, terms: ev.TaskTerms, *, held: bool) -> TaskRecord:
        if number in self.tasks:
            raise InternalError(f"task {number} was submitted twice", stage="tasks")
        task = TaskRecord(number, terms, _HELD if held else _BLOCKED, self.table.now_ns)
        self.tasks[number] = self.table.changed[number] = task
        for before in terms.after:
            if before in self.tasks:
                self._followers.setdefault(before, []).append(number)
        self._check_ready(task)
        return task

    def _check_ready(self, task: TaskRecord) -> None:
        """Queue a task whose predecessors are all done."""
        if task.state is _BLOCKED and not any(one in self.tasks for one in task.terms.after):
            self._queue(task, TaskInput.READY)

    def _queue(self, task: TaskRecord, by: TaskInput, *, front: bool = False) -> None:
        self.table.step(task, by)
        task.front, task.queued_ns = front, self.table.now_ns
        self.table.enter(task)

    def _restored(self, event: ev.TaskRestored) -> None:
        task = self._new(event.task, event.terms, held=event.held)
        task.attempt, task.failures, task.losses = event.attempt, event.failures, event.losses
        if event.front and task.state is _QUEUED:
            self.table.leave(task)
            task.front = True
            self.table.enter(task)
        if event.node is None or event.node not in self.nodes or task.state is not _QUEUED:
            return
        self.placement.restore(task, event)

    def _hold_requested(self, event: ev.HoldRequested) -> None:
        task = self.tasks.get(event.task)
        if task is None:
            self.table.send(out.Refuse(f"there is no task {event.task}, or it has ended"))
        elif task.state not in WAITS:
            self.table.send(out.Refuse(
                f"task {event.task} is {task.state}, and only one that waits can be held; cancel it"
            ))  # fmt: skip
        elif task.state is not _HELD:
            if task.state is _QUEUED:
                self.table.leave(task)
            self.table.step(task, TaskInput.HOLD)

    def _release_requested(self, event: ev.ReleaseRequested) -> None:
        task = self.tasks.get(event.task)
        if task is None or task.state is not _HELD:
            state = "has ended or never was" if task is None else f"is {task.state}"
            self.table.send(
                out.Refuse(f"task {event.task} {state}, and only one that is held can go")
            )
            return
        self.table.step(task, TaskInput.RELEASE)
        self._check_ready(task)

    def _cancel_requested(self, event: ev.CancelRequested) -> None:
        task = self.tasks.get(event.task)
        if task is None:
            self.table.send(out.Refuse(f"there is no task {event.task}, or it has ended"))
            return
        by = TaskInput.FAIL if event.failed else TaskInput.CANCEL
        if task.state in WAITS:
            self._finish(task, by, event.reason)
        elif task.state is _STOPPING:
            task.stop = Stop(by, event.reason)  # it is not run again
            self.table.changed[task.id] = task
        else:
            self.placement.stop(task, by, event.reason)

    # -- attempts

    def _ended(self, event: ev.TaskEnded) -> None:
        task = self.tasks.get(event.task)
        if task is None or task.attempt != event.attempt or task.node is None:
            return
        self._over(task, event)

    def _over(self, task: TaskRecord, event: ev.TaskEnded) -> None:
        """Take back what an attempt had, and decide what becomes of its task."""
        node = self.nodes[_place(task)]
        if task.state is _FROZEN:
            self.table.leave(task)
        if task.state is _STOPPING:
            node.stopping_cores -= len(task.cpus)
        task.status = event.status
        stop, task.stop, task.search = task.stop, None, None
        by, reason = self._outcome(task, event, stop)
        self.table.step(task, by)
        self.placement.give_back(task, node)
        self.contention.ended(task, node)
        task.reason = reason
        task.best_permille, task.fallen = None, False
        if task.state in ENDED:
            self._forget(task)
            return
        task.ran_ns, task.front = 0, by is TaskInput.REQUEUE and not self._failed(event, stop)
        task.queued_ns = self.table.now_ns
        self.table.enter(task)

    def _failed(self, event: ev.TaskEnded, stop: Stop | None) -> bool:
        return not event.lost and (stop is None or not event.stopped)

    def _outcome(
        self, task: TaskRecord, event: ev.TaskEnded, stop: Stop | None
    ) -> tuple[TaskInput, str]:
        """Return what becomes of a task whose attempt has ended, and what to tell."""
        if stop is not None and (event.stopped or event.lost):
            return stop.by, stop.reason
        if event.lost:
            task.losses += 1
            if not task.terms.requeue:
                return TaskInput.FAIL, f"attempt {task.attempt} was lost: {event.problem}"
            if task.losses > self.settings.most_losses:
                return TaskInput.FAIL, f"it was lost {task.losses} times: {event.problem}"
            return TaskInput.REQUEUE, f"attempt {task.attempt} was lost: {event.problem}"
        if stop is None and event.stopped:  # by a runner that was killed before it could say why
            return TaskInput.REQUEUE, "it was stopped"
        if event.status == 0 and not event.problem:
            return TaskInput.COMPLETE, ""
        task.failures += 1
        reason = event.problem or f"it ended with status {event.status}"
        if stop is not None and stop.by is not TaskInput.REQUEUE:
            return stop.by, stop.reason
        if task.failures <= task.terms.retries:
            return TaskInput.REQUEUE, f"attempt {task.attempt} failed: {reason}"
        return TaskInput.FAIL, reason

    def _finish(self, task: TaskRecord, by: TaskInput, reason: str) -> None:
        """End a task that waits."""
        if task.state is _QUEUED:
            self.table.leave(task)
        self.table.step(task, by)
        task.reason = reason
        self._forget(task)

    def _forget(self, task: TaskRecord) -> None:
        del self.tasks[task.id]
        self.table.send(out.FinishTask(task.id, task.state, task.status, task.reason))
        done = task.state is TaskState.DONE
        for number in self._followers.pop(task.id, ()):
            follower = self.tasks.get(number)
            if follower is None:
                continue
            if done:
                self._check_ready(follower)
            else:
                self._finish(follower, TaskInput.FAIL, f"task {task.id}, which must be done "
                             f"before it, was not: it is {task.state}")  # fmt: skip

    # -- cores of GPU tasks

    def _window_measured(self, event: ev.WindowMeasured) -> None:
        task = self.tasks.get(event.task)
        if task is None or task.attempt != event.attempt or task.state is not _RUNNING:
            return
        measured = event.utilisation_permille
        if measured is not None:
            best = task.best_permille or 0
            limit = best * (1000 - self.settings.fall_permille)
            task.best_permille = max(best, measured)
            task.fallen = task.search is None and measured * 1000 < limit
        if task.search is not None:
            self._search(task, task.search, measured)
        elif measured is None:
            return
        self.placement.measure(task)

    def _search(self, task: TaskRecord, search: CoreSearch, measured: int | None) -> None:
        search.measured(measured)
        node = self.nodes[_place(task)]
        search.limit(len(task.cpus) + self.placement.cores_for(task, node))
        self.placement.resize(task, search.cores)
        if search.over:
            task.search = None
            if search.windows:
                each = Fraction(search.best) / task.terms.gpus
                self.table.needs.learn(
                    task.terms.user, task.terms.program, task.terms.category, each
                )
                self.table.send(out.KeepNeed(
                    task.terms.user, task.terms.program, task.terms.category, each
                ))  # fmt: skip

    # -- time

    def _timer_fired(self, event: ev.TimerFired) -> None:
        self._armed_ns = None

    def _run_timers(self) -> None:
        while (due := self.table.due()) is not None:
            number, attempt = due
            if not number:
                self.table.dirty = True
                continue
            task = self.tasks.get(number)
            if task is None or task.attempt != attempt or task.state is not _RUNNING:
                continue
            limit_ns = task.terms.time_limit_ns
            if limit_ns is None or task.ran_until(self.table.now_ns) < limit_ns:
                continue  # it was frozen meanwhile: its timer was set again
            reason = f"its time limit of {limit_ns / 1e9:g} s is over"
            self.placement.stop(task, TaskInput.FAIL, reason)


def _place(task: TaskRecord) -> int:
    assert task.node is not None, f"{task.what} is nowhere"
    return task.node
