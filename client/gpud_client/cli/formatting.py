"""Formats values for people: seconds, bytes, shares, bars."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any

__all__ = [
    "bar",
    "clock",
    "count",
    "counted",
    "error",
    "first",
    "gauges",
    "meter",
    "moment",
    "part",
    "pause",
    "percent",
    "process",
    "progress",
    "rounded",
    "seconds",
    "share",
    "size",
    "text",
]

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def text(value: Any) -> str:
    """Format any value on one line; unknown values become a dash, control characters a "?"."""
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value)) or "-"
    line = " ".join(str(value).split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def first(value: Any) -> str:
    """Format the first of a list; the JSON has the rest."""
    return text(value[0] if isinstance(value, list | tuple) and value else value)


def error(value: Any) -> str:
    """Format an error in wire form: its message."""
    return text(value.get("message") if isinstance(value, Mapping) else value)


def error_line(value: Any) -> str:
    """Format an error in wire form: the first line of its message, for tables."""
    message = value.get("message") if isinstance(value, Mapping) else value
    first, _, more = str(message or "").partition("\n")
    return f"{text(first)} ..." if more else error(value)


def seconds(value: Any) -> str:
    """Format seconds with a unit that fits: ``85 us``, ``1.20 s``, ``2 h 05 min``."""
    if not isinstance(value, int | float):
        return "-"
    if value < 0.0995e-3:
        return f"{value * 1e6:.0f} us"
    if value < 0.995:
        return f"{value * 1e3:.3g} ms"
    if value < 100:
        return f"{value:.2f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 100 else f"{hours // 24} d {hours % 24:02} h"


def size(value: Any) -> str:
    """Format a number of bytes: ``512 B``, ``1.5 MiB``."""
    if not isinstance(value, int | float):
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def share(value: Any) -> str:
    """Format an amount of CapSM, given as text (``7/2``), a pair or a number: ``3.5``."""
    if value is None or value == "":
        return "-"
    try:
        exact = Fraction(*value) if isinstance(value, list | tuple) else Fraction(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return str(value)
    return f"{float(exact):.2f}".rstrip("0").rstrip(".")


def count(value: Any) -> str:
    """Format a whole number with thousands separators."""
    return f"{value:,}" if isinstance(value, int) else "-"


def process(value: Any) -> str:
    """Format a process's number; the kernel gives 0 for one that has none in the daemon's eyes."""
    if not isinstance(value, int):
        return "-"
    return str(value) if value else "another pid namespace"


def rounded(value: Any) -> str:
    """Format a number, rounded to a whole one."""
    return f"{value:,.0f}" if isinstance(value, int | float) else "-"


def pause(value: Any) -> str:
    """Format who has paused a device and since when: ``by alice since 2026-11-23 14:02``."""
    if not isinstance(value, Mapping):
        return "-"
    return text(f"by {value.get('by')} since {value.get('since')}")


def counted(value: Any) -> str:
    """Format how often what happened, the most frequent first: ``12 graph, 2 native``."""
    if not isinstance(value, Mapping):
        return "-"
    ordered = sorted(value.items(), key=lambda item: (-int(item[1]), str(item[0])))
    return ", ".join(f"{int(times):,} {text(what)}" for what, times in ordered) or "-"


def gauges(device: Mapping[str, Any]) -> str:
    """Format a GPU's metrics, to be appended to a line; empty for other devices."""
    if "gpu_utilisation_percent" not in device:
        return ""
    shown = (
        (device.get("gpu_utilisation_percent"), "%"),
        (device.get("gpu_sm_clock_mhz"), " MHz"),
        (device.get("gpu_temperature_c"), " \u00b0C"),
        (device.get("gpu_power_w"), " W"),
    )
    xid = device.get("gpu_last_xid")
    words = ", ".join(f"{rounded(value)}{unit}" for value, unit in shown)
    return f", GPU {words}" + ("" if xid is None else f", Xid {xid}")


def percent(part: float, whole: float) -> str:
    """``part`` of ``whole``; a dash if ``whole`` is 0."""
    return f"{100 * part / whole:.0f}%" if whole else "-"


def progress(value: Any) -> str:
    """Format a pair of task blocks, done and in all."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return "-"
    done, total = value
    return f"{done:,}/{total:,} {percent(done, total)}"


def part(value: Any) -> str:
    """Format a pair of task blocks, done and in all, as a percentage."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return "-"
    return percent(*value)


def meter(value: Any) -> str:
    """Format a pair of task blocks, done and in all, as a bar of 16 characters and a percentage."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return "-"
    done, total = value
    return f"{bar(done, total, 16)} {percent(done, total):>4}"


def clock(value: Any) -> str:
    """Format a time in seconds since 1970 as the local time of day with milliseconds."""
    if not isinstance(value, int | float):
        return "-"
    moment = datetime.fromtimestamp(value).astimezone()
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"


def moment(value: Any) -> str:
    """Format a time in seconds since 1970 as local date and time."""
    if not isinstance(value, int | float):
        return "-"
    return f"{datetime.fromtimestamp(value).astimezone():%m-%d %H:%M:%S}"


def bar(part: float, whole: float, width: int) -> str:
    """Draw a bar of ``width`` characters for ``part`` of ``whole``, to an eighth of a character."""
    if whole <= 0 or width < 1:
        return " " * max(width, 0)
    eighths = round(8 * width * min(max(part / whole, 0.0), 1.0))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if full < width else "")).ljust(width)
