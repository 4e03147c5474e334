"""The settings ``users`` and ``groups``: what each user may have, as tables in the file."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpud.config.quantity_types import amount
from gpud.config.setting_types import SettingType, integer

__all__ = ["EVERYBODY", "MOST_USER_WEIGHT", "UserTerms", "user_table"]

EVERYBODY = "*"
"""In ``users``: for all who are not named, in what no group of theirs says."""

MOST_USER_WEIGHT = 1000

_KEYS: Mapping[str, SettingType] = {
    "weight": integer(1, MOST_USER_WEIGHT),
    "reserve": amount(),
    "hold": amount(),
    "queue": integer(0, 10_000_000),
}


@dataclass(frozen=True)
class UserTerms:
    """What was said of a user or of each member of a group; None where nothing was.

    Attributes:
        weight: beside other users with offline jobs on a device.
        reserve, hold: the most that the user's online jobs, and all jobs, may have together on each
            device, as shares.
        queue: the most jobs that have not ended.
    """

    weight: int | None = None
    reserve: str | None = None
    hold: str | None = None
    queue: int | None = None

    def or_else(self, other: UserTerms) -> UserTerms:
        """Return these terms, and those of ``other`` where these say nothing."""
        said = {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }
        return dataclasses.replace(other, **said)


class _UserTable(SettingType):
    """Terms by name."""

    @property
    def metavar(self) -> str:
        return "TABLE"

    def from_text(self, text: str) -> Mapping[str, UserTerms]:
        try:
            table = tomllib.loads(f"table = {{{text}}}")["table"]
        except tomllib.TOMLDecodeError:
            raise ValueError(self.describe()) from None
        return self.from_toml(table)

    def toml_of(self, text: str) -> Any:
        # A table has lines and comments of its own, which writing it anew would lose.
        raise ValueError("written into the file by hand, as it is a table; gpuctl config reload")

    def to_text(self, value: Any) -> str:
        return ", ".join(f"{_quoted(name)} = {{{_said(terms)}}}" for name, terms in value.items())

    def from_toml(self, value: Any) -> Mapping[str, UserTerms]:
        if type(value) is not dict:
            raise ValueError(self.describe())
        return MappingProxyType({name: self._terms(name, terms) for name, terms in value.items()})

    def _terms(self, name: str, terms: Any) -> UserTerms:
        if not name or type(terms) is not dict:
            raise ValueError(self.describe())
        values = {}
        for key, value in terms.items():
            if key not in _KEYS:
                raise ValueError(f"{self.describe()}; {key} of {name} is none of these")
            try:
                values[key] = _KEYS[key].from_toml(value)
            except ValueError as error:
                raise ValueError(f"{self.describe()}; {key} of {name} must be {error}") from None
        return UserTerms(**values)

    def describe(self) -> str:
        return (
            "a table of tables, by name, with any of weight, reserve, hold and queue, such as "
            "alice = {weight = 2, hold = '50%', queue = 100}"
        )


def _quoted(text: str) -> str:
    """Write a text as TOML does."""
    return json.dumps(text, ensure_ascii=False)


def _said(terms: UserTerms) -> str:
    said = {name: one for name, one in dataclasses.asdict(terms).items() if one is not None}
    return ", ".join(
        f"{name} = {_quoted(one) if isinstance(one, str) else one}" for name, one in said.items()
    )


def user_table() -> SettingType:
    """Return the type of tables of `UserTerms`."""
    return _UserTable()
