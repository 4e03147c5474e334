"""The interface that every device implements.

A device allocates memory, loads rewritten PTX, computes how many blocks of a kernel fit on an SM,
and runs sequences of launches whose number of resident blocks changes while they run. Each device
implements that in its own way: on the CPU device a resident block goes from launch to launch, a GPU
uses streams. The device host uses them as they are.

Implementations: `gpud.device.cpu.device.CPUDevice`, `gpud.device.cuda.device.CUDADevice`. The CPU
device passes ``tests/conformance``, and so must any other: ``tests/gpu`` runs the same cases on a
GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    "Arrays",
    "Device",
    "Form",
    "Kernel",
    "LaunchInfo",
    "LaunchSequence",
    "LaunchSpec",
    "MappedArena",
    "Memory",
    "PlacedParameter",
    "ProgramModule",
    "Run",
    "as_dim3",
    "pack_parameters",
    "parameters_of",
]


@dataclass(frozen=True, slots=True)
class PlacedParameter:
    """A kernel parameter: its offset and size in the parameter buffer, in bytes, and its PTX type.

    A struct passed by value is an array in PTX; its type here is the element type.
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
    parameters: tuple[PlacedParameter, ...]


class ProgramModule(Protocol):
    """A loaded program."""

    def kernel(self, name: str) -> Any:
        """Return the kernel ``name``; raise `gpud.errors.KernelNotFound` if there is none."""

    def symbol(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a module variable."""


Form = Literal["persistent", "sliced", "whole", "unmodified"]

REWRITTEN: Final = ("persistent", "sliced", "whole")
"""Forms whose kernels have the hidden last parameter, the address of their control words."""

RESIZABLE: Final = ("persistent", "sliced")
"""Forms whose launches can be resized while they run; the others see their own grid."""


OUTPUT_LIMIT_BYTES: Final = 1 << 22
"""Most output of a run that is kept; the rest is dropped, and a line at the end says so. It passes
the front as one message, which keeps others waiting: of four times as much, for 0.16 s."""


class LaunchSpec(NamedTuple):
    """One launch of a job.

    Attributes:
        kernel: a kernel of a module that is loaded on the device.
        form: the form into which the kernel was rewritten. ``unmodified`` is a plain launch of the
            whole grid, for tests and as a baseline; like ``whole`` it cannot be resized once it
            runs.
        grid: task blocks in x, y, z.
        block: threads of a block in x, y, z.
        parameters: the packed parameter buffer, without the hidden parameter.
        shared: dynamic shared memory of a block, in bytes.
        occupancy: M of this launch; 0: the device computes it.
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
        """Make a launch from ints or tuples for the extents and one ``bytes`` per parameter.

        Raises:
            LaunchConfigError: the grid or block is malformed.
            ValueError: the number of values, or the size of one, is not the kernel's.
        """
        parameters = kernel.parameters[:-1] if form in REWRITTEN else kernel.parameters
        packed = pack_parameters(parameters, values)
        return cls(kernel, form, as_dim3("grid", grid), as_dim3("block", block), packed, shared)


class LaunchInfo(NamedTuple):
    """A description of a launch for messages: the kernel's name, the form and the user's grid."""

    name: str
    form: str
    grid: tuple[int, int, int]


class LaunchSequence(Protocol):
    """Launches prepared on a device; may run any number of times, also concurrently."""

    @property
    def launches(self) -> Sequence[LaunchInfo]:
        """A description of each launch for messages."""

    @property
    def occupancy(self) -> int:
        """M of the sequence: a slice is 1/M of an SM."""

    @property
    def total(self) -> int:
        """Task blocks in all."""


class Run(Protocol):
    """One execution of a sequence: the resident blocks that work on it. Thread-safe.

    With n slices, launch k has ``n * M_k // M`` resident blocks. The task blocks of a launch begin
    when all task blocks of the previous launch have ended.

    Attributes:
        slices: slices allotted to it.
        error: what it failed with, or ``None``.
    """

    slices: int
    error: Any

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once."""

    def limit(self, quota: int) -> None:
        """Let it do no more work than so many slices can, on devices that can tell; 0: no limit.

        To be called before the first `resize`, and whenever it changes.
        """

    def clear(self, sms: Collection[int]) -> None:
        """Vacate these SMs, by ``%smid``, and keep off them from now on; returns at once.

        Blocks there leave at their next task block. `slices` is unchanged: on a device that can
        choose SMs, blocks start again on others as there is room. Each call replaces the set of the
        previous one. The blocks of launches that cannot be resized stay to their end.

        Raises:
            ValueError: there is no such SM.
        """

    def end(self) -> None:
        """Release all blocks and start none; the run is over when the last block has left."""

    def kill(self) -> None:
        """Do `end`; running blocks leave at their next kill poll, in the middle of a task block.

        If the kernel was compiled without kill polls, only the blocks that the device can stop by
        itself leave.
        """

    @property
    def output(self) -> bytes:
        """What its blocks have printed so far, `OUTPUT_LIMIT_BYTES` at most."""

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
        """Whether `held` can only fall: the last launch is all claimed, or the run was ended."""

    @property
    def first_block_ns(self) -> int:
        """Time from the first `resize` to the first task block; 0: none has begun."""

    @property
    def release_ns(self) -> int:
        """The longest release so far: from the request until the last released block had left."""

    @property
    def ways(self) -> Mapping[str, int]:
        """How often its launches were queued in which way, and why; empty: the device has one."""


Arrays = Literal["shared", "copied"]
"""Where kernels see a session's arrays: in its memory file itself, or in a copy on the device."""


class MappedArena(Protocol):
    """A session's memory, mapped on a device.

    On a device whose arrays are ``copied`` it also has ``commit``, ``release``, ``upload`` and
    ``download``, as `gpud.device.cuda.memory.arena.CUDAArena` does.

    Attributes:
        address: device address of its first byte.
    """

    address: int

    def close(self) -> None:
        """Unmap it; no kernel may use it from now on."""


class Device(Protocol):
    """A device. Sizes are bytes.

    Attributes:
        name: for messages.
        kind: ``cpu`` or ``cuda``.
        sms: number of SMs.
        capability: the compute capability, times ten.
        memory_bytes: all memory of the machine or the GPU, of which arrays get a part.
        arrays: whether arrays are shared with the clients or copied to the device.
        partitions: how many whole SMs can be assigned to single jobs.
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
        """The GPU's UUID as the driver reports it; empty for other devices."""

    def map_arena(self, descriptor: int, size: int, base: int = 0) -> MappedArena:
        """Map a session's memory file; ``base`` is the device address that it must have, 0: any.

        The descriptor may be closed afterwards.
        """

    def allocate(self, size: int) -> Memory:
        """Allocate zeroed device memory, aligned to 256 bytes."""

    def load(
        self,
        text: str,
        arena: tuple[int, int] | None = None,
        *,
        variables: tuple[int, int] | None = None,
    ) -> ProgramModule:
        """Load PTX.

        Args:
            text: the program.
            arena: address and size of the memory that its bounds checks let it access besides its
                own variables; None: accesses are not checked.
            variables: address and size of the block in which its variables lie
                (`gpud.compiler.variables`); None: they are the module's own.
        """

    def occupancy(self, kernel: Any, block: tuple[int, int, int], shared: int = 0) -> int:
        """Return M: how many blocks of this shape and shared memory fit on one SM, at least 1."""

    def prepare(self, launches: Sequence[LaunchSpec], occupancy: int | None = None) -> Any:
        """Prepare a `LaunchSequence`.

        Args:
            launches: what it runs, in this order.
            occupancy: its M; None: the least of its launches'.

        Raises:
            LaunchConfigError: a grid, block or shared memory is outside what the device allows.
            KernelRejected: a kernel uses something that the device does not support.
            ValueError: no launch, a parameter buffer of the wrong size, or an impossible M.
        """

    def new_run(
        self,
        sequence: Any,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> Run:
        """Create a run of a `LaunchSequence` of this device; no block starts before `Run.resize`.

        Args:
            sequence: as `prepare` returned it.
            priority: larger is more urgent.
            on_left: called after blocks have left, unless the run is over; must be cheap.
            on_over: called once, when its last block has left and nothing more will run.
            exclusive: number of whole SMs reserved for this run until it is over; it runs on no
                others. See `partitions`. Blocks of other runs leave these SMs at their next task
                block. 0: none.

        Raises:
            InvalidArgument: the device has not that many SMs free for it, or no partitions.
        """

    def close(self) -> None:
        """Release all resources of the device."""


def parameters_of(entry: ptx.Function) -> tuple[PlacedParameter, ...]:
    """Return a kernel's parameters with their offsets in the buffer, each at its own alignment."""
    starts, _ = offsets(entry.parameters)
    placed = []
    for parameter, start in zip(entry.parameters, starts, strict=True):
        size, _ = size_and_align(parameter)
        placed.append(PlacedParameter(parameter.name, start, size, parameter.type))
    return tuple(placed)


def pack_parameters(parameters: tuple[PlacedParameter, ...], values: list[bytes]) -> bytes:
    """Pack values, given as bytes of the right sizes, into a parameter buffer.

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
    """Complete an int or a tuple of up to three to (x, y, z).

    Raises:
        LaunchConfigError: another length, or an extent that is not a positive int.
    """
    if type(value) is tuple and len(value) == 3:
        x, y, z = value
        if type(x) is type(y) is type(z) is int and x > 0 and y > 0 and z > 0:
            return value  # fast path: sequences have many launches, with extents in this form
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(given) <= 3:
        raise LaunchConfigError(what, given, "give one to three extents")
    extents = [_extent(extent) for extent in given]
    if min(extents) < 1:
        raise LaunchConfigError(what, given, "every extent must be an integer of 1 or more")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _extent(value: object) -> int:
    """Return ``value`` as an int; 0 if it is none: bools and floats are none, NumPy's are."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return 0
    return value.__index__()
