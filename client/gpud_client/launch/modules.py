"""Modules: compiled sources with their kernels and variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gpud.errors import InvalidArgument, UnknownName
from gpud.wire.messages import Compile, ReadSymbol, Unload, WriteSymbol
from gpud_client.arrays import Shape, as_dtype, as_shape
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Operation, Request
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.devices import Device
from gpud_client.launch.loaded_module import LoadedModule

__all__ = ["ModuleBase", "SymbolBase"]

_PIECE_BYTES = 8 << 20  # the most bytes of a variable in one message

KernelT = TypeVar("KernelT")
SymbolT = TypeVar("SymbolT")


class ModuleBase(Generic[KernelT, SymbolT]):
    """State and operations common to `Module` and `AsyncModule`."""

    _kernel_class: Callable[[Any, str], KernelT]
    _symbol_class: Callable[..., SymbolT]

    def __init__(
        self,
        session: Any,
        source: str,
        images: tuple[bytes, ...],
        names: tuple[str, ...],
        options: tuple[str, ...],
        form: str | None,
        progress: str | None,
        headers: tuple[tuple[str, str], ...],
        device: Device,
        *,
        only: bool,
    ) -> None:
        self._session = session
        self._channel = session._channel
        self._source = source
        self._images = images
        self._names = names
        self._options = options
        self._form = form
        self._progress = progress
        self._headers = headers
        self._only = only
        self._device = device
        self._loaded: dict[int, LoadedModule] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its kernels in the source."""
        return tuple(str(kernel["name"]) for kernel in self._home.kernels)

    @property
    def symbols(self) -> dict[str, int]:
        """Its ``__constant__`` and ``__device__`` variables, and the size of each in bytes."""
        return dict(self._home.symbols)

    @property
    def log(self) -> str:
        """The compiler's output, such as warnings."""
        return self._home.log

    def kernel(self, name: str) -> KernelT:
        """Return a kernel of this module; see `Session.kernel`, whose modules have one only.

        Raises:
            KernelNotFound: There is none of that name.
            KernelRejected: gpud cannot run it.
        """
        return type(self)._kernel_class(self, name)

    def symbol(
        self,
        name: str,
        dtype: npt.DTypeLike | None = None,
        shape: Shape | None = None,
        *,
        device: Device | int | None = None,
    ) -> SymbolT:
        """Return a ``__constant__`` or ``__device__`` variable.

        Args:
            name: Its name in the PTX; outside of namespaces that is the name in the source.
            dtype: Of an element; None: the variable is read and written as bytes.
            shape: Of the variable; None: one dimension that fills it.
            device: On which device; None: where the module was compiled first.

        Raises:
            UnknownName: There is none of that name; a LookupError.
            ValueError: The variable does not have the size of ``shape`` and ``dtype``.
        """
        on = self._session._on(device, self._device)
        return type(self)._symbol_class(self, name, dtype, shape, on)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.names) or 'no kernel'}>"

    @property
    def _home(self) -> LoadedModule:
        return self._loaded[self._device.index]

    def _load(self, device: Device) -> Operation[LoadedModule]:
        """Return the module on a device; it is compiled for it at the first use."""
        loaded = self._loaded.get(device.index)
        if loaded is None:
            core: ProtocolState = self._session._core
            fields = (
                device.index,
                self._source,
                self._names,
                self._options,
                self._form,
                self._progress,
                core.checking is not None,
                self._images,
                self._only,
                self._headers,
            )
            answer = yield Request(
                lambda number: Compile(number, *fields),
                undo=lambda answer: core.garbage.append(Unload(answer.module)),
            )
            loaded = LoadedModule(core, self._channel.kick, answer, fields)
            self._loaded[device.index] = loaded
        return loaded

    def _symbol_size(self, name: str) -> int:
        size = self._home.symbols.get(name)
        if size is None:
            known = ", ".join(self._home.symbols) or "none"
            raise UnknownName(f"the module has no variable {name!r}; it has {known}")
        return size


