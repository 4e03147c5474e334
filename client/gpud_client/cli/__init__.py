"""``gpuctl``: look at a daemon and manage its jobs, from a shell or a script.

Each command imports only what it needs: help and status load neither NumPy nor the client
library's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gpuctl`` and return its exit status, see `gpud_client.cli.exit_status`.

    Args:
        arguments: Of the command line, without the program's name; those of this process if None.
    """
    try:
        from gpud_client.cli.app import app
        from gpud_client.cli.exit_status import NO_DAEMON, run
    except KeyboardInterrupt:  # loading takes a moment
        return 130

    return run(app, arguments, "gpuctl", lost=NO_DAEMON)
