"""A dump: the result of each stage of one compilation, as files of one folder."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["Dump"]


class Dump:
    """Writes the stages of one compilation to ``folder``, which is created when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    @property
    def reproducer_folder(self) -> Path | None:
        """Where a failure leaves its reproducer; None: not here."""
        return self.folder

    def write(self, stage: str, ending: str, text: str) -> None:
        """Write a stage's result; file names sort in the order of the stages.

        Raises:
            OSError: The folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", stage)
        path = self.folder / f"{self._count:02}-{name}.{ending}"
        path.write_text(text, "utf-8", "surrogatepass")
        self._count += 1
