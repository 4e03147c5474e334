"""The operations of a session, whether it blocks or is awaited."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from gpud.errors import ConnectionLost, GpudError
from gpud.units import Share
from gpud_client.arrays import ArrayBase
from gpud_client.checking import Checking
from gpud_client.connection import operations
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Operation
from gpud_client.connection.protocol_state import ProtocolState, Resumable
from gpud_client.connection.resuming import begin, resume
from gpud_client.devices import Device, chosen_devices
from gpud_client.launch.job_base import JobBase
from gpud_client.launch.kernels import KernelBase, Launch
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_submission import lane_terms
from gpud_client.launch.modules import ModuleBase
from gpud_client.launch.shares import Amounts
from gpud_client.launch.streams import StreamBase, check_on_error
from gpud_client.launch.submission import listed, submit_launches
from gpud_client.launch.submit_options import (
    SubmitOptions,
    as_ns,
    complete,
    takes_submit_options,
)
from gpud_client.session_arrays import SessionArrays
from gpud_client.workloads.workload import WorkloadBase

if TYPE_CHECKING:
    from gpud_client.tasks.tasks import Tasks

__all__ = ["SessionBase"]

_READ_IT = '; read it: Path("kernel.cu").read_text()'
_FORMS = (None, "persistent", "sliced", "whole")
_PROGRESS = (None, "independent", "blocks")
_RECONNECT_S = 60.0
_ADVICE = "connect again, and make arrays and kernels anew"
_RECONNECT = "; a session of connect(reconnect=True) goes on by itself when the daemon is back"

T = TypeVar("T")
ArrayT = TypeVar("ArrayT", bound=ArrayBase)
KernelT = TypeVar("KernelT", bound=KernelBase[Any, Any])
ModuleT = TypeVar("ModuleT", bound=ModuleBase[Any, Any])
JobT = TypeVar("JobT", bound=JobBase)
WorkloadT = TypeVar("WorkloadT", bound=WorkloadBase[Any, Any])
LaneT = TypeVar("LaneT", bound=LaneBase)
StreamT = TypeVar("StreamT", bound=StreamBase)


class SessionBase(
    SessionArrays[ArrayT, WorkloadT],
    Generic[ArrayT, KernelT, ModuleT, JobT, WorkloadT, LaneT, StreamT],
):
    """State and operations common to `Session` and `AsyncSession`."""

    _channel: Any
    _module_class: type[ModuleT]
    _job_class: type[JobT]
    _lane_class: type[LaneT]
    _stream_class: type[StreamT]
    _finalizer: weakref.finalize[..., Any]
    _submit = submit_launches

    def __init__(self, core: ProtocolState, path: str, program: str | None) -> None:
        self._core = core
        self._path = path
        self._program = program if program is not None else _program()
        self._devices: tuple[Device, ...] = ()
        self._daemon: dict[str, Any] = {}
        self._tasks: Tasks | None = None
        self._amounts: dict[Any, Amounts] = {}
        self._default_stream: StreamT | None = None

    @property
    def path(self) -> str:
        """The daemon's socket."""
        return self._path

    @property
    def number(self) -> int:
        """The session's number, with which its jobs' ids begin."""
        return self._core.session

    @property
    def device(self) -> Device:
        """The default device: the first one, of those that ``GPUD_DEVICE`` names if it is set."""
        return self.devices[0]

    @property
    def devices(self) -> tuple[Device, ...]:
        """The daemon's devices; a task has those that it was given, as ``GPUD_DEVICE`` says.

        Raises:
            ValueError: ``GPUD_DEVICE`` names one that the daemon does not have.
        """
        return chosen_devices(self._devices)

    @property
    def daemon(self) -> dict[str, Any]:
        """About the daemon: ``version``, ``pid``, ``policy``."""
        return dict(self._daemon)

    @property
    def closed(self) -> bool:
        """Whether the session has ended: it was closed, or the connection was lost."""
        return self._core.lost is not None

    @property
    def tasks(self) -> Tasks:
        """Whole programs in queues, with devices of this daemon as their GPUs."""
        from gpud_client.tasks.tasks import Tasks  # only who has tasks needs it

        if self._tasks is None:
            self._tasks = Tasks(self._path)
        return self._tasks

    @property
    def default_stream(self) -> StreamT:
        """The stream of what is submitted without ``stream=``."""
        if self._default_stream is None:
            self._default_stream = self._stream_class(self._channel, 0, True)
        return self._default_stream

    def stream(self, *, on_error: str = "fail") -> StreamT:
        """Make a stream: its jobs run in order, concurrently with those of other streams.

        Args:
            on_error: What becomes of the jobs behind one that fails: ``"fail"``, with
                `PredecessorFailed`, until the failure was seen; or ``"continue"``: they run.
        """
        sticky = check_on_error(on_error)
        return self._stream_class(self._channel, self._core.next_stream(), sticky)

    def lane(
        self,
        *,
        reservation: Share | None = None,
        quota: Share | None = None,
        weight: int = 1,
        device: Device | int | None = None,
        deadline: float | None = None,
        exclusive: bool = False,
        on_error: str = "fail",
    ) -> LaneT:
        """Open a lane: a stream with a share of its own, whose jobs start in microseconds.

        Waits until the lane has its share. Give it as ``stream=`` to `Kernel.submit` and
        `Session.sequence`; close it, or use it in a ``with`` block.

        Args:
            reservation: Online, with this share: CapSM, or ``"25%"``.
            quota: Offline, with at most this share. Neither: offline, the whole device.
            weight: 1 to 1000: of an offline lane, when capacity is shared.
            device: On which device; None: on the first one.
            deadline: Seconds from now; orders online lanes and jobs that wait for their share.
            exclusive: Have whole SMs on which no other job's blocks run until it is closed, as with
                `Kernel.submit`. Such a lane lends nothing, and cannot be resized.
            on_error: As with `stream`.

        Raises:
            AdmissionError: The device can never grant the share.
            InvalidArgument: The device has no lanes.
            ValueError: Both shares are given, or one is none.
        """
        terms = lane_terms(self, reservation, quota, weight, device, deadline, exclusive)
        return self._lane_class(self, *terms, check_on_error(on_error))._made()

    def _at_end(self, end: Callable[[], None]) -> None:
        """Call ``end`` when the session is closed or garbage collected."""
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _both, self._channel.abandon, end)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"session {self.number}"
        return f"<{type(self).__name__} at {self._path}: {state}>"

    # -- kernels and jobs

    @operation
    def kernel(
        self,
        source: str | bytes | Sequence[bytes],
        name: str,
        options: Sequence[str] = (),
        form: str | None = None,
        *,
        progress: str | None = None,
        headers: Mapping[str, str] | None = None,
        device: Device | int | None = None,
    ) -> Operation[KernelT]:
        """Compile a source and return one of its kernels, once it is compiled.

        The daemon caches compiled programs, so the same request is quick the next time.

        Args:
            source: CUDA C++ or PTX as text; or bytes as the CUDA driver takes them: PTX, or a
                fat binary that holds it. Several such images are linked.
            name: Of the kernel: in C++, with its namespace or, if it is the only one, without;
                ``"axpy<float>"`` for a template; or in the PTX, mangled.
            options: For NVRTC, such as ``"-DN=4"``. Those of nvcc that mean nothing here are left
                out; ``module.log`` says so.
            form: Force a form: ``"persistent"``, ``"sliced"`` or ``"whole"``.
            progress: What gpud cannot always find out: ``"independent"``, no task block waits for
                one that has not begun, so that the kernel can be resized; ``"blocks"``, they wait
                for one another, so that all are resident at once, in form whole.
            headers: Texts of further headers by the names in ``#include``; others may include
                each other.
            device: For which device; None: for the first one, and for others when needed.

        Raises:
            CompileError: The source does not compile; ``error.log`` is the compiler's output.
            ImageError: An image holds no PTX: machine code, for instance.
            KernelNotFound: There is no such kernel.
            KernelRejected: gpud cannot run it; the message says why.
        """
        if not isinstance(name, str):
            raise TypeError(f"a kernel's name is text, not {name!r}")
        module = yield from self._compile(
            source, (name,), options, form, progress, headers, device, only=True
        )
        kernel: KernelT = module.kernel(name)
        return kernel

    @operation
    def module(
        self,
        source: str | bytes | Sequence[bytes],
        names: Sequence[str] = (),
        options: Sequence[str] = (),
        form: str | None = None,
        *,
        progress: str | None = None,
        headers: Mapping[str, str] | None = None,
        device: Device | int | None = None,
    ) -> Operation[ModuleT]:
        """Compile a source whose kernels share variables; see `kernel`.

        Args:
            source: CUDA C++ or PTX, or images.
            names: Kernels that will be used; template instances must be named.
            options: For NVRTC.
            form: Force this form for every kernel.
            progress: The same of every kernel.
            headers: Texts by the names in ``#include``.
            device: For which device.
        """
        return (
            yield from self._compile(
                source, names, options, form, progress, headers, device, only=False
            )
        )

    @operation
    @takes_submit_options
    def sequence(
        self, launches: Iterable[Launch], **options: Unpack[SubmitOptions]
    ) -> Operation[JobT]:
        """Submit launches that run one after the other as one job, in one message.

        Args:
            launches: One or more, made by `Kernel.call`. Submitting the same again is quicker.
            **options: See `SubmitOptions`.

        Raises:
            GpudError, TypeError, ValueError: As for `Kernel.submit`.
        """
        given = listed("a sequence is a list of kernel.call(...)", launches)
        job: JobT = yield from self._submit(given, complete(options))
        return job

    @operation
    def query(self, topic: str, limit: int = 0) -> Operation[dict[str, Any]]:
        """Query the daemon's state, as ``gpuctl --json`` shows it.

        Args:
            topic: ``status``, ``jobs``, ``kernels``, ``memory``, ``workloads``, ``events``,
                ``trace``, ``doctor`` or ``config``.
            limit: How many rows, the latest ones; 0: all that are kept.

        Raises:
            ValueError: There is no such topic.
        """
        return (yield from operations.query(topic, limit))

    @operation
    def history(self, /, **asked: Any) -> Operation[list[dict[str, Any]]]:
        """Query jobs that have ended, the latest last, or sums over them, as ``gpuctl history``.

        Args:
            **asked: Fields of the message `AskHistory`: ``user``, ``since_s``, ``until_s``,
                ``state``, ``by``, ``limit``.

        Raises:
            InvalidArgument: There is no such user, or the user's jobs are not shown to this one.
        """
        return (yield from operations.ask_history(**asked))

    # -- steps of operations

    def _open(self) -> Operation[None]:
        welcome = yield from self._core.hello(self._program)
        devices = tuple(Device._from_wire(index, row) for index, row in enumerate(welcome.devices))
        if self._devices and devices != self._devices:
            raise ConnectionLost(
                f"the next daemon has other devices: {', '.join(one.name for one in devices)}; "
                "connect to it anew, and make arrays and kernels again"
            )
        for known, device in zip(self._devices, devices, strict=False):
            known._adopt(device)  # the same objects: arrays and kernels know theirs by identity
        self._devices = self._devices or devices
        self._core.most_jobs = welcome.limits.get("jobs", sys.maxsize)
        self._daemon = welcome.daemon
        if self._core.checking is not None:
            yield from self._core.checking.open(self._devices)
        self._core.advice = _ADVICE
        if self._core.resumable is not None:
            yield from begin(self._core, welcome.version)
        else:
            self._core.advice += _RECONNECT

    def _make_checking(self, check: bool, reconnect: bool | float) -> None:
        """Have the session check its kernels, before it is opened."""
        if not check:
            return
        if reconnect:
            raise ValueError("a session that checks does not go on with another daemon")
        self._core.checking = Checking(self._core)

    def _make_resumable(self, reconnect: bool | float) -> None:
        """Have the session go on when another daemon follows, before it is opened."""
        if isinstance(reconnect, bool):
            if not reconnect:
                return
            limit_s = _RECONNECT_S
        else:
            limit_s = as_ns("reconnect", reconnect) / 1e9
        self._core.resumable = Resumable(limit_s)
        this = weakref.WeakMethod(self._resume)

        def resume_it(why: GpudError) -> Operation[None]:
            resume = this()
            if resume is None:  # nobody holds the session any more
                raise why
            return resume(why)

        self._channel.resume_with(resume_it)

    def _resume(self, why: GpudError) -> Operation[None]:
        before = self._core.session
        yield from self._open()
        copied = [device.index for device in self._devices if device.arrays == "copied"]
        yield from resume(self._core, self._channel.submitting, why, before, copied)

    def _compile(
        self,
        source: str | bytes | Sequence[bytes],
        names: Sequence[str],
        options: Sequence[str],
        form: str | None,
        progress: str | None,
        headers: Mapping[str, str] | None,
        device: Device | int | None,
        *,
        only: bool,
    ) -> Operation[ModuleT]:
        text, images = _text_or_images(source)
        if form not in _FORMS:
            raise ValueError(f"form is persistent, sliced or whole, not {form!r}")
        for item in (headers or {}).items():
            if not all(isinstance(part, str) for part in item):
                raise TypeError(f"headers are texts by their names, not {item!r:.100}")
        if progress not in _PROGRESS:
            raise ValueError(f"progress is independent or blocks, not {progress!r}")
        module = self._module_class(
            self,
            text,
            images,
            _texts("names", names),
            _texts("options", options),
            form,
            progress,
            tuple((headers or {}).items()),
            self._on(device),
            only=only,
        )
        yield from module._load(module._device)
        return module


