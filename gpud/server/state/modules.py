"""Compiled programs, and the modules in which sessions use them.

A *program* is the result of a compilation, shared by all sessions that request the same. A *module*
is a program in one session on one device; its variables belong to that session.
"""

from __future__ import annotations

from typing import Any

from gpud.compiler.forms.form import Form
from gpud.compiler.process.messages import CompileDone
from gpud.compiler.program import Site, kernel_from
from gpud.compiler.variables import VariableBlock
from gpud.server.state.numbers import number_after
from gpud.units import SessionId
from gpud.wire.packed_rows import PackedRows

__all__ = ["CompiledProgram", "Kernel", "Module", "Modules", "Shape"]

Shape = tuple[int, tuple[int, int, int], int, bool]
"""The key of a measurement: (index of the kernel, block, dynamic shared memory in bytes, whether
it is the kernel's variant with kill polls)."""


_HEAP_BYTES = 8 << 20  # of the CPU device; that of a GPU has half as much again


class Kernel:
    """A kernel of a compiled program.

    Args:
        row: of `gpud.compiler.process.messages.CompileDone.kernels`.
    """

    __slots__ = ("entry", "info", "name", "parameter_bytes", "rejected")

    def __init__(self, row: list[Any]) -> None:
        told, self.parameter_bytes = row
        self.info = info = kernel_from(told)
        self.name = info.name
        self.entry = info.entry
        self.rejected = info.form is Form.REJECTED


class CompiledProgram:
    """A compiled program: its descriptions for clients, and the PTX for device hosts.

    Thousands of kernels and sites are unpacked when they are asked for: see
    `gpud.compiler.process.answer`.
    """

    __slots__ = (
        "_entries",
        "_kernels",
        "_made",
        "_sites",
        "block",
        "descriptions",
        "has_heap",
        "log",
        "names",
        "ptx",
        "symbols",
        "variables",
    )

    def __init__(self, done: CompileDone) -> None:
        self.ptx = done.ptx
        self.log = done.log
        self.has_heap = done.has_heap
        self.descriptions = PackedRows(done.descriptions)
        self.names = done.names
        self.symbols = done.symbols
        self.variables = frozenset(done.variables)  # those of its own that kernels can write
        size, offsets, pieces, relocations = done.block
        self.block = VariableBlock(
            size, offsets, tuple(map(tuple, pieces)), tuple(map(tuple, relocations))
        )
        self.block.check()
        self._kernels = PackedRows(done.kernels)
        self._entries = done.entries
        self._sites = PackedRows(done.sites)
        self._made: dict[int, Kernel] = {}

    @property
    def kernel_count(self) -> int:
        """How many kernels it has, rejected ones included."""
        return len(self._kernels)

    def kernel(self, index: int) -> Kernel:
        """Return the kernel with an index below `kernel_count`."""
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = Kernel(self._kernels[index])
        return made

    def kernel_of(self, entry: object) -> Kernel | None:
        """Return the kernel with a name in the PTX; None if there is none."""
        index = self._entries.get(entry) if isinstance(entry, str) else None
        return None if index is None else self.kernel(index)

    def site(self, number: int | None) -> Site | None:
        """Return a fault site; None if there is none with this number."""
        if number is None or not 0 <= number < len(self._sites):
            return None
        return Site(*self._sites[number])

    def parameters(self, index: int) -> list[tuple[str, int, int]]:
        """Return kind, size and offset of each parameter of a kernel, in bytes."""
        described = self.descriptions[index]["parameters"]
        return [(kind, size, offset) for _, kind, size, _, offset in described]

    @property
    def size_bytes(self) -> int:
        """An estimate of its memory."""
        rows = self.descriptions.size_bytes + self._kernels.size_bytes + self._sites.size_bytes
        texts = len(self.ptx) + len(self.log) + sum(len(data) for _, data in self.block.pieces)
        return 2048 + texts + rows + 2048 * len(self._kernels) + 256 * len(self.symbols)


class Module:
    """A program that a session has loaded on a device.

    Attributes:
        number: unique among all sessions; hosts and clients know the module by it.
        measured: (M, form) of each measured shape.
        forgotten: whether it was unloaded; its jobs have ended then.
        pending: requests to its host that were not answered.
        variable_bytes: the size of its own variables on the device, and of its ``malloc``'s heap.
        variables_at: the address of those that lie in the session's arena; None: none do.
    """

    __slots__ = (
        "device",
        "forgotten",
        "measured",
        "number",
        "pending",
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
        self.pending = 0
        placed = program.block.offsets
        own = sum(n for name, n in program.symbols.items() if name not in placed)
        self.variable_bytes = own + (_HEAP_BYTES if program.has_heap else 0)
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
