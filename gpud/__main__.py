"""``python -m gpud``: the same as the program ``gpud``."""

from __future__ import annotations

import sys

from gpud.cli import main

if __name__ == "__main__":
    sys.exit(main())
