"""Parses kernel arguments, grids and blocks on the command line.

* scalars: ``7``, ``-2.5``, ``0x10``, ``true`` are checked against the kernel's parameter;
  ``f32:2.0``, ``i32:7``, ``u64:1`` must match it; ``null`` is the null pointer;
* arrays: ``zeros:f32:1024``, ``ones:f64:64x64``, ``arange:i32:100``, ``random:f32:1024`` (between
  0 and 1; whole numbers below 100 for integer types), ``file:x.npy``.

NumPy is imported when the first value needs it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["TYPES", "ArraySpec", "parse_argument", "parse_dim", "parse_output"]

TYPES = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f16": "float16", "f32": "float32", "f64": "float64", "bool": "bool",
}  # fmt: skip
"""NumPy's name for each type of scalars and arrays."""

_MOST_DIGITS = 20
_FILLS = ("zeros", "ones", "arange", "random")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}


class ArraySpec(NamedTuple):
    """The specification of an array argument.

    Attributes:
        written: Its text on the command line.
        fill: One of ``zeros``, ``ones``, ``arange``, ``random``, ``file``.
        dtype: NumPy's name of the type; None for a file.
        shape: Of the array; empty for a file.
        path: Of the file; else None.
    """

    written: str
    fill: str
    dtype: str | None
    shape: tuple[int, ...]
    path: Path | None

    def make(self, rng: np.random.Generator) -> npt.NDArray[Any]:
        """Make the array's values.

        Raises:
            typer.BadParameter: the file cannot be read as an array.
        """
        import numpy as np

        if self.path is not None:
            try:
                with self.path.open("rb") as file:  # not np.load, which also opens archives
                    loaded = np.lib.format.read_array(file, allow_pickle=False)
            except (OSError, ValueError, EOFError, MemoryError) as error:
                raise typer.BadParameter(f"{self.path} is not a .npy file: {error}") from None
            return np.ascontiguousarray(loaded)
        dtype = np.dtype(self.dtype)
        if self.fill == "zeros":
            return np.zeros(self.shape, dtype)
        if self.fill == "ones":
            return np.ones(self.shape, dtype)
        if self.fill == "arange":
            return np.arange(math.prod(self.shape)).astype(dtype).reshape(self.shape)
        if dtype.kind == "f":
            return rng.random(self.shape).astype(dtype)
        return rng.integers(0, 2 if dtype.kind == "b" else 100, self.shape).astype(dtype)


def parse_argument(written: str) -> Any:
    """Parse an argument: a Python value, a NumPy scalar or an `ArraySpec`.

    Raises:
        typer.BadParameter: it is not written as this module's description says.
    """
    head, colon, rest = written.partition(":")
    if not colon:
        return _WORDS[head] if head in _WORDS else _number(written, written)
    if head == "file":
        if not rest:
            raise typer.BadParameter(f"--arg {written}: which file? file:x.npy")
        return ArraySpec(written, "file", None, (), Path(rest))
    if head in _FILLS:
        kind, _, shape = rest.partition(":")
        if kind not in TYPES:
            raise _unknown_type(written, kind)
        return ArraySpec(written, head, TYPES[kind], _shape(written, shape), None)
    if head in TYPES:
        return _scalar(written, head, rest)
    raise typer.BadParameter(
        f"--arg {written}: {head!r} is neither a type ({', '.join(TYPES)}) nor a way to fill an "
        f"array ({', '.join(_FILLS)}, file)"
    )


def parse_dim(written: str, name: str) -> tuple[int, ...]:
    """Parse a grid or a block: ``256``, ``16,16``, ``16,16,1`` or ``16x16``.

    Raises:
        typer.BadParameter: it is neither.
    """
    parts = written.replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(map(_is_count, parts)):
        raise typer.BadParameter(f"--{name} is one to three numbers such as 16,16, not {written!r}")
    extents = tuple(map(int, parts))
    if 0 in extents:
        raise typer.BadParameter(f"--{name} must be at least 1 in every direction, not {written!r}")
    return extents


def parse_output(written: str, count: int) -> tuple[int, Path]:
    """Parse which argument goes to which file: ``2=y.npy``, arguments counted from 0.

    Raises:
        typer.BadParameter: it is written differently, or there are fewer arguments.
    """
    number, equals, path = written.partition("=")
    if not (equals and path and _is_count(number)):
        raise typer.BadParameter(
            f"--output is an argument's number and a file, 2=y.npy: {written!r}"
        )
    if int(number) >= count:
        raise typer.BadParameter(f"--output {written}: there are {count} arguments, counted from 0")
    return int(number), Path(path)


# -- helpers -----------------------------------------------------------------------------------


def _is_count(text: str) -> bool:
    """Whether the text is a whole number with a plausible number of digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _number(text: str, written: str) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(
            f"--arg {written}: write a number, true, null, a scalar (f32:2.0) or an array "
            "(zeros:f32:1024, file:x.npy)"
        ) from None


def _scalar(written: str, kind: str, value: str) -> Any:
    import numpy as np

    dtype = np.dtype(TYPES[kind])
    number = _WORDS[value] if value in ("true", "false") else _number(value, written)
    if dtype.kind == "b":
        if number not in (0, 1):
            raise typer.BadParameter(f"--arg {written}: a bool is true or false")
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not isinstance(number, int) or not info.min <= number <= info.max:
            raise typer.BadParameter(
                f"--arg {written}: {kind} holds whole numbers from {info.min} to {info.max}"
            )
    elif float(np.finfo(dtype).max) < abs(number) < math.inf:
        raise typer.BadParameter(f"--arg {written}: too large for {kind}")
    return dtype.type(number)


def _shape(written: str, text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(map(_is_count, parts)):
        raise typer.BadParameter(
            f"--arg {written}: how large? As in zeros:f32:1024 or ones:f32:8x8"
        )
    return tuple(map(int, parts))


def _unknown_type(written: str, kind: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"--arg {written}: {kind!r} is not a type; there are {', '.join(TYPES)}"
    )
