"""What ``gpuctl run`` shows while it compiles, and while its job waits and runs."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import typer

from gpud.errors import GpudError
from gpud_client.cli import formatting
from gpud_client.cli.job_control import parse_job
from gpud_client.cli.output import connect

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from gpud_client import Job

__all__ = ["show_steps", "watch"]

_LOOK_S = 0.1
_END_S = 10.0
_SAID_AFTER_S = 1.0


@contextmanager
def show_steps(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done, until the end of the block."""
    if quiet:
        yield lambda step: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots")
    with Live(spinner, console=Console(stderr=True), transient=True) as live:

        def show_step(step: str) -> None:
            spinner.update(text=Text(f"{step} ..."))
            live.refresh()

        yield show_step


def watch(
    job: Job, name: str, socket: str | None, *, quiet: bool
) -> tuple[BaseException | None, bool]:
    """Wait for a job, with a progress bar on a terminal; returns its error.

    If it has not begun after a while, it is said once why. Ctrl-C cancels the job and waits
    until it has ended: the second result is whether that came.
    """
    bar, task = (nullcontext(), None) if quiet else _bar(name)
    interrupted = False
    waited: float | None = 0.0
    try:
        with bar as shown:
            while not concurrent.futures.wait([job], timeout=_LOOK_S).done:
                if shown is not None and task is not None:
                    _step(shown, task, job)
                if waited is not None:
                    waited += _LOOK_S
                    if waited > _SAID_AFTER_S:
                        waited = None
                        _say_why(job.id, socket)
            if shown is not None and task is not None and not job.cancelled():
                _step(shown, task, job)
    except KeyboardInterrupt:
        interrupted = True
        job.cancel()
        if not concurrent.futures.wait([job], timeout=_END_S).done:
            return TimeoutError(f"it has not ended {_END_S:g} s after it was cancelled"), True
    try:
        return job.exception(), interrupted
    except concurrent.futures.CancelledError as error:
        return error, interrupted


def _say_why(job: str, socket: str | None) -> None:
    """Say what a job waits for; nothing, if the daemon does not say it."""
    with suppress(GpudError), connect(socket) as client:
        answer = client.why(parse_job(job))
        if answer["job"]["state"] in ("waiting", "paused") and not answer["job"]["progress"][0]:
            line = formatting.first(answer["lines"])
            typer.echo(f"gpuctl: job {job}: {line}; gpuctl why {job} says more", err=True)


def _bar(name: str) -> tuple[AbstractContextManager[Progress], TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("task blocks, {task.fields[has]} CapSM"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    return progress, progress.add_task(name, total=None, has="0")


def _step(shown: Progress, task: TaskID, job: Job) -> None:
    done, total = job.progress
    shown.update(task, completed=done, total=total, has=formatting.share(job.allocation))
