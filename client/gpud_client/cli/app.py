"""The commands of ``gpuctl``, in the order in which help lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from gpud_client.cli import events, launch, look, manage, top

__all__ = ["app"]

app = typer.Typer(
    help="Look at the GPU daemon of this machine, run kernels on it and manage its jobs.",
    epilog="Exit status: 0 done, 1 the job or request failed, 2 usage, 3 no daemon.",
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
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """Looks at the GPU daemon of this machine, runs kernels on it and manages its jobs."""


app.command()(look.status)
app.command()(look.ps)
app.command()(top.top)
app.command()(look.kernels)
app.command()(launch.run)
app.command()(manage.resize)
app.command()(manage.cancel)
app.command()(look.memory)
app.command("events")(events.events)
app.command()(events.trace)
app.command()(look.history)
app.command()(look.doctor)
