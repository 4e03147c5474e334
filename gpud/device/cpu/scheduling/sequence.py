"""A sequence of launches, prepared for the SM loop; it can run any number of times.

Properties:
* a sequence may run several times at once: each run has its own records;
* a run begins with nothing claimed and nothing done, whatever happened in earlier runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpud.device.cpu.occupancy import DeviceLimits
from gpud.device.cpu.scheduling.layout import CPURunRecords, layout_of
from gpud.device.interface import LaunchInfo, LaunchSpec
from gpud.device.launch_checks import checked_parameters

__all__ = ["CPUSequence"]


class CPUSequence:
    """A `gpud.device.interface.LaunchSequence` of the CPU device.

    Attributes:
        layout: all of it but the parameters.

    Raises:
        LaunchConfigError, KernelRejected: see `gpud.device.cpu.scheduling.layout.layout_of`.
        ValueError: see there; or a parameter buffer's size is not the kernel's.
    """

    __slots__ = ("_fresh", "layout")

    def __init__(
        self, limits: DeviceLimits, specs: Sequence[LaunchSpec], occupancy: int | None = None
    ) -> None:
        layout = layout_of(limits, specs, occupancy)
        self.layout = layout
        self._fresh = layout.fresh(
            [
                checked_parameters(spec, size)
                for spec, size in zip(specs, layout.params_bytes, strict=True)
            ]
        )

    def with_parameters(self, parameters: bytes) -> CPUSequence:
        """Return the sequence of the same launch, the only one, with a buffer of the same size."""
        other = CPUSequence.__new__(CPUSequence)
        other.layout = layout = self.layout
        other._fresh = layout.fresh((parameters,))
        return other

    @property
    def launches(self) -> tuple[LaunchInfo, ...]:
        """A description of each launch for messages."""
        return self.layout.launches

    @property
    def occupancy(self) -> int:
        """M of the sequence."""
        return self.layout.occupancy

    @property
    def total(self) -> int:
        """Task blocks in all."""
        return self.layout.total

    def acquire_records(self) -> CPURunRecords:
        """Return records for a run, in their initial state."""
        try:
            records = self.layout.free.pop()
        except IndexError:
            records = CPURunRecords(len(self._fresh))
        records.reset(self._fresh)
        return records

    def release_records(self, records: CPURunRecords) -> None:
        """Take back the records of a run that is over: no persistent block uses them."""
        self.layout.free.append(records)
