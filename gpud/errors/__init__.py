"""The errors that gpud reports: one class tree for the daemon, the wire and the client.

Problem: an error is raised where it happens (a compiler pass, a device host, the scheduler),
travels over a socket as plain data, and must be raised again in the client as the same type with
the same message and the same machine-readable fields.

Approach: each class declares, once, a stable wire ``code``, who has to act (``blame``, by deriving
from `CallerError`, `DaemonError` or `DeviceError`), and its ``fields`` with their meaning. The wire
form, pickling and the reference page in docs/ derive from these declarations.

Properties:
    codes are unique and never reused for another meaning;
    every class that is raised has exactly one blame;
    ``from_wire(e.to_wire())`` and ``pickle.loads(pickle.dumps(e))`` give the type, the message and
    the fields of ``e``;
    an error whose code this version does not know is decoded as `GpudError`, with its message.

Where Python has a matching built-in class (`ValueError`, `TimeoutError`, `MemoryError`, ...), the
error derives from that too, so that code without knowledge of gpud can handle it.
"""

from __future__ import annotations

from gpud.errors.base import (
    Blame,
    CallerError,
    DaemonError,
    DeviceError,
    GpudError,
    Plain,
    error_classes,
    from_wire,
)
from gpud.errors.installation import (
    ConnectionLost,
    InternalError,
    MissingDependency,
    pip_command,
)
from gpud.errors.jobs import (
    CheckFailed,
    DeviceLost,
    IllegalAddress,
    JobCancelled,
    JobError,
    JobTimeout,
    KernelTrap,
    PredecessorFailed,
)
from gpud.errors.requests import (
    REJECTIONS,
    AdmissionError,
    CompileError,
    EmptySource,
    ImageError,
    KernelNotFound,
    KernelRejected,
    LaunchConfigError,
    LinkError,
    OutOfMemory,
    PTXSyntaxError,
    PTXVersionError,
    UnsupportedTarget,
)
from gpud.errors.service import (
    Draining,
    FrameError,
    InvalidArgument,
    LaneRefused,
    LimitExceeded,
    ProtocolError,
    TaskFailed,
    UnknownName,
)

__all__ = [
    "REJECTIONS",
    "AdmissionError",
    "Blame",
    "CallerError",
    "CheckFailed",
    "CompileError",
    "ConnectionLost",
    "DaemonError",
    "DeviceError",
    "DeviceLost",
    "Draining",
    "EmptySource",
    "FrameError",
    "GpudError",
    "IllegalAddress",
    "ImageError",
    "InternalError",
    "InvalidArgument",
    "JobCancelled",
    "JobError",
    "JobTimeout",
    "KernelNotFound",
    "KernelRejected",
    "KernelTrap",
    "LaneRefused",
    "LaunchConfigError",
    "LimitExceeded",
    "LinkError",
    "MissingDependency",
    "OutOfMemory",
    "PTXSyntaxError",
    "PTXVersionError",
    "Plain",
    "PredecessorFailed",
    "ProtocolError",
    "TaskFailed",
    "UnknownName",
    "UnsupportedTarget",
    "error_classes",
    "from_wire",
    "pip_command",
]
