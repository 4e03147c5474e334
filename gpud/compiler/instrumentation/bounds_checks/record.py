"""Bounds checks as records: the checked accesses, and the memory that is legal for them."""

from __future__ import annotations

from dataclasses import dataclass

from gpud.compiler.ptx.model import Guard, Register

__all__ = ["BoundsCheck", "Member", "Range"]


@dataclass(frozen=True, slots=True)
class Member:
    """One access: ``span`` bytes from ``register + low`` on, aligned to ``align``.

    ``site`` is its number in the program's site table.
    """

    low: int
    span: int
    align: int
    site: int

    @property
    def end(self) -> int:
        """The offset of the first byte after it."""
        return self.low + self.span


@dataclass(frozen=True, slots=True)
class Range:
    """A module variable: ``space`` is ``global`` or ``const``.

    `HEAP` with size 0 stands for the range that the variable of that name describes, `GRID_SYNC`
    for the words of that name in the job record, whose address is in `JOB_REGISTER`.
    """

    name: str
    space: str
    size: int


@dataclass(frozen=True, slots=True)
class BoundsCheck:
    """The check before one access, or before several through the same register.

    ``members`` are in the order of the accesses. ``guard`` is the guard of all of them. Only
    the arena, the listed windows and variables, and the first ``table`` ranges of `RANGES` are
    legal; variables smaller than every member are not listed. With several members, the hull's
    alignment is their greatest, and implies each.

    With ``rows`` over 1 there is one member, the first row of a matrix; the others follow it, each
    ``step`` bytes behind the one before. The emitted code's size does not depend on how many.
    """

    number: int
    register: Register
    members: tuple[Member, ...]
    guard: Guard | None = None
    windows: tuple[str, ...] = ()
    variables: tuple[Range, ...] = ()
    rows: int = 1
    table: int = 0

    @property
    def low(self) -> int:
        """The offset of the hull's first byte from ``register``."""
        return min(member.low for member in self.members)

    @property
    def span(self) -> int:
        """The hull's length in bytes; of the first row, if there are several."""
        return max(member.end for member in self.members) - self.low

    @property
    def align(self) -> int:
        """The alignment of ``register + low``, in bytes."""
        return max(member.align for member in self.members)

    @property
    def site(self) -> int:
        """The site of the first member."""
        return self.members[0].site

    @property
    def generic(self) -> bool:
        """Whether the accesses are generic, so that addresses in windows are legal."""
        return bool(self.windows)

    @property
    def space(self) -> str:
        """``"generic"`` or ``"global"``."""
        return "generic" if self.windows else "global"