# -- helpers -----------------------------------------------------------------------------------


def _text_or_images(source: str | bytes | Sequence[bytes]) -> tuple[str, tuple[bytes, ...]]:
    """Return a source as text, or as images, and the other empty."""
    if isinstance(source, str):
        if source.endswith((".cu", ".cuh", ".ptx")) and "\n" not in source:
            raise ValueError(f"the source is text, CUDA C++ or PTX, not a path{_READ_IT}")
        return source, ()
    parts = (source,) if isinstance(source, bytes | bytearray | memoryview) else source
    if isinstance(parts, tuple | list) and parts:
        if all(isinstance(part, bytes | bytearray | memoryview) for part in parts):
            return "", tuple(map(bytes, parts))
    raise TypeError(
        f"the source is text, CUDA C++ or PTX, or images as bytes, not {type(source).__name__}"
        + (_READ_IT if isinstance(source, os.PathLike) else "")
    )


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    try:
        first()
    finally:
        second()


def _program() -> str:
    """Return a name for this process, to be shown to people: a notebook's, if it runs one."""
    if "ipykernel" in sys.modules:
        return Path(_notebook() or "notebook").name
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    return name if name not in ("", "-c", "-m") else Path(sys.executable or "python").name


def _notebook() -> str | None:
    """Return the path of the notebook that this process runs, if it was told."""
    told = os.environ.get("JPY_SESSION_NAME")  # by Jupyter's server
    if told is None:
        get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell = None if get_ipython is None else get_ipython()
        told = getattr(shell, "user_ns", {}).get("__vsc_ipynb_file__")  # by VS Code
    return told


def _texts(what: str, given: Any) -> tuple[str, ...]:
    texts = tuple(given) if isinstance(given, Iterable) else (given,)
    if isinstance(given, str) or not all(isinstance(one, str) for one in texts):
        raise TypeError(f"{what} is a list of texts, not {given!r}")
    return texts
