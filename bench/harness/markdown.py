"""Tables of results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.harness.timing import Spread

__all__ = ["markdown", "quartiles"]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: int) -> list[str]:
    """Lines of a table; the first ``texts`` columns are aligned left, the others right."""
    lines = [columns, ["---"] * texts + ["---:"] * (len(columns) - texts), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def quartiles(spread: Spread, form: str) -> str:
    """Return the quartiles in a format such as ``.2f``: ``"1.20 to 1.31"``."""
    return f"{spread.low:{form}} to {spread.high:{form}}"
