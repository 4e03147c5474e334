"""Modules: compiled sources with their kernels and variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpud.errors import KernelNotFound, UnknownName
from gpud.wire.messages import Compile, ReadSymbol, Unload, WriteSymbol
from gpud_client.arrays import Shape, as_dtype, as_shape
from gpud_client.connection.protocol_state import Operation, PendingJobs, ProtocolState, Request
from gpud_client.launch.kernels import Kernel

if TYPE_CHECKING:
    from gpud_client.devices import Device

__all__ = ["LoadedModule", "Module", "ModuleBase", "Symbol", "SymbolBase"]

_PIECE_BYTES = 8 << 20  # the most bytes of a variable in one message


class LoadedModule:
    """The daemon's module on one device; unloaded when this object is garbage collected."""

    def __init__(self, core: ProtocolState, kick: Any, answer: Any) -> None:
        self._core = core
        self._kick = kick
        self.number: int = answer.module
        self.kernels: list[dict[str, Any]] = answer.kernels
        self.names: Mapping[str, int] = answer.names
        self.symbols: Mapping[str, int] = answer.symbols
        self.log: str = answer.log
        # (M, form) by (kernel, block, dynamic shared memory)
        self.measured: dict[tuple[int, tuple[int, int, int], int], tuple[int, str]] = {}
        # The same keys, of which the variant with kill polls was measured.
        self.killable: set[tuple[int, tuple[int, int, int], int]] = set()
        self.users = PendingJobs()

    def index(self, name: str) -> int:
        """The index of a kernel, by its requested name, its name in the source or its PTX entry.

        Raises:
            KernelNotFound: there is none of that name.
        """
        found = self.names.get(name)
        if found is not None:
            return found
        for index, kernel in enumerate(self.kernels):
            if name in (kernel["name"], kernel["entry"]):
                return index
        raise KernelNotFound(name, [str(kernel["name"]) for kernel in self.kernels], log=self.log)

    def __del__(self) -> None:
        if self._core.lost is None:
            self._core.garbage.append(Unload(self.number))
            self._kick()


class ModuleBase:
    """State and operations common to `Module` and `AsyncModule`."""

    def __init__(
        self,
        session: Any,
        source: str,
        names: tuple[str, ...],
        options: tuple[str, ...],
        form: str | None,
        device: Device,
    ) -> None:
        self._session = session
        self._source = source
        self._names = names
        self._options = options
        self._form = form
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.names) or 'no kernel'}>"

    @property
    def _home(self) -> LoadedModule:
        return self._loaded[self._device.index]

    def _load(self, device: Device) -> Operation[LoadedModule]:
        """The module on a device, compiled for it at the first call."""
        found = self._loaded.get(device.index)
        if found is None:
            core: ProtocolState = self._session._core
            fields = (device.index, self._source, self._names, self._options, self._form)
            answer = yield Request(
                lambda number: Compile(number, *fields),
                undo=lambda answer: core.garbage.append(Unload(answer.module)),
            )
            found = LoadedModule(core, self._session._channel.kick, answer)
            self._loaded[device.index] = found
        return found

    def _symbol_size(self, name: str) -> int:
        size = self._home.symbols.get(name)
        if size is None:
            known = ", ".join(self._home.symbols) or "none"
            raise UnknownName(f"the module has no variable {name!r}; it has {known}")
        return size


class Module(ModuleBase):
    """A compiled source: its kernels, and the variables that they share.

    Made by `Session.module`; `Kernel.module` is the one of a kernel. Its variables are the
    session's own, and keep their values between jobs.
    """

    def kernel(self, name: str) -> Kernel:
        """A kernel of this module; see `Session.kernel`.

        Raises:
            KernelNotFound: There is none of that name.
            KernelRejected: gpud cannot run it.
        """
        return Kernel(self, name)

    def symbol(
        self,
        name: str,
        dtype: npt.DTypeLike | None = None,
        shape: Shape | None = None,
        *,
        device: Device | int | None = None,
    ) -> Symbol:
        """A ``__constant__`` or ``__device__`` variable.

        Args:
            name: Its name in the PTX; outside of namespaces that is the name in the source.
            dtype: Of an element; None: the variable is read and written as bytes.
            shape: Of the variable; None: one dimension that fills it.
            device: On which device; None: where the module was compiled first.

        Raises:
            UnknownName: There is none of that name; a LookupError.
            ValueError: The variable does not have the size of ``shape`` and ``dtype``.
        """
        return Symbol(self, name, dtype, shape, self._session._on(device, self._device))


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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {self.nbytes} bytes>"

    def _ready(self) -> Operation[LoadedModule]:
        loaded: LoadedModule = yield from self._module._load(self._device)
        jobs = loaded.users.unended(self._module._session._core)
        if jobs:
            yield jobs
        return loaded

    def _get(self) -> Operation[Any]:
        loaded = yield from self._ready()
        module, name, data = loaded.number, self.name, b""
        while len(data) < self.nbytes:
            at, size = len(data), min(_PIECE_BYTES, self.nbytes - len(data))
            answer = yield Request(_reading(module, name, at, size))
            data += answer.value
        if self.dtype is None or self.shape is None:
            return data
        return np.frombuffer(bytearray(data), self.dtype).reshape(self.shape)

    def _set(self, values: npt.ArrayLike | bytes) -> Operation[None]:
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


class Symbol(SymbolBase):
    """A variable of a module; made by `Module.symbol`.

    Attributes:
        name: Its name in the PTX.
        nbytes: Its size.
        dtype: Of an element; None: it is read and written as bytes.
        shape: Its shape; None: it is read and written as bytes.
    """

    _module: Module

    def get(self) -> Any:
        """The variable's value: bytes, or a NumPy array if a dtype was given.

        Waits for the jobs that were submitted with the module and have not ended.
        """
        return self._module._session._channel.run(self._get())

    def set(self, values: npt.ArrayLike | bytes) -> None:
        """Write the whole variable; waits for the same jobs as `get`.

        Raises:
            TypeError: The values are of another type.
            ValueError: They have another size or shape.
        """
        self._module._session._channel.run(self._set(values))


def _reading(module: int, name: str, at: int, size: int) -> Callable[[int], ReadSymbol]:
    return lambda number: ReadSymbol(number, module, name, at, size)


def _writing(module: int, name: str, at: int, data: bytes) -> Callable[[int], WriteSymbol]:
    return lambda number: WriteSymbol(number, module, name, at, data)
