"""Checks arguments and packs them into a kernel's parameter buffer.

Problem: a kernel gets untyped bytes. An argument of the wrong size or kind must be found before
anything is sent, and every submission packs its arguments.

Approach: a kernel's parameters are known when it is compiled. A converter is chosen for each one
then; it checks a value and returns the field of one `struct.Struct` for the whole buffer.

What is accepted:

* a number: Python int, float or bool within the parameter's range; a NumPy scalar of its size.
  PTX does not say whether an integer is signed, so both ranges are accepted. It does distinguish
  floats: a float for an integer parameter is refused, and so is a NumPy integer for a float;
* a pointer: an `Array`, ``None``, or a device address. PTX declares many pointers as 64-bit
  integers, so these are accepted for every 8-byte integer. Where gpud knows what the pointer is
  to, an array must have elements of the same size, and of floats only if the kernel's are; pointers
  to types of one byte, to ``void`` and to classes take any. Another array is an error in the
  checking mode; otherwise it is a warning, once for each kernel and parameter, since a program may
  read bytes as another type on purpose. A type of array is looked at once, then it is known;
* a struct: bytes, a NumPy scalar (``np.void``, complex), or another object with a buffer, such as
  a `ctypes.Structure`, of exactly its size.
"""

from __future__ import annotations

import math
import struct
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpud_client.arrays import ArrayBase

__all__ = ["ArgumentPacker"]

Convert = Callable[[Any, list[ArrayBase]], Any]

_PACKAGE = "gpud_client."
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOATS = {
    2: ("e", 65504.0, np.float16),
    4: ("f", float(np.finfo(np.float32).max), np.float32),
    8: ("d", math.inf, np.float64),
}


