"""The CUDA device: what `gpud.device.interface.Device` asks for, on an NVIDIA GPU.

Problem: run chains of launches whose number of blocks changes while they run, without ever waiting
for the device to come to rest: a persistent kernel may run for hours.

Approach: `gpud.device.cuda.execution.gang` runs chains, one lock guards all of them, and a watcher
sees what ends. Everything that the driver does only when the device is idle (giving memory back,
unloading)
is put off: blocks are kept in pools, and programs that nobody has any more are unloaded when
nothing is on the device.

Properties:
* after `CUDADevice.close` nothing of it is left in the driver;
* callbacks are called without the lock, in the order of what they tell.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from gpud.device.cuda.driver.calls import Driver, DriverError, open_driver
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.serial_executor import SerialExecutor
from gpud.device.cuda.execution.gang import Gang
from gpud.device.cuda.execution.watcher import Watcher
from gpud.device.cuda.launch.active_launches import ActiveLaunches
from gpud.device.cuda.launch.chain import Chain
from gpud.device.cuda.launch.gate import GATE, PTX
from gpud.device.cuda.launch.output import OutputBuffers
from gpud.device.cuda.launch.release_path import RELEASE_PATHS
from gpud.device.cuda.memory.arena import Arena
from gpud.device.cuda.memory.arenas import Arenas
from gpud.device.cuda.memory.pool import DeviceBlock, DeviceMemory, MappedBlock, Pool
from gpud.device.cuda.memory.quiescer import Quiescer
from gpud.device.cuda.placement.partitioner import GreenContext, Partitioner
from gpud.device.cuda.program.module import CUDAKernel, CUDAModule
from gpud.device.cuda.program.occupancy import check_shape, checked_block, measured
from gpud.device.interface import Arrays, LaunchSpec
from gpud.errors import DeviceLost, InvalidArgument

__all__ = ["CUDADevice"]

_LEAST_CAPABILITY = 75


class CUDADevice:
    """One GPU.

    Args:
        index: which, as the driver counts.
        release: how running blocks are told to leave, see `gpud.device.cuda.launch.release_path`.
        by_sm: whether those leave that empty whole SMs, rather than those with the highest indices,
            for comparison; see `gpud.device.cuda.placement.release_order`.
        driver: stands in for the machine's, in tests.
        watch: whether a thread watches launches, and others stand by calls that may wait; tests may
            do both themselves.

    Attributes:
        context, launches, watcher, quiescer, partitioner, arenas, host_blocks, device_blocks,
            output_buffers, control_stream, control_event: what runs share; the event is over when
            all is that was put on the stream.
        partitions: which numbers of SMs can be one job's alone.
        lock: guards all runs.

    Raises:
        MissingDependency: the driver or its bindings are not there.
        InvalidArgument: there is no such GPU, or it is too old.
    """

    kind = "cuda"
    arrays: Arrays = "copied"

    def __init__(
        self,
        index: int = 0,
        *,
        release: str = "mapped",
        by_sm: bool = True,
        driver: Driver | None = None,
        watch: bool = True,
    ) -> None:
        if release not in RELEASE_PATHS:
            known = ", ".join(RELEASE_PATHS)
            raise InvalidArgument(f"there is no release path {release!r}; there are {known}")
        self.driver = open_driver() if driver is None else driver
        self.lock = threading.RLock()
        self._told: deque[Callable[[], None]] = deque()
        self._closed = False
        self._programs: dict[int, Any] = {}
        self._retired: deque[int] = deque()
        self._memory: list[MappedBlock] = []
        self._close = ExitStack()
        with ExitStack() as undo:
            self.context = context = Context(self.driver, index)
            undo.callback(context.close)
            self._describe()
            self.host_blocks = Pool(context, MappedBlock)
            undo.callback(self.host_blocks.close)
            self.device_blocks = Pool(context, DeviceBlock)
            undo.callback(self.device_blocks.close)
            self.output_buffers = OutputBuffers(context)
            undo.callback(self.output_buffers.close)
            undo.callback(self._free_memory)
            self.partitioner = Partitioner(context, self.device_blocks, self.lock)
            undo.callback(self.partitioner.close)
            self.partitions = self.partitioner.partitions
            flags = int(self.driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self.control_stream = self.driver.call(
                "cuStreamCreateWithPriority", flags, context.greatest_priority
            )
            undo.callback(self.driver.call, "cuStreamDestroy", self.control_stream)
            timing = int(self.driver.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            self.control_event = self.driver.call("cuEventCreate", timing)
            undo.callback(self.driver.call, "cuEventDestroy", self.control_event)
            gate = CUDAModule(context, PTX)
            undo.callback(gate.close)
            paths = RELEASE_PATHS[release](context, self.host_blocks)
            undo.callback(paths.close)
            self.watcher = watcher = Watcher(self.lock, self.run_deferred)
            self.quiescer = Quiescer(self.lock, watcher, self.wake)
            self.arenas = Arenas(context, self.quiescer, lambda: not watcher.busy, threaded=watch)
            undo.callback(self.arenas.close)
            together = self.sms if context.attribute("COOPERATIVE_LAUNCH") else 0
            opens = gate.kernel(GATE)
            opens.share_sms()
            self.launches = ActiveLaunches(
                context, paths, self.watcher.semaphore, opens.handle, together, by_sm=by_sm
            )
            undo.callback(self.launches.close)
            self.launches.prepare()
            undo.callback(self._unload_all)
            self._making = SerialExecutor("make contexts", threaded=watch)
            undo.callback(self._making.close)
            self._close = undo.pop_all()
        if watch:
            context.watchdog.arm(self.launches.halt, self.watcher.wake)
            self.watcher.start()

    def _describe(self) -> None:
        context = self.context
        self.name = context.name
        self.sms = context.attribute("MULTIPROCESSOR_COUNT")
        self.capability = 10 * context.attribute("COMPUTE_CAPABILITY_MAJOR") + context.attribute(
            "COMPUTE_CAPABILITY_MINOR"
        )
        self.memory_bytes = context.memory_bytes
        self._shared_limit = context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if self.capability < _LEAST_CAPABILITY:
            raise InvalidArgument(
                f"{self.name} has compute capability {self.capability / 10}; gpud needs "
                f"{_LEAST_CAPABILITY / 10} or more"
            )

    @property
    def uuid(self) -> str:
        """The GPU's own name, as NVML takes it."""
        return self.context.uuid

    # -- the interface

    def allocate(self, size: int) -> MappedBlock:
        """Zeroed memory that both sides see; it is the host's, so the GPU has it over the bus.

        It is given back when the device is closed.

        Raises:
            OutOfMemory: no more can be page-locked.
        """
        block = MappedBlock(self.context, size)
        self._memory.append(block)
        return block

    def device_memory(self, size: int) -> DeviceMemory:
        """Zeroed memory of the GPU's own, for whoever measures.

        Raises:
            OutOfMemory: the GPU has none left.
        """
        return DeviceMemory(self.context, size)

    def map_arena(self, descriptor: int, size: int, base: int = 0) -> Arena:
        """Reserve a session's range of addresses. See `Arena`."""
        return self.arenas.open(descriptor, size, base)

    def load(
        self, text: str, arena: tuple[int, int] | None = None, *, host_poll: bool | None = None
    ) -> CUDAModule:
        """Load a PTX program; see `CUDAModule`. ``host_poll`` None: as the release path has it."""
        with self.lock:  # so that nothing begins meanwhile
            if not self.watcher.busy:
                self._unload_retired()
        if host_poll is None:
            host_poll = self.launches.release.host_poll
        module = CUDAModule(self.context, text, arena, self.device_blocks, host_poll=host_poll)
        handle = module.release()
        self._programs[int(handle)] = handle
        # What forgets it may be on any thread, with any lock: it is unloaded at another time.
        weakref.finalize(module, self._retired.append, int(handle)).atexit = False
        self.arenas.attach(module)
        return module

    def occupancy(self, kernel: CUDAKernel, block: Sequence[int], shared: int = 0) -> int:
        """M for a block shape and ``shared`` bytes of dynamic shared memory, from the driver.

        Raises:
            LaunchConfigError: not even one block fits an SM.
        """
        shape = checked_block(block)
        found = kernel.occupancies.get((shape, shared))
        if found is None:
            check_shape(kernel, shape, shared, self._shared_limit)
            self._make_room(kernel)
            found = measured(kernel, shape, shared, self._shared_limit)
            kernel.occupancies[shape, shared] = found
        return found

    def prepare(self, launches: Sequence[LaunchSpec], occupancy: int | None = None) -> Chain:
        """Make a chain of launches ready; it may be run any number of times. See `Chain`."""
        return Chain(self, launches, occupancy)

    def gang(
        self,
        chain: Chain,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> Gang:
        """A run of a chain, which begins with its first `Gang.resize`. See `Gang`.

        Raises:
            InvalidArgument: so many SMs cannot be its own.
        """
        if not exclusive:
            return Gang(self, chain, priority, on_left, on_over)
        with self.lock:
            self.check_open()
            partition = self.partitioner.take(exclusive)
            gang = Gang(self, chain, priority, on_left, on_over, partition)
            self.watcher.update_placement()
        self.wake()
        self._making.put(lambda: self._make(gang, partition))
        return gang

    def close(self) -> None:
        """End what runs, wait for it, and give everything back.

        Runs that are not over never will be. A kernel that does not end is waited for, too: a
        device host ends its process instead.
        """
        if not self._closed:
            self._closed = True
            self.watcher.close()
            self.watcher.end_all()
            self.context.enter().call("cuCtxSynchronize")
            self._close.close()

    def __enter__(self) -> CUDADevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for runs

    def check_open(self) -> None:
        """Returns if the device is not closed; raises RuntimeError if it is."""
        if self._closed:
            raise RuntimeError("the device is closed")

    def give_partition(self, partition: GreenContext) -> None:
        """A run is over whose SMs were its own. With the lock."""
        self.partitioner.give(partition)
        self.watcher.update_placement()
        if self.partitioner.lacks_rest:
            self.defer(lambda: self._making.put(self._make))

    def defer(self, call: Callable[[], None]) -> None:
        """Have ``call`` called without the lock, by whoever gives it back next. With the lock."""
        self._told.append(call)

    def run_deferred(self) -> None:
        """Call what was put off. Without the lock."""
        while self._told:
            try:
                call = self._told.popleft()
            except IndexError:  # another thread has it
                return
            call()

    def wake(self) -> None:
        """Something was changed: tell, and have the watcher look soon. Without the lock."""
        self.run_deferred()
        self.watcher.wake()

    def read(self, address: int, size: int) -> bytes:
        """Bytes of device memory; none if they cannot be read."""
        found = np.empty(size, np.uint8)
        try:
            self.context.copy_out(found.ctypes.data, address, size)
        except DriverError:
            return b""
        return found.tobytes()

    # -- helpers

    def _make(self, gang: Gang | None = None, partition: GreenContext | None = None) -> None:
        """Make the place of a run, and what is left for others, and let them begin there."""
        try:
            self.partitioner.make(partition)
        except DriverError as error:
            if gang is not None:  # else others keep the place that they have
                why = f"the driver makes no green context of them: {error}"
                gang.refused = InvalidArgument(f"no SMs can be this job's alone: {why}")
        except DeviceLost as error:
            with self.lock:
                if gang is not None:
                    gang.lose(error)
            self.run_deferred()
            raise
        with self.lock:
            if gang is not None:
                gang.follow()
            self.watcher.update_placement()
        self.wake()

    def _make_room(self, kernel: CUDAKernel) -> None:
        """Have room for its local memory, if nothing would have to wait for it."""
        local_bytes = kernel.attribute("local_bytes")
        with self.lock, suppress(DriverError):  # if it cannot be, a launch says so
            if not self.watcher.busy:
                self.context.make_room(local_bytes)

    def _free_memory(self) -> None:
        while self._memory:
            self._memory.pop().free()

    def _unload_retired(self) -> None:
        while self._retired:
            handle = self._programs.pop(self._retired.popleft())
            self.context.enter().call("cuModuleUnload", handle)

    def _unload_all(self) -> None:
        while self._programs:
            _, handle = self._programs.popitem()
            self.context.enter().call("cuModuleUnload", handle)
