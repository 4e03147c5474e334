"""``gpud demo``: measures the co-location of online requests and offline jobs on one device.

Starts a private daemon, keeps it busy with offline jobs, lets online requests arrive, and shows in
numbers and in a picture what that costs each side: with reservations, and in the same run without
(run to completion, equal sharing). It is a client program: the only sub-package that imports
`gpud_client`'s library.
"""

from __future__ import annotations

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; blocks for about 45 seconds.

    Args:
        arguments: command-line arguments, see ``gpud demo --help``; None: those of this process.

    Returns:
        The exit status: 0 if every result was right, 1 otherwise, 2 for a wrong argument.
    """
    from gpud.demo.cli import run

    return run(arguments)
