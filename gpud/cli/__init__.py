"""The command line ``gpud``: runs the daemon, a demo, checks of the machine, and log replays."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gpud`` and return its exit status, see `gpud_client.cli.exit_status`.

    Args:
        arguments: Command-line arguments without the program's name; None: those of this process.
    """
    from gpud.cli.app import app
    from gpud_client.cli.exit_status import run

    return run(app, arguments, "gpud")
