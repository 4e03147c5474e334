"""Scheduling policies: how a device's capacity is divided. One file each, all in `POLICIES`."""

from __future__ import annotations

from collections.abc import Mapping

from gpud.core.policies.arrival import Arrival
from gpud.core.policies.equal import Equal
from gpud.core.policies.fifo import Fifo
from gpud.core.policies.reservations import Reservations
from gpud.core.policy import Policy

__all__ = ["POLICIES"]

_ALL: tuple[type[Policy], ...] = (Reservations, Arrival, Fifo, Equal)

POLICIES: Mapping[str, type[Policy]] = {policy.name: policy for policy in _ALL}
"""All policies, by the name that the configuration uses."""
