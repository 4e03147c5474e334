"""Kernels: their parameters, form and occupancy, launches of them, and submitting these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, Unpack

import msgpack

from gpud.errors import LaunchConfigError, from_wire
from gpud.wire.messages import Measure
from gpud_client.arrays import ArrayBase
from gpud_client.connection.faces import operation, with_shortcut
from gpud_client.connection.pending import Operation, Request
from gpud_client.devices import Device
from gpud_client.displays import Display, Displayed
from gpud_client.launch.argument_packer import ArgumentPacker
from gpud_client.launch.dimensions import MOST_BLOCKS, Dim, as_dim3, as_shared
from gpud_client.launch.lane_shortcut import lanes_first
from gpud_client.launch.loaded_module import LoadedModule
from gpud_client.launch.submit_options import SubmitOptions, complete, takes_submit_options

__all__ = ["KernelBase", "Launch", "PackedLaunch", "Parameter"]

_Packer = msgpack.Packer
_MOST_SHARED_BYTES = (1 << 32) - 1

JobT = TypeVar("JobT")
ModuleT = TypeVar("ModuleT")


class Parameter(NamedTuple):
    """A parameter of a kernel.

    Attributes:
        name: Its name in the PTX.
        kind: ``"int"``, ``"uint"``, ``"float"``, ``"bits"`` (the PTX does not say), ``"pointer"``
            (declared as one; many pointers are declared ``"uint"``), or ``"struct"``.
        size: In bytes.
        align: In bytes.
        offset: In the parameter buffer, in bytes.
    """

    name: str
    kind: str
    size: int
    align: int
    offset: int


class PackedLaunch(NamedTuple):
    """A launch packed for a device: its `gpud.wire.messages.LaunchRecord`, M and its form.

    It is valid for as long as its module has this ``number``.
    """

    device: Device
    number: int
    loaded: LoadedModule
    record: bytes
    occupancy: int
    form: str


class KernelBase(Displayed, Generic[ModuleT, JobT]):
    """State and operations common to `Kernel` and `AsyncKernel`.

    Raises:
        KernelNotFound: the module has no kernel of that name.
        KernelRejected: gpud cannot run it.
    """

    def __init__(self, module: Any, name: str) -> None:
        self._session = module._session
        self._channel = module._channel
        self._module = module
        home: LoadedModule = module._home
        self._what = home.kernels[home.index(name)]
        if self._what["rejected"]:
            raise from_wire(self._what["rejected"])
        self._name = name
        self._params = tuple(Parameter(*one) for one in self._what["parameters"])
        self._packer = ArgumentPacker(
            name,
            self._params,
            self._what.get("points_to"),
            check=self._session._core.checking is not None,
            warned=home.warned.setdefault(self._what["entry"], set()),
        )
        self._indices: dict[int, int] = {}

    @property
    def name(self) -> str:
        """The name with which it was requested."""
        return self._name

    @property
    def form(self) -> str:
        """Its form, ``"persistent"``, ``"sliced"`` or ``"whole"``, which says how it is resized."""
        return str(self._what["form"])

    @property
    def why(self) -> tuple[str, ...]:
        """The reasons for its form, the decisive ones first."""
        return tuple(map(str, self._what["why"]))

    @property
    def params(self) -> tuple[Parameter, ...]:
        """Its parameters, in order."""
        return self._params

    @property
    def module(self) -> ModuleT:
        """The module of the kernel, with its ``__constant__`` and ``__device__`` variables."""
        module: ModuleT = self._module
        return module

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} ({self.form})>"

    def _display(self) -> Display:
        rows = [("form", f"{self.form}: {'; '.join(self.why)}" if self.why else self.form)]
        rows += [
            (f"argument {index}", f"{one.kind}, {one.size} bytes")
            for index, one in enumerate(self._params)
        ]
        return Display(f"{type(self).__name__} {self._name}", rows)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Say how a kernel is launched."""
        raise TypeError(f"a kernel is not called: {self._how_to_launch}")

    def __getitem__(self, _: object) -> NoReturn:
        """Say how a kernel is launched."""
        raise TypeError(f"kernel[grid, block] is another library's: {self._how_to_launch}")

    @property
    def _how_to_launch(self) -> str:
        return f"launch it with {self._name}.submit(grid, block, args=(...))"

    def call(self, grid: Dim, block: Dim, args: Sequence[Any] = (), *, shared: int = 0) -> Launch:
        """Make a launch of this kernel, to be submitted with others by ``sequence``.

        The arguments are checked and packed now, as in ``submit``. Nothing is sent.
        """
        return Launch(self, grid, block, args, shared)

    @operation
    def occupancy(
        self, block: Dim, shared: int = 0, *, device: Device | int | None = None
    ) -> Operation[int]:
        """Return M: how many blocks of this shape fit on one SM. Queries the daemon once a shape.

        Args:
            block: Threads of a block, an int or up to three.
            shared: Dynamic shared memory of a block, in bytes.
            device: On which device; None: where it was compiled first.

        Raises:
            LaunchConfigError: No block of that shape fits; the message names the limit.
        """
        on = self._session._on(device, self._module._device)
        dims, size = as_dim3("block", block), as_shared(shared)
        loaded: LoadedModule = yield from self._module._load(on)
        index = loaded.index(self._name)
        measured = loaded.measured.get((index, dims, size))
        if measured is None:
            measured = yield from self._measure(loaded, index, dims, size)
        return measured[0]

    @with_shortcut(lanes_first)
    @takes_submit_options
    def submit(
        self,
        grid: Dim,
        block: Dim,
        args: Sequence[Any] = (),
        *,
        shared: int = 0,
        **options: Unpack[SubmitOptions],
    ) -> Operation[JobT]:
        """Submit a launch as a job; returns at once.

        The first submission with a new block shape queries the kernel's occupancy and waits for
        the answer, as does the first offline one with a timeout; later ones only send.

        Args:
            grid: Task blocks, an int or up to three.
            block: Threads of a block, an int or up to three.
            args: One for each parameter: numbers, arrays, structs; see the reference.
            shared: Dynamic shared memory of a block, in bytes.
            **options: See `SubmitOptions`.

        Raises:
            TypeError: An argument is of the wrong kind, or there are too many or too few.
            ValueError: An argument is out of range, of the wrong size, freed, or of another
                session; or both shares are given.
            LaunchConfigError: The grid, block or shared memory is not possible; a ValueError.
            AdmissionError: The device can never grant the share.
            ConnectionLost: The connection to the daemon is lost.
        """
        terms = complete(options)
        launch = Launch(self, grid, block, args, shared)
        job: JobT = yield from self._session._submit((launch,), terms)
        return job

    # -- steps of operations

    def _pack(self, launch: Launch, device: Device) -> Operation[PackedLaunch]:
        """Pack a launch for a device: load and measure its kernel there if needed."""
        packed = launch._packed
        if packed is not None and packed.device is device and packed.number == packed.loaded.number:
            return packed
        loaded: LoadedModule | None = self._module._loaded.get(device.index)
        if loaded is None:
            loaded = yield from self._module._load(device)
        index = self._indices.get(device.index)
        if index is None:
            index = self._indices[device.index] = loaded.index(self._name)
        measured = loaded.measured.get((index, launch.block, launch.shared))
        if measured is None:
            measured = yield from self._measure(loaded, index, launch.block, launch.shared)
        if self._what.get("cooperative"):
            LaunchConfigError.check_together(launch.grid, measured[0], device.sms)
        fields = (
            loaded.number, index, launch.grid, launch.block, launch.shared, launch._parameters
        )  # fmt: skip
        packed = launch._packed = PackedLaunch(
            device, loaded.number, loaded, _Packer().pack(fields), *measured
        )
        return packed

    def _measure(
        self, loaded: LoadedModule, index: int, block: tuple[int, int, int], shared: int
    ) -> Operation[tuple[int, str]]:
        number = loaded.number
        answer = yield Request(lambda request: Measure(request, number, index, block, shared))
        measured = int(answer.occupancy), str(answer.form)
        loaded.measured[index, block, shared] = measured
        return measured

    def _make_killable(self, launch: Launch, device: Device) -> Operation[None]:
        """Compile the variant with kill polls that offline jobs with a timeout run, in advance."""
        if not self._what.get("killable"):
            return
        loaded = (yield from self._pack(launch, device)).loaded
        index, block, shared = self._indices[device.index], launch.block, launch.shared
        if (index, block, shared) not in loaded.killable:
            number = loaded.number
            yield Request(lambda request: Measure(request, number, index, block, shared, True))
            loaded.killable.add((index, block, shared))


