"""Tables of results: what became of the mutants of each package, and which survived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.harness.markdown import markdown
from bench.mutation.campaign import key_of

__all__ = ["by_package", "compared", "survivors"]

Row = dict[str, Any]
_OUTCOMES = ("killed", "timed out", "survived", "uncovered", "error")


def by_package(rows: Sequence[Row]) -> str:
    """A line for each package and one for all: mutants, their outcomes, the share killed."""
    packages = list(dict.fromkeys(row["package"] for row in rows))
    lines = [_line(name, [row for row in rows if row["package"] == name]) for name in packages]
    columns = ["package", "mutants", *_OUTCOMES, "noticed, %"]
    return "\n".join(markdown(columns, [*lines, _line("all", rows)], texts=1))


def survivors(rows: Sequence[Row]) -> str:
    """A line for each mutant that no test noticed."""
    return "\n".join(
        f"* {row['outcome']}: `{row['module']}:{row['line']}` {row['function'] or 'module'}: "
        f"`{_short(row['node'])}` -> `{_short(row['replacement'])}`"
        for row in rows
        if row["outcome"] in {"survived", "uncovered"}
    )


def compared(before: Sequence[Row], after: Sequence[Row]) -> str:
    """What became of the mutants of one result in another: by package, and each that differs."""
    # Without an origin it was drawn by the same seed: the same mutant has the same name.
    matches = {tuple(row.get("origin") or key_of(row)): row for row in after}
    pairs = [(row, matches[key_of(row)]) for row in before if key_of(row) in matches]
    lines = []
    for package in dict.fromkeys(row["package"] for row in before):
        mine = [pair for pair in pairs if pair[0]["package"] == package]
        lines.append(_compared_line(package, mine, sum(r["package"] == package for r in before)))
    lines.append(_compared_line("all", pairs, len(before)))
    columns = [
        "package",
        "mutants",
        "still there",
        "noticed before",
        "noticed after",
        "lost",
        "won",
    ]
    differing = [
        f"* {old['outcome']} -> {new['outcome']}: `{new['module']}:{new['line']}` "
        f"{new['function'] or 'module'}: "
        f"`{_short(new['node'])}` -> `{_short(new['replacement'])}`; "
        f"noticed by {old['killer'] or new['killer']}"
        for old, new in pairs
        if noticed(old) != noticed(new)
    ]
    return "\n".join([*markdown(columns, lines, texts=1), "", *differing])


def _compared_line(name: str, pairs: Sequence[tuple[Row, Row]], mutants: int) -> list[str]:
    before = [noticed(old) for old, _ in pairs]
    after = [noticed(new) for _, new in pairs]
    lost = sum(old and not new for old, new in zip(before, after, strict=True))
    won = sum(new and not old for old, new in zip(before, after, strict=True))
    return [name, *map(str, (mutants, len(pairs), sum(before), sum(after), lost, won))]


def noticed(row: Row) -> bool:
    """Whether a test noticed the mutant."""
    return row["outcome"] in {"killed", "timed out"}


def _line(name: str, rows: Sequence[Row]) -> list[str]:
    counts = Counter(row["outcome"] for row in rows)
    noticed_rows = sum(map(noticed, rows))
    share = f"{100 * noticed_rows / len(rows):.0f}" if rows else ""
    return [name, str(len(rows)), *(str(counts[outcome]) for outcome in _OUTCOMES), share]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."
