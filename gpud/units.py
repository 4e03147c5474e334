"""Units and identifiers used throughout gpud: shares of a device, addresses, sizes, job ids.

Terms (units in brackets):
    capacity [SM]: a device with S SMs has capacity S; each SM is 1.
    M, occupancy [persistent blocks per SM]: how many blocks of one kernel fit on one SM.
    slice [SM]: 1/M of an SM, room for one persistent block of that kernel.
    CapSM [SM]: M slices, from one SM or from several. Reservations, quotas and allocations are
        amounts of CapSM.

Shares are `fractions.Fraction` and never floats, so that slices of kernels with different M add up
exactly: three slices of 1/3 are one SM, and a full device has a remaining capacity of exactly 0.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import NamedTuple, NewType

__all__ = [
    "Address",
    "Bytes",
    "CapSM",
    "JobId",
    "Partitions",
    "SessionId",
    "Share",
    "byte_size",
    "job_id",
    "job_name",
    "job_pair",
    "parse_job",
    "share",
]

CapSM = NewType("CapSM", Fraction)
"""An exact share of a device in SMs."""

Address = NewType("Address", int)
"""A device address in bytes; 0 is the null pointer."""

Bytes = NewType("Bytes", int)
"""A size in bytes."""


class Partitions(NamedTuple):
    """How many whole SMs a device can dedicate to single jobs.

    Attributes:
        step: granularity: a job gets a multiple of ``step`` SMs; 0 if the device cannot do it.
        most: the most SMs for all such jobs together.
        why: why the device cannot do it, human-readable.
    """

    step: int = 0
    most: int = 0
    why: str = ""


JobId = NewType("JobId", int)
"""Identifies a job for the life of the daemon; never reused.

The low 32 bits hold the job's number in its session, the bits above them the session; printed as
"3.17".
"""

SessionId = NewType("SessionId", int)
"""Identifies a client's session for the life of the daemon; never reused."""

Share = int | float | Fraction | str
"""A share as a user may write it: a number of CapSM, or a percentage of the device."""

_NUMBER = re.compile(r"\s*(\d+/\d+|\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", re.ASCII)
_JOB = re.compile(r"\s*(\d{1,10})\.(\d{1,10})\s*", re.ASCII)
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([KMGT]iB|[kKMGT]B|B|)\s*", re.ASCII)
_BYTES = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("B", 1000), ("IB", 1024))
    for power, prefix in enumerate("KMGT", 1)
}
_NUMBERS = (1 << 32) - 1


def share(value: Share, *, capacity: int | Fraction) -> CapSM:
    """Convert a share as a user wrote it into an exact number of CapSM.

    A float stands for the decimal number that Python prints for it, so ``0.1`` is 1/10 and not
    the nearest binary fraction. Whether the share fits the device is not checked here but at
    admission: more than ``capacity`` is a valid share.

    Args:
        value: A number of SMs (int, float, Fraction, a NumPy scalar, or a string such as ``"2"``,
            ``"1.5"``, ``"3/4"``), or a percentage of ``capacity`` (``"25%"``, ``"12.5%"``).
        capacity: SMs of the device that percentages refer to.

    Returns:
        The share in SMs, greater than 0.

    Raises:
        TypeError: ``value`` is neither a number nor a string, or is a boolean.
        ValueError: ``value`` is not finite, not positive, or a string of another form.
    """
    given: object = value
    # The abstract classes accept NumPy's scalars too, which are registered with them.
    if isinstance(given, bool) or not isinstance(given, Real | str):
        raise TypeError(
            f"a share is a number of SMs or a string such as '25%', not {value!r} "
            f"of type {type(value).__name__}"
        )
    if isinstance(given, str):
        exact = _parse(given, Fraction(capacity))
    elif isinstance(given, Integral):
        exact = Fraction(int(given))
    elif isinstance(given, Rational):
        exact = Fraction(given)
    elif not math.isfinite(given):
        raise ValueError(f"a share must be finite, not {value!r}")
    else:
        exact = Fraction(str(given))
    if exact <= 0:
        raise ValueError(f"a share must be greater than 0, not {value!r}")
    return CapSM(exact)


def byte_size(value: int | str) -> int:
    """Convert an amount of memory as a user wrote it into bytes.

    Args:
        value: a number of bytes, or text with a unit such as ``"2GiB"``, ``"1.5 GB"``, ``"4096"``.

    Raises:
        TypeError: ``value`` is neither an int nor text.
        ValueError: it is negative, not a whole number of bytes, or text of another form.
    """
    given: object = value
    if isinstance(given, str):
        match = _SIZE.fullmatch(given)
        exact = Fraction(-1) if match is None else Fraction(match[1]) * _BYTES[match[2].upper()]
    elif isinstance(given, bool) or not isinstance(given, Integral):
        raise TypeError(f"a size is a number of bytes or text such as '2 GiB', not {value!r}")
    else:
        exact = Fraction(int(given))
    if exact < 0 or exact.denominator != 1:
        raise ValueError(f"a size is a number of bytes, also as '8 GiB' or '500 MB', not {value!r}")
    return int(exact)


def job_id(session: int, number: int) -> JobId:
    """Return the identifier of a session's job.

    Args:
        session: 0 or more.
        number: the job's number in its session, chosen by its client: 0 to 2^32 - 1.

    Raises:
        ValueError: an argument is out of range.
    """
    if session < 0 or not 0 <= number <= _NUMBERS:
        raise ValueError(f"there is no job {session}.{number}: both are 0 or more, in 32 bits")
    return JobId(session << 32 | number)


def job_pair(job: JobId) -> tuple[SessionId, int]:
    """Return (session, number) of a job."""
    return SessionId(job >> 32), job & _NUMBERS


def job_name(job: JobId) -> str:
    """Return the printed name of a job: ``"3.17"`` for job 17 of session 3."""
    return f"{job >> 32}.{job & _NUMBERS}"


def parse_job(text: str) -> JobId:
    """Return the job with a printed name: the inverse of `job_name`.

    Raises:
        ValueError: ``text`` is not two numbers separated by a dot, or one exceeds 32 bits.
    """
    match = _JOB.fullmatch(text)
    if match is None or max(int(match[1]), int(match[2])) > _NUMBERS:
        raise ValueError(f"a job is written as gpuctl ps shows it, such as '3.17', not {text!r}")
    return job_id(int(match[1]), int(match[2]))


def _parse(text: str, capacity: Fraction) -> Fraction:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(
            f"a share is written as a number of SMs ('2', '1.5', '3/4') or a percentage of the "
            f"device ('25%'), not {text!r}"
        )
    number, percent = match.groups()
    try:
        exact = Fraction(number)
    except ZeroDivisionError:
        raise ValueError(f"a share cannot be divided by zero: {text!r}") from None
    return exact * capacity / 100 if percent else exact
