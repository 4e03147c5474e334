"""The commands ``gpud-ray run-set`` and ``gpud-ray make-set``."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import InvalidArgument
from gpud_client.cli.exit_status import DONE, FAILED
from gpud_client.cli.output import JsonOption, emit, say
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
    as_json: JsonOption = False,
) -> int:
    """Run a set of tasks on all nodes; every task ends once, as done or as failed."""
    from gpud_ray.sets.setfile import read

    task_set = read(file, limits=limits)
    run = _run(task_set, policy.value, local or [], tries)
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


def _run(task_set: TaskSet, policy: str, local: list[str], tries: int) -> Run:
    from rich.console import Console
    from rich.progress import Progress

    from gpud_ray.sets.run.nodes import run_locally, run_on_ray

    nodes = [tuple(one.split(",")) for one in local]
    if any(not device for node in nodes for device in node):
        raise InvalidArgument("--local is one or more devices: cpu:1,cpu:1")
    total = len(task_set.tasks)
    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        bar = progress.add_task(f"{total} tasks", total=total)
        failed = 0

        def told(ended: Ended) -> None:
            nonlocal failed
            failed += ended.state == "failed"
            progress.update(bar, advance=1, description=f"{total} tasks, {failed} failed")

        if nodes:
            return run_locally(task_set, nodes, policy=policy, tries=tries, told=told)
        _connect()
        return run_on_ray(task_set, policy=policy, tries=tries, told=told)


def _connect() -> None:
    from gpud_ray.errors import NoCluster

    try:
        import ray
    except ImportError:
        raise InvalidArgument(
            "Ray is not installed; --local cpu:1,cpu:1 runs a set without it"
        ) from None
    if not ray.is_initialized():
        try:
            ray.init("auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError:
            raise NoCluster("no Ray cluster is there: run `gpud-ray up`") from None


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
