"""The client protocol: every message between a client and the daemon, declared once.

Each message is a named tuple whose annotations say what a field may hold (`gpud.wire.field_types`)
and what it means. Codec, validation and docs/reference/protocol.md derive from these declarations.

On the wire a message is one frame (`gpud.wire.framing`) holding a msgpack array: the message's
code, then its fields in order. Trailing fields that have a default may be left out, so a field can
be added at the end without breaking older peers.

A ``request`` is a number that the client chooses; the reply carries it. Jobs are numbered by the
client, 1, 2, 3 ... in each session, so that a submission needs no acknowledgement: the only reply
to `Submit` is `Finished`. A job is identified by the pair (session, number), written "3.17".
Amounts of CapSM are exact pairs (numerator, denominator). Times are nanoseconds.
"""

from __future__ import annotations

from gpud.wire.messages.administration import (
    TOPICS,
    AskHistory,
    Drain,
    Follow,
    Happened,
    Pause,
    Query,
    Reload,
    SetSetting,
)
from gpud.wire.messages.arrays import (
    Allocate,
    Allocated,
    Arena,
    ArrayExported,
    Download,
    ExportArray,
    Free,
    Upload,
)
from gpud.wire.messages.jobs import (
    Began,
    Cancel,
    Describe,
    Finished,
    LaunchRecord,
    Resize,
    StreamFailure,
    Submit,
    Why,
)
from gpud.wire.messages.lanes import (
    CancelLaunch,
    CloseLane,
    LaneOpened,
    LaunchEnded,
    OpenLane,
    PrepareLaunch,
)
from gpud.wire.messages.programs import (
    Compile,
    Compiled,
    Measure,
    Measured,
    ReadSymbol,
    Unload,
    WriteSymbol,
)
from gpud.wire.messages.protocol import CLIENT_PROTOCOL, VERSION
from gpud.wire.messages.session import Answer, Failed, Goodbye, Hello, Resume, Welcome
from gpud.wire.messages.workloads import (
    BeginIteration,
    CloseWorkload,
    EndIteration,
    FitWorkload,
    GrowWorkload,
    MoveRegion,
    OpenWorkload,
    RegionMoved,
    TurnRecalled,
    WorkloadOpened,
    ZoneLent,
)

__all__ = [
    "CLIENT_PROTOCOL", "TOPICS", "VERSION", "Allocate", "Allocated", "Answer", "Arena",
    "ArrayExported", "AskHistory", "Began", "BeginIteration", "Cancel", "CancelLaunch",
    "CloseLane", "CloseWorkload", "Compile", "Compiled", "Describe", "Download", "Drain",
    "EndIteration", "ExportArray", "Failed", "Finished", "FitWorkload", "Follow", "Free",
    "Goodbye", "GrowWorkload", "Happened", "Hello", "LaneOpened", "LaunchEnded", "LaunchRecord",
    "Measure", "Measured", "MoveRegion", "OpenLane", "OpenWorkload", "Pause", "PrepareLaunch",
    "Query", "ReadSymbol", "RegionMoved", "Reload", "Resize", "Resume", "SetSetting",
    "StreamFailure", "Submit", "TurnRecalled", "Unload", "Upload", "Welcome", "Why",
    "WorkloadOpened", "WriteSymbol", "ZoneLent",
]  # fmt: skip
