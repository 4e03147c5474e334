"""What kernels on the GPU print: from the bytes that they left to text.

The bytes are those of `gpud.compiler.abi.print_buffer`, in host memory that the GPU writes to. They
hold all that is needed, so nothing of the GPU's is read, and what was complete when a context was
lost is there still.

Buffers are kept and used again: whether the driver waits for kernels when it is asked for
page-locked memory is not written down, and runs begin with the device's lock held. So one is made
when a chain that prints is prepared.

Properties:
* a buffer that is taken reads as zero;
* ``any bytes``: whatever kernels left, the text is bounded, and nothing else is read.
"""

from __future__ import annotations

from gpud.compiler.abi.print_buffer import BUFFER_HEAD_BYTES, PrintCall, calls, has_dropped
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import MappedBlock
from gpud.device.printf import PrintfOutput, format_printf

__all__ = ["OUTPUT_BYTES", "OutputBuffers", "printed_text", "read"]

OUTPUT_BYTES = 1 << 22
"""Of a run's buffer: four times what CUDA has for all kernels by default. It is page-locked."""


class OutputBuffers:
    """Buffers of `OUTPUT_BYTES`; given back to the driver when the device is closed. Thread-safe.

    Args:
        context: where the GPU is that writes to them.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._free: list[MappedBlock] = []
        self._all: list[MappedBlock] = []

    def prepare(self) -> None:
        """Have one that can be taken at once; without the device's lock."""
        if not self._free:
            self._free.append(self._made())

    def take(self) -> MappedBlock:
        """A buffer that reads as zero."""
        try:
            return self._free.pop()
        except IndexError:
            return self._made()

    def give(self, buffer: MappedBlock) -> None:
        """Take one back; no kernel uses it any more."""
        if not _is_unused(buffer):
            buffer.view[:] = 0
        self._free.append(buffer)

    def close(self) -> None:
        """Give everything back to the driver."""
        while self._all:
            self._all.pop().free()

    def _made(self) -> MappedBlock:
        made = MappedBlock(self._context, OUTPUT_BYTES)
        self._all.append(made)
        return made


def _is_unused(buffer: MappedBlock) -> bool:
    """Whether there is no entry, and no call that did not fit."""
    return not buffer.words[: BUFFER_HEAD_BYTES // 4 + 1].any()


def read(buffer: MappedBlock) -> tuple[bytes, bytes]:
    """What is in a buffer, to be given to `printed_text`; nothing if nothing is there."""
    if _is_unused(buffer):
        return b"", b""
    before = bytes(buffer.view)
    return bytes(buffer.view), before


def printed_text(buffer: bytes, before: bytes) -> bytes:
    """What is printed by the calls in a buffer, as `read` has it."""
    printed = PrintfOutput()
    for call in calls(buffer, before):
        printed.add(format_printf(call.format, _WrittenDown(call)))
        if not printed.accepting:
            break
    if has_dropped(buffer):
        printed.truncate()
    return printed.text


class _WrittenDown:
    """Arguments of a call that a kernel wrote down: `gpud.device.printf.PrintfArguments`."""

    def __init__(self, call: PrintCall) -> None:
        self._call = call

    def value(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes of the arguments."""
        found = self._call.values[offset : offset + size]
        return found if len(found) == size else None

    def text(self, offset: int, address: int, most: int | None) -> bytes | None:
        """What the kernel found at ``address``."""
        found = self._call.texts.get(offset)
        return found if most is None or found is None else found[:most]
