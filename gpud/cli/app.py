"""The commands of ``gpud``, in the order in which help lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from gpud import __version__
from gpud.cli.demo import demo
from gpud.cli.doctor import doctor
from gpud.cli.replay import replay
from gpud.cli.runner import runner
from gpud.cli.serve import serve

__all__ = ["app"]

app = typer.Typer(
    help="Share this machine's GPU: start the daemon, see what it does, find what is missing.",
    epilog="Exit status: 0 done, 1 failed, 2 usage. To inspect a running daemon: gpuctl.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpud {__version__}")
        raise typer.Exit


@app.callback()
def _gpud(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Shares this machine's GPU."""


app.command()(serve)
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)(demo)
app.command()(doctor)
app.command()(replay)
app.command()(runner)
