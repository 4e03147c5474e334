"""Programs of the model, their functions, and launches with their parameters."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cuda.bindings import driver as real

from gpud.compiler.ptx import model as ptx
from gpud.device.interface import PlacedParameter, parameters_of
from tests.driver_model.handles import Misuse
from tests.driver_model.memory import Span

if TYPE_CHECKING:
    from tests.driver_model.model_driver import ModelDriver
    from tests.driver_model.streams import Stream

_BAD = real.CUresult.CUDA_ERROR_INVALID_VALUE
_LIMITS = (2**31 - 1, 65535, 65535, 1024, 1024, 64)
_FREE_SHARED_BYTES = 48 << 10
REFUSED = b"refuse_me"
"""A program with this text is rejected."""
_MOST_THREADS = "MAX_THREADS_PER_BLOCK"
ATTRIBUTES = {
    "NUM_REGS": 40,
    "SHARED_SIZE_BYTES": 0,
    "LOCAL_SIZE_BYTES": 16,
    _MOST_THREADS: 1024,
}


class RefusedError(Exception):
    """The driver rejects a program; the message is its log."""


class Entry(NamedTuple):
    """An entry of a program: its parameters, and the most threads of a block."""

    parameters: tuple[PlacedParameter, ...]
    most_threads: int | None

    @staticmethod
    def of(entry: ptx.Function) -> Entry:
        """Read it from the PTX."""
        for text in entry.attributes:
            word, _, extents = text.partition(" ")
            if word in (".maxntid", ".reqntid"):
                return Entry(parameters_of(entry), math.prod(map(int, extents.split(","))))
        return Entry(parameters_of(entry), None)


@dataclass
class Loaded:
    """A loaded program.

    Attributes:
        own: the data of whatever runs it.
        entries: by name.
        variables: address and size of each by name.
        flying: launches of it that are not over.
        functions: handles of its entries, as far as they were requested.
    """

    own: Any
    entries: Mapping[str, Entry]
    variables: Mapping[str, tuple[int, int]]
    flying: int = 0
    functions: dict[str, Any] = field(default_factory=dict)


@dataclass
class Function:
    """An entry; ``shared_room``: the most dynamic shared memory of a block."""

    loaded: Loaded
    name: str
    shared_room: int = _FREE_SHARED_BYTES

    @property
    def entry(self) -> Entry:
        """The program's entry."""
        return self.loaded.entries[self.name]


@dataclass(frozen=True)
class Launch:
    """A kernel that was put on a stream; ``raw``: its parameters, with gaps as in PTX."""

    function: Function
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: Stream
    raw: bytes

    def values(self) -> list[int]:
        """Every parameter as a number."""
        found = self.function.entry.parameters
        return [
            int.from_bytes(self.raw[one.offset : one.offset + one.size], "little") for one in found
        ]


class Programs(Protocol):
    """Loads programs and runs kernels."""

    def load(self, text: str) -> Loaded:
        """Load a program, with memory for its variables.

        Raises:
            RefusedError: it is not a valid one.
        """

    def unload(self, loaded: Loaded) -> None:
        """Free what `load` allocated."""

    def fits(self, threads: int) -> int:
        """How many blocks of ``threads`` threads fit on an SM."""

    def start(self, launch: Launch, over: Callable[[], None]) -> None:
        """Begin a kernel, and call ``over`` when its blocks have left."""

    def written(self, address: int) -> None:
        """Called after a stream wrote a word."""


