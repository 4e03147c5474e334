"""Messages about a session's arrays, and their copies to and from a device."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from gpud.wire.field_types import optional, uint
from gpud.wire.messages.protocol import Device, Request, from_client, from_daemon

__all__ = ["Allocate", "Allocated", "Arena", "Download", "Free", "Upload"]


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
