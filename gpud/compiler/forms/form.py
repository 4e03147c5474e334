"""A kernel's form and the reasons for it, for processes that do not classify kernels."""

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

    ``code`` is stable; ``text`` is part of a sentence for users; ``instruction`` is the PTX text of
    the decisive instruction, and ``line`` its line before rewriting, if there is one.
    """

    code: str
    text: str
    instruction: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = f": {self.instruction}" if self.instruction else ""
        line = f" (PTX line {self.line})" if self.line else ""
        return f"{self.text}{where}{line} [{self.code}]"
