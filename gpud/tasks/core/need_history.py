"""What is known of the cores that GPU tasks need, from those that have run.

A need is looked up by what tells most: the same user's same program, then the same program, then
the same category, whose curves are alike. Each is the latest that was found.
"""

from __future__ import annotations

from fractions import Fraction

__all__ = ["NeedHistory"]

_Key = tuple[str, str, str]


class NeedHistory:
    """Cores for each GPU, by user, program and category.

    Attributes:
        highest: of all needs; None: there is none.
    """

    def __init__(self) -> None:
        self._needs: dict[_Key, Fraction] = {}
        self.highest: Fraction | None = None

    def learn(self, user: str, program: str, category: str, cores: Fraction) -> None:
        """Take a need that was found, in cores for each GPU."""
        for key in _keys(user, program, category):
            self._needs[key] = cores
        self.highest = max(self._needs.values())

    def known(self, user: str, program: str, category: str) -> Fraction | None:
        """Return cores for each GPU of tasks like this one; None if there was none."""
        for key in _keys(user, program, category):
            if key in self._needs:
                return self._needs[key]
        return None


def _keys(user: str, program: str, category: str) -> list[_Key]:
    keys = [(user, program, category), ("", program, category)]
    return [*keys, ("", "", category)] if category else keys
