"""What launches of a lane are run as: sequences that are prepared once and given other parameters.

Problem: a lane's launches differ in their parameters, and seldom in anything else; to prepare a
sequence for each would take longer than many kernels run.

Approach: launches that wait in a lane are run as *groups*, sequences of up to `WINDOW`. A sequence
is kept by its launch sites and grids, and the parameters of each launch are written into it in
front of the run. So it has armed records and batches as any sequence that runs again.

Properties:
* a sequence is in one run at a time: its lane runs one group after the other;
* kernels that print are in groups of their own, so that each launch's output is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from gpud.device.cuda.lanes.ring_reader import RingRecord
from gpud.device.cuda.launch.sequence import WINDOW, CUDASequence
from gpud.device.interface import LaunchSpec
from gpud.device.launch_checks import own_parameters

__all__ = ["LaunchGroups"]

_MOST_KEPT: Final = 64
"""Sequences of a lane."""

Key = tuple[tuple[int, tuple[int, int, int]], ...]


class LaunchGroups:
    """The launch sites of a lane, and the sequences of their launches.

    Args:
        prepare: `gpud.device.cuda.device.CUDADevice.prepare`, with the lane's occupancy.

    Attributes:
        sizes: bytes of the parameters of each site's kernel.
    """

    def __init__(self, prepare: Callable[[Sequence[LaunchSpec]], CUDASequence]) -> None:
        self._prepare = prepare
        self._specs: list[LaunchSpec] = []
        self._joins: list[bool] = []
        self.sizes: list[int] = []
        self._kept: OrderedDict[Key, CUDASequence] = OrderedDict()

    def put(self, number: int, spec: LaunchSpec) -> None:
        """Have a launch site under a number: the next one, or that of another, unused one."""
        own = own_parameters(spec.kernel, spec.form)
        size = own[-1].offset + own[-1].size if own else 0
        self._specs[number : number + 1] = [spec]
        self._joins[number : number + 1] = [spec.form == "persistent" and not spec.kernel.prints]
        self.sizes[number : number + 1] = [size]
        for key in [key for key in self._kept if any(site == number for site, _ in key)]:
            del self._kept[key]

    def site(self, number: int) -> LaunchSpec:
        """Return a launch site, with a grid and parameters of no account."""
        return self._specs[number]

    def count(self, records: Sequence[RingRecord]) -> int:
        """Return how many of these launches, from the first on, are run together."""
        count = 0
        for record in records[:WINDOW]:
            if not self._joins[record.site]:
                break
            count += 1
        # Powers of two: whatever has come by chance, there are few different groups.
        return 1 << max(0, count.bit_length() - 1) if count else 1

    def sequence(self, records: Sequence[RingRecord]) -> CUDASequence:
        """Return a sequence of these launches, with their parameters.

        Raises:
            GpudError: as for any launch.
        """
        key = tuple([(record.site, record.grid) for record in records])
        sequence = self._kept.get(key)
        if sequence is not None:
            self._kept.move_to_end(key)
            for index, record in enumerate(records):
                sequence.parameter_table.set_own(index, record.parameters)
            return sequence
        specs = [
            self._specs[record.site]._replace(grid=record.grid, parameters=record.parameters)
            for record in records
        ]
        sequence = self._prepare(specs)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.popitem(last=False)
        self._kept[key] = sequence
        return sequence
