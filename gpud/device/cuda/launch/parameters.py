"""The parameters of a sequence's launches, in the form that the driver takes them.

The user's values do not change, but in lanes; the hidden parameter and the structure in front of it
(`gpud.device.cuda.program.by_value`) have the addresses of a launch's records. `Parameters` has one
place for each launch, which is set in front of the call that launches it; `BoundParameters` are
several at once, for launches that are queued together (`gpud.device.cuda.launch.batch`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpud.device.cuda.launch.launch_records import Slot
from gpud.device.cuda.program.by_value import (
    VALUE_BYTES,
    encode_addresses,
    job_values,
    write_addresses,
)
from gpud.device.interface import REWRITTEN, LaunchSpec

__all__ = ["BoundParameters", "Parameters"]


class Parameters:
    """The parameter buffers of all launches and pointers to each parameter, the hidden one last.

    In front of that one is the structure of `gpud.device.cuda.program.by_value`, if there is one.
    """

    def __init__(self, specs: Sequence[LaunchSpec]) -> None:
        starts, buffers, at = [], [], 0
        for spec in specs:
            room = (len(spec.parameters) + 15) & ~15
            starts.append(at)
            buffers.append(spec.parameters.ljust(room, b"\0"))
            at += room
        self._own = bytearray(b"".join(buffers) or b"\0")
        self._starts = starts
        self._values = np.frombuffer(self._own, np.uint8)
        self._controls = np.zeros(len(specs), np.uint64)
        self._structures = bytearray(len(specs) * VALUE_BYTES)
        self._by_value = np.frombuffer(self._structures, np.uint8).reshape(-1, VALUE_BYTES)
        self._pointers: list[npt.NDArray[np.uint64]] = []
        self._has_structure: list[bool] = []
        for index, spec in enumerate(specs):
            first = self._values.ctypes.data + starts[index]
            known = spec.kernel.parameters
            own = known[:-1] if spec.form in REWRITTEN else known
            pointers = [first + parameter.offset for parameter in own]
            self._has_structure.append(spec.form in REWRITTEN and spec.kernel.by_value)
            if self._has_structure[-1]:
                pointers.append(self._by_value[index].ctypes.data)
            pointers.append(self._controls.ctypes.data + 8 * index)
            self._pointers.append(np.array(pointers, np.uint64))

    def pointers(self, number: int) -> int:
        """Return the address of a launch's array of pointers."""
        return int(self._pointers[number].ctypes.data)

    def set_own(self, number: int, values: bytes) -> None:
        """Set the user's values of a launch, as many bytes as before; nothing of it is queued."""
        start = self._starts[number]
        self._own[start : start + len(values)] = values

    def set_addresses(self, number: int, slot: Slot, job: int, base: int) -> None:
        """Set what differs from one time to the next that the launch is begun."""
        self._controls[number] = slot.address
        encoded = encode_addresses(job, slot.status, base)
        write_addresses(self._structures, number * VALUE_BYTES, encoded)

    def set_job(self, number: int, record: bytes) -> None:
        """Set what the job record says for good."""
        values = job_values(record)
        self._by_value[number, -len(values) :] = np.frombuffer(values, np.uint8)

    def bound(
        self, numbers: Sequence[int], slots: Sequence[Slot], jobs: Sequence[int]
    ) -> BoundParameters:
        """Return the parameters of some launches as they are now, with these records."""
        pointers = [self._pointers[number] for number in numbers]
        made = BoundParameters(pointers, self._by_value[list(numbers)])
        for index, (number, slot) in enumerate(zip(numbers, slots, strict=True)):
            encoded = encode_addresses(jobs[index], slot.status, 0)
            made.bind(index, slot.address, encoded if self._has_structure[number] else None)
        return made


class BoundParameters:
    """The parameters of some launches in memory of their own, so that all can be queued at once.

    The user's values are those of the sequence, which is kept as long.

    Args:
        pointers: to the parameters of each launch in the sequence.
        structures: of `gpud.device.cuda.program.by_value`; copied.

    Attributes:
        addresses: of the array of pointers of each launch.
    """

    def __init__(
        self, pointers: Sequence[npt.NDArray[np.uint64]], structures: npt.NDArray[np.uint8]
    ) -> None:
        self._pointers = [one.copy() for one in pointers]
        self._structures = bytearray(structures.tobytes())
        self._by_value = np.frombuffer(self._structures, np.uint8).reshape(-1, VALUE_BYTES)
        self._controls = np.zeros(len(pointers), np.uint64)
        self.addresses = [int(one.ctypes.data) for one in self._pointers]

    def bind(self, index: int, control: int, encoded: bytes | None) -> None:
        """Set the records of a launch.

        Args:
            index: of the launch.
            control: address of its launch record.
            encoded: of `encode_addresses`; None: the kernel has no structure.
        """
        pointers = self._pointers[index]
        self._controls[index] = control
        pointers[-1] = self._controls.ctypes.data + 8 * index
        if encoded is not None:
            pointers[-2] = self._by_value[index].ctypes.data
            write_addresses(self._structures, index * VALUE_BYTES, encoded)
