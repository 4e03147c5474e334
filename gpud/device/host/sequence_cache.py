"""Caches prepared sequences by the bytes of `StartRun` that describe them.

A service submits the same sequence again and again. Its `StartRun` then holds the same bytes, so
they serve as the key: decoding, resolving the kernels and preparing the sequence is done once. A
launch that differs in its parameters alone is recognised by how it begins, where the device can
make the sequence of another one's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpud.device.host.messages import HOST_PROTOCOL, HostLaunch
from gpud.device.interface import Device, LaunchSpec
from gpud.errors import GpudError, InvalidArgument
from gpud.wire.beginnings import Beginnings, is_short

__all__ = ["SequenceCache"]

_MOST_LAUNCHES = 1 << 20
_LIMIT_BYTES = 32 << 20
"""Limit of the keys, the bytes of `StartRun`; prepared sequences take several times that."""


class _Kept(NamedTuple):
    modules: frozenset[int]
    sequence: Any


class SequenceCache:
    """The prepared sequences of a device. Not thread-safe.

    Args:
        device: prepares them.
        kernel: finds a loaded kernel by module number and name; raises if there is none.
        limit_bytes: limit of the keys' size in total; the oldest sequences go first.
    """

    def __init__(
        self,
        device: Device,
        kernel: Callable[[int, str], Any],
        *,
        limit_bytes: int = _LIMIT_BYTES,
    ) -> None:
        self._device = device
        self._kernel = kernel
        self._limit_bytes = limit_bytes
        self._kept: dict[tuple[bytes, int], _Kept] = {}
        self._alike: Beginnings[_Kept] = Beginnings()
        self._bytes = 0

    def prepared(self, packed: bytes, occupancy: int) -> Any:
        """Return the sequence that ``packed`` describes, see `gpud.device.host.messages.StartRun`.

        Args:
            packed: its launches.
            occupancy: M of the job.

        Raises:
            ProtocolError: ``packed`` describes no launches.
            UnknownName: it names a module that is not loaded.
            KernelNotFound: a module has no kernel of that name.
            InvalidArgument: M, or a parameter buffer, does not fit the launches.
            LaunchConfigError, KernelRejected: the device cannot run one of them.
        """
        alike = self._alike.find(occupancy, packed)
        if alike is not None:
            like, parameters = alike
            return like.sequence.with_parameters(parameters)
        kept = self._kept.get((packed, occupancy))
        if kept is None:
            kept = self._made(packed, occupancy)
            if len(packed) <= self._limit_bytes:
                self._keep((packed, occupancy), kept)
        return kept.sequence

    def forget(self, modules: set[int]) -> None:
        """Drop the sequences that use these modules."""
        for key in [key for key, one in self._kept.items() if not one.modules.isdisjoint(modules)]:
            self._drop(key)
        self._alike.drop(lambda one: not one.modules.isdisjoint(modules))

    def _made(self, packed: bytes, occupancy: int) -> _Kept:
        rows = HOST_PROTOCOL.decode_records(HostLaunch, packed, least=1, most=_MOST_LAUNCHES)
        try:
            sequence = self._device.prepare([self._resolved(row) for row in rows], occupancy)
        except GpudError:
            raise
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        kept = _Kept(frozenset(row.module for row in rows), sequence)
        if len(rows) == 1 and is_short(packed) and hasattr(sequence, "with_parameters"):
            self._alike.keep(occupancy, packed, len(rows[0].parameters), kept)
        return kept

    def _resolved(self, row: HostLaunch) -> LaunchSpec:
        kernel = self._kernel(row.module, row.entry)
        form: Any = row.form
        return LaunchSpec(
            kernel, form, row.grid, row.block, row.parameters, row.shared, row.occupancy
        )

    def _keep(self, key: tuple[bytes, int], made: _Kept) -> None:
        self._kept[key] = made
        self._bytes += len(key[0])
        while self._bytes > self._limit_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[bytes, int]) -> None:
        del self._kept[key]
        self._bytes -= len(key[0])
