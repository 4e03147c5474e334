"""What every device checks of a launch site before a lane has it, with the same errors on each."""

from __future__ import annotations

from gpud.device.interface import LaunchSpec
from gpud.errors import AdmissionError, LaneRefused, LimitExceeded, UnknownName
from gpud.wire.lane_ring import MOST_SITES

__all__ = ["check_share", "check_site"]


def check_site(spec: LaunchSpec, sites: int, replaces: int | None = None) -> None:
    """Check that a lane with so many launch sites can have one for this launch.

    Raises:
        LaneRefused: the kernel's form cannot run in a lane.
        LimitExceeded: the lane has `MOST_SITES` launch sites, and it replaces none.
        UnknownName: the lane has no launch site ``replaces``.
    """
    if spec.form == "whole":
        raise LaneRefused(
            f"{spec.kernel.name} is in form whole, which needs all its blocks at once, and a "
            "lane's share may change: submit it as a job of another stream",
            reason="whole",
        )
    if replaces is not None:
        if replaces >= sites:
            raise UnknownName(f"the lane has {sites} launch sites, none {replaces}")
    elif sites >= MOST_SITES:
        raise LimitExceeded(
            f"the lane has {MOST_SITES} launch sites, for as many kernels and block shapes; have "
            "this one replace one of them, or open another lane",
            limit="launch sites",
            value=MOST_SITES,
        )


def check_share(kernel: str, most: int, slices: int, occupancy: int, sms: int) -> None:
    """Check that a lane's share, if it has one now, has room for one block of a kernel.

    Args:
        kernel: its name.
        most: blocks of it that fit on an SM.
        slices: of the lane.
        occupancy: the slices are 1/``occupancy`` of an SM.
        sms: of the device.

    Raises:
        AdmissionError: it has not.
    """
    if slices and slices * most < occupancy:
        raise AdmissionError(
            f"the lane's share holds no block of {kernel}, of which {most} fit on an SM; open a "
            f"lane with 1/{most} SM or more",
            requested=slices,
            capacity=sms,
        )
