"""Partitions: whole SMs for one job exclusively, by the driver's green contexts.

Problem: a stream's priority decides whose blocks get room that comes free, not where; and the
hardware places blocks on any SM. To give a job whole SMs, the driver must keep other jobs' blocks
off them.

Approach: a *green context* is the primary context with a subset of its SMs: a kernel that is
launched on a stream of one runs on these SMs only. The device is split once into *units*, the
smallest sets of SMs that the driver makes a context of. A *place* is a green context of some units,
with the numbers of its SMs. A partition is the place of the units that were taken for it; the
*rest* is the place of all other units, where all other jobs' launches go as long as there is a
partition. Blocks that other jobs have on a partition's SMs when it begins are released by
`gpud.device.cuda.execution.launcher`, which bars these SMs to them.

Runs follow their launches by events of the primary context. Whether these may be recorded on
streams of green contexts is tried once, with the probe.

The driver does not say which SMs a context has. A probe kernel finds out when the device is opened,
while nothing runs: units are numbered from 1, context j has the units whose number has bit j, and
in each context blocks that fill its SMs record their SM. The contexts in which an SM was seen are
the bits of its unit's number.

Making a context is slow, and may wait. So units are reserved at once, and the context is made on
another thread without the device's lock (`Partitioner.make`), with some streams. Until then nothing
is launched there, and other jobs' launches go anywhere, with the partition's SMs barred. Places are
kept, and units are taken from the lowest on, so that places are reused.

Facts, from the CUDA Driver API 13.0, "Green Contexts", and its edition 12.4; none was tried here:
* streams of green contexts need CUDA 12.5, contexts 12.4;
* the smallest set and its alignment are in ``CUdevResource.sm`` from CUDA 13 on; before, 2 SMs by
  2 on compute capability 7.x, 4 by 2 on 8.x, 8 by 8 on 9.0 and later;
* resources of one split may be combined in one context, and the set that remains is one, too;
* a context retains the primary context and is destroyed after its streams; memory, modules and
  events are the primary context's;
* calls for one green context must not be made by several threads at once: calls for a finished
  place are made with the device's lock held; until then only the thread that makes it uses it;
* contexts of disjoint SMs need not run at the same time, if they share other resources such as
  hardware queues; and on 9.x a module that launches kernels itself, which gpud refuses, lets all
  green contexts use 2 more SMs.

Properties:
* no unit is in two partitions;
* the SMs of a place were all seen, and no others; where that cannot be, there are no partitions,
  and `Partitioner.partitions` says why;
* the driver is not called while a partition is taken or given up;
* launches of others go to the rest only when that is made, and to an older one only if that has
  none of a partition's SMs.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import Pool
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.device.cuda.program.module import CUDAModule
from gpud.errors import DeviceLost, GpudError, InvalidArgument
from gpud.units import Partitions

__all__ = ["PROBE", "PTX", "Partitioner"]

PROBE: Final = "gpud_probe"
_THREADS: Final = 1024
_LEAST_CUDA: Final = 12050
_SEEN_AT: Final = 64
_BLOCK_BYTES: Final = _SEEN_AT + 4 * (cw.MOST_SMS + 1)
_MOST_POLLS: Final = 1 << 20

PTX: Final = f"""
.version 6.4
.target sm_75
.address_size 64

.visible .entry {PROBE}(.param .u64 words, .param .u32 blocks)
.maxntid {_THREADS}, 1, 1
{{
    .reg .b64 %words, %at;
    .reg .b32 %blocks, %sm, %here, %left, %thread;
    .reg .pred %yes;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %yes, %thread, 0;
    @%yes bra $wait;
    ld.param.u64 %words, [words];
    ld.param.u32 %blocks, [blocks];
    mov.u32 %sm, %smid;
    min.u32 %sm, %sm, {cw.MOST_SMS};
    mul.wide.u32 %at, %sm, 4;
    add.u64 %at, %words, %at;
    st.volatile.global.u32 [%at+{_SEEN_AT}], 1;
    red.global.add.u32 [%words], 1;
    mov.u32 %left, {_MOST_POLLS};
$again:
    ld.volatile.global.u32 %here, [%words];
    setp.ge.u32 %yes, %here, %blocks;
    @%yes bra $wait;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %yes, %left, 0;
    @%yes bra $again;
$wait:
    bar.sync 0;
    ret;
}}
"""
"""A block records its SM and stays until all blocks have begun, or for a while.

