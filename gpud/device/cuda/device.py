"""The CUDA device: implements `gpud.device.interface.Device` on an NVIDIA GPU.

Problem: run sequences of launches whose number of blocks changes while they run, without ever
waiting for the device to become idle: a persistent kernel may run for hours.

Approach: a `gpud.device.cuda.execution.run.CUDARun` runs a sequence, one lock guards all runs,
and a watcher thread detects what has finished. Work that the driver does only when the device is
idle (freeing memory, unloading modules) is deferred: blocks of memory stay in pools, and modules
without users are unloaded when nothing runs on the device.

Properties:
* after `CUDADevice.close` the driver holds nothing of the device any more;
* callbacks are called without the lock, in the order of the events that they report.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from gpud.compiler.dump_folder import DumpFolder
from gpud.device.cuda.driver.calls import Driver, DriverError, open_driver
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.serial_executor import SerialExecutor
from gpud.device.cuda.execution.run import CUDARun
from gpud.device.cuda.execution.run_context import RunContext
from gpud.device.cuda.execution.watcher import Watcher
from gpud.device.cuda.lanes.lane import CUDALane
from gpud.device.cuda.lanes.lane_parts import LaneParts
from gpud.device.cuda.lanes.launch_groups import LaunchGroups
from gpud.device.cuda.launch.active_launches import ActiveLaunches
from gpud.device.cuda.launch.armed_records import RecordPool
from gpud.device.cuda.launch.batch import batch_maker
from gpud.device.cuda.launch.gate import GATE, PTX
from gpud.device.cuda.launch.launch_records import LaunchRecords
from gpud.device.cuda.launch.output import OutputBuffers
from gpud.device.cuda.launch.resources import LaunchResources
from gpud.device.cuda.launch.sequence import CUDASequence, Preparation
from gpud.device.cuda.memory.arena import CUDAArena
from gpud.device.cuda.memory.arenas import CUDAArenas
from gpud.device.cuda.memory.pool import DeviceBlock, MappedBlock, Pool
from gpud.device.cuda.memory.quiescer import Quiescer
from gpud.device.cuda.memory.temporary_zone import TemporaryZone
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.device.cuda.placement.partitioner import Partitioner
from gpud.device.cuda.program.module import CUDAKernel, CUDAModule
from gpud.device.cuda.program.occupancy import check_shape, measured
from gpud.device.interface import Arrays, LaunchSpec
from gpud.device.lane_reports import LaneObserver
from gpud.device.launch_checks import checked_block
from gpud.errors import DeviceLost, InvalidArgument

__all__ = ["CUDADevice"]

_LEAST_CAPABILITY = 75

_CLOSING_S = 60.0
"""How long the last task blocks may take when the device is closed."""


class CUDADevice:
    """One GPU.

    Args:
        index: the GPU's number in the driver's order.
        by_sm: True: a shrinking launch releases the blocks that empty whole SMs; False: those with
            the highest indices, for comparison. See `gpud.device.cuda.placement.release_order`.
        graphs: True: launches of a sequence that runs again are queued as CUDA graphs where they
            can be; False: by native calls, for comparison. See `gpud.device.cuda.launch.batch`.
        dump: writes the programs as they are loaded; None: nobody wants to see them.
        driver: replaces the machine's driver in tests.
        watch: whether to start the watcher thread and the watchdog; tests may poll by hand instead.

    Attributes:
        context, launches, watcher, quiescer, partitioner, arenas, host_blocks, device_blocks,
            output_buffers, control_stream, control_event: shared by all runs, see
            `gpud.device.cuda.execution.run_context.RunContext`.
        batches: how launches were queued is in its ``counts``; None: one by one.
        partitions: how many SMs a job may reserve exclusively.
        lock: guards all runs.

    Raises:
        MissingDependency: the driver or its bindings are not installed.
        InvalidArgument: there is no such GPU, or it is too old.
    """

    kind = "cuda"
    arrays: Arrays = "copied"

    def __init__(
        self,
        index: int = 0,
        *,
        graphs: bool = True,
        by_sm: bool = True,
        dump: DumpFolder | None = None,
        driver: Driver | None = None,
        watch: bool = True,
    ) -> None:
        self.driver = open_driver() if driver is None else driver
        self.lock = threading.RLock()
        self._closed = False
        self._watched = watch
        self._dump = dump
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
            self.watcher = watcher = Watcher(self.lock)
            self.quiescer = Quiescer(self.lock, watcher)
            self.arenas = CUDAArenas(
                context, self.quiescer, lambda: not watcher.busy, threaded=watch
            )
            undo.callback(self.arenas.close)
            cooperative = self.sms if context.attribute("COOPERATIVE_LAUNCH") else 0
            gate_kernel = gate.kernel(GATE)
            gate_kernel.share_sms()
            self.launches = ActiveLaunches(
                context, LaunchRecords(self.host_blocks), self.watcher.semaphore,
                gate_kernel.handle, cooperative, by_sm=by_sm,
            )  # fmt: skip
            undo.callback(self.launches.streams.close)
            self.launches.streams.prepare()
            undo.callback(self._unload_all)
            self.batches = batch_maker(context, self.launches, undo, with_graphs=graphs)
            self._preparation = Preparation(
                self.sms, self.host_blocks, self.output_buffers, self.occupancy
            )
            resources = LaunchResources(
                context, self.sms, self.launches, self.host_blocks, self.device_blocks,
                self.output_buffers, self.control_stream, self.control_event,
                RecordPool(context, self.launches, self.host_blocks, self.device_blocks,
                           self.control_event, self.batches),
            )  # fmt: skip
            self._run_context = RunContext(
                self.lock, resources, watcher, self.quiescer, self.partitioner, self.arenas,
                self._check_open, self._give_partition,
            )  # fmt: skip
            self._context_maker = SerialExecutor("make contexts", threaded=watch)
            undo.callback(self._context_maker.close)
            self._close = undo.pop_all()
        if watch:
            context.watchdog.arm(self.launches.halt, self.watcher.wake, lambda: not watcher.busy)
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
        """The GPU's UUID, as NVML takes it."""
        return self.context.uuid

    # -- the interface

    def allocate(self, size: int) -> MappedBlock:
        """Return zeroed page-locked host memory, which the GPU accesses over the bus.

        It is freed when the device is closed.

        Raises:
            OutOfMemory: no more can be page-locked.
        """
        block = MappedBlock(self.context, size)
        self._memory.append(block)
        return block

    def map_arena(self, descriptor: int, size: int, base: int = 0) -> CUDAArena:
        """Reserve a session's range of addresses. See `CUDAArena`."""
        return self.arenas.open(descriptor, size, base)

    @property
    def zone(self) -> TemporaryZone:
        """The memory that programs map in their turns."""
        return self.arenas.zone

    def load(
        self,
        text: str,
        arena: tuple[int, int] | None = None,
        *,
        variables: tuple[int, int] | None = None,
    ) -> CUDAModule:
        """Load a PTX program whose kernels may access ``arena``; see `CUDAModule`."""
        with self.lock:  # so that no run begins meanwhile
            if not self.watcher.busy:
                self._unload_retired()
        module = CUDAModule(
            self.context, text, arena, self.device_blocks, dump=self._dump, placed=variables
        )
        handle = module.release()
        self._programs[int(handle)] = handle
        # The finalizer may run on any thread, with any lock: the module is unloaded later.
        weakref.finalize(module, self._retired.append, int(handle)).atexit = False
        self.arenas.attach(module)
        return module

    def occupancy(self, kernel: CUDAKernel, block: Sequence[int], shared: int = 0) -> int:
        """Return M for a block shape and ``shared`` bytes of dynamic shared memory.

        Raises:
            LaunchConfigError: not even one block fits an SM.
        """
        shape = checked_block(block)
        occupancy = kernel.occupancies.get((shape, shared))
        if occupancy is None:
            check_shape(kernel, shape, shared, self._shared_limit)
            self._make_room(kernel)
            occupancy = measured(kernel, shape, shared, self._shared_limit)
            kernel.occupancies[shape, shared] = occupancy
        return occupancy

    def prepare(self, launches: Sequence[LaunchSpec], occupancy: int | None = None) -> CUDASequence:
        """Prepare a sequence of launches; it can be run any number of times. See `CUDASequence`."""
        return CUDASequence(self._preparation, launches, occupancy)

    def new_run(
        self,
        sequence: CUDASequence,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> CUDARun:
        """Create a run of a sequence, which begins with its first `CUDARun.resize`. See `CUDARun`.

        Raises:
            InvalidArgument: the device has no partition of ``exclusive`` SMs.
        """
        if not exclusive:
            return CUDARun(self._run_context, sequence, priority, on_left, on_over)
        with self.lock:
            self._check_open()
            partition = self.partitioner.take(exclusive)
            run = CUDARun(self._run_context, sequence, priority, on_left, on_over, partition)
            self.watcher.update_placement()
        self.watcher.notify()
        self._context_maker.put(lambda: self._make_partition(run, partition))
        return run

    def open_lane(
        self,
        descriptor: int,
        occupancy: int,
        priority: int,
        observer: LaneObserver,
        exclusive: int = 0,
    ) -> CUDALane:
        """Open a lane whose ring is in a file, without slices; see `CUDALane`.

        Raises:
            InvalidArgument: the device has no partition of ``exclusive`` SMs.
        """
        partition = None
        if exclusive:
            with self.lock:
                self._check_open()
                partition = self.partitioner.take(exclusive)
        parts = LaneParts(
            self._run_context, self._preparation, self.sms, occupancy, priority, partition
        )
        lane = CUDALane(
            parts, LaunchGroups(parts.prepare), descriptor, occupancy, observer,
            attended=self._watched,
        )  # fmt: skip
        if partition is not None:
            with self.lock:
                self.watcher.update_placement()
            self.watcher.notify()
            self._context_maker.put(lambda: self._make_partition(lane, partition))
        return lane

    def close(self) -> None:
        """End all runs, wait for them, and free everything.

        Unfinished runs do not call ``on_over``.

        Raises:
            DeviceLost: a kernel does not end. Nothing was freed, as that would wait for it.
        """
        if not self._closed:
            self._closed = True
            self.watcher.close()
            self.watcher.end_all()
            waiting = SerialExecutor("wait for streams")
            waiting.put(self._synchronize)
            if not waiting.wait(0, _CLOSING_S):
                raise DeviceLost(
                    f"{self.name} still runs a kernel {_CLOSING_S:g} s after it was told to end; "
                    "end the process"
                )
            waiting.close()
            self._close.close()

    def __enter__(self) -> CUDADevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- helpers

    def _synchronize(self) -> None:
        """Wait for all streams."""
        driver = self.context.enter()
        self.launches.streams.synchronize()
        driver.call("cuStreamSynchronize", self.control_stream)

    def _check_open(self) -> None:
        """Raise RuntimeError if the device is closed."""
        if self._closed:
            raise RuntimeError("the device is closed")

    def _give_partition(self, partition: GreenContext) -> None:
        """Return the partition of a finished run. Call with the lock."""
        self.partitioner.give(partition)
        self.watcher.update_placement()
        if self.partitioner.lacks_rest:
            self.watcher.defer(lambda: self._context_maker.put(self._make_partition))

    def _make_partition(
        self, run: CUDARun | CUDALane | None = None, partition: GreenContext | None = None
    ) -> None:
        """Make the partition of a run or lane, and the rest; then let all launch there."""
        try:
            self.partitioner.make(partition)
        except DriverError as error:
            if run is not None:  # otherwise the others stay where they are
                why = f"the driver makes no green context of them: {error}"
                run.refused = InvalidArgument(f"no SMs can be this job's alone: {why}")
        except DeviceLost as error:
            with self.lock:
                if run is not None:
                    run.lose(error)
            self.watcher.run_deferred()
            raise
        with self.lock:
            if run is not None:
                run.reconsider()
            self.watcher.update_placement()
        self.watcher.notify()

    def _make_room(self, kernel: CUDAKernel) -> None:
        """Reserve local memory for a kernel, if the device is idle: else that would wait."""
        local_bytes = kernel.attribute("local_bytes")
        with self.lock, suppress(DriverError):  # the launch reports the failure
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
