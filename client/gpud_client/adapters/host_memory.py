"""Memory of the machine that holds what is not on the GPU.

Approach: the GPU's copy engines need page-locked memory. It is locked in chunks when it is needed
first, which takes longer than a copy, and kept for the next time.

Nothing here has run on a GPU yet; tests run it over the model of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpud.device.cuda.driver.calls import DriverError
from gpud.errors import InvalidArgument
from gpud_client.adapters.mapped import ProcessGpu

__all__ = ["HostMemory"]

_CHUNK_BYTES: Final = 64 << 20


class HostMemory:
    """Page-locked memory, and what was copied to it last.

    Args:
        gpu: copies.
    """

    def __init__(self, gpu: ProcessGpu) -> None:
        self._gpu = gpu
        self._chunks: list[tuple[int, int]] = []  # address, bytes
        self._stream: Any = None
        self._spans: Sequence[tuple[int, int]] = ()

    def store(self, spans: Sequence[tuple[int, int]]) -> int:
        """Copy memory of the GPU, spans of (address, bytes), to the machine's; returns the bytes.

        Raises:
            InvalidArgument: the machine has no memory left that can be page-locked.
        """
        self._lock(sum(size for _, size in spans))
        self._spans = spans
        return self._copy("cuMemcpyDtoHAsync", to_host=True)

    def load(self) -> int:
        """Copy what was stored last to the same addresses; returns the bytes."""
        return self._copy("cuMemcpyHtoDAsync", to_host=False)

    def close(self) -> None:
        """Give the memory up."""
        with self._gpu.entered() as driver:
            while self._chunks:
                driver.call("cuMemFreeHost", self._chunks.pop()[0])
            stream, self._stream = self._stream, None
            if stream is not None:
                driver.call("cuStreamDestroy", stream)

    def _copy(self, function: str, *, to_host: bool) -> int:
        copied = 0
        with self._gpu.entered() as driver:
            if self._stream is None:
                # It does not wait for the program's own streams, nor they for it.
                kind = int(driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
                self._stream = driver.call("cuStreamCreateWithPriority", kind, 0)
            try:
                for here, there, size in self._pieces():
                    to, source = (here, there) if to_host else (there, here)
                    driver.call(function, to, source, size, self._stream)
                    copied += size
            finally:
                driver.call("cuStreamSynchronize", self._stream)
        return copied

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of the spans that lie in one chunk: address here, on the GPU, bytes."""
        chunks = iter(self._chunks)
        here, room = 0, 0
        for start, size in self._spans:
            at, end = start, start + size
            while at < end:
                if not room:
                    here, room = next(chunks)
                count = min(room, end - at)
                yield here, at, count
                here, room, at = here + count, room - count, at + count

    def _lock(self, size: int) -> None:
        """Have at least ``size`` bytes."""
        missing = size - sum(count for _, count in self._chunks)
        with self._gpu.entered() as driver:
            flags = int(driver.api.CU_MEMHOSTALLOC_DEVICEMAP)
            while missing > 0:
                count = min(missing, _CHUNK_BYTES)
                try:
                    address = int(driver.call("cuMemHostAlloc", count, flags))
                except DriverError as error:
                    raise InvalidArgument(
                        f"{missing} more bytes of the machine's memory cannot be page-locked "
                        f"({error.status}): have more of it free, or lower moved_memory, the "
                        "setting of the daemon"
                    ) from error
                self._chunks.append((address, count))
                missing -= count
