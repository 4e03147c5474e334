"""The description of the daemon's devices for clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

__all__ = ["Device", "chosen_devices"]


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the daemon; with another online_sms it is the same one.

    Attributes:
        index: From 0, in the order of the daemon's ``--device`` options.
        name: Its name, such as the GPU's.
        kind: ``"cpu"`` or ``"cuda"``.
        sms: S, how many SMs it has: its capacity in CapSM.
        memory: The most bytes that arrays may take in all.
        capability: The CUDA compute capability that kernels are compiled for.
        online_sms: The most CapSM that online jobs may have together.
        arrays: ``"shared"`` if arrays are mapped into this process, ``"copied"`` if `get` and `set`
            copy between the device's memory and this process.
        uuid: A GPU's, as ``nvidia-smi -L`` shows it; empty for others.
        exclusive_step: SMs can be reserved for one job alone in multiples of this; 0: they cannot.
    """

    index: int
    name: str
    kind: str
    sms: int
    memory: int
    capability: Any
    online_sms: Fraction = field(compare=False)
    arrays: str = "shared"
    exclusive_step: int = 0
    uuid: str = ""

    @classmethod
    def _from_wire(cls, index: int, row: Mapping[str, Any]) -> Device:
        sms = int(row["sms"])
        online = row.get("online_sms")
        return cls(
            index,
            str(row.get("name", index)),
            str(row.get("kind", "")),
            sms,
            int(row.get("memory_bytes") or 0),
            row.get("capability"),
            Fraction(sms) if online is None else _exact(online),
            str(row.get("arrays", "shared")),
            int(row.get("exclusive_step") or 0),
            str(row.get("uuid") or ""),
        )

    def _adopt(self, other: Device) -> None:
        """Take what the next daemon says of the same device."""
        object.__setattr__(self, "online_sms", other.online_sms)


def chosen_devices(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices that ``GPUD_DEVICE`` names, such as ``0,2``; all if it is not set.

    Raises:
        ValueError: it names one that is not there.
    """
    named = os.environ.get("GPUD_DEVICE", "")
    if not named:
        return devices
    try:
        return tuple(devices[int(index)] for index in named.split(",") if int(index) >= 0)
    except (ValueError, IndexError):
        raise ValueError(
            f"GPUD_DEVICE is {named!r}, and the daemon has devices 0 to {len(devices) - 1}"
        ) from None


def _exact(amount: Any) -> Fraction:
    if isinstance(amount, list | tuple):
        return Fraction(*amount)
    return Fraction(str(amount))
