"""The scheduler of a run: nodes connect to it, a policy places tasks, and every task ends once.

It is a `Stage` in real time: what a policy does here is what it does in the simulator.

* A task is done when an executor says so. It is *failed* when it has failed ``tries`` times, with
  the reason of the last; when no GPU there has its memory; or when no GPU is left.
* A task that fails is given to the policy again at once; one for which there was no memory at the
  next offer.
* A GPU's room is its memory without what its node's last offer says that other programs have.
* A task of which the set says no duration has that of earlier tries of its program.
* When a node is lost, its tasks have failed; a new policy goes on with the GPUs that are left.
* A task whose executor was lost after it had begun may have run twice: ``may_have_run_twice``.
* An answer of a try that is no longer the current one is dropped.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener, wait
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gpud.errors import GpudError
from gpud_ray.sets.model import GPU, Policy, Room, Task
from gpud_ray.sets.run.durations import Durations
from gpud_ray.sets.run.messages import Message, receive, send, start_message
from gpud_ray.sets.setfile import SetTask, TaskSet

if TYPE_CHECKING:
    from gpud_ray.sets.simulation import Trace

__all__ = ["POLICIES", "Ended", "NoNodes", "PolicyChoice", "Run", "Scheduler"]

_WAIT_S = 0.5


class NoNodes(GpudError):
    """The nodes did not connect in time."""

    code = "ray-no-nodes"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by name, with the options of EGS.

    Attributes:
        name: one of `POLICIES`; ``gpud`` is ours.
        beta: EGS: the part of the tasks that is drawn at once.
        literal: EGS: keep the source's rules; see `gpud_ray.sets.policies.egs`.
        seed: EGS: of the draws.
    """

    name: str = "gpud"
    beta: float = 0.4
    literal: bool = False
    seed: int = 0

    def make(self, tasks: Sequence[Task], gpus: Sequence[GPU], parallel: int) -> Policy:
        """Make the policy for tasks of which all that are known are given, and these GPUs."""
        from gpud_ray.sets.policies import baselines
        from gpud_ray.sets.policies.egs import EGS

        if self.name == "egs":
            return EGS(self.beta, parallel, self.seed, literal=self.literal)
        made: dict[str, Callable[[int], Policy]] = {
            "greedy": baselines.Greedy,
            "mct": baselines.MinimumCompletionTime,
            "min-min": baselines.MinMin,
            "max-min": baselines.MaxMin,
        }
        return made[self.name](parallel) if self.name in made else _ours(tasks, gpus)


def _ours(tasks: Sequence[Task], gpus: Sequence[GPU]) -> Policy:
    from gpud_ray.sets.bounds import lower_bound_s
    from gpud_ray.sets.policies.packing import Packing, plan

    known = [
        task for task in tasks if gpus and task.memory_mb <= max(gpu.memory_mb for gpu in gpus)
    ]
    if not known:
        return Packing()
    return Packing(plan(known, gpus, bound_s=lower_bound_s(known, gpus)))


POLICIES: Final = ("gpud", "egs", "greedy", "mct", "min-min", "max-min")


@dataclass(slots=True)
class Ended:
    """How a task ended.

    Attributes:
        task: its number.
        name: its name.
        state: ``done`` or ``failed``.
        reason: of the failure; empty if done.
        tries: how often it was started.
        gpu: the number of the last GPU that had it; None: none had.
        node: the name of that GPU's node.
        may_have_run_twice: whether a try may have run to its end before the last one.
        start_s: of the last try, from the beginning of the run.
        end_s: of the task.
        took_s: of the last try, in its executor.
        kernels_s: how long its kernels ran on the device.
        output: what an executable has written, its end.
    """

    task: int
    name: str
    state: str
    reason: str = ""
    tries: int = 0
    gpu: int | None = None
    node: str = ""
    may_have_run_twice: bool = False
    start_s: float = 0.0
    end_s: float = 0.0
    took_s: float = 0.0
    kernels_s: float = 0.0
    output: str = ""