class ArgumentPacker:
    """Packs the arguments of one kernel.

    Args:
        name: of the kernel, for messages.
        parameters: (name, kind, size, align, offset) of each, in order; sizes in bytes.
        points_to: for each what it points to, ``f4`` is a float of four bytes, ``i8`` an integer
            of eight, empty if it is not known; None: none is.
        check: whether an array of another type is an error, instead of a warning.
        warned: the numbers of the parameters of which was warned; None: of none.

    Attributes:
        layout: of the buffer, for `struct`, little-endian.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[tuple[str, str, int, int, int]],
        points_to: Sequence[str] | None = None,
        *,
        check: bool = False,
        warned: set[int] | None = None,
    ) -> None:
        self._name = name
        self._fields: list[_Field] = []
        layout = "<"
        at = 0
        for number, (_, kind, size, _, offset) in enumerate(parameters):
            word = points_to[number] if points_to else ""
            types = _ArrayTypes(name, number, word, check, set() if warned is None else warned)
            letter, field = _field(kind, size, types)
            layout += f"{offset - at}x{letter}" if offset > at else letter
            at = offset + size
            self._fields.append(field)
        self._struct = struct.Struct(layout)
        self.layout = layout[1:]
        assert self._struct.size == at

    def pack(self, args: Sequence[Any]) -> tuple[bytes, list[ArrayBase]]:
        """Return the parameter buffer, and the arrays among the arguments; see `values`."""
        values, arrays = self.values(args)
        return self._struct.pack(*values), arrays

    def values(self, args: Sequence[Any]) -> tuple[list[Any], list[ArrayBase]]:
        """Return what is packed in ``layout``, and the arrays among the arguments.

        Raises:
            TypeError: too many or too few arguments, or one of the wrong kind.
            ValueError: one is out of range, of the wrong size, or an array that was freed.
        """
        fields = self._fields
        arrays: list[ArrayBase] = []
        values: list[Any] = []
        try:
            for (usual, least, most, convert), value in zip(fields, args, strict=True):
                if type(value) is usual and least <= value <= most:
                    values.append(value)
                else:
                    values.append(convert(value, arrays))
        except _Mistake as mistake:
            raise mistake.error(
                f"argument {len(values)} of {self._name}: {mistake.problem}"
            ) from None
        except (TypeError, ValueError):
            if not isinstance(args, tuple | list):
                raise TypeError(
                    f"args is a tuple of the kernel's arguments, not {args!r}"
                ) from None
            if len(args) == len(fields):
                raise
            takes = f"{len(fields)} argument{'s' * (len(fields) != 1)}"
            raise TypeError(f"{self._name} takes {takes}, not {len(args)}") from None
        return values, arrays


class _Mistake(Exception):
    def __init__(self, error: type[Exception], problem: str) -> None:
        super().__init__(problem)
        self.error = error
        self.problem = problem


class _Field(NamedTuple):
    """A parameter's field in the buffer: values of the ``usual`` type are packed as they are.

    ``least`` and ``most`` are their range. Every other value is converted; all are if there is no
    usual type.
    """

    usual: type[Any] | None
    least: float
    most: float
    convert: Convert


def _field(kind: str, size: int, types: _ArrayTypes) -> tuple[str, _Field]:
    if kind == "float" and size in _FLOATS:
        letter, largest, _ = _FLOATS[size]
        return letter, _Field(float, -largest, largest, _float(size))
    if kind in ("int", "uint", "bits", "pointer") and size in _UNSIGNED:
        return _UNSIGNED[size], _Field(int, 0, (1 << 8 * size) - 1, _integer(kind, size, types))
    return f"{size}s", _Field(None, 0, 0, _struct(size))


def _float(size: int) -> Convert:
    _, largest, scalar = _FLOATS[size]

    def convert(value: Any, arrays: list[ArrayBase]) -> Any:
        kind = type(value)
        if kind is scalar:
            return value
        if kind is float:
            if -largest <= value <= largest or not math.isfinite(value):
                return value
        elif isinstance(value, np.generic | np.ndarray):
            if value.ndim:
                raise _array_mistake(value)
            if isinstance(value, np.ndarray):
                return convert(value[()], arrays)
            if value.dtype != scalar:  # np.float64 is a subclass of float
                raise _dtype_mistake(value, f"np.{scalar.__name__}")
            return float(value)
        elif isinstance(value, int | float):
            try:
                number = float(value)
            except OverflowError:
                number = math.nan
            if -largest <= number <= largest or math.isinf(number):
                return number
        else:
            raise _Mistake(TypeError, f"a number is expected, not {_shown(value)}")
        raise _Mistake(ValueError, f"{_shown(value)} is too large for a float of {size} bytes")

    return convert


def _integer(kind: str, size: int, types: _ArrayTypes) -> Convert:
    mask = (1 << 8 * size) - 1
    least = -(1 << 8 * size - 1)
    if kind == "pointer":
        least = 0
    pointer = size == 8
    untyped = kind == "bits"

    def convert(value: Any, arrays: list[ArrayBase]) -> int:
        if type(value) is int:
            if least <= value <= mask:
                return value & mask
            raise _Mistake(
                ValueError, f"{_shown(value)} does not fit {size} bytes: {least} to {mask} do"
            )
        if pointer:
            if isinstance(value, ArrayBase):
                if value._dtype is not types.known:
                    types.check(value)
                arrays.append(value)
                return value._address if value._allocation is not None else value._live_address()
            if value is None:
                return 0
        if isinstance(value, np.generic | np.ndarray):
            if value.ndim:
                raise _array_mistake(value)
            if isinstance(value, np.ndarray):
                return convert(value[()], arrays)
            if value.dtype.kind not in ("iubf" if untyped else "iub"):
                raise _dtype_mistake(value, f"an integer such as np.int{8 * size}")
            if value.dtype.itemsize != size:
                raise _dtype_mistake(value, f"np.int{8 * size}")
            return int.from_bytes(value.tobytes(), sys.byteorder)
        if isinstance(value, int):
            return convert(int(value), arrays)
        if untyped and isinstance(value, float) and size in _FLOATS:
            packed = struct.pack(f"<{_FLOATS[size][0]}", _float(size)(value, arrays))
            return int.from_bytes(packed, "little")
        if isinstance(value, ArrayBase):
            raise _Mistake(TypeError, f"an Array is a pointer of 8 bytes, this has {size}")
        what = "an Array, None or a device address" if kind == "pointer" else "an integer"
        # PTX does not tell most pointers from integers of 8 bytes.
        hint = "; for a pointer, write gpu.array(values, dtype)" if pointer else ""
        hint = hint if isinstance(value, Iterable) and not isinstance(value, str | bytes) else ""
        raise _Mistake(TypeError, f"{what} is expected, not {_shown(value)}{hint}")

    return convert


class _ArrayTypes:
    """The types of arrays that a pointer takes.

    Attributes:
        known: the one that was found to be right last, or of which was warned: NumPy has one object
            of each ordinary type, so that the usual array costs one comparison.
    """

    __slots__ = ("_kernel", "_number", "_points_to", "_strict", "_warned", "known")

    def __init__(
        self, kernel: str, number: int, points_to: str, strict: bool, warned: set[int]
    ) -> None:
        self._kernel = kernel
        self._number = number
        self._points_to = points_to
        self._strict = strict
        self._warned = warned
        self.known: np.dtype[Any] | None = None

    def check(self, array: ArrayBase) -> None:
        """Find an array of another type than the pointer's.

        Raises:
            _Mistake: it is one, in the checking mode.
        """
        dtype = array.dtype
        if self._points_to and not _matches(dtype, self._points_to):
            problem = _type_problem(dtype, self._points_to)
            if self._strict:
                raise _Mistake(TypeError, problem)
            if self._number not in self._warned:
                # A NumPy user finds it where other warnings of values are, with the line of the
                # program, and can make it an error; Python's log would show it without either.
                text = f"argument {self._number} of {self._kernel}: {problem}"
                warnings.warn(text, RuntimeWarning, stacklevel=_caller())
                self._warned.add(self._number)
        self.known = dtype


def _matches(dtype: np.dtype[Any], points_to: str) -> bool:
    """Return whether a pointer to such numbers may point to an array's elements."""
    size = int(points_to[1:])
    if dtype.kind not in "iubfc":
        return True  # of structs, for example
    if dtype.kind == "c":  # pairs of floats
        return points_to[0] == "f" and dtype.itemsize == 2 * size
    return dtype.itemsize == size and (dtype.kind == "f") == (points_to[0] == "f")


