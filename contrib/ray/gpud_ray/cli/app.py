"""The commands of ``gpud-ray``, in the order in which help lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from gpud_ray import __version__
from gpud_ray.cli import nodes, submit
from gpud_ray.cli.run_set import make_set, run_set

__all__ = ["COMMANDS", "app"]

app = typer.Typer(
    help="Run gpud's kernels on several machines, each on the node whose GPUs are the most idle.",
    epilog="Exit status: 0 done, 1 the item or request failed, 2 usage, 3 no cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpud-ray {__version__}")
        raise typer.Exit


@app.callback()
def _gpud_ray(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run gpud's kernels on several machines."""


# A command is a function in a module of its own beside this one; its entry here is its name.
COMMANDS: dict[str, Callable[..., Any]] = {
    "run-set": run_set,
    "make-set": make_set,
    "up": nodes.up,
    "try": nodes.try_out,
    "down": nodes.down,
    "status": nodes.status,
    "submit": submit.submit,
}

for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
