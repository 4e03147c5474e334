"""``gpud runner``: runs the tasks of one user. It is started on demand by ``gpuctl task``."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["runner"]


def runner(
    idle: Annotated[
        float,
        typer.Option(
            "--idle",
            metavar="SECONDS",
            min=0,
            help="End after so long without tasks and clients; 0: never.",
        ),
    ] = 0,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run your tasks, those of gpuctl task, until SIGTERM.

    gpuctl starts it where it is missing, and so does systemd, with the units in contrib/systemd.
    Tasks go on when it ends; the next one adopts them.
    """  # fmt: skip
    import asyncio

    from gpud.server.logs import set_up
    from gpud.tasks.runner.server import serve

    set_up(log_level, "text")
    asyncio.run(serve(idle or None))
