"""Which gpud a node uses, and how a raylet's environment says it."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["DEVICES_VARIABLE", "DaemonConfig"]

DEVICES_VARIABLE = "RAY_GPUD_DEVICES"
"""Names the devices of a private daemon, separated by blanks, in a raylet's environment.

Not ``GPUD_...``: gpud refuses variables of that kind that it does not know.
"""
_SOCKET_VARIABLE = "GPUD_SOCKET"


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Which gpud a node uses.

    Attributes:
        socket: Of a daemon that runs; None: the default of `gpud_client.connect`.
        private: Devices of a daemon that the node's agent starts and ends, such as ``("cpu:2",)``;
            empty: it uses the one at ``socket``.
        absent: The node has none: it only forwards what is submitted there.
    """

    socket: str | None = None
    private: tuple[str, ...] = ()
    absent: bool = False

    def variables(self) -> dict[str, str]:
        """Return the environment with which a node's raylet says this; see `of_this_node`."""
        named = {_SOCKET_VARIABLE: self.socket} if self.socket else {}
        return {DEVICES_VARIABLE: " ".join(self.private), **named}

    @classmethod
    def of_this_node(cls) -> DaemonConfig:
        """Return what the environment says in which this node's raylet was started.

        So an agent knows it that is made from elsewhere, for a node that joined by itself.
        """
        private = tuple(os.environ.get(DEVICES_VARIABLE, "").split())
        return cls(None if private else os.environ.get(_SOCKET_VARIABLE) or None, private)
