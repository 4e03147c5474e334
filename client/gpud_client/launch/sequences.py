"""Packs the launches of a job for the device on which it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from gpud_client.connection.pending import Operation, PendingJobs
from gpud_client.devices import Device
from gpud_client.launch.kernels import Launch, PackedLaunch

__all__ = ["PackedSequence", "pack_sequence"]

_ONE = b"\x91"  # msgpack: an array of one
_array_header = msgpack.Packer(autoreset=True).pack_array_header


class PackedSequence(NamedTuple):
    """The launches of a job, packed for a device.

    ``made``: the launches, packed, of which there are several.
    ``records``: a `gpud.wire.messages.LaunchRecord` for each; ``rest``: those after the first.
    ``need``: slices that launches in form ``whole`` need at once; 0 without such launches.
    """

    device: Device
    rest: tuple[Launch, ...]
    made: Sequence[PackedLaunch]
    records: bytes
    occupancy: int
    need: int
    total: int
    what: str
    users: list[PendingJobs]


def pack_sequence(
    session: Any, launches: Sequence[Launch], device: Device | int | None
) -> Operation[PackedSequence]:
    """Pack the launches of a job for its device: load and measure their kernels if needed.

    Raises:
        TypeError: one of them is not a `Launch`.
        ValueError: there is none, one is of another session, an array was freed, or their arrays
            are on different devices.
    """
    if not launches:
        raise ValueError("a sequence has one launch or more: kernel.call(...)")
    first = launches[0]
    kept: PackedSequence | None = getattr(first, "_sequence", None)
    if (
        kept is not None
        and device is None
        and kept.rest == tuple(launches[1:])
        and all(one.number == one.loaded.number for one in kept.made)
    ):
        for launch in launches:
            for array in launch._arrays:
                array._live_address()  # raises if it was freed
        return kept
    on = _device_of(session, launches, device)
    if len(launches) == 1:
        alone: PackedLaunch = yield from first.kernel._pack(first, on)
        users = [alone.loaded.users]
        for array in first._arrays:
            if array._allocation is None:
                array._live_address()  # raises
            users.append(array._users)
        records, name = _ONE + alone.record, first.kernel._name
        need = 0 if alone.form != "whole" else _whole_need(launches, [alone], on)
        return PackedSequence(on, (), (), records, alone.occupancy, need, first._total, name, users)
    return (yield from _pack_several(launches, on, keep=device is None))


def _pack_several(
    launches: Sequence[Launch], on: Device, *, keep: bool
) -> Operation[PackedSequence]:
    """Keep the result on the first launch: services submit the same again and again."""
    made: list[PackedLaunch] = []
    for launch in launches:
        made.append((yield from launch.kernel._pack(launch, on)))
        for array in launch._arrays:
            array._live_address()  # raises if it was freed
    users = {id(one.loaded): one.loaded.users for one in made}
    users |= {id(array): array._users for launch in launches for array in launch._arrays}
    sequence = PackedSequence(
        on,
        tuple(launches[1:]),
        made,
        b"".join((_array_header(len(made)), *[one.record for one in made])),
        min(one.occupancy for one in made),
        _whole_need(launches, made, on),
        sum(launch._total for launch in launches),
        f"{len(launches)} kernels from {launches[0].kernel.name} on",
        list(users.values()),
    )
    # Not if the first launch is repeated: it would keep itself alive.
    if keep and not any(launch is launches[0] for launch in launches[1:]):
        launches[0]._sequence = sequence
    return sequence


def _device_of(session: Any, launches: Sequence[Launch], device: Device | int | None) -> Device:
    """Return the device on which a job with these launches runs.

    Raises:
        TypeError: one of them is not a `Launch`.
        ValueError: one is of another session, or its arrays are on another device.
    """
    on: Device | None = None if device is None else session._on(device)
    for index, launch in enumerate(launches):
        if not isinstance(launch, Launch):
            raise TypeError(
                f"launch {index} of the sequence is {launch!r}, not what kernel.call(...) gives"
            )
        if launch.kernel._session is not session:
            raise ValueError(f"launch {index} of the sequence, {launch!r}, is of another session")
        if launch._device is None:
            continue
        if on is None:
            on = launch._device
        elif launch._device is not on:
            raise ValueError(
                f"the arrays of {launch!r} are on {launch._device.name}, the job is on {on.name}"
            )
    if on is None:
        on = launches[0].kernel._module._device
    return on


def _whole_need(launches: Sequence[Launch], made: Sequence[PackedLaunch], device: Device) -> int:
    """Return the slices of 1/M that launches in form ``whole`` need, M being the job's least."""
    least = min(one.occupancy for one in made)
    return max(
        [
            -(-min(launch._total, device.sms * one.occupancy) * least // one.occupancy)
            for launch, one in zip(launches, made, strict=True)
            if one.form == "whole"
        ],
        default=0,
    )
