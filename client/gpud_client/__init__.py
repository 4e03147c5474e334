"""The client library of gpud: submit kernels to the daemon of this machine, share its GPU.

    import gpud_client as gc

    with gc.connect() as gpu:
        kernel = gpu.kernel(SOURCE, "saxpy")
        x = gpu.array(values)
        job = kernel.submit(grid=64, block=256, args=(2.0, x, len(values)), quota="50%")
        job.result(timeout=30)

`connect` reaches the daemon of this machine, `local` starts a private one for as long as it is
used; `aconnect` and `alocal` give the same for asyncio. Importing this package loads nothing heavy:
NumPy comes with the first session.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpud.errors import (
        AdmissionError,
        CheckFailed,
        CompileError,
        ConnectionLost,
        DeviceLost,
        Draining,
        GpudError,
        IllegalAddress,
        ImageError,
        InvalidArgument,
        JobCancelled,
        JobError,
        JobTimeout,
        KernelNotFound,
        KernelRejected,
        KernelTrap,
        LaneRefused,
        LaunchConfigError,
        LimitExceeded,
        MissingDependency,
        OutOfMemory,
        PredecessorFailed,
        TaskFailed,
        UnknownName,
    )
    from gpud.units import Share
    from gpud_client.aio.lanes import AsyncLane
    from gpud_client.aio.session import (
        AsyncArray,
        AsyncJob,
        AsyncKernel,
        AsyncModule,
        AsyncSession,
        AsyncStream,
        AsyncSymbol,
        AsyncTurn,
        AsyncWorkload,
        aconnect,
    )
    from gpud_client.devices import Device
    from gpud_client.launch.jobs import Job
    from gpud_client.launch.kernels import Launch, Parameter
    from gpud_client.launch.lanes import Lane
    from gpud_client.launch.streams import Stream
    from gpud_client.launch.submit_options import SubmitOptions
    from gpud_client.local_daemon import alocal, local
    from gpud_client.session import Array, Kernel, Module, Session, Symbol, Turn, Workload, connect
    from gpud_client.tasks.tasks import Task, Tasks

_HOMES = {
    "gpud.errors": (
        "AdmissionError", "CheckFailed", "CompileError", "ConnectionLost", "DeviceLost", "Draining",
        "GpudError", "IllegalAddress", "ImageError", "InvalidArgument", "JobCancelled", "JobError",
        "JobTimeout", "KernelNotFound", "KernelRejected", "KernelTrap", "LaneRefused",
        "LaunchConfigError", "LimitExceeded", "MissingDependency", "OutOfMemory",
        "PredecessorFailed", "TaskFailed", "UnknownName",
    ),
    "gpud.units": ("Share",),
    "gpud_client.aio.lanes": ("AsyncLane",),
    "gpud_client.aio.session": (
        "AsyncArray", "AsyncJob", "AsyncKernel", "AsyncModule", "AsyncSession", "AsyncStream",
        "AsyncSymbol", "AsyncTurn", "AsyncWorkload", "aconnect",
    ),
    "gpud_client.devices": ("Device",),
    "gpud_client.launch.jobs": ("Job",),
    "gpud_client.launch.kernels": ("Launch", "Parameter"),
    "gpud_client.launch.lanes": ("Lane",),
    "gpud_client.local_daemon": ("alocal", "local"),
    "gpud_client.launch.streams": ("Stream",),
    "gpud_client.launch.submit_options": ("SubmitOptions",),
    "gpud_client.tasks.tasks": ("Task", "Tasks"),
    "gpud_client.session": (
        "Array", "Kernel", "Module", "Session", "Symbol", "Turn", "Workload", "connect",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdmissionError",
    "Array",
    "AsyncArray",
    "AsyncJob",
    "AsyncKernel",
    "AsyncLane",
    "AsyncModule",
    "AsyncSession",
    "AsyncStream",
    "AsyncSymbol",
    "AsyncTurn",
    "AsyncWorkload",
    "CheckFailed",
    "CompileError",
    "ConnectionLost",
    "Device",
    "DeviceLost",
    "Draining",
    "GpudError",
    "IllegalAddress",
    "ImageError",
    "InvalidArgument",
    "Job",
    "JobCancelled",
    "JobError",
    "JobTimeout",
    "Kernel",
    "KernelNotFound",
    "KernelRejected",
    "KernelTrap",
    "Lane",
    "LaneRefused",
    "Launch",
    "LaunchConfigError",
    "LimitExceeded",
    "MissingDependency",
    "Module",
    "OutOfMemory",
    "Parameter",
    "PredecessorFailed",
    "Session",
    "Share",
    "Stream",
    "SubmitOptions",
    "Symbol",
    "Task",
    "TaskFailed",
    "Tasks",
    "Turn",
    "UnknownName",
    "Workload",
    "aconnect",
    "alocal",
    "connect",
    "local",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
