"""A fence as a record: what is checked, and what is legal."""

from __future__ import annotations

from dataclasses import dataclass

from gpud.compiler.ptx.model import Guard, Register

__all__ = ["Fence", "Member", "Range"]


@dataclass(frozen=True, slots=True)
class Member:
    """One access: ``span`` bytes from ``register + low`` on, aligned to ``align``.

    ``site`` is its number in the program's table of sites.
    """

    low: int
    span: int
    align: int
    site: int

    @property
    def end(self) -> int:
        """The offset of the first byte behind it."""
        return self.low + self.span


@dataclass(frozen=True, slots=True)
class Range:
    """A module variable that an access may mean: ``space`` is ``global`` or ``const``.

    `HEAP` with size 0 stands for the range that the variable of that name describes, `GRID_SYNC`
    for the words of that name in the job record, whose address is in `JOB_REGISTER`.
    """

    name: str
    space: str
    size: int


@dataclass(frozen=True, slots=True)
class Fence:
    """The check before one access, or before several through the same register.

    ``members`` are in the order of the accesses. ``guard`` is the guard of all of them. A window
    or variable that is not listed is not legal, and one that is smaller than every member is not
    listed. With several members, the hull's alignment is the greatest of theirs, and implies each.
    """

    number: int
    register: Register
    members: tuple[Member, ...]
    guard: Guard | None = None
    windows: tuple[str, ...] = ()
    variables: tuple[Range, ...] = ()

    @property
    def low(self) -> int:
        """The hull's first byte, from ``register``."""
        return min(member.low for member in self.members)

    @property
    def span(self) -> int:
        """The hull's length in bytes."""
        return max(member.end for member in self.members) - self.low

    @property
    def align(self) -> int:
        """What ``register + low`` must be a multiple of."""
        return max(member.align for member in self.members)

    @property
    def site(self) -> int:
        """The first member's site."""
        return self.members[0].site

    @property
    def generic(self) -> bool:
        """Whether the accesses are generic: they may mean other memory than global."""
        return bool(self.windows)

    @property
    def space(self) -> str:
        """``"generic"`` or ``"global"``."""
        return "generic" if self.windows else "global"
