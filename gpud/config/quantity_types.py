"""Types of settings that are quantities with units: times, memory, and shares of a device."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gpud.config.setting_types import SettingType
from gpud.units import byte_size, share

__all__ = ["amount", "duration", "memory"]


@dataclass(frozen=True)
class _Duration(SettingType):
    """A duration: a number in a given unit, or text with a unit. Its value is in nanoseconds."""

    unit: str
    most_s: int
    least_ns: int = 0

    @property
    def metavar(self) -> str:
        return "TIME"

    def from_text(self, text: str) -> int:
        match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*(us|ms|s|min|h|)\s*", text, re.ASCII)
        if match is None:
            raise ValueError(self.describe())
        return self._checked(Fraction(match[1]), match[2] or self.unit)

    def from_toml(self, value: Any) -> int:
        if type(value) is str:
            return self.from_text(value)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(self.describe())
        return self._checked(Fraction(repr(value)), self.unit)

    def to_text(self, value: Any) -> str:
        for unit in ("h", "min", "s", "ms"):
            if value and not value % _NANOSECONDS[unit]:
                return f"{value // _NANOSECONDS[unit]} {unit}"
        return f"{float(Fraction(value, 1000)):.3f}".rstrip("0").rstrip(".") + " us"

    def _checked(self, number: Fraction, unit: str) -> int:
        time_ns = number * _NANOSECONDS[unit]
        if not self.least_ns <= time_ns <= self.most_s * 10**9:
            raise ValueError(self.describe())
        return int(time_ns)

    def describe(self) -> str:
        least = f"{self.least_ns // 10**6} ms" if self.least_ns else "0"
        return (
            f"a time from {least} to {self.most_s} s: a number of {self.unit}, or a text with a "
            "unit: us, ms, s, min or h"
        )


_NANOSECONDS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


@dataclass(frozen=True)
class _Memory(SettingType):
    """An amount of memory: bytes (an int), or a fraction of another amount (a `Fraction`)."""

    least: int = 1
    most: int = 1 << 62
    of: str | None = None

    @property
    def metavar(self) -> str:
        return "SIZE"

    def from_text(self, text: str) -> int | Fraction:
        if text.rstrip().endswith("%"):
            match = _PERCENTAGE.fullmatch(text)
            if self.of is None or match is None or not 0 < (number := Fraction(match[1])) <= 100:
                raise ValueError(self.describe())
            return number / 100
        try:
            return self._checked(byte_size(text))
        except ValueError:
            raise ValueError(self.describe()) from None

    def from_toml(self, value: Any) -> int | Fraction:
        return self.from_text(value) if type(value) is str else self._checked(value)

    def to_text(self, value: Any) -> str:
        if isinstance(value, Fraction):
            return f"{float(value * 100):.6f}".rstrip("0").rstrip(".") + "%"
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if not value % size:
                return f"{value // size} {unit}"
        return str(value)

    def _checked(self, value: Any) -> int:
        if type(value) is not int or not self.least <= value <= self.most:
            raise ValueError(self.describe())
        return value

    def describe(self) -> str:
        part = f", or a percentage of {self.of}" if self.of else ""
        least = f" from {self.least >> 10} KiB" if self.least > 1 else ""
        most = f" to {self.most >> 20} MiB" if self.most < 1 << 62 else ""
        return f"a number of bytes{least}{most}, also as '8 GiB' or '500 MB'{part}"


_PERCENTAGE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True)
class _Amount(SettingType):
    """A share of a device, 0 included; kept as text, since a percentage depends on the device."""

    @property
    def metavar(self) -> str:
        return "SHARE"

    def from_text(self, text: str) -> str:
        try:
            if text.strip().rstrip("%").strip() not in ("0", "0.0"):
                exact = share(text, capacity=100)
                if "%" in text and exact > 100:
                    raise ValueError(self.describe())
        except ValueError:
            raise ValueError(self.describe()) from None
        return text.strip()

    def from_toml(self, value: Any) -> str:
        if type(value) in (int, float):
            return self.from_text(repr(value))
        return str(super().from_toml(value))

    def describe(self) -> str:
        return "a number of SMs, 0 or more, or a percentage of the device up to 100%, such as '25%'"


def duration(unit: str, *, most_s: int, least_ns: int = 0) -> SettingType:
    """Return the type of durations in nanoseconds; a number without unit is in ``unit``."""
    return _Duration(unit, most_s, least_ns)


def memory(least: int = 1, most: int = 1 << 62, *, of: str | None = None) -> SettingType:
    """Return the type of bytes of memory, or of a `Fraction` of what ``of`` names."""
    return _Memory(least, most, of)


def amount() -> SettingType:
    """Return the type of shares of a device, 0 included, as texts."""
    return _Amount()
