"""Shows kernels, arrays and jobs in notebooks, as HTML, and in terminals, by Rich.

A class says what is to be shown once; Rich is loaded only by those who print with it. What changes
while it is looked at, a job, is shown anew in its place in a notebook until it has ended, by
IPython's own display; IPython is not needed otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Display", "Displayed", "is_notebook", "show_in_place"]

LIVE_S = 0.5
"""How often what is shown in place is looked at: as often as one reads a number."""


class Display(NamedTuple):
    """What is shown of a thing.

    Attributes:
        title: One line.
        rows: Names and values.
        progress: Task blocks done, and their total; None: it has no progress.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    progress: tuple[int, int] | None = None


class Displayed:
    """Shows itself in notebooks and by Rich."""

    def _display(self) -> Display:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        title, rows, progress = self._display()
        bar = ""
        if progress is not None:
            done, total = progress
            bar = (
                f'<div><progress value="{done}" max="{max(total, 1)}"></progress> '
                f"{done:,} of {total:,} task blocks</div>"
            )
        cells = "".join(
            f'<tr><th style="text-align: left">{escape(name)}</th>'
            f'<td style="text-align: left">{escape(value)}</td></tr>'
            for name, value in rows
        )
        return f"<div><strong>{escape(title)}</strong>{bar}<table>{cells}</table></div>"

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        title, rows, progress = self._display()
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name, "dim"), Text(value))
        parts: list[RenderableType] = [Text(title, "bold")]
        if progress is not None:
            done, total = progress
            bar = Table.grid(padding=(0, 2))
            bar.add_row(
                ProgressBar(max(total, 1), done, width=32), f"{done:,} of {total:,} task blocks"
            )
            parts.append(bar)
        return Group(*parts, table)


def is_notebook() -> bool:
    """Whether this process runs the cells of a notebook, where outputs can be replaced."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_ipython is None else get_ipython()
    return getattr(shell, "kernel", None) is not None


def show_in_place(what: Displayed) -> Callable[[], None]:
    """Show it as the output of the running cell, and return what shows it there anew.

    That may be called later, from any thread, also while other cells run.
    """
    from IPython.display import HTML, display  # both without annotations

    html: Any = HTML
    show: Any = display
    handle = show(html(what._repr_html_()), display_id=True)
    return lambda: handle.update(html(what._repr_html_()))
