"""Parses shares, makes them exact, and refuses those that the device can never grant.

The daemon checks them again; checking here raises a mistake where it was made.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from gpud.errors import AdmissionError
from gpud.units import Share, share
from gpud_client.devices import Device

__all__ = ["Amounts", "admissible", "check_whole", "resolve"]

_LARGEST = (1 << 63) - 1

Pair = tuple[int, int]


class Amounts(NamedTuple):
    """The reservation and quota of a submission, as on the wire."""

    reservation: Pair | None
    quota: Pair | None


def resolve(what: str, value: Share | None, device: Device) -> Pair | None:
    """Convert a share of a device to a fraction for the wire.

    Raises:
        AdmissionError: a reservation that online jobs can never have there, or a quota of more than
            the device.
        TypeError: it is not a share.
        ValueError: it is not a valid share, or the numbers of its fraction are too large.
    """
    if value is None:
        return None
    exact = Fraction(share(value, capacity=device.sms))
    most = Fraction(device.sms) if what == "quota" else device.online_sms
    if exact > most:
        kept = "" if most == device.sms else " that online jobs may have"
        meant = str(value)
        percent = meant.isdecimal() and int(meant) <= 100  # a number without % means SMs
        raise AdmissionError(
            f"a {what} of {value} is more than the {most} SMs of {device.name}{kept}; ask for less"
            + (f", or write '{meant}%' for a percentage" if percent else ""),
            requested=exact,
            capacity=most,
        )
    if max(exact.numerator, exact.denominator) > _LARGEST:
        raise ValueError(f"{what}={value!r} is too fine: write it with fewer digits")
    return exact.numerator, exact.denominator


def admissible(
    reservation: Share | None, quota: Share | None, occupancy: int, device: Device
) -> Amounts:
    """Check the shares of a job, and make them exact; ``occupancy`` is the least M of its kernels.

    Raises:
        AdmissionError: the device can never grant it.
        TypeError: one of them is not a share.
        ValueError: both are given, or one is not a valid share.
    """
    if reservation is None and quota is None:
        return _WHOLE
    if reservation is not None and quota is not None:
        raise ValueError(
            "a job has a reservation (online: at least that much) or a quota (offline: at most "
            "that much), not both"
        )
    amounts = Amounts(resolve("reservation", reservation, device), resolve("quota", quota, device))
    if amounts.quota is not None:
        exact = Fraction(*amounts.quota)
        if exact * occupancy < 1:
            raise AdmissionError(
                f"a quota of {quota} holds no block of this kernel, of which {occupancy} fit on an "
                f"SM; ask for 1/{occupancy} or more",
                requested=exact,
                capacity=Fraction(device.sms),
            )
    elif amounts.reservation is not None:
        exact = Fraction(*amounts.reservation)
        slices = math.ceil(exact * occupancy)
        if slices > device.online_sms * occupancy:
            raise AdmissionError(
                f"a reservation of {reservation} is {slices} blocks of this kernel, of which "
                f"{occupancy} fit on an SM: more than the {device.online_sms} SMs that online jobs "
                "may have; ask for less",
                requested=exact,
                capacity=device.online_sms,
            )
    return amounts


def check_whole(amounts: Amounts, need: int, occupancy: int, device: Device) -> None:
    """Refuse a job whose kernels cannot be resized and need more than its share.

    Args:
        amounts: the job's reservation or quota.
        need: slices that a launch in form ``whole`` needs at once.
        occupancy: M of the job, the least of its kernels.
        device: the device on which it is to run.

    Raises:
        AdmissionError: the share is too small, or the device is.
    """
    if amounts.reservation is not None:
        share_ = Fraction(*amounts.reservation)
        slices = math.ceil(share_ * occupancy)
    else:
        share_ = Fraction(device.sms) if amounts.quota is None else Fraction(*amounts.quota)
        slices = math.floor(share_ * occupancy)
    if slices < need:
        raise AdmissionError(
            f"a kernel in form whole cannot be resized and needs all its "
            f"{Fraction(need, occupancy)} SMs at once; a share of {share_} is too small: ask for "
            "more, or launch fewer blocks",
            requested=share_,
            capacity=Fraction(device.sms),
        )


_WHOLE = Amounts(None, None)
