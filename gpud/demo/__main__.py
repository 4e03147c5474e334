"""``python -m gpud.demo``."""

from __future__ import annotations

import sys

from gpud.demo import main

if __name__ == "__main__":
    sys.exit(main())
