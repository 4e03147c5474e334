"""The table of the client protocol, its version, and what fields of many messages are."""

from __future__ import annotations

from typing import Annotated

from gpud.wire.field_types import amount, listed, optional, pair, uint
from gpud.wire.message_table import MessageTable, Sender

__all__ = [
    "CLIENT_PROTOCOL",
    "VERSION",
    "Amount",
    "Device",
    "Dim3",
    "JobRef",
    "Module",
    "Request",
    "Workload",
    "from_client",
    "from_daemon",
    "record",
]

VERSION = 2
"""Version of the protocol. It changes when an older peer would misunderstand a newer one.

2: `Resume`, `Began` and `Allocate.at`, which clients use only if `Welcome` says 2 or more.
"""

CLIENT_PROTOCOL = MessageTable("client", VERSION)
"""Every message of the protocol by code and by class."""

from_client = CLIENT_PROTOCOL.message(Sender.CLIENT)
from_daemon = CLIENT_PROTOCOL.message(Sender.DAEMON)
record = CLIENT_PROTOCOL.record()

Request = Annotated[int, uint(32), "chosen by the client; the reply carries it"]
Device = Annotated[int, uint(8), "index of the device in `Welcome`"]
Module = Annotated[int, uint(32), "as `Compiled` named it"]
Dim3 = Annotated[tuple[int, int, int], listed(uint(32, least=1), 3, 3), "x, y, z"]
Workload = Annotated[int, uint(32), "as `WorkloadOpened` numbered it"]
JobRef = Annotated[tuple[int, int], pair(uint(32), uint(32)), "(session, number)"]
Amount = Annotated[tuple[int, int] | None, optional(amount()), "CapSM, exact; nil for none"]
