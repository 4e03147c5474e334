"""Takes cores from CPU tasks whose use of the memory's bandwidth slows GPU tasks.

Approach: a CPU task that uses more than ``bandwidth_permille`` of a node's bandwidth, while the
utilisation of a GPU task there has fallen by ``fall_permille`` of its best, gets half its cores. No
CPU task is started on what it gave back until that GPU task has ended; then it gets them again, if
they are free. If it happens again, measured in another window, it is halved again; with one core
left it is frozen until that GPU task has ended, where tasks can be frozen.

Properties:
    unused: the cores that were given back are free or had by GPU tasks while the GPU task runs;
    only_cpu: no GPU task loses cores.

Source: the patent's step 11; what happens on repetition is ours.
"""

from __future__ import annotations

from gpud.tasks.core import events as ev
from gpud.tasks.core.lifecycle import TaskState
from gpud.tasks.core.node import NodeRecord
from gpud.tasks.core.placement import Placement
from gpud.tasks.core.record import TaskRecord
from gpud.tasks.core.task_table import TaskTable

__all__ = ["Contention"]


class Contention:
    """Watches the bandwidth of a table's nodes."""

    def __init__(self, table: TaskTable, placement: Placement) -> None:
        self._table, self._placement = table, placement

    def measured(self, event: ev.BandwidthMeasured) -> None:
        """Halve tasks that use too much, each for one GPU task that has fallen."""
        node = self._table.nodes.get(event.node)
        if node is None:
            return
        limit = self._table.settings.bandwidth_permille
        for number, permille in event.tasks:
            task = node.tasks.get(number)
            if task is None or task.is_gpu or permille <= limit:
                continue
            slowed = next((one for one in node.tasks.values() if one.fallen), None)
            if task.state is TaskState.RUNNING and slowed is not None:
                slowed.fallen = False  # the next window says whether this has helped
                self._halve(task, node, slowed)

    def _halve(self, task: TaskRecord, node: NodeRecord, slowed: TaskRecord) -> None:
        before = len(task.cpus)
        if before > 1:
            self._placement.set_cores(task, node, before // 2)
        elif node.freezes:
            why = f"it takes the memory's bandwidth from GPU task {slowed.id}"
            self._placement.freeze(task, node, why)
        else:
            return
        task.halved_for = slowed.id
        freed = before - len(task.cpus)
        node.blocked[slowed.id] = node.blocked.get(slowed.id, 0) + freed

    def ended(self, task: TaskRecord, node: NodeRecord) -> None:
        """Give back what others have lost for a GPU task that has ended."""
        if not task.is_gpu:
            return
        for other in list(node.tasks.values()):
            if other.halved_for != task.id:
                continue
            other.halved_for = None
            asked = other.terms.cores or 1
            if other.state is not TaskState.RUNNING:
                other.cores = asked
            elif node.fits_cpu(asked - len(other.cpus), lends=True):
                self._placement.set_cores(other, node, asked)
