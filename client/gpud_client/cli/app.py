"""The commands of ``gpuctl``, in the order in which help lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from gpud_client.cli import (
    administration,
    config,
    events,
    history,
    job_control,
    programs,
    queries,
    run,
    task,
    top,
    workloads,
)
from gpud_client.cli.output import JsonOption, SocketOption

__all__ = ["app"]

app = typer.Typer(
    help="Look at the GPU daemon of this machine, run kernels on it and manage its jobs.",
    epilog="Exit status: 0 done, 1 the job or request failed, 2 usage, 3 no daemon.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"gpuctl {version('gpud')}")
        raise typer.Exit


@app.callback()
def _gpuctl(
    ctx: typer.Context,
    socket: SocketOption = None,
    as_json: JsonOption = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Look at the GPU daemon of this machine, run kernels on it and manage its jobs."""
    given: dict[str, object] = {}  # defaults of the commands' own options
    if socket is not None:
        given["socket"] = socket
    if as_json:
        given["as_json"] = True
    of_config = dict.fromkeys(config.COMMANDS, given)
    of_task = dict.fromkeys(task.COMMANDS, given)
    own = dict.fromkeys((*COMMANDS, "exec"), given)
    ctx.default_map = {**own, "config": of_config, "task": of_task}


COMMANDS = {
    command.__name__: command
    for command in (
        queries.status,
        queries.ps,
        top.top,
        queries.kernels,
        run.run,
        job_control.why,
        job_control.resize,
        job_control.cancel,
        queries.memory,
        workloads.workloads,
        events.events,
        events.trace,
        history.history,
        history.report,
        administration.pause,
        administration.resume,
        administration.drain,
        queries.doctor,
    )
}
"""By name, in the order in which help lists them."""

for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
# What follows the program's name is the program's.
app.command("exec", context_settings={"allow_interspersed_args": False})(programs.exec_)
app.add_typer(config.config, name="config")
app.add_typer(task.task, name="task")
