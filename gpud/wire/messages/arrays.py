"""Messages about a session's arrays, and their copies to and from a device."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from gpud.wire.field_types import flag, optional, uint
from gpud.wire.messages.protocol import Device, Request, from_client, from_daemon

__all__ = [
    "Allocate",
    "Allocated",
    "Arena",
    "ArrayExported",
    "Download",
    "ExportArray",
    "Free",
    "Upload",
]


@from_client(5)
class Allocate(NamedTuple):
    """Allocate an array of zeroes; answered by `Allocated`."""

    request: Request
    device: Device
    size: Annotated[int, uint(64, least=1), "bytes"]
    at: Annotated[
        int | None,
        optional(uint(64)),
        "its device address, which an array had at a daemon that has ended; nil: any",
    ] = None


@from_daemon(68)
class Allocated(NamedTuple):
    """An array of zeroes was allocated."""

    request: Request
    address: Annotated[int, uint(64), "device address; lies in the session's arena"]


@from_daemon(65)
class Arena(NamedTuple):
    """The session's arena on a device; sent once, before the first `Allocated` on it.

    A file descriptor is attached if the client can map the memory: byte 0 of the file is the byte
    at device address ``base``.
    """

    device: Device
    base: Annotated[int, uint(64), "device address of the first byte"]
    size: Annotated[int, uint(64), "bytes of addresses; only allocated arrays take memory"]


@from_client(6)
class Free(NamedTuple):
    """Free an array once the jobs that were submitted before have ended. Not answered."""

    device: Device
    array: Annotated[int, uint(64), "its device address"]


@from_client(15)
class Upload(NamedTuple):
    """Copy a part of an array from the session's file to the device. Not answered.

    For devices whose arrays are ``copied``, after the part was written to the file. Jobs that are
    submitted later see it. A refusal is sent as `Failed` with request 0.
    """

    device: Device
    array: Annotated[int, uint(64), "its device address"]
    offset: Annotated[int, uint(63), "of the part's first byte, in the array"]
    size: Annotated[int, uint(63, least=1), "of the part, in bytes"]


@from_client(16)
class Download(NamedTuple):
    """Copy a part of an array from the device to the session's file; answered by `Answer`.

    For devices whose arrays are ``copied``. Does not wait for running jobs.
    """

    request: Request
    device: Device
    array: Annotated[int, uint(64), "its device address"]
    offset: Annotated[int, uint(63), "of the part's first byte, in the array"]
    size: Annotated[int, uint(63, least=1), "of the part, in bytes"]


@from_client(28)
class ExportArray(NamedTuple):
    """Ask for an array's memory, to map it in this process; answered by `ArrayExported`.

    For devices whose arrays are ``copied``. Uploads that were sent before have arrived then. From
    then on the daemon takes it that the client may write the array at any time.
    """

    request: Request
    device: Device
    array: Annotated[int, uint(64), "its device address"]
    first: Annotated[int, uint(63), "the byte of the array from which on memory is asked for"]
    known: Annotated[
        int, uint(63), "`ArrayExported.host` of the memory that is mapped already; 0: none is"
    ]


@from_daemon(77)
class ArrayExported(NamedTuple):
    """Memory of an array, in pieces that the client maps.

    A descriptor of a socket comes with the message. On it lies one message: for each piece its
    first byte's offset in the arena and its size in bytes, each eight bytes in the machine's order,
    and as many descriptors, which the driver imports. The pieces follow one another; where they do
    not reach the array's end the client asks again, once it has taken these.
    """

    request: Request
    host: Annotated[int, uint(63), "another one when the device has lost its memory"]
    attached: Annotated[bool, flag(), "a descriptor comes: false if ``host`` is known"]
