"""A session for commands of gpuctl that only ask, without NumPy.

Problem: most commands of gpuctl send one query. A `Session` loads arrays, futures and NumPy, which
takes a tenth of a second before the first byte is sent.

Approach: the library's channel and operations, without what needs arrays. Only `gpuctl run` needs
more, and uses a session.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from fractions import Fraction
from queue import SimpleQueue
from typing import Any, Self

from gpud.errors import ConnectionLost
from gpud.wire.messages import Welcome
from gpud.wire.socket_path import draining_path, socket_path
from gpud_client.connection import operations
from gpud_client.connection.channel import Channel
from gpud_client.connection.daemon_socket import connect_socket
from gpud_client.connection.protocol_state import ProtocolState

__all__ = ["MinimalClient"]

_ANSWER_S = 20.0


class MinimalClient:
    """A session with the daemon whose socket is at ``path``; closed at the end of a ``with`` block.

    Every method blocks until the answer arrives, 20 seconds at most, and raises the daemon's error.

    Args:
        path: Of the socket; None: the default of `gpud_client.connect`.

    Raises:
        ConnectionLost: no daemon listens there, or another program does.
    """

    welcome: Welcome

    def __init__(self, path: str | None = None) -> None:
        where = str(socket_path(path))
        self._core = ProtocolState()
        self._channel = Channel(_connected(where), self._core, where, _ANSWER_S)
        try:
            self.welcome = self._channel.run(self._core.hello("gpuctl"))
        except BaseException:
            self._channel.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def query(self, topic: str, limit: int = 0) -> dict[str, Any]:
        """Query a topic, one of `gpud.wire.messages.TOPICS`."""
        return self._channel.run(operations.query(topic, limit))

    def history(self, **asked: Any) -> list[dict[str, Any]]:
        """Query jobs that have ended, or sums: fields of `gpud.wire.messages.AskHistory`."""
        return self._channel.run(operations.ask_history(**asked))

    def describe(self, job: tuple[int, int]) -> dict[str, Any] | None:
        """Query a job's row in topic "jobs"; None if there is no such job."""
        return self._channel.run(operations.describe(job))

    def why(self, job: tuple[int, int]) -> dict[str, Any]:
        """Ask what a job waits for, and why its share changed."""
        return self._channel.run(operations.why(job))

    def resize(
        self, job: tuple[int, int], *, reservation: Fraction | None, quota: Fraction | None
    ) -> None:
        """Change the reservation or the quota of a job, in CapSM."""
        self._channel.run(operations.resize(job, _pair(reservation), _pair(quota)))

    def cancel(self, job: tuple[int, int]) -> bool:
        """Cancel a job; returns whether it had not ended yet."""
        return self._channel.run(operations.cancel(job))

    def pause(
        self, devices: tuple[int, ...], *, on: bool, now: bool = False
    ) -> list[dict[str, Any]]:
        """Pause devices, all if none is named, or let them go on; a row for each."""
        asked = operations.pause(devices, on=on, now=now)
        rows: list[dict[str, Any]] = self._channel.run(asked)["devices"]
        return rows

    def set_setting(self, key: str, value: str) -> dict[str, Any]:
        """Keep a setting in the daemon's file: see `gpud.wire.messages.SetSetting`."""
        return self._channel.run(operations.set_setting(key, value))

    def reload(self) -> dict[str, Any]:
        """Have the daemon read its settings again: see `gpud.wire.messages.Reload`."""
        return self._channel.run(operations.reload())

    def drain(self) -> dict[str, Any]:
        """End the daemon in order: "jobs" that are waited for, and "timeout_s"."""
        return self._channel.run(operations.drain())

    def end_workload(self, workload: int) -> None:
        """End a workload once its session's jobs have ended; waits for that."""
        self._channel.run(operations.end_workload(workload))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield every event from now on, until the connection is lost."""
        events = self._core.events = SimpleQueue()
        self._channel.run(operations.follow())
        while (event := events.get()) is not None:
            yield event
        self._channel.check()


def _connected(path: str) -> socket.socket:
    """Connect to the daemon, also to one that drains and takes no other programs."""
    try:
        return connect_socket(path)
    except ConnectionLost:
        try:
            return connect_socket(str(draining_path(path)))
        except ConnectionLost:
            pass  # the first error says more
        raise


def _pair(amount: Fraction | None) -> tuple[int, int] | None:
    return None if amount is None else (amount.numerator, amount.denominator)
