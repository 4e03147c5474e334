"""Compiled programs, and the modules in which sessions use them.

A *program* is the result of a compilation, shared by all sessions that request the same. A *module*
is a program in one session on one device; its variables belong to that session.
"""

from __future__ import annotations

from typing import Any

from gpud.compiler.forms.form import Form
from gpud.compiler.program import KernelInfo, Program, rejection
from gpud.server.state.numbers import number_after
from gpud.units import SessionId

__all__ = ["CompiledProgram", "Kernel", "Module", "Modules", "Shape"]

Shape = tuple[int, tuple[int, int, int], int, bool]
"""The key of a measurement: (index of the kernel, block, dynamic shared memory in bytes, whether
it is the kernel's variant with kill polls)."""


class Kernel:
    """A kernel of a compiled program."""

    __slots__ = ("entry", "info", "name", "parameter_bytes", "rejected")

    def __init__(self, info: KernelInfo) -> None:
        self.info = info
        self.name = info.name
        self.entry = info.entry
        self.rejected = info.form is Form.REJECTED
        last = info.parameters[-1] if info.parameters else None
        self.parameter_bytes = 0 if last is None else last.offset + last.size

    def describe(self) -> dict[str, Any]:
        """Return the kernel's description in `gpud.wire.messages.Compiled`."""
        info = self.info
        return {
            "name": info.name,
            "entry": info.entry,
            "form": str(info.form),
            "exit_aware": info.exit_aware,
            "why": [str(reason) for reason in info.why],
            "parameters": [[p.name, p.kind, p.size, p.align, p.offset] for p in info.parameters],
            "points_to": [p.points_to for p in info.parameters],
            "shared_bytes": info.shared_bytes,
            "max_threads": info.max_threads,
            "killable": info.killable,
            "cooperative": info.cooperative,
            "rejected": rejection(info).to_wire() if self.rejected else None,
        }


class CompiledProgram:
    """A compiled program: its descriptions for clients, and the PTX for device hosts."""

    __slots__ = (
        "block", "descriptions", "kernels", "log", "names", "ptx", "sites", "symbols", "variables",
    )  # fmt: skip

    def __init__(self, program: Program, names: tuple[str, ...]) -> None:
        self.ptx = program.ptx
        self.log = program.log
        self.sites = program.sites
        self.block = program.block
        self.kernels = tuple(map(Kernel, program.kernels.values()))
        self.descriptions = [kernel.describe() for kernel in self.kernels]
        index = {kernel.entry: at for at, kernel in enumerate(self.kernels)}
        lowered = program.lowered_names
        self.names = {name: index[entry] for name, entry in lowered.items()}
        self.names |= {name: index[lowered.get(name, name)] for name in names}
        self.symbols = {symbol.name: symbol.size for symbol in program.symbols.values()}
        self.variables = frozenset(
            symbol.name
            for symbol in program.symbols.values()
            if symbol.space != "const" and symbol.offset is None
        )  # those of its own that kernels can write

    @property
    def size_bytes(self) -> int:
        """An estimate of its memory."""
        texts = len(self.ptx) + len(self.log) + sum(len(data) for _, data in self.block.pieces)
        parameters = sum(len(kernel.info.parameters) for kernel in self.kernels)
        return 2048 + texts + 4096 * len(self.kernels) + 512 * (len(self.sites) + parameters)


class Module:
    """A program that a session has loaded on a device.

    Attributes:
        number: unique among all sessions; hosts and clients know the module by it.
        measured: (M, form) of each measured shape.
        forgotten: whether it was unloaded; its jobs have ended then.
        variable_bytes: the size of its own variables on the device.
        variables_at: the address of those that lie in the session's arena; None: none do.
    """

    __slots__ = (
        "device",
        "forgotten",
        "measured",
        "number",
        "program",
        "session",
        "variable_bytes",
        "variables_at",
    )

    def __init__(
        self, number: int, session: SessionId, device: int, program: CompiledProgram
    ) -> None:
        self.number = number
        self.session = session
        self.device = device
        self.program = program
        self.measured: dict[Shape, tuple[int, str]] = {}
        self.forgotten = False
        placed = program.block.offsets
        self.variable_bytes = sum(n for name, n in program.symbols.items() if name not in placed)
        self.variables_at: int | None = None

    @property
    def addresses(self) -> dict[str, int]:
        """The address of each variable that lies in the session's arena."""
        base = self.variables_at
        return (
            {} if base is None else {n: base + at for n, at in self.program.block.offsets.items()}
        )

    def offset_of(self, variable: str) -> int | None:
        """Return where a variable lies in the block in the session's arena; None: it does not."""
        return None if self.variables_at is None else self.program.block.offsets.get(variable)

    def measured_of(self, index: int) -> dict[tuple[tuple[int, int, int], int], tuple[int, str]]:
        """`measured` of one kernel: (M, form) by block and dynamic shared memory.

        Those of its variant without kill polls where it was measured, else those with.
        """
        return {
            (block, shared): measured
            for (at, block, shared, _), measured in sorted(
                self.measured.items(), key=lambda item: not item[0][3]
            )
            if at == index
        }


class Modules(dict[int, Module]):
    """The modules of all sessions, by number: all that hosts may have loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 1

    def make(self, session: SessionId, device: int, program: CompiledProgram) -> Module:
        """Make a module, which is not in the table yet, with a number that no other has."""
        number = self._next
        self._next = number_after(number, self)
        return Module(number, session, device, program)