``words``: how many have begun; from `_SEEN_AT` on a word for each SM, and one for larger numbers.
"""


class Partitioner:
    """The device's partitions. Under the device's lock, but for `make`.

    Args:
        context: of the device, on which nothing runs yet.
        blocks: pool for the probe's memory.

    Attributes:
        numbers: of all SMs that are in partitions now.
        rest: where all other jobs' launches go; None: anywhere, or no SM is left for them.
    """

    def __init__(self, context: Context, blocks: Pool, lock: threading.RLock) -> None:
        self._context = context
        self._blocks = blocks
        self._lock = lock
        self._resources: list[Any] = []  # one per unit, and last the remainder
        self._numbers: list[frozenset[int]] = []  # SMs of each; not known of the remainder
        self._places: dict[frozenset[int], GreenContext] = {}
        self._taken: dict[GreenContext, frozenset[int]] = {}
        self.numbers: frozenset[int] = frozenset()
        self.rest: GreenContext | None = None
        self._wanted: GreenContext | None = None  # becomes the rest when it is made
        try:
            why = self._split() or self._identify_sms()
        except DeviceLost:
            raise
        except (DriverError, GpudError) as error:
            why = f"the driver makes no green contexts here: {error}"
        self.partitions = Partitions(why=why)
        if not why:
            step = len(self._numbers[0])
            self.partitions = Partitions(step, step * self._units)

    def take(self, sms: int) -> GreenContext:
        """Reserve a partition of ``sms`` SMs, until `give`; `make` then makes its context.

        Raises:
            InvalidArgument: there are no partitions of this size, or none is left.
        """
        step, most, why = self.partitions
        if not step:
            raise InvalidArgument(f"no SMs of this device can be one job's alone: {why}")
        if sms < 1 or sms % step:
            raise InvalidArgument(
                f"SMs can be one job's alone in multiples of {step} here, up to {most}, not {sms}"
            )
        taken = frozenset[int]().union(*self._taken.values())
        free = [unit for unit in range(self._units) if unit not in taken]
        if len(free) < sms // step:
            raise InvalidArgument(
                f"{sms} SMs cannot be one job's alone: of {most} that can be, "
                f"{step * len(free)} are no other job's"
            )
        place = self._place(frozenset(free[: sms // step]))
        self._taken[place] = place.units
        self.numbers |= place.numbers
        self.rest = None  # the previous one has SMs of the partition
        self._request_rest()
        return place

    def give(self, place: GreenContext) -> None:
        """Free a partition."""
        if self._taken.pop(place, None) is None:
            return
        self.numbers -= place.numbers
        if self._taken:
            self._request_rest()  # until that is made the smaller previous one is used
        else:
            self.rest = self._wanted = None

    def make(self, place: GreenContext | None = None) -> None:
        """Make the contexts of a partition, and of the wanted rest, where they are not made yet.

        Without the lock, and on one thread at a time. May take the driver some milliseconds.

        Raises:
            DriverError: the driver does not make a context, or its streams.
        """
        if place is not None:
            self._make(place)
        with self._lock:
            rest = self._wanted
        if rest is not None:
            self._make(rest)
            with self._lock:
                if rest is self._wanted:
                    self.rest = rest

    @property
    def lacks_rest(self) -> bool:
        """Whether the wanted rest has yet to be made."""
        return self.rest is not self._wanted

    def close(self) -> None:
        """Destroy all contexts; all their streams are destroyed."""
        while self._places:
            _, place = self._places.popitem()
            place.close()

    # -- helpers

    @property
    def _units(self) -> int:
        return len(self._resources) - 1

    def _make(self, place: GreenContext) -> None:
        if not place.made:
            place.make(self._green(place.units))
            with self._lock:
                place.made = True

    def _request_rest(self) -> None:
        """Want all SMs without a partition as the rest, as soon as that is made."""
        taken = frozenset[int]().union(*self._taken.values())
        left = frozenset(range(len(self._resources))) - taken
        self._wanted = self._place(left) if self._sms(left) else None
        if self._wanted is None or self._wanted.made:
            self.rest = self._wanted

    def _sms(self, units: frozenset[int]) -> int:
        return sum(int(self._resources[unit].sm.smCount) for unit in units)

    def _place(self, units: frozenset[int]) -> GreenContext:
        place = self._places.get(units)
        if place is None:
            numbers = frozenset[int]().union(*(self._numbers[unit] for unit in units))
            place = self._places[units] = GreenContext(
                self._context, units, numbers, self._sms(units)
            )
        return place

    def _green(self, units: frozenset[int]) -> Any:
        """Make a green context of these units."""
        driver = self._context.enter()
        resources = [
            self._resources[unit] for unit in sorted(units) if self._resources[unit].sm.smCount
        ]
        described = driver.call("cuDevResourceGenerateDesc", resources, len(resources))
        flags = int(driver.api.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        with self._context.watchdog.blocking_call("cuGreenCtxCreate"):
            return driver.call("cuGreenCtxCreate", described, self._context.device, flags)

    def _split(self) -> str:
        """Split the device into units; why that is impossible, empty if it is not."""
        driver = self._context.driver
        version = int(driver.call("cuDriverGetVersion"))
        if version < _LEAST_CUDA or not hasattr(driver.api, "cuGreenCtxStreamCreate"):
            own = f"{version // 1000}.{version % 1000 // 10}"
            return f"that needs a driver and bindings for CUDA 12.5, and the driver is for {own}"
        kind = driver.api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = driver.call("cuDeviceGetDevResource", self._context.device, kind)
        step, in_all = self._least(whole), int(whole.sm.smCount)
        if in_all > cw.MOST_SMS:
            return f"it has {in_all} SMs, and {cw.MOST_SMS} can be named"
        wanted = in_all // step
        if wanted < 1:
            return f"it has {in_all} SMs, and the driver separates no fewer than {step}"
        groups, made, rest = driver.call("cuDevSmResourceSplitByCount", wanted, whole, 0, step)
        self._resources = [*groups[: int(made)], rest]
        sizes = {int(one.sm.smCount) for one in groups[: int(made)]}
        if len(sizes) != 1:
            return f"the driver splits its SMs into sets of different sizes: {sorted(sizes)}"
        return ""

    def _least(self, whole: Any) -> int:
        """Return how many SMs the smallest set has that the driver can separate."""
        least = int(getattr(whole.sm, "minSmPartitionSize", 0))
        aligned = int(getattr(whole.sm, "smCoscheduledAlignment", 0))
        if least:
            return -(-least // max(1, aligned)) * max(1, aligned)
        major = self._context.attribute("COMPUTE_CAPABILITY_MAJOR")
        return {7: 2, 8: 4}.get(major, 8)

    def _identify_sms(self) -> str:
        """Find the numbers of each unit's SMs; why that is impossible, empty if it is not."""
        with ExitStack() as stack:
            probe = CUDAModule(self._context, PTX)
            stack.callback(probe.close)
            kernel = probe.kernel(PROBE).handle
            page = self._blocks.take(_BLOCK_BYTES)
            stack.callback(self._blocks.give, page)
            units = np.zeros(cw.MOST_SMS, np.int64)
            for bit in range(self._units.bit_length()):
                chosen = frozenset(u for u in range(self._units) if (u + 1) >> bit & 1)
                seen = self._probe(kernel, page.address, chosen)
                if isinstance(seen, str):
                    return seen
                units[seen] |= 1 << bit
        self._numbers = [
            frozenset(np.flatnonzero(units == unit + 1).tolist()) for unit in range(self._units)
        ]
        sizes = [int(one.sm.smCount) for one in self._resources]
        if [len(numbers) for numbers in self._numbers] != sizes[:-1]:
            return "which SMs its green contexts have cannot be determined: an SM is in several"
        self._numbers.append(frozenset())  # the remainder is never barred
        return ""

    def _probe(self, kernel: Any, words: int, units: frozenset[int]) -> Any:
        """Run the probe on these units; the numbers of their SMs, or why they are unknown."""
        context = self._context
        driver = context.enter()
        wanted = self._sms(units)
        blocks = wanted * (context.attribute("MAX_THREADS_PER_MULTIPROCESSOR") // _THREADS)
        context.fill(words, 0, _BLOCK_BYTES)
        values = np.array([words, blocks], np.uint64)
        pointers = values.ctypes.data + 8 * np.arange(2, dtype=np.uint64)
        with ExitStack() as stack:
            handle = self._green(units)
            stack.callback(driver.call, "cuGreenCtxDestroy", handle)
            flags = int(driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
            stream = driver.call("cuGreenCtxStreamCreate", handle, flags, context.greatest_priority)
            stack.callback(driver.call, "cuStreamDestroy", stream)
            stack.callback(driver.call, "cuStreamSynchronize", stream)
            shape = (blocks, 1, 1, _THREADS, 1, 1, 0)
            driver.call("cuLaunchKernel", kernel, *shape, stream, int(pointers.ctypes.data), 0)
            timing = int(driver.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            event = driver.call("cuEventCreate", timing)
            stack.callback(driver.call, "cuEventDestroy", event)
            driver.call("cuEventRecord", event, stream)
            driver.call("cuStreamSynchronize", stream)
            if not driver.is_over(event):
                return "events of the primary context do not follow streams of green contexts"
        counts = np.zeros(cw.MOST_SMS + 1, np.uint32)
        context.copy_out(counts.ctypes.data, words + _SEEN_AT, counts.nbytes)
        seen = np.flatnonzero(counts)
        if len(seen) != wanted or seen[-1] >= cw.MOST_SMS:
            return (
                "which SMs its green contexts have cannot be determined: "
                f"of {wanted} the probe saw {len(seen)}"
            )
        return seen
