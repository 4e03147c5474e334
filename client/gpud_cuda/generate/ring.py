"""Generates the C constants of a lane's ring from `gpud.wire.lane_ring`."""

from __future__ import annotations

from gpud.wire import lane_ring

__all__ = ["ring_header"]


def ring_header() -> str:
    """Return ``ring_layout.h``: every number of the layout, by its name there."""
    numbers = {
        name: value
        for name in sorted(lane_ring.__all__)
        if isinstance(value := getattr(lane_ring, name), int)
    }
    return "\n".join(
        [
            "/* Generated from gpud/wire/lane_ring.py, which says what they mean: do not edit. */",
            "#ifndef GPUD_RING_LAYOUT_H",
            "#define GPUD_RING_LAYOUT_H",
            "enum ring_layout {",
            *(
                f"    RING_{name.removeprefix('RING_')} = {value},"
                for name, value in numbers.items()
            ),
            "};",
            "#endif",
            "",
        ]
    )
