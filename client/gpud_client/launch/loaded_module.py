"""A module as the daemon has loaded it on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpud.errors import KernelNotFound
from gpud.wire.messages import Compile, Unload
from gpud_client.connection.pending import PendingJobs
from gpud_client.connection.protocol_state import ProtocolState

__all__ = ["LoadedModule"]


class LoadedModule:
    """The daemon's module on one device; unloaded when this object is garbage collected."""

    def __init__(
        self, core: ProtocolState, kick: Callable[[], None], answer: Any, fields: tuple[Any, ...]
    ) -> None:
        self._core = core
        self.fields = fields  # of the `gpud.wire.messages.Compile` that made it
        self._kick = kick
        self._only: bool = Compile(0, *fields).only
        self.number: int = answer.module
        self.kernels: list[dict[str, Any]] = answer.kernels
        self.names: Mapping[str, int] = answer.names
        self.symbols: Mapping[str, int] = answer.symbols
        self.addresses: Mapping[str, int] = answer.addresses
        self.log: str = answer.log
        # (M, form) by (kernel, block, dynamic shared memory)
        self.measured: dict[tuple[int, tuple[int, int, int], int], tuple[int, str]] = {}
        # The same keys, of which the variant with kill polls was measured.
        self.killable: set[tuple[int, tuple[int, int, int], int]] = set()
        # Numbers of the parameters of which was warned, by the kernel's entry.
        self.warned: dict[str, set[int]] = {}
        self.users = PendingJobs()
        if core.resumable is not None:
            core.resumable.modules.add(self)

    def index(self, name: str) -> int:
        """Return the index of a kernel: by its requested name, that in the source or its PTX entry.

        Raises:
            KernelNotFound: there is none of that name.
        """
        requested = self.names.get(name)
        if requested is not None:
            return requested
        for index, kernel in enumerate(self.kernels):
            if name in (kernel["name"], kernel["entry"]):
                return index
        known = [str(kernel["name"]) for kernel in self.kernels]
        cause = "the program was compiled for one; gpu.module(source) has all" if self._only else ""
        raise KernelNotFound(name, known, cause=cause, log=self.log)

    def __del__(self) -> None:
        if self._core.lost is None:
            self._core.garbage.append(Unload(self.number))
            self._kick()
