"""The cases of a module: each is declared at the function that computes what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .case import ALL_FORMS, Case, Expect, Form, Make
from .ptx_text import kernel

Size = int | tuple[int, ...]


class Cases(list[Case]):
    """Cases in the order in which they are declared."""

    def cuda(
        self,
        name: str,
        source: str,
        grid: Size,
        block: Size,
        make: Make,
        covers: str = "",
        *,
        forms: str | None = None,
        **rest: Any,
    ) -> Callable[[Expect], Expect]:
        """A decorator of the function that `Case` names ``expect``.

        Args:
            name: see `Case`, as for all the rest.
            source: CUDA C++, or a whole module of PTX.
            grid: a number has one dimension.
            block: likewise.
            make: makes the arguments.
            covers: words.
            forms: words.
            rest: further attributes.
        """
        if forms is not None:
            known: dict[str, Form] = {form: form for form in (*ALL_FORMS, "whole")}
            rest["forms"] = frozenset(known[form] for form in forms.split())
        rest["covers"] = frozenset(covers.split())

        def decorate(expect: Expect) -> Expect:
            self.append(Case(name, source, _extents(grid), _extents(block), make, expect, **rest))
            return expect

        return decorate

    def ptx(
        self,
        name: str,
        parameters: str,
        body: str,
        grid: Size,
        block: Size,
        make: Make,
        covers: str = "",
        *,
        arch: str = "compute_75",
        **rest: Any,
    ) -> Callable[[Expect], Expect]:
        """As `cuda`, of a `kernel` whose ``parameters`` are separated by commas."""
        names = ("declarations", "version", "dimensions", "attributes")
        around = {key: rest.pop(key) for key in names if key in rest}
        source = kernel(name, parameters.split(", "), body, arch=arch, **around)
        return self.cuda(name, source, grid, block, make, covers, arch=arch, **rest)


def _extents(size: Size) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else size