def _type_problem(dtype: np.dtype[Any], points_to: str) -> str:
    wanted = f"{'float' if points_to[0] == 'f' else 'int'}{8 * int(points_to[1:])}"
    return (
        f"the array is {dtype}, the kernel's pointer is to {wanted}; make it with "
        f"gpu.array(values, np.{wanted}), or pass array.ptr if the kernel is to read its bytes as "
        "another type"
    )


def _caller() -> int:
    """Return how many frames above the caller the program's own code is, as a ``stacklevel``."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _struct(size: int) -> Convert:
    def convert(value: Any, arrays: list[ArrayBase]) -> bytes:
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value[()]
        if isinstance(value, np.generic) and not isinstance(value, np.object_):
            if value.dtype.hasobject:
                raise _Mistake(TypeError, "a struct with Python objects cannot be passed")
            if not value.dtype.isnative:  # as `Session.array` does with arrays
                value = value.astype(value.dtype.newbyteorder("="))
            data: bytes = value.tobytes()
        elif isinstance(value, np.ndarray):
            raise _array_mistake(value)
        else:
            try:
                data = memoryview(value).tobytes()
            except TypeError:
                raise _Mistake(
                    TypeError,
                    f"a struct of {size} bytes is expected, as np.void, bytes or a ctypes "
                    f"structure, not {_shown(value)}",
                ) from None
        if len(data) != size:
            raise _Mistake(ValueError, f"the struct has {size} bytes, not {len(data)}")
        return data

    return convert


def _array_mistake(value: Any) -> _Mistake:
    return _Mistake(
        TypeError,
        f"a NumPy array of shape {value.shape} is given; copy it with gpu.array() first",
    )


def _dtype_mistake(value: Any, wanted: str) -> _Mistake:
    return _Mistake(
        TypeError, f"{value!r} is {value.dtype}, the kernel's parameter is {wanted}; convert it"
    )


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 256:  # Python may refuse to print it
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return f"{shown} of type {type(value).__name__}"
