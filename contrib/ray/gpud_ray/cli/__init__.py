"""The command line ``gpud-ray``."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gpud-ray`` and return its exit status, see `gpud_client.cli.exit_status`.

    Args:
        arguments: Command-line arguments without the program's name; None: those of this process.
    """
    from gpud_client.cli.exit_status import NO_DAEMON, run
    from gpud_ray.cli.app import app

    return run(app, arguments, "gpud-ray", lost=NO_DAEMON)
