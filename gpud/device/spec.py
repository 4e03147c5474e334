"""Parses device specifications, the values of ``--device``.

``auto``, ``cpu``, ``cpu:8``, ``cpu:8@75``, ``cuda``, ``cuda:0``. The number after ``cpu`` is its
virtual SMs, by default one for each core that the process may use; the number after ``@`` is the
compute capability, times ten, whose limits they have. The number after ``cuda`` is the GPU's index.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

__all__ = ["DeviceSpec", "parse_device"]

_PATTERN = re.compile(r"(auto|cpu|cuda)(?::(\d{1,5}))?(?:@(\d{2,3}))?", re.ASCII)
_FORMS = "'auto', 'cpu', 'cpu:8' (eight virtual SMs), 'cuda' or 'cuda:0'"
_MOST_SMS = 1024
"""Most virtual SMs of a CPU device: each is an OS thread. No GPU has as many."""


class DeviceSpec(NamedTuple):
    """A device specification with its defaults filled in.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        number: virtual SMs of a CPU device, index of a GPU.
        capability: compute capability times ten of a CPU device; None: the device's default.
    """

    kind: str
    number: int
    capability: int | None = None

    def __str__(self) -> str:
        tail = "" if self.capability is None else f"@{self.capability}"
        return f"{self.kind}:{self.number}{tail}"


def parse_device(text: str) -> DeviceSpec:
    """Parse a device specification; ``parse_device(str(spec)) == spec``.

    It does not check that the GPU exists. ``auto`` means the CPU device here: a caller that can
    probe for a GPU does so before.

    Raises:
        ValueError: the text is no device specification, or no device can be like that.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a device is {_FORMS}, not {text!r}")
    kind, number, capability = match.groups()
    if kind == "cuda":
        if capability is not None:
            raise ValueError(f"a GPU has its own compute capability: leave out '@' in {text!r}")
        return DeviceSpec(kind, 0 if number is None else int(number))
    if kind == "auto":
        if number is not None or capability is not None:
            raise ValueError(f"'auto' takes no number; write {_FORMS}, not {text!r}")
        kind = "cpu"
    sms = len(os.sched_getaffinity(0)) if number is None else int(number)
    if not 1 <= sms <= _MOST_SMS:
        raise ValueError(f"a CPU device has 1 to {_MOST_SMS} SMs, not {sms}, as in {text!r}")
    return DeviceSpec(kind, sms, None if capability is None else int(capability))
