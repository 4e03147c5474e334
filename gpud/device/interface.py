"""What every device offers: the small interface between whoever decides and whatever runs blocks.

A device allocates memory, loads rewritten PTX, tells how many blocks of a kernel fit on an SM, and
launches raw grids of blocks. Persistent kernels, sub-grids and resizing are built on that, once,
in `gpud.device.job`, through control words in device memory.

Implementations: `gpud.device.cpu.device.CPUDevice`. All pass ``tests/conformance``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from gpud.compiler.analysis.sizes import offsets, size_and_align
from gpud.compiler.ptx import model as ptx
from gpud.errors import LaunchConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Device",
    "Kernel",
    "LaunchHandle",
    "Memory",
    "Parameter",
    "ProgramModule",
    "as_dim3",
    "pack_parameters",
    "parameters_of",
]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter: its place in the parameter buffer, in bytes, and its PTX type.

    ``is_array``: a struct passed by value, ``type`` then being its element's.
    """

    name: str
    offset: int
    size: int
    type: str
    is_array: bool


class Memory(Protocol):
    """Device memory that the host can reach.

    ``address`` is the device address of the first byte, ``view`` the bytes as uint8.
    """

    address: int
    view: npt.NDArray[np.uint8]


class Kernel(Protocol):
    """A kernel of a loaded module."""

    name: str
    parameters: tuple[Parameter, ...]


class ProgramModule(Protocol):
    """A loaded program."""

    def kernel(self, name: str) -> Any:
        """The kernel ``name``; raises `gpud.errors.KernelNotFound`."""

    def symbol(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a module variable."""


class LaunchHandle(Protocol):
    """A launch under way."""

    output: bytes

    @property
    def done(self) -> bool:
        """Whether its last block has left."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block up to ``timeout`` seconds until it is done; whether it is."""

    def result(self, timeout: float | None = None) -> None:
        """Wait, then raise what the launch failed with."""

    def stop(self) -> None:
        """Start no further raw block."""


class Device(Protocol):
    """A device as the rest of gpud sees it. Sizes are bytes."""

    name: str
    kind: str
    sms: int

    def allocate(self, size: int) -> Memory:
        """Zeroed device memory, aligned to 256 bytes."""

    def load(self, text: str) -> ProgramModule:
        """Load PTX."""

    def occupancy(self, kernel: Any, block: tuple[int, int, int], shared: int = 0) -> int:
        """M: resident blocks of this shape and dynamic shared memory on one SM, at least 1."""

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: bytes,
        *,
        shared: int = 0,
        priority: int = 0,
        on_done: Callable[[Any], None] | None = None,
    ) -> LaunchHandle:
        """Start a raw grid; returns at once."""

    def close(self) -> None:
        """Give everything back."""


def parameters_of(entry: ptx.Function) -> tuple[Parameter, ...]:
    """Parameters with the offsets that PTX gives them: each aligned to its own alignment."""
    starts, _ = offsets(entry.parameters)
    found = []
    for parameter, start in zip(entry.parameters, starts, strict=True):
        size, _ = size_and_align(parameter)
        found.append(Parameter(parameter.name, start, size, parameter.type, bool(parameter.dims)))
    return tuple(found)


def pack_parameters(parameters: tuple[Parameter, ...], values: list[bytes]) -> bytes:
    """The parameter buffer for values that are already bytes of the right sizes.

    Raises:
        ValueError: the number of values, or the size of one, is not the kernel's.
    """
    if len(values) != len(parameters):
        raise ValueError(f"the kernel takes {len(parameters)} arguments, not {len(values)}")
    buffer = bytearray()
    for index, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
        if len(value) != parameter.size:
            raise ValueError(
                f"argument {index} ({parameter.name}) has {len(value)} bytes, the kernel's "
                f"parameter has {parameter.size}"
            )
        buffer += bytes(parameter.offset - len(buffer))
        buffer += value
    return bytes(buffer)


def as_dim3(what: str, value: int | tuple[int, ...]) -> tuple[int, int, int]:
    """An int or a tuple of up to three as (x, y, z).

    Raises:
        LaunchConfigError: another length, or an extent that is not a positive int.
    """
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(given) <= 3:
        raise LaunchConfigError(what, given, "give one to three extents")
    extents = [_extent(extent) for extent in given]
    if min(extents) < 1:
        raise LaunchConfigError(what, given, "every extent must be an integer of 1 or more")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _extent(value: object) -> int:
    """``value`` as an int, 0 if it is none: NumPy's integers count, bools and floats do not."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return 0
    return value.__index__()
