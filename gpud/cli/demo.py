"""``gpud demo``: the demo of `gpud.demo`, with its own options."""

from __future__ import annotations

import typer

__all__ = ["demo"]


def demo(context: typer.Context) -> None:
    """Show what gpud does, in numbers and a picture; takes less than a minute.

    See gpud demo --help for its options.
    """
    try:
        from gpud.demo import main
    except ImportError as error:
        from gpud.errors import MissingDependency

        name = error.name or str(error)
        raise MissingDependency(name, extra="daemon,demo") from error
    raise typer.Exit(main(list(context.args)))
