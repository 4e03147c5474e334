"""The ``.const`` and ``.global`` variables of a module, in one piece of host memory.

Initial values are written once, when the module is loaded; variables' addresses in them are
resolved to host addresses, function names to function numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from gpud.compiler.abi.reserved_names import OWN_VARIABLES
from gpud.compiler.analysis.data_layout import size_and_align, type_bytes
from gpud.compiler.analysis.initial_values import leaves, literal_bytes, masked
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import ModuleLayout

__all__ = ["ModuleData"]

_EVERYTHING = (0, 2**64 - 1)
_NO_RANGES: Mapping[str, tuple[int, int] | None] = {}


class ModuleData:
    """The variables of one loaded module.

    Args:
        ranges: (address, size) to store in gpud's own variables, by name; default: all memory.

    Attributes:
        memory: all variables, uint8.
        address: host address of the first byte.
        sizes: bytes of each variable by name, without gpud's own.
    """

    def __init__(
        self,
        module: ptx.Module,
        layout: ModuleLayout,
        ranges: Mapping[str, tuple[int, int] | None] = _NO_RANGES,
    ) -> None:
        self._layout = layout
        padded = np.zeros(layout.data.size + 256, np.uint8)
        skip = -padded.ctypes.data % 256
        self.memory: npt.NDArray[np.uint8] = padded[skip : skip + layout.data.size + 1]
        self.address: int = self.memory.ctypes.data
        self.sizes: dict[str, int] = {}
        for variable in _variables(module):
            offset = layout.data.offsets.get(variable.name)
            if offset is None or variable.space not in ("const", "global"):
                continue
            if variable.name in OWN_VARIABLES:
                # Code of this device does not read them; a program reads the same as on a GPU.
                self._set_range(offset, ranges.get(variable.name) or _EVERYTHING)
                continue
            self.sizes[variable.name] = size_and_align(variable)[0]
            self._write(variable, offset)

    def _set_range(self, offset: int, values: tuple[int, int]) -> None:
        raw = b"".join(value.to_bytes(8, "little") for value in values)
        self.memory[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)

    def symbol(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a variable, writable.

        Raises:
            KeyError: the module has no such variable.
        """
        offset = self._layout.data.offsets[name]
        return self.memory[offset : offset + self.sizes[name]]

    def _write(self, variable: ptx.Variable, offset: int) -> None:
        size = type_bytes(variable.type)
        for at, leaf in leaves(variable):
            if isinstance(leaf, ptx.Immediate):
                data = literal_bytes(leaf, variable.type)
            else:
                data = (self._resolve(leaf) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
            self.memory[offset + at : offset + at + size] = np.frombuffer(data, np.uint8)

    def _resolve(self, leaf: ptx.Initializer) -> int:
        layout = self._layout
        if leaf.name in layout.data.offsets:
            value = self.address + layout.data.offsets[leaf.name] + leaf.offset
        elif leaf.name in layout.functions:
            value = layout.functions[leaf.name]
        else:
            value = leaf.offset
        return masked(value, leaf.mask)


def _variables(module: ptx.Module) -> Iterator[ptx.Variable]:
    for item in module.items:
        if isinstance(item, ptx.Variable):
            yield item
        elif isinstance(item, ptx.Function):
            yield from (s for s in item.body or () if isinstance(s, ptx.Variable))
