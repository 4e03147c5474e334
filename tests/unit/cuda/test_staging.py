"""Copies between memory files and the GPU: how many are under way at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpud.device.cuda.memory import staging
from gpud.device.cuda.memory.pool import DeviceBlock
from gpud.device.cuda.memory.staging import FilePart, MappedPart, Staging
from gpud.errors import InternalError
from tests.driver_model import SteppedDriver
from tests.unit.cuda.model_runs import device_of

SIZE = 10 << 16
Copy = Callable[[Staging, int, int], None]


class Counting(SteppedDriver):
    """Counts the copies that are on a stream when another is added."""

    most = 0

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name.startswith("cuMemcpy") and name.endswith("Async"):
            waiting = len(self.streams.of(arguments[-1]).queue)
            self.most = max(self.most, -(-waiting // 2))  # each has an event behind it


@pytest.mark.parametrize(
    "copy",
    [
        lambda one, file, address: one.upload(FilePart(file, 0), address, SIZE),
        lambda one, file, address: one.download(address, FilePart(file, 0), SIZE),
        lambda one, file, address: one.upload(MappedPart(file, 0, SIZE), address, SIZE),
        lambda one, file, address: one.download(address, MappedPart(file, 0, SIZE), SIZE),
        lambda one, _, address: one.zero(address, SIZE),
    ],
    ids=["upload", "download", "mapped upload", "mapped download", "zero"],
)
def test_no_more_than_two_parts_are_under_way(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_HALF_BYTES", 1 << 16)
    fake = Counting()
    with device_of(fake) as device, tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        context, after = device.context, np.empty(SIZE, np.uint8)
        memory, one = DeviceBlock(context, SIZE), Staging(context)
        context.fill(memory.address, 7, SIZE)
        fake.most = 0
        copy(one, file.fileno(), memory.address)
        assert fake.most < 2, "one, when the second is added"
        context.copy_out(after.ctypes.data, memory.address, SIZE)
        assert set(after) == {7 if _keeps(copy) else 0}
        one.close()
        memory.free()


def _keeps(copy: Copy) -> bool:
    return "download" in copy.__code__.co_names


def test_a_part_that_cannot_be_mapped_is_said() -> None:
    with (
        tempfile.TemporaryFile() as file,
        pytest.raises(InternalError, match="memory file cannot be mapped"),
    ):
        MappedPart(file.fileno(), 5, 4096)
