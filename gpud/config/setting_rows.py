"""How a setting is declared in `gpud.config.settings`, and the rows that this gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

from gpud.config.setting_types import SettingType

__all__ = ["Setting", "rows_of", "setting"]

_UNIT = "_ns"


class Setting(NamedTuple):
    """A row of the table.

    Attributes:
        name: name of the field of `Config`.
        key: key in the file.
        variable: environment variable.
        flag: flag of `gpud serve`.
        live: whether a change takes effect while the daemon runs; others need a restart.
        many: whether the flag may be given several times.
        type: parses and checks its values.
        default: the default as it would be written; None: nothing, or computed when it is used.
        meaning: for the reference page and ``--help``; it includes a default that is computed.
    """

    name: str
    key: str
    variable: str
    flag: str
    live: bool
    many: bool
    type: SettingType
    default: str | None
    meaning: str


def setting(
    type_: SettingType,
    default: str | None,
    meaning: str,
    *,
    flag: str | None = None,
    live: bool = False,
    make: Callable[[], Any] | None = None,
) -> Any:
    """Declare a setting as a field of a dataclass; ``make`` computes its default when it is used.

    The other arguments are those of `Setting`.
    """
    about = {"type": type_, "default": default, "meaning": meaning, "flag": flag, "live": live}
    if make is not None:
        return field(default_factory=make, metadata=about)
    value = None if default is None else type_.from_text(default)
    return field(default=value, metadata=about)


def rows_of(config: type) -> tuple[Setting, ...]:
    """Return the settings that are declared in a dataclass."""
    rows = []
    for one in dataclasses.fields(config):
        about = one.metadata
        if not about:
            continue
        key = one.name.removesuffix(_UNIT)
        rows.append(
            Setting(
                one.name,
                key,
                f"GPUD_{key.upper()}",
                about["flag"] or f"--{key.replace('_', '-')}",
                about["live"],
                isinstance(one.default, tuple),
                about["type"],
                about["default"],
                about["meaning"],
            )
        )
    return tuple(rows)
