"""A kernel's form and the reasons for it: all that a process needs which decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Form", "Reason"]


class Form(StrEnum):
    """How a kernel is launched; see `gpud.compiler.forms.classifier`."""

    PERSISTENT = "persistent"
    SLICED = "sliced"
    WHOLE = "whole"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a decision.

    ``code`` is stable; ``text`` is a sentence part for people; ``instruction`` is PTX text and
    ``line`` its line in the program as it was given, where one instruction decides.
    """

    code: str
    text: str
    instruction: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = f": {self.instruction}" if self.instruction else ""
        line = f" (PTX line {self.line})" if self.line else ""
        return f"{self.text}{where}{line} [{self.code}]"
