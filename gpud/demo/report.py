"""The demo's printed report: a table of the results, and one line of conclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpud.demo.colocation import Comparison

__all__ = ["conclusion", "impossible", "note", "table"]

AIM_R99, AIM_HARVEST = 1.25, 0.85
_TAKEN = 1.05
_RATE_ERROR = 0.1
"""By which offline work, compared between windows of some seconds, is off on an idle machine."""


def table(
    alone_s: tuple[float, float], compared: Sequence[Comparison], names: Mapping[str, str]
) -> str:
    """Return the table of results.

    Args:
        alone_s: p50 and p99 of the online requests without offline work.
        compared: the rows.
        names: printed names of the policies.
    """
    head = ("", "online p50", "online p99", "r99", "offline work", "harvest")
    rows = [("online alone", _ms(alone_s[0]), _ms(alone_s[1]), "1", "", "")]
    for one in compared:
        low, high = one.r99_interval
        rows.append(
            (
                names[one.policy],
                _ms(one.p50_s),
                _ms(one.p99_s),
                f"{_short(one.r99)} ({_short(low)} to {_short(high)})",
                f"{one.offline_rate:.0%}",
                f"{one.harvest:.2f}",
            )
        )
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    lines.append(
        "r99: online p99 / alone (90 % interval); harvest: offline work / what online left"
    )
    if any(one.harvest > _TAKEN for one in compared):
        lines.append("(above 1: offline work took what online requests should have had)")
    return "\n".join(lines)


def conclusion(compared: Sequence[Comparison], names: Mapping[str, str]) -> str:
    """Return one line: the result with reservations, the others', and whether the aim is met."""
    first, *others = compared
    problems = impossible(compared, names)
    if problems:
        return (
            f"These figures cannot be, so none of them counts: {'; '.join(problems)}. The windows "
            "that are compared did not have the same machine: something else ran beside one of "
            "them. Run the demo again when nothing else does, or with a larger --seconds"
        )
    met = first.r99 <= AIM_R99 and first.harvest >= AIM_HARVEST
    aim = f"(aim: r99 at most {AIM_R99}, harvest at least {AIM_HARVEST}: "
    aim += "met)" if met else "missed)"
    beside = ", ".join(f"{_short(one.r99)} x with {names[one.policy]}" for one in others)
    text = (
        f"With reservations the slowest requests took {_short(first.r99)} x as long as alone"
        f"{f' ({beside})' if beside else ''}, and offline work got {first.harvest:.0%} of the rest "
    )
    return text + aim


def impossible(compared: Sequence[Comparison], names: Mapping[str, str]) -> list[str]:
    """Return which figures are outside of what can be by more than their error."""
    problems = []
    for one in compared:
        name = names[one.policy]
        if one.r99_interval[1] < 1:
            problems.append(
                f"with {name} online requests were faster beside offline work than alone "
                f"(r99 {_short(one.r99)}, at most {_short(one.r99_interval[1])})"
            )
        if one.offline_rate > 1 + _RATE_ERROR:
            problems.append(
                f"with {name} offline work got {one.offline_rate:.0%} of what it gets alone"
            )
        elif one.harvest > 1 + _RATE_ERROR and one.r99 <= AIM_R99:
            problems.append(
                f"with {name} offline work got {one.harvest:.0%} of what online requests left, "
                "which were not slowed down"
            )
    return problems


def note(one: Comparison) -> str:
    """Return the results of one run as text for the picture."""
    return f"online p99: {_short(one.r99)} x alone,   offline work: {one.offline_rate:.0%} of alone"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
