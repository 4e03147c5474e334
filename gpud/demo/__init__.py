"""``gpud demo``: online requests get their share at once, and offline work loses nothing.

Starts a private daemon, keeps it busy with offline jobs, lets online requests arrive, and shows in
numbers and in a picture what that costs each of them: with reservations, and in the same run
without (run to completion, equal sharing). A program of a user's that happens to live in this
package: the one part of gpud that imports `gpud_client`.
"""

from __future__ import annotations

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo; blocks for about 45 seconds.

    Args:
        arguments: of the command line, as ``gpud demo --help`` lists them; default ``sys.argv``.

    Returns:
        The exit status: 0 if every result was right, 1 otherwise, 2 for a wrong argument.
    """
    from gpud.demo.cli import run

    return run(arguments)
