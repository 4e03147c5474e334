"""Runs one campaign: `python -m campaigns.run NAME [--count N] [--add] [--short] ...`.

Without a name, or with ``--help``, it lists them. Exit status 1 if something was wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from campaigns.frame import Campaign, run

# Each is made by the folder's run.py; loaded only if it is to run.
CAMPAIGNS = {
    "out_of_bounds": "OUT_OF_BOUNDS",
    "client_kills": "CLIENT_KILLS",
    "lane_kills": "LANE_KILLS",
    "host_failures": "HOST_FAILURES",
    "fuzz": "FUZZ",
    "rings": "RINGS",
    "soak": "SOAK",
    "resizes": "RESIZES",
    "memory_turns": "MEMORY_TURNS",
    "task_kills": "TASK_KILLS",
    "neighbour_costs": "NEIGHBOUR_COSTS",
}
_FOLDERS = {"lane_kills": "client_kills"}


def campaign(name: str) -> Campaign:
    """Return the campaign of that name."""
    module = import_module(f"campaigns.{_FOLDERS.get(name, name)}.run")
    found: Campaign = getattr(module, CAMPAIGNS[name])
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the one that the command line names."""
    if not arguments or arguments[0] not in CAMPAIGNS:
        wanted = arguments and arguments[0] not in ("-h", "--help")
        print(f"there is no campaign {arguments[0]!r}" if wanted else str(__doc__).splitlines()[0])
        for name in CAMPAIGNS:
            print(f"    {name:<16}{campaign(name).does}")
        return 2 if wanted else 0
    return run(campaign(arguments[0]), arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