@dataclass(slots=True)
class Run:
    """What happened in a run.

    Attributes:
        ended: by task.
        makespan_s: from the first node's readiness to the last end.
        offers: the last offer of each node.
        notes: what nodes could not do, such as making cgroups.
    """

    ended: dict[int, Ended] = field(default_factory=dict)
    makespan_s: float = 0.0
    offers: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Node:
    connection: Any
    name: str
    gpus: dict[int, int] = field(default_factory=dict)  # our number: the node's


@dataclass(slots=True)
class _Current:
    task: Task
    gpu: int
    start_s: float


class Scheduler:
    """A run of a set; `address` is what frameworks connect to."""

    def __init__(
        self,
        task_set: TaskSet,
        *,
        policy: PolicyChoice | None = None,
        tries: int = 3,
        host: str | None = None,
        key: bytes,
        told: Callable[[Ended], None] = lambda _: None,
        durations: Durations | None = None,
    ) -> None:
        self._set = task_set
        self._durations = durations or Durations()
        self._by_id: dict[int, SetTask] = {one.needs.id: one for one in task_set.tasks}
        self._choice, self._most_tries, self._told = policy or PolicyChoice(), tries, told
        self._listener = Listener((host, 0) if host else None, authkey=key)
        self._nodes: list[_Node] = []
        self._begin_s = time.monotonic()
        self._current: dict[int, _Current] = {}
        self._tries: dict[int, int] = {}
        self._doubtful: set[int] = set()
        self._arrived: set[int] = set()
        self._for_offer: list[Task] = []  # that a device had no memory for
        self._wakes: list[float] = []
        self._gpus: dict[int, tuple[GPU, _Node]] = {}
        self._policy: Policy
        self.pids: dict[int, int] = {}
        """Of the executors, as they were when their nodes connected."""
        self.rooms: list[Room] = []
        self.now_s = 0.0
        self.run_of = Run()

    @property
    def address(self) -> Any:
        """What `FrameworkConfig.address` is to be."""
        return self._listener.address

    # -- what policies call

    def start(self, task: Task, index: int) -> None:
        """See `Stage.start`."""
        room = self.rooms[index]
        gpu, node = self._gpus[room.gpu.id]
        room.add(task)
        self._tries[task.id] = attempt = self._tries.get(task.id, 0) + 1
        self._current[task.id] = _Current(task, gpu.id, self.now_s)
        # Ours says how much CapSM tasks can use; gpud divides what they leave.
        quota = gpu.capsm_milli if self._choice.name == "gpud" else None
        program = self._by_id[task.id].program
        message = start_message(task, program, attempt, node.gpus[gpu.id], quota)
        with suppress(OSError):  # the node is gone, which `_hear` finds
            send(node.connection, message)

    def wake(self, at_s: float) -> None:
        """See `Stage.wake`."""
        heapq.heappush(self._wakes, at_s)

    # -- the run

    def accept(self, count: int, limit_s: float, ended: Callable[[], str] = lambda: "") -> None:
        """Wait for nodes.

        Args:
            count: how many.
            limit_s: the most seconds.
            ended: the name of a node that has ended instead; empty: none has.

        Raises:
            NoNodes: fewer came.
        """
        end_s = time.monotonic() + limit_s
        came: queue.SimpleQueue[tuple[Any, Message]] = queue.SimpleQueue()
        thread = threading.Thread(target=self._accept, args=(count, came), daemon=True)
        thread.start()
        while len(self._nodes) < count:
            try:
                self._add_node(*came.get(timeout=_WAIT_S))
            except queue.Empty:
                if name := ended():
                    raise NoNodes(f"{name} has ended before it was ready; see above") from None
                if time.monotonic() > end_s:
                    raise NoNodes(
                        f"{len(self._nodes)} of {count} nodes connected within {limit_s:g} s"
                    ) from None
        self.rooms = [Room(gpu) for gpu, _ in self._gpus.values()]
        for node in self._nodes:
            self._offered(node)

    def _accept(self, count: int, came: queue.SimpleQueue[tuple[Any, Message]]) -> None:
        """Accept connections until enough nodes have said what they have."""
        while count:
            try:
                connection = self._listener.accept()
                came.put((connection, receive(connection)))
                count -= 1
            except (AuthenticationError, EOFError):
                continue  # not a node, or one that has ended already
            except OSError:
                return  # the listener was closed

    def _add_node(self, connection: Any, message: Message) -> None:
        node = _Node(connection, str(message["name"]))
        for row in message["gpus"]:
            gpu = GPU(
                len(self._gpus), row["memory_mb"], row["cores"], row["capsm_milli"], node.name
            )
            node.gpus[gpu.id] = row["index"]
            self._gpus[gpu.id] = gpu, node
            self.pids[gpu.id] = row["pid"]
        self._nodes.append(node)
        self.run_of.notes += [f"{node.name}: {note}" for note in message["notes"]]
        self.run_of.offers[node.name] = message["state"]

    def run(self) -> Run:
        """Run the set to its end; call `accept` before."""
        self._begin_s = time.monotonic()
        arrivals = sorted(self.tasks, key=lambda task: -task.arrival_s)
        self._new_policy([task for task in arrivals if task.arrival_s <= 0])
        while len(self.run_of.ended) < len(self._by_id):
            self._tick(arrivals)
            if self.rooms:
                self._policy.act(self)
            next_s = self._next_s(arrivals)
            for connection in wait([node.connection for node in self._nodes], next_s):
                self._hear(next(node for node in self._nodes if node.connection is connection))
        self.run_of.makespan_s = max((e.end_s for e in self.run_of.ended.values()), default=0.0)
        self._durations.save()
        return self.run_of

    def plan(self) -> Trace:
        """Simulate the set on the GPUs that there are, with the memory that they have free."""
        from gpud_ray.sets.policies.packing import Packing
        from gpud_ray.sets.simulation import simulate

        gpus = [
            replace(room.gpu, memory_mb=max(1, room.gpu.memory_mb - room.foreign_mb))
            for room in self.rooms
        ]
        tasks = self.tasks
        policy = self._choice.make(tasks, gpus, self._set.parallel)
        model = policy.model if isinstance(policy, Packing) else None
        return simulate(tasks, gpus, policy, model)

    @property
    def tasks(self) -> list[Task]:
        """The set's tasks, with durations as far as they are known."""
        return [self._with_duration(one.needs) for one in self._set.tasks]

    def _with_duration(self, task: Task) -> Task:
        if task.duration_s is not None:
            return task
        return replace(task, duration_s=self._durations.of(self._by_id[task.id].program))

    def close(self) -> None:
        """End the connections; frameworks end with them."""
        for node in self._nodes:
            with suppress(OSError):
                send(node.connection, {"is": "stop"})
            node.connection.close()
        self._listener.close()

    def _tick(self, arrivals: list[Task]) -> None:
        self.now_s = time.monotonic() - self._begin_s
        while self._wakes and self._wakes[0] <= self.now_s:
            heapq.heappop(self._wakes)
        arrived = []
        while arrivals and arrivals[-1].arrival_s <= self.now_s:
            arrived.append(arrivals.pop())
            self._arrived.add(arrived[-1].id)
        self._arrive(arrived)

    def _next_s(self, arrivals: list[Task]) -> float:
        times = [self.now_s + _WAIT_S]
        times += [arrivals[-1].arrival_s] if arrivals else []
        times += self._wakes[:1]
        return max(0.0, min(times) - (time.monotonic() - self._begin_s))

    def _arrive(self, tasks: Sequence[Task]) -> None:
        largest = max((room.gpu.memory_mb for room in self.rooms), default=0)
        fit = []
        for task in tasks:
            if not self.rooms:
                self._end(task, "no GPU is left")
            elif task.memory_mb > largest:
                self._end(task, f"needs {task.memory_mb} MiB, the largest GPU has {largest}")
            else:
                fit.append(task)
        if fit:
            self._policy.arrive(fit, self)

    def _new_policy(self, known: Sequence[Task]) -> None:
        gpus = [room.gpu for room in self.rooms]
        self._policy = self._choice.make(known, gpus, self._set.parallel)

    def _offered(self, node: _Node) -> None:
        """Take a node's offer: what is free there, and a new try for tasks that had no memory."""
        foreign = {
            row["index"]: row["memory_foreign_mb"] for row in self.run_of.offers[node.name]["gpus"]
        }
        for room in self.rooms:
            if room.gpu.id in node.gpus:
                room.offer(foreign[node.gpus[room.gpu.id]])
        waiting, self._for_offer = self._for_offer, []
        self._arrive(waiting)

    def _hear(self, node: _Node) -> None:
        try:
            message = receive(node.connection)
        except (EOFError, OSError):
            self._lose(node)
            return
        self.now_s = time.monotonic() - self._begin_s
        if message["is"] == "offer":
            self.run_of.offers[node.name] = message["state"]
            self._offered(node)
        elif message["is"] == "ended":
            self._ended(message)

    def _ended(self, message: Message) -> None:
        number = message["task"]
        current = self._current.get(number)
        if current is None or self._tries[number] != message["attempt"]:
            return  # of a try that was given up
        del self._current[number]
        for room in self.rooms:
            if room.gpu.id == current.gpu:
                room.remove(current.task)
        if message["reason"] and message["may_have_run"] and "executor ended" in message["reason"]:
            self._doubtful.add(number)
        self._after(current, message["reason"], message)

    def _after(self, current: _Current, reason: str, message: Message | None = None) -> None:
        """Count an end of a try: the task has ended, or is tried again at once."""
        task = current.task
        if reason and self._tries[task.id] < self._most_tries:
            if (message or {}).get("no_room"):
                self._for_offer.append(task)
            else:
                self._arrive([self._with_duration(task)])
            return
        if not reason and message is not None:
            program, gpu = self._by_id[task.id].program, self._gpus[current.gpu][0]
            self._durations.note(program, message["took_s"], gpu)
        if reason:
            reason = f"{reason} (try {self._tries[task.id]} of {self._most_tries})"
        self._end(task, reason, current, message or {})

    def _end(
        self,
        task: Task,
        reason: str,
        current: _Current | None = None,
        message: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        assert task.id not in self.run_of.ended
        tries = self._tries.get(task.id, 0)
        ended = Ended(
            task.id, self._by_id[task.id].name, "failed" if reason else "done", reason, tries,
            may_have_run_twice=task.id in self._doubtful and tries > 1, end_s=self.now_s,
            took_s=message.get("took_s", 0.0), kernels_s=message.get("kernels_s", 0.0),
            output=message.get("output", ""),
        )  # fmt: skip
        if current is not None:
            ended.gpu, ended.start_s = current.gpu, current.start_s
            ended.node = self._gpus[current.gpu][0].node
        self.run_of.ended[task.id] = ended
        self._told(ended)

    def _lose(self, node: _Node) -> None:
        """Go on without a node: its tasks have failed, and a new policy has the others' GPUs."""
        self._nodes.remove(node)
        node.connection.close()
        self.now_s = time.monotonic() - self._begin_s
        self.rooms = [room for room in self.rooms if room.gpu.id not in node.gpus]
        lost = [one for one in self._current.values() if one.gpu in node.gpus]
        for one in lost:
            del self._current[one.task.id]
            self._doubtful.add(one.task.id)
        self._for_offer.clear()  # they are among those that wait
        waiting = list(self._waiting(lost))
        self._wakes.clear()
        self._new_policy(waiting)
        self._arrive(waiting)
        for one in lost:
            self._after(one, f"node {node.name} was lost")

    def _waiting(self, lost: Sequence[_Current]) -> Iterator[Task]:
        gone = {one.task.id for one in lost}
        for number, one in self._by_id.items():
            elsewhere = number in self.run_of.ended or number in gone or number in self._current
            if number in self._arrived and not elsewhere:
                yield self._with_duration(one.needs)
