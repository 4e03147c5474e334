"""Descriptions of textures: what a kernel's texture object, an address, points to.

gpud compiles fetches from textures into ordinary loads, on every device, so a texture object is no
handle of a driver: it is the address of 64 bytes that say where the elements are and how they are
read. Whoever passes another number gets an illegal address.

Source: CUDA C++ Programming Guide 13.0, "Texture Memory"; the layout is that of ``Texture`` in
``gpud/compiler/passes/runtime/texture_functions.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DESCRIPTION_WORDS", "describe"]

DESCRIPTION_WORDS = 16

_MAGIC = 0x74757067
_LAYOUT = struct.Struct("<6I3Q16s")
_MODES = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}
_FILTERS = {"point": 0, "linear": 1 << 6}
_READS = {"element": 0, "normalized": 1 << 8}
_NORMALIZED = 1 << 7
_KINDS = {"u": 0, "i": 1, "f": 2}
_MOST = (1 << 30) - 1


def describe(
    address: int,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    *,
    channels: int,
    filtering: str,
    mode: str | Sequence[str],
    normalized: bool,
    read: str,
    border: Sequence[float],
) -> npt.NDArray[np.uint32]:
    """Return the description of a texture over an array.

    Args:
        address: Of the array on its device.
        shape: Of the array; with several channels, those are the last axis.
        dtype: Of an element.
        channels: 1, 2 or 4.
        filtering: ``"point"`` or ``"linear"``.
        mode: For coordinates outside: one of ``wrap``, ``clamp``, ``mirror``, ``border``, or one
            for each dimension, x first.
        normalized: Whether coordinates go from 0 to 1.
        read: ``"element"`` or ``"normalized"``.
        border: The values outside, with the mode ``border``.

    Raises:
        TypeError: There are no textures of such elements.
        ValueError: The arguments do not fit together.
    """
    if dtype.kind not in _KINDS or dtype.itemsize not in (1, 2, 4) or not dtype.isnative:
        raise TypeError(
            f"a texture has integers of 8, 16 or 32 bits, float16 or float32, not {dtype}"
        )
    extents = _extents(tuple(shape), channels)
    flags = _chosen("filtering", filtering, _FILTERS) | _chosen("read", read, _READS)
    modes = [mode] * len(extents) if isinstance(mode, str) else list(mode)
    if len(modes) != len(extents):
        raise ValueError(f"{len(modes)} modes for {len(extents)} dimensions: give one, or each")
    for axis, one in enumerate(modes):
        flags |= _chosen("mode", one, _MODES) << 2 * axis
        if one in ("wrap", "mirror") and not normalized:
            raise ValueError(f"mode {one!r} is for coordinates from 0 to 1: normalized=True")
    as_float = read == "normalized"
    if as_float and (dtype.kind == "f" or dtype.itemsize == 4):
        raise ValueError(f"read='normalized' is for integers of 8 or 16 bits, not {dtype}")
    if filtering == "linear" and dtype.kind != "f" and not as_float:
        raise ValueError(
            "filtering='linear' gives floats: take an array of floats, or read='normalized'"
        )
    if len(border) != 4:
        raise ValueError(f"border has a value for each of 4 channels, not {len(border)}")
    kind = np.dtype(np.float32 if dtype.kind == "f" or as_float else f"{dtype.kind}4")
    flags |= _NORMALIZED if normalized else 0
    flags |= _KINDS[dtype.kind] << 9 | (dtype.itemsize.bit_length() - 1) << 11
    flags |= (channels.bit_length() - 1) << 13
    width, height, depth = (*extents, 1, 1)[:3]
    row = width * channels * dtype.itemsize
    packed = _LAYOUT.pack(
        _MAGIC, flags, width, height, depth, 0, address, row, row * height,
        np.asarray(border).astype(kind).tobytes(),
    )  # fmt: skip
    return np.frombuffer(packed, np.uint32)


def _extents(shape: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """Return width, height and depth, as many as there are."""
    if channels not in (1, 2, 4):
        raise ValueError(f"a texture has 1, 2 or 4 channels, not {channels}")
    if channels > 1:
        if shape[-1:] != (channels,):
            raise ValueError(
                f"the last axis of an array of shape {shape} is not its {channels} channels"
            )
        shape = shape[:-1]
    if not 1 <= len(shape) <= 3 or not all(0 < extent <= _MOST for extent in shape):
        raise ValueError(
            f"a texture has 1 to 3 dimensions of 1 to {_MOST} elements, not the shape {shape}"
            + ("; several channels are the last axis, with channels=" if len(shape) > 3 else "")
        )
    return shape[::-1]


def _chosen(what: str, given: str, known: dict[str, int]) -> int:
    if given not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}, not {given!r}")
    return known[given]
