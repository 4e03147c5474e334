"""Kernels: their parameters, form and occupancy, and submitting launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from gpud.errors import LaunchConfigError, from_wire
from gpud.units import Share
from gpud.wire.messages import Measure
from gpud_client.connection.protocol_state import Operation, Request
from gpud_client.launch.argument_packer import ArgumentPacker
from gpud_client.launch.launches import Dim, Launch, as_dim3, as_shared

if TYPE_CHECKING:
    from gpud_client.devices import Device
    from gpud_client.launch.jobs import Job
    from gpud_client.launch.modules import LoadedModule, Module
    from gpud_client.launch.streams import Stream
    from gpud_client.session import Session

__all__ = ["Kernel", "KernelBase", "PackedLaunch", "Parameter"]


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
    """A launch packed for a device: its packed `gpud.wire.messages.Launch`, M and its form."""

    device: Device
    loaded: LoadedModule
    record: bytes
    occupancy: int
    form: str


class KernelBase:
    """State and operations common to `Kernel` and `AsyncKernel`.

    Raises:
        KernelNotFound: the module has no kernel of that name.
        KernelRejected: gpud cannot run it.
    """

    def __init__(self, module: Any, name: str) -> None:
        self._session = module._session
        self._module = module
        home: LoadedModule = module._home
        self._what = home.kernels[home.index(name)]
        if self._what["rejected"]:
            raise from_wire(self._what["rejected"])
        self._name = name
        self._params = tuple(Parameter(*one) for one in self._what["parameters"])
        self._packer = ArgumentPacker(name, self._params)
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} ({self.form})>"

    def call(self, grid: Dim, block: Dim, args: Sequence[Any] = (), *, shared: int = 0) -> Launch:
        """A launch of this kernel, to be submitted with others by ``sequence``.

        The arguments are checked and packed now, as in ``submit``. Nothing is sent.
        """
        return Launch(self, grid, block, args, shared)

    def _pack(self, launch: Launch, device: Device) -> Operation[PackedLaunch]:
        """Pack a launch for a device: load and measure its kernel there if needed."""
        made: PackedLaunch | None = launch._packed
        if made is not None and made.device is device:
            return made
        loaded = self._module._loaded.get(device.index)
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
            loaded.number,
            index,
            launch.grid,
            launch.block,
            launch.shared,
            launch._parameters,
        )
        made = launch._packed = PackedLaunch(device, loaded, msgpack.packb(fields), *measured)
        return made

    def _measure(
        self, loaded: LoadedModule, index: int, block: tuple[int, int, int], shared: int
    ) -> Operation[tuple[int, str]]:
        number = loaded.number
        answer = yield Request(lambda request: Measure(request, number, index, block, shared))
        found = loaded.measured[index, block, shared] = int(answer.occupancy), str(answer.form)
        return found

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

    def _occupancy(self, block: Dim, shared: int, device: Device) -> Operation[int]:
        dims, size = as_dim3("block", block), as_shared(shared)
        loaded: LoadedModule = yield from self._module._load(device)
        index = loaded.index(self._name)
        measured = loaded.measured.get((index, dims, size))
        if measured is None:
            measured = yield from self._measure(loaded, index, dims, size)
        return measured[0]


class Kernel(KernelBase):
    """A kernel, compiled and rewritten; made by `Session.kernel` or `Module.kernel`.

    Thread-safe.
    """

    _session: Session

    @property
    def module(self) -> Module:
        """The module of the kernel, with its ``__constant__`` and ``__device__`` variables."""
        found: Module = self._module
        return found

    def occupancy(self, block: Dim, shared: int = 0, *, device: Device | int | None = None) -> int:
        """M: how many blocks of this shape fit on one SM. Queries the daemon once for each shape.

        Args:
            block: Threads of a block, an int or up to three.
            shared: Dynamic shared memory of a block, in bytes.
            device: On which device; None: where it was compiled first.

        Raises:
            LaunchConfigError: No block of that shape fits; the message names the limit.
        """
        on = self._session._on(device, self._module._device)
        return self._session._channel.run(self._occupancy(block, shared, on))

    def submit(
        self,
        grid: Dim,
        block: Dim,
        args: Sequence[Any] = (),
        *,
        shared: int = 0,
        reservation: Share | None = None,
        quota: Share | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
        after: Iterable[Job] = (),
        device: Device | int | None = None,
        weight: int = 1,
        exclusive: bool = False,
    ) -> Job:
        """Submit a launch as a job; returns at once.

        The first submission with a new block shape queries the kernel's occupancy and blocks for
        the answer, as does the first offline one with a timeout; later ones only send.

        Args:
            grid: Task blocks, an int or up to three.
            block: Threads of a block, an int or up to three.
            args: One for each parameter: numbers, arrays, structs; see the reference.
            shared: Dynamic shared memory of a block, in bytes.
            reservation: Run online, with at least this share: CapSM, or ``"25%"``.
            quota: Run offline, with at most this share. Neither: offline, the whole device.
            deadline: Seconds from now; orders waiting online jobs.
            timeout: Seconds that the job may run; then it is ended with `JobTimeout`.
            stream: Jobs of one stream run in order; None: the session's default stream.
            after: Jobs that must have ended before, however they ended.
            device: On which device; None: where the arrays are, else where it was compiled first.
            weight: 1 to 1000: an offline job's weight when capacity is shared.
            exclusive: Reserve whole SMs on which no other job's blocks run until this job has
                ended. Rounded up to a multiple of `Device.exclusive_step`; such a job cannot be
                resized.

        Raises:
            TypeError: An argument is of the wrong kind, or there are too many or too few.
            ValueError: An argument is out of range, of the wrong size, freed, or of another
                session; or both shares are given.
            LaunchConfigError: The grid, block or shared memory is not possible; a ValueError.
            AdmissionError: The device can never grant the share.
            ConnectionLost: The connection to the daemon is lost.
        """
        session = self._session
        launch = Launch(self, grid, block, args, shared)
        submission = session._submit(
            (launch,),
            reservation,
            quota,
            deadline,
            timeout,
            stream,
            after,
            device,
            weight,
            exclusive,
        )
        job: Job = session._channel.run(submission)
        return job