class Launch:
    """One launch with its arguments, for `Session.sequence`; made by `Kernel.call`.

    The arguments are packed when it is made. It may be submitted any number of times, and keeps its
    arrays alive.

    Attributes:
        kernel: The kernel that is launched.
        grid: Task blocks, as (x, y, z).
        block: Threads of a block, likewise.
        shared: Dynamic shared memory of a block, in bytes.
    """

    __slots__ = (
        "_arrays",
        "_device",
        "_packed",
        "_parameters",
        "_sequence",
        "_total",
        "block",
        "grid",
        "kernel",
        "shared",
    )

    def __init__(
        self, kernel: KernelBase[Any, Any], grid: Dim, block: Dim, args: Sequence[Any], shared: int
    ) -> None:
        # The usual values are checked here, as every submission passes.
        if type(grid) is int and 0 < grid <= MOST_BLOCKS:
            self.grid = grid, 1, 1
        else:
            self.grid = as_dim3("grid", grid)
        if type(block) is int and 0 < block <= MOST_BLOCKS:
            self.block = block, 1, 1
        else:
            self.block = as_dim3("block", block)
        usual = type(shared) is int and 0 <= shared <= _MOST_SHARED_BYTES
        self.shared = shared if usual else as_shared(shared)
        x, y, z = self.grid
        self._total = x * y * z
        if self._total > MOST_BLOCKS:
            raise LaunchConfigError(
                "grid",
                self.grid,
                f"{self._total} task blocks are over {MOST_BLOCKS}; split the work into jobs",
                limit=MOST_BLOCKS,
            )
        self.kernel = kernel
        self._parameters, self._arrays = kernel._packer.pack(args)
        self._device = _device_of(kernel, self._arrays) if self._arrays else None
        self._packed: PackedLaunch | None = None  # for one device
        self._sequence: Any = None  # the `PackedSequence` that begins with this launch

    def __repr__(self) -> str:
        return f"<Launch {self.kernel.name} grid={self.grid} block={self.block}>"


def _device_of(kernel: KernelBase[Any, Any], arrays: list[ArrayBase]) -> Device:
    """Return the device of the arrays.

    Raises:
        ValueError: they are of another session, or on different devices.
    """
    session, device = kernel._session, arrays[0]._device
    for array in arrays:
        if array._session is not session:
            raise ValueError(
                f"{array!r} is of another session; every array of a job is made by the session "
                "that submits it"
            )
        if array._device is not device:
            raise ValueError(
                f"the arrays of a job lie on one device, not on {device.name} and "
                f"{array._device.name}"
            )
    return device
