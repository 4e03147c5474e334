"""What every device offers: the small interface between whoever decides and whatever runs blocks.

A device allocates memory, loads rewritten PTX, tells how many blocks of a kernel fit on an SM, and
runs chains of launches whose number of resident blocks changes while they run. How it does the
latter is its own: virtual SMs hand a resident block from launch to launch, a GPU has streams.
`gpud.device.job` is what the rest of gpud uses.

Implementations: `gpud.device.cpu.device.CPUDevice`, `gpud.device.cuda.device.CUDADevice`. The first
passes ``tests/conformance``, and so must any other: ``tests/gpu`` runs the same cases on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, SupportsIndex

from gpud.compiler.abi.control_words import Claims
from gpud.compiler.analysis.data_layout import offsets, size_and_align
from gpud.compiler.ptx import model as ptx
from gpud.errors import LaunchConfigError
from gpud.units import Partitions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "OUTPUT_LIMIT_BYTES",
    "RESIZABLE",
    "REWRITTEN",
    "Arena",
    "Arrays",
    "Chain",
    "Device",
    "Form",
    "Gang",
    "Kernel",
    "LaunchSpec",
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

    The type of a struct that is passed by value is its element's.
    """

    name: str
    offset: int
    size: int
    type: str


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


Form = Literal["persistent", "sliced", "whole", "unmodified"]

REWRITTEN: Final = ("persistent", "sliced", "whole")
"""Forms whose kernels have the hidden last parameter, the address of their control words."""

RESIZABLE: Final = ("persistent", "sliced")
"""Forms whose launches can be resized while they run; the others see their own grid."""


OUTPUT_LIMIT_BYTES: Final = 1 << 24
"""What a run keeps of what its blocks print; the rest is dropped, and the end of it says so."""


class LaunchSpec(NamedTuple):
    """One launch of a job.

    Attributes:
        kernel: of a module that is loaded on the device.
        form: what the rewriter made of it. ``unmodified`` is a plain launch of the whole grid, for
            tests and as a baseline; like ``whole`` it cannot be resized once it runs.
        grid: task blocks in x, y, z.
        block: threads of a block, likewise.
        parameters: the packed buffer as the kernel was before rewriting.
        shared: dynamic shared memory of a block, in bytes.
        occupancy: M of this launch; 0: the device finds it.
        claims: how its blocks claim task blocks in persistent form; None: the device chooses.
    """

    kernel: Any
    form: Form
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: bytes
    shared: int = 0
    occupancy: int = 0
    claims: Claims | None = None

    @classmethod
    def of(
        cls,
        kernel: Any,
        form: Form,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        values: list[bytes],
        *,
        shared: int = 0,
    ) -> LaunchSpec:
        """A launch from what is easy to write: ints for extents, one ``bytes`` per parameter.

        Raises:
            LaunchConfigError: the grid or block is malformed.
            ValueError: the number of values, or the size of one, is not the kernel's.
        """
        parameters = kernel.parameters[:-1] if form in REWRITTEN else kernel.parameters
        packed = pack_parameters(parameters, values)
        return cls(kernel, form, as_dim3("grid", grid), as_dim3("block", block), packed, shared)


class Chain(Protocol):
    """Launches made ready on a device; may be run any number of times, also at once."""

    @property
    def launches(self) -> Sequence[Any]:
        """What people are told of each: has ``name``, ``form`` and ``grid``."""

    @property
    def occupancy(self) -> int:
        """M of the chain: a slice is 1/M of an SM."""

    @property
    def total(self) -> int:
        """Task blocks in all."""


