"""The commands ``gpud-ray run-set`` and ``gpud-ray make-set``."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import InvalidArgument
from gpud_client.cli.exit_status import DONE, FAILED
from gpud_client.cli.output import JsonOption, emit, say
from gpud_ray.cli.nodes import AddressOption, connect
from gpud_ray.cli.progress import progress
from gpud_ray.sets.run.scheduler import POLICIES

if TYPE_CHECKING:
    from gpud_ray.sets.run.scheduler import Ended, Run
    from gpud_ray.sets.setfile import TaskSet

__all__ = ["make_set", "run_set"]

_Policy = StrEnum("_Policy", {name: name for name in POLICIES})  # type: ignore[misc]
_OURS = _Policy("gpud")
_MOST_SHOWN = 20  # failures


def run_set(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The task set, as TOML.")],
    policy: Annotated[_Policy, typer.Option(help="How tasks are placed; gpud is ours.")] = _OURS,
    local: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICES",
            help="A node on this machine, without Ray, with a gpud of its own: cpu:1,cpu:1. May be "
            "repeated.",
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

    task_set = read(file, limits=limits)
    run = _run(task_set, policy.value, local or [], tries, address)
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


def _run(task_set: TaskSet, policy: str, local: list[str], tries: int, address: str | None) -> Run:
    from gpud_ray.sets.run.nodes import run_locally, run_on_ray

    nodes = [tuple(one.split(",")) for one in local]
    if any(not device for node in nodes for device in node):
        raise InvalidArgument("--local is one or more devices: cpu:1,cpu:1")
    if not nodes and find_spec("ray") is None:
        raise InvalidArgument("Ray is not installed; --local cpu:1,cpu:1 runs a set without it")
    if not nodes:
        connect(address)
    quiet = not sys.stderr.isatty()
    with progress("tasks", len(task_set.tasks), quiet=quiet) as show:
        ended = 0

        def told(_: Ended) -> None:
            nonlocal ended
            ended += 1
            show(ended)

        if nodes:
            return run_locally(task_set, nodes, policy=policy, tries=tries, told=told)
        return run_on_ray(task_set, policy=policy, tries=tries, told=told)


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
