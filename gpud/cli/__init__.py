"""``gpud``: run the daemon, see what it does, and find out what this machine lacks for it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``gpud`` and returns its exit status, see `gpud_client.cli.exit_status`.

    Args:
        arguments: Of the command line, without the program's name; those of this process if None.
    """
    from gpud.cli.app import app
    from gpud_client.cli.exit_status import run

    return run(app, arguments, "gpud")