class Gang(Protocol):
    """One run of a chain: the resident blocks that work on it. Thread-safe.

    With n slices, launch k has ``n * M_k // M`` of them. The task blocks of a launch begin when all
    of the launch before have ended.

    Attributes:
        slices: what it has been given.
        error: what it failed with, or ``None``.
    """

    slices: int
    error: Any

    def resize(self, slices: int) -> None:
        """Have ``slices`` slices from now on; returns at once."""

    def clear(self, sms: Collection[int]) -> None:
        """Have no blocks on these SMs from now on, by ``%smid``; returns at once.

        What is there leaves at its next task block. `slices` stays: blocks come again on other SMs
        as there is room, on a device that can choose where. Each call replaces what was said
        before. The blocks of launches that cannot be resized stay to their end.

        Raises:
            ValueError: there is no such SM.
        """

    def end(self) -> None:
        """Release everything and run nothing more; it is over when the last block has left."""

    def kill(self) -> None:
        """`end`; running blocks leave at their next kill poll, in the middle of a task block.

        Of a kernel that was compiled without kill polls, those leave that the device can take away.
        """

    @property
    def output(self) -> bytes:
        """What its blocks printed so far, `OUTPUT_LIMIT_BYTES` at most."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches, readable at any moment."""

    @property
    def complete(self) -> bool:
        """Whether every task block is done."""

    @property
    def held(self) -> int:
        """Slices that its blocks occupy or will occupy, released ones included, rounded up."""

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: all of the last launch is claimed, or it was ended."""

    @property
    def first_block_ns(self) -> int:
        """From the first `resize` to the first task block; 0: none has begun."""

    @property
    def release_ns(self) -> int:
        """The longest time from a release to its last block gone so far."""


Arrays = Literal["shared", "copied"]
"""Where a session's arrays lie: in its memory file itself, or in memory of the device's own."""


class Arena(Protocol):
    """A session's memory, mapped on a device.

    Where arrays are ``copied`` it has ``commit``, ``release``, ``upload`` and ``download``, as
    `gpud.device.cuda.memory.arena.Arena`.

    Attributes:
        address: of its first byte on the device.
    """

    address: int

    def close(self) -> None:
        """Unmap it; no kernel may use it any more."""


class Device(Protocol):
    """A device as the rest of gpud sees it. Sizes are bytes.

    Attributes:
        capability: the compute capability, times ten.
        memory_bytes: how much it has.
    """

    name: str
    kind: str
    sms: int
    capability: int
    memory_bytes: int
    arrays: Arrays
    partitions: Partitions

    @property
    def uuid(self) -> str:
        """Of the GPU, as the driver tells it; empty: it is none."""

    def map_arena(self, descriptor: int, size: int, base: int = 0) -> Arena:
        """Map a session's memory file, at the address ``base`` if that is not 0.

        The descriptor may be closed afterwards.
        """

    def allocate(self, size: int) -> Memory:
        """Zeroed device memory, aligned to 256 bytes."""

    def load(self, text: str, arena: tuple[int, int] | None = None) -> ProgramModule:
        """Load PTX.

        Args:
            text: the program.
            arena: address and size of what its fences let it reach besides its own variables;
                None: everything.
        """

    def occupancy(self, kernel: Any, block: tuple[int, int, int], shared: int = 0) -> int:
        """M: resident blocks of this shape and dynamic shared memory on one SM, at least 1."""

    def prepare(self, launches: Sequence[LaunchSpec], occupancy: int | None = None) -> Any:
        """A `Chain` of these launches; M is ``occupancy``, or the least of theirs.

        Raises:
            LaunchConfigError: a grid, block or shared memory is outside what the device allows.
            KernelRejected: a kernel uses something that the device does not run.
            ValueError: no launch, a parameter buffer of the wrong size, or an impossible M.
        """

    def gang(
        self,
        chain: Any,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> Gang:
        """A run of a `Chain` of this device; nothing of it runs before `Gang.resize`.

        Args:
            chain: what `prepare` made.
            priority: larger is more urgent.
            on_left: called after blocks have left, unless the gang is over; must be cheap.
            on_over: called once, when its last block has left and nothing more will run.
            exclusive: so many whole SMs are this run's alone until it is over, and it runs nowhere
                else; see `partitions`. What others have there leaves now, at its next task block.

        Raises:
            InvalidArgument: there are not so many SMs, or the device cannot.
        """

    def close(self) -> None:
        """Give everything back."""


def parameters_of(entry: ptx.Function) -> tuple[Parameter, ...]:
    """Parameters with the offsets that PTX gives them: each aligned to its own alignment."""
    starts, _ = offsets(entry.parameters)
    found = []
    for parameter, start in zip(entry.parameters, starts, strict=True):
        size, _ = size_and_align(parameter)
        found.append(Parameter(parameter.name, start, size, parameter.type))
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
    if type(value) is tuple and len(value) == 3:
        x, y, z = value
        if type(x) is type(y) is type(z) is int and x > 0 and y > 0 and z > 0:
            return value  # chains have many launches, and these come in this form
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
