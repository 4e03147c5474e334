"""Output of ``printf`` on the GPU: the buffers, and formatting their bytes as text.

The bytes are those of `gpud.compiler.abi.print_buffer`, in host memory that the GPU writes to. They
are self-contained: no device memory is read to format them, and output that was complete when a
context was lost is still there.

Buffers are reused: whether the driver waits for kernels when it allocates page-locked memory is not
documented, and runs begin with the device's lock held. So a buffer is allocated when a sequence
that prints is prepared.

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
"""Size of a run's buffer, in page-locked memory: four times CUDA's default for all kernels."""


class OutputBuffers:
    """Pool of buffers of `OUTPUT_BYTES`, freed when the device is closed. Thread-safe.

    Args:
        context: of the GPU that writes to them.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._free: list[MappedBlock] = []
        self._all: list[MappedBlock] = []

    def prepare(self) -> None:
        """Have a buffer ready for `take`; call without the device's lock."""
        if not self._free:
            self._free.append(self._made())

    def take(self) -> MappedBlock:
        """Take a buffer that reads as zero."""
        try:
            return self._free.pop()
        except IndexError:
            return self._made()

    def give(self, buffer: MappedBlock) -> None:
        """Return a buffer to the pool; no kernel uses it any more."""
        if not _is_unused(buffer):
            buffer.view[:] = 0
        self._free.append(buffer)

    def close(self) -> None:
        """Free all buffers."""
        while self._all:
            self._all.pop().free()

    def _made(self) -> MappedBlock:
        made = MappedBlock(self._context, OUTPUT_BYTES)
        self._all.append(made)
        return made


def _is_unused(buffer: MappedBlock) -> bool:
    """Return whether the buffer has no entry and has dropped none."""
    return not buffer.words[: BUFFER_HEAD_BYTES // 4 + 1].any()


def read(buffer: MappedBlock) -> tuple[bytes, bytes]:
    """Read a buffer twice, for `printed_text`; empty if nothing was printed."""
    if _is_unused(buffer):
        return b"", b""
    before = bytes(buffer.view)
    return bytes(buffer.view), before


def printed_text(buffer: bytes, before: bytes) -> bytes:
    """Return the text of all calls in a buffer; arguments as `read` returns them."""
    printed = PrintfOutput()
    for call in calls(buffer, before):
        printed.add(format_printf(call.format, _RecordedArguments(call)))
        if not printed.accepting:
            break
    if has_dropped(buffer):
        printed.truncate()
    return printed.text


class _RecordedArguments:
    """Arguments of a call that a kernel recorded: `gpud.device.printf.PrintfArguments`."""

    def __init__(self, call: PrintCall) -> None:
        self._call = call

    def value(self, offset: int, size: int) -> bytes | None:
        """Return ``size`` bytes of the arguments."""
        value = self._call.values[offset : offset + size]
        return value if len(value) == size else None

    def text(self, offset: int, address: int, most: int | None) -> bytes | None:
        """Return the string that the kernel read at ``address``."""
        text = self._call.texts.get(offset)
        return text if most is None or text is None else text[:most]