class SymbolBase:
    """State and operations common to `Symbol` and `AsyncSymbol`."""

    def __init__(
        self,
        module: Any,
        name: str,
        dtype: npt.DTypeLike | None,
        shape: Shape | None,
        device: Device,
    ) -> None:
        self._module = module
        self._channel = module._channel
        self._device = device
        self.name = name
        self.nbytes: int = module._symbol_size(name)
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] | None = None
        if dtype is None:
            if shape is not None:
                raise ValueError("a shape needs a dtype; without one a variable is bytes")
            return
        self.dtype = as_dtype(dtype)
        self.shape = (self.nbytes // self.dtype.itemsize,) if shape is None else as_shape(shape)
        if math.prod(self.shape) * self.dtype.itemsize != self.nbytes:
            raise ValueError(
                f"{name} has {self.nbytes} bytes; {self.shape} of {self.dtype} have "
                f"{math.prod(self.shape) * self.dtype.itemsize}"
            )

    @property
    def ptr(self) -> int:
        """Its device address, for kernels of any module; of a program that was sent as images.

        Raises:
            InvalidArgument: The module was compiled from a source.
        """
        address = self._module._loaded[self._device.index].addresses.get(self.name)
        if address is None:
            raise InvalidArgument(
                f"{self.name} has no address outside of its module; variables of images have one: "
                "pass the PTX as bytes"
            )
        return int(address)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {self.nbytes} bytes>"

    def _ready(self) -> Operation[LoadedModule]:
        loaded: LoadedModule = yield from self._module._load(self._device)
        jobs = loaded.users.unended(self._channel.core.jobs)
        if jobs:
            yield jobs
        failure = loaded.users.failure
        if failure is not None and not failure.seen:
            raise failure.see()
        return loaded

    @operation
    def get(self) -> Operation[Any]:
        """Return the variable's value: bytes, or a NumPy array if a dtype was given.

        Waits for the jobs that were submitted with the module and have not ended.

        Raises:
            JobError: One of these jobs has failed, and that was not seen before.
        """
        loaded = yield from self._ready()
        module, name, data = loaded.number, self.name, b""
        while len(data) < self.nbytes:
            at, size = len(data), min(_PIECE_BYTES, self.nbytes - len(data))
            answer = yield Request(_reading(module, name, at, size))
            data += answer.value
        if self.dtype is None or self.shape is None:
            return data
        return np.frombuffer(bytearray(data), self.dtype).reshape(self.shape)

    @operation
    def set(self, values: npt.ArrayLike | bytes) -> Operation[None]:
        """Write the whole variable; waits for the same jobs as `get`.

        Raises:
            JobError: As with `get`; nothing is written.
            TypeError: The values are of another type.
            ValueError: They have another size or shape.
        """
        if self.dtype is not None and not isinstance(values, bytes | bytearray | memoryview):
            given = np.asarray(values)
            if isinstance(values, np.ndarray | np.generic) and given.dtype != self.dtype:
                raise TypeError(f"{self.name} holds {self.dtype}, the values are {given.dtype}")
            if given.shape != self.shape:
                raise ValueError(f"{self.name} has shape {self.shape}, the values {given.shape}")
            data = np.ascontiguousarray(given, self.dtype).tobytes()
        elif isinstance(values, bytes | bytearray | memoryview):
            data = bytes(values)
        elif isinstance(values, np.ndarray | np.generic):
            data = values.tobytes()
        else:
            raise TypeError(
                f"{self.name} is written as bytes or a NumPy array, not {type(values).__name__}; "
                "for other values give symbol() a dtype"
            )
        if len(data) != self.nbytes:
            raise ValueError(f"{self.name} has {self.nbytes} bytes, the values {len(data)}")
        loaded = yield from self._ready()
        for at in range(0, len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            yield Request(_writing(loaded.number, self.name, at, piece))


def _reading(module: int, name: str, at: int, size: int) -> Callable[[int], ReadSymbol]:
    return lambda number: ReadSymbol(number, module, name, at, size)


def _writing(module: int, name: str, at: int, data: bytes) -> Callable[[int], WriteSymbol]:
    return lambda number: WriteSymbol(number, module, name, at, data)