class Modules:
    """All loaded programs.

    Attributes:
        programs: runs them.
        attributes: of every function, by name.
        launched: how many kernels were launched, by name.
    """

    def __init__(self, driver: ModelDriver, programs: Programs, device: Mapping[str, int]) -> None:
        self._driver = driver
        self.programs = programs
        self.attributes = {key: device.get(key, value) for key, value in ATTRIBUTES.items()}
        self.launched: Counter[str] = Counter()

    # -- programs

    def cuModuleLoadData(self, image: bytes) -> Any:
        return self.cuModuleLoadDataEx(image, 0, [], [])

    def cuModuleLoadDataEx(
        self, image: bytes, count: int, options: list[Any], values: list[Any]
    ) -> Any:
        if not image.endswith(b"\0") or not len(options) == len(values) == count:
            raise Misuse("a program's text ends with a zero, and each option has a value")
        try:
            loaded = self.programs.load(image[:-1].decode())
        except RefusedError as error:
            if count:
                said = str(error).encode()
                values[0][: len(said)] = said
            return real.CUresult.CUDA_ERROR_INVALID_PTX
        for address, size in loaded.variables.values():
            self._driver.memory.take(address, Span(size, "variable", loaded))
        return self._driver.handles.new("module", loaded)

    def cuModuleUnload(self, module: Any) -> None:
        loaded: Loaded = self._driver.handles.of("module", module)
        if loaded.flying:
            raise Misuse("a module is unloaded of which a kernel is on a stream")
        self._driver.handles.drop("module", module)
        for address, _ in loaded.variables.values():
            self._driver.memory.give("variable", address)
        self.programs.unload(loaded)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        loaded: Loaded = self._driver.handles.of("module", module)
        if name.decode() not in loaded.entries:
            return real.CUresult.CUDA_ERROR_NOT_FOUND
        found = loaded.functions.get(name.decode())
        if found is None:  # the driver gives the same one each time
            made = Function(loaded, name.decode())
            found = self._driver.handles.new("function", made, counts=False)
            loaded.functions[name.decode()] = found
        return found

    def cuModuleGetGlobal(self, module: Any, name: bytes) -> Any:
        loaded: Loaded = self._driver.handles.of("module", module)
        found = loaded.variables.get(name.decode())
        if found is None:
            return real.CUresult.CUDA_ERROR_NOT_FOUND
        return real.CUdeviceptr(found[0]), found[1]

    # -- linking: machine code is PTX here

    def cuLinkCreate(self, count: int, options: list[Any], values: list[Any]) -> Any:
        return self._driver.handles.new("link", [], counts=False)

    def cuLinkAddData(
        self, state: Any, kind: Any, data: bytes, size: int, name: bytes,
        count: int, options: list[Any], values: list[Any],
    ) -> Any:  # fmt: skip
        given: list[Any] = self._driver.handles.of("link", state)
        if len(data) != size:
            raise Misuse("a program is not as long as it is said to be")
        if REFUSED in data:
            return real.CUresult.CUDA_ERROR_INVALID_PTX
        given.append(ctypes.create_string_buffer(data, size))
        return None

    def cuLinkComplete(self, state: Any) -> tuple[int, int]:
        (code,) = self._driver.handles.of("link", state)
        return ctypes.addressof(code), len(code)

    def cuLinkDestroy(self, state: Any) -> None:
        self._driver.handles.drop("link", state, counts=False)

    # -- functions

    def _function(self, handle: Any) -> Function:
        found: Function = self._driver.handles.of("function", handle)
        if found.loaded not in self._driver.handles.all("module"):
            raise Misuse(f"{found.name} belongs to a module that was unloaded")
        return found

    def cuFuncGetAttribute(self, which: Any, function: Any) -> int:
        found = self._function(function)
        name = which.name.removeprefix("CU_FUNC_ATTRIBUTE_")
        return self._most_threads(found) if name == _MOST_THREADS else self.attributes[name]

    def _most_threads(self, function: Function) -> int:
        return function.entry.most_threads or self.attributes[_MOST_THREADS]

    def cuFuncSetAttribute(self, function: Any, which: Any, value: int) -> Any:
        found = self._function(function)
        kinds = real.CUfunction_attribute
        if which == kinds.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            return None if -1 <= value <= 100 else _BAD
        wanted = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if which != wanted or value + self._static > self._most_shared:
            return _BAD
        found.shared_room = value
        return None

    @property
    def _static(self) -> int:
        return self.attributes["SHARED_SIZE_BYTES"]

    @property
    def _most_shared(self) -> int:
        return self._driver.contexts.attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: Any, threads: int, shared: int
    ) -> Any:
        found = self._function(function)
        if not 0 < threads <= self._most_threads(found) or shared < 0:
            return _BAD
        return self.programs.fits(threads)

    # -- launches

    def cuLaunchKernel(
        self, function: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
        shared: int, stream: Any, pointers: Any, extra: Any,
    ) -> Any:  # fmt: skip
        if int(extra):
            raise Misuse("the model takes parameters by pointers only")
        return self._launch(function, (gx, gy, gz), (bx, by, bz), shared, stream, int(pointers))

    def cuLaunchCooperativeKernel(
        self, function: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
        shared: int, stream: Any, pointers: Any,
    ) -> Any:  # fmt: skip
        sms = self._driver.streams.of(stream).sms
        count = (
            self._driver.contexts.attributes["MULTIPROCESSOR_COUNT"] if sms is None else len(sms)
        )
        if gx * gy * gz > count * self.programs.fits(bx * by * bz):
            return real.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
        return self._launch(function, (gx, gy, gz), (bx, by, bz), shared, stream, int(pointers))

    def _launch(
        self,
        handle: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: Any,
        pointers: int,
    ) -> Any:
        function = self._function(handle)
        if any(not 0 < n <= most for n, most in zip((*grid, *block), _LIMITS, strict=True)):
            return _BAD
        if math.prod(block) > self._most_threads(function):
            return _BAD
        if not 0 <= shared <= max(function.shared_room, _FREE_SHARED_BYTES - self._static):
            return _BAD
        loaded = function.loaded
        on = self._driver.streams.of(stream)
        launch = Launch(function, grid, block, shared, on, self._raw(function, pointers))
        with self._driver.lock:
            loaded.flying += on.captured is None
            if on.captured is not None:
                on.captured.programs.append(loaded)
        captured = on.captured is not None

        def begin(over: Callable[[], None]) -> None:
            def ended() -> None:
                with self._driver.lock:
                    loaded.flying -= 1
                over()

            with self._driver.lock:
                loaded.flying += captured
                self.launched[function.name] += 1
            self.programs.start(launch, ended)

        self._driver.streams.put(stream, begin)
        return None

    @staticmethod
    def _raw(function: Function, pointers: int) -> bytes:
        """The parameters' values now: the driver copies them.

        Raises:
            Misuse: there are none, or fewer than the kernel has.
        """
        found = function.entry.parameters
        if not pointers and found:
            raise Misuse(f"{function.name} is launched without its {len(found)} parameters")
        buffer = bytearray()
        for index, parameter in enumerate(found):
            at = ctypes.c_uint64.from_address(pointers + 8 * index).value
            if not at and parameter.size:
                raise Misuse(f"{function.name} is launched without parameter {index}")
            buffer += bytes(parameter.offset - len(buffer))
            buffer += ctypes.string_at(at or 1, parameter.size)
        return bytes(buffer)
