"""The commands ``gpud-ray run-set`` and ``gpud-ray make-set``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import InvalidArgument
from gpud_client.cli.exit_status import DONE, FAILED
from gpud_client.cli.output import JsonOption, emit, say
from gpud_ray.cli.nodes import AddressOption, connect
from gpud_ray.cli.progress import progress
from gpud_ray.sets.run.scheduler import POLICIES, PolicyChoice

if TYPE_CHECKING:
    from gpud_ray.sets.run.scheduler import Run, Scheduler
    from gpud_ray.sets.setfile import TaskSet

__all__ = ["make_set", "run_set"]

_Policy = StrEnum("_Policy", {name: name for name in POLICIES})  # type: ignore[misc]
_OURS = _Policy("gpud")
_MOST_SHOWN = 20  # failures


def run_set(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The task set, as TOML.")],
    policy: Annotated[_Policy, typer.Option(help="How tasks are placed; gpud is ours.")] = _OURS,
    beta: Annotated[
        float, typer.Option(help="EGS: the part of the tasks that is drawn at once.")
    ] = 0.4,
    literal: Annotated[
        bool, typer.Option("--literal", help="EGS: keep each rule of its source.")
    ] = False,
    seed: Annotated[int, typer.Option(help="EGS: of the draws.")] = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="Simulate the set on these nodes, and run nothing.")
    ] = False,
    local: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICES|SOCKET",
            help="A node on this machine, without Ray: devices of a gpud of its own (cpu:1,cpu:1), "
            "or the socket of one that runs. May be repeated.",
        ),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="How often a task is started at most.")] = 3,
    limits: Annotated[
        bool, typer.Option(help="Refuse tasks of 1,024 threads or over 2,048 MiB.")
    ] = True,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a set of tasks on all nodes; every task ends once, as done or as failed."""
    from gpud_ray.sets.setfile import read

    if not 0 < beta <= 1:
        raise typer.BadParameter(f"--beta is more than 0 and at most 1, not {beta:g}")
    task_set = read(file, limits=limits)
    choice = PolicyChoice(policy.value, beta, literal, seed)
    nodes = _nodes(local or [])
    if plan:
        with _started(task_set, nodes, address, policy=choice) as scheduler:
            return _plan(scheduler, choice.name, as_json=as_json)
    quiet = not sys.stderr.isatty()
    with progress("tasks", len(task_set.tasks), quiet=quiet) as show:
        done = count(1)
        with _started(
            task_set, nodes, address, policy=choice, tries=tries, told=lambda _: show(next(done))
        ) as scheduler:
            run = scheduler.run()
    if as_json:
        emit(
            {
                "policy": policy.value,
                "makespan_s": run.makespan_s,
                "tasks": [asdict(one) for _, one in sorted(run.ended.items())],
                "offers": run.offers,
                "notes": run.notes,
            }
        )
    else:
        _print(run, policy.value)
    return FAILED if any(one.state == "failed" for one in run.ended.values()) else DONE


def make_set(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    tasks: Annotated[int, typer.Option(min=1, max=100_000, help="How many.")] = 100,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal sets.")] = 0,
    memory: Annotated[int, typer.Option(min=1, max=2048, help="The most MiB of a task.")] = 16,
) -> None:
    """Write a random set of our own kernels: products, stencils, graph searches, detectors."""
    from gpud_ray.sets.generate import random_set
    from gpud_ray.sets.setfile import write

    write(file, random_set(tasks, seed, most_mb=memory))


_Nodes = list[tuple[str, ...] | Path]


def _nodes(local: list[str]) -> _Nodes:
    nodes: _Nodes = [Path(one) if "/" in one else tuple(one.split(",")) for one in local]
    if any(not all(node) for node in nodes if not isinstance(node, Path)):
        raise InvalidArgument("--local is one or more devices: cpu:1,cpu:1")
    if not nodes and find_spec("ray") is None:
        raise InvalidArgument("Ray is not installed; --local cpu:1,cpu:1 runs a set without it")
    return nodes


@contextmanager
def _started(
    task_set: TaskSet, nodes: _Nodes, address: str | None, **options: Any
) -> Iterator[Scheduler]:
    from gpud_ray.sets.run.nodes import started_locally, started_on_ray

    if nodes:
        with started_locally(task_set, nodes, **options) as (scheduler, _):
            yield scheduler
    else:
        connect(address)
        with started_on_ray(task_set, **options) as scheduler:
            yield scheduler


def _plan(scheduler: Scheduler, policy: str, *, as_json: bool) -> int:
    """Print what a run would do by the durations that are known."""
    unknown = sum(task.duration_s is None for task in scheduler.tasks)
    trace = scheduler.plan()
    names = {room.gpu.id: room.gpu.node for room in scheduler.rooms}
    done = [one for one in trace.ran if one.done]
    if as_json:
        emit(
            {
                "policy": policy, "makespan_s": trace.makespan_s, "unknown_durations": unknown,
                "tasks": [{**asdict(one), "node": names[one.gpu]} for one in done],
                "failed": [{"task": task, "reason": why} for task, why in trace.failed.items()],
            }
        )  # fmt: skip
        return FAILED if trace.failed else DONE
    say(f"{policy}: {len(done)} tasks would take {trace.makespan_s:.2f} s")
    for (node, gpu), number in sorted(Counter((names[one.gpu], one.gpu) for one in done).items()):
        say(f"  {node}, GPU {gpu}: {number}")
    for task, reason in list(trace.failed.items())[:_MOST_SHOWN]:
        say(f"  cannot run: task {task}: {reason}")
    if unknown:
        say(f"  {unknown} have no known duration, and count as 1 s: a run measures them")
    return FAILED if trace.failed else DONE


def _print(run: Run, policy: str) -> None:
    states = Counter(one.state for one in run.ended.values())
    again = sum(one.tries > 1 for one in run.ended.values())
    twice = [one.task for one in run.ended.values() if one.may_have_run_twice]
    say(f"{policy}: {states['done']} done, {states['failed']} failed in {run.makespan_s:.2f} s")
    nodes: dict[Any, Counter[int | None]] = {}
    for one in run.ended.values():
        if one.gpu is not None:
            nodes.setdefault(one.node, Counter())[one.gpu] += 1
    for node, gpus in sorted(nodes.items()):
        each = ", ".join(f"GPU {gpu}: {count}" for gpu, count in sorted(gpus.items()))
        say(f"  {node}: {each}")
    if again:
        say(f"  {again} were started more than once")
    if twice:
        say(f"  may have run twice: {', '.join(map(str, sorted(twice)))}")
    for note in dict.fromkeys(run.notes):
        say(f"  {note}")
    failures = [one for one in run.ended.values() if one.state == "failed"]
    for one in failures[:_MOST_SHOWN]:
        say(f"  failed: {one.name}: {one.reason}")
    if len(failures) > _MOST_SHOWN:
        say(f"  and {len(failures) - _MOST_SHOWN} more; --json has all")
