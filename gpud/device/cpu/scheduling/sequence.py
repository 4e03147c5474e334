"""A sequence of launches, prepared for the SM loop; it can run any number of times.

Problem: a service submits the same hundred launches again and again, and preparing them costs a
hundred times as much as running an empty kernel. Approach: what does not change from run to run
(headers, parameters) is laid out once; what does change is one piece of memory, which is reset by
copying.

Properties:
* a sequence may run several times at once: each run has its own records;
* a run begins with nothing claimed and nothing done, whatever happened in earlier runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import kernel_of
from gpud.device.cpu.abi.layout import HEADER, HIDDEN_ALIGNMENT, TEMPLATE_BYTES, WARP, align_up
from gpud.device.cpu.abi.records import (
    NONE,
    RUN,
    RUN_BYTES,
    STAGE,
    STAGE_BYTES,
    ClaimMode,
    stages_at,
)
from gpud.device.interface import RESIZABLE, REWRITTEN, LaunchSpec, as_dim3
from gpud.device.readable import EVERYTHING
from gpud.errors import LaunchConfigError, LimitExceeded

if TYPE_CHECKING:
    from gpud.device.cpu.device import CPUDevice
    from gpud.device.cpu.program.module import CPUKernel

__all__ = ["CPUSequence", "LaunchInfo", "RunRecords"]

Dim3 = tuple[int, int, int]

_SHARED_SLACK_BYTES = 256
"""Padding behind shared memory, for vector accesses that reach beyond its end."""

_MAX_LOCAL_BYTES = 512 << 10
"""Most local memory of a thread; CUDA C++ Programming Guide 13.0, "Compute Capabilities"."""


class LaunchInfo(NamedTuple):
    """A description of a launch for messages: the kernel's name, the form and the user's grid."""

    name: str
    form: str
    grid: Dim3


class _Plan(NamedTuple):
    """What all launches of a kernel with one block shape and shared memory size share.

    Attributes:
        template: the beginning of the block's header.
        locals_at, shared_at, params_at: offsets of local memory, shared memory and parameters from
            the block's address.
        params_bytes: size of the parameters, without the hidden one.
        control_at: offset of the hidden parameter, `NONE` without one.
        occupancy: M.
    """

    template: bytes
    locals_at: int
    shared_at: int
    params_at: int
    params_bytes: int
    control_at: int
    occupancy: int


class RunRecords:
    """The records of one run of a sequence.

    Attributes:
        address: address of the `RUN` record.
        words: 32-bit words from that address on.
    """

    __slots__ = ("_memory", "_view", "address", "words")

    def __init__(self, size: int) -> None:
        self._memory = np.zeros(size + 64, np.uint8)
        skip = -self._memory.ctypes.data % 64
        self.address: int = self._memory.ctypes.data + skip
        self._view = self._memory.data[skip : skip + size]
        self.words = self._view.cast("I")

    def reset(self, fresh: bytes) -> None:
        """Reset to the state before a run."""
        self._view[:] = fresh


class CPUSequence:
    """A `gpud.device.interface.LaunchSequence` of the CPU device; each launch is one stage.

    Attributes:
        launches: a description of each stage for messages.
        totals: task blocks of each stage.
        blocks_before: for each stage, the task blocks of all stages before it.
        total: task blocks in all.
        largest: for each stage, the largest number of task blocks of it or a later stage.
        occupancy: M of the sequence.
        max_occupancy: the largest M of a launch.
        fixed: blocks that no resize takes away: the most that a launch in form whole needs.
        fixed_stages: whether each stage cannot be resized once it runs.
        block_bytes: memory of a block that is enough for the blocks of all stages.
        stages_at: bytes from a run's record to its first stage's.
        blocks: threads of a block of each stage, in x, y, z.
        owner: the arena that its modules were loaded with, None without one. Compared by identity:
            another session may later have an arena at the same addresses.
    """

    def __init__(
        self, device: CPUDevice, specs: Sequence[LaunchSpec], occupancy: int | None = None
    ) -> None:
        if not specs:
            raise ValueError("a job has one launch or more")
        self.device = device
        grids = [as_dim3("grid", spec.grid) for spec in specs]
        plans = [_checked(device, spec, grid) for spec, grid in zip(specs, grids, strict=True)]
        self.launches = tuple(
            LaunchInfo(kernel_of(spec.kernel.name), spec.form, grid)
            for spec, grid in zip(specs, grids, strict=True)
        )
        self._kernels: list[CPUKernel] = [spec.kernel for spec in specs]  # keeps their code alive
        self._plans = plans
        self.block_shapes = [as_dim3("block", spec.block) for spec in specs]
        self.owner = self._kernels[0].module.arena
        measured = [
            spec.occupancy or plan.occupancy for spec, plan in zip(specs, plans, strict=True)
        ]
        self.occupancy = min(measured) if occupancy is None else occupancy
        if not 1 <= self.occupancy <= min(measured):
            raise ValueError(
                f"M of a job is between 1 and the least of its launches', {min(measured)}, not "
                f"{self.occupancy}"
            )
        self.max_occupancy = max(measured)
        self.totals = [x * y * z for x, y, z in grids]
        self.blocks_before = [0, *accumulate(self.totals)]
        self.total = self.blocks_before.pop()
        self.largest = list(accumulate(reversed(self.totals), max))[::-1]
        self.fixed_stages = [spec.form not in RESIZABLE for spec in specs]
        self.fixed = max(
            (n for n, fixed in zip(self.totals, self.fixed_stages, strict=True) if fixed), default=0
        )
        self.stages_at = stages_at(device.sms)
        stages = self._stages(specs, grids, plans, measured)
        params = stages["params_bytes"]
        self.block_bytes = int((stages["params_at"] + params).max())
        self._fresh = self._record() + stages.tobytes()
        self._free: list[RunRecords] = []

    def reach(self, stage: int, block: int) -> tuple[tuple[int, int], ...]:
        """(address, size) of the memory that the block at ``block`` may read through pointers."""
        module, plan = self._kernels[stage].module, self._plans[stage]
        own = plan.params_at + plan.params_bytes - plan.locals_at
        return (
            (module.data.address, module.data.memory.size),
            EVERYTHING if module.checked_arena is None else module.checked_arena,
            (block + plan.locals_at, own),
            *(() if module.heap is None else (module.heap.range,)),
        )

    def acquire_records(self) -> RunRecords:
        """Records for a run, in their initial state."""
        try:
            run = self._free.pop()
        except IndexError:
            run = RunRecords(len(self._fresh))
        run.reset(self._fresh)
        return run

    def release_records(self, run: RunRecords) -> None:
        """Return the records of a run that is over: no block uses them."""
        self._free.append(run)

    def _record(self) -> bytes:
        record = np.zeros(self.stages_at // 4, np.uint32)
        for name, value in {
            "stages": len(self.totals),
            "occupancy": self.occupancy,
            "max_occupancy": self.max_occupancy,
            "fixed": self.fixed,
            "stages_at": self.stages_at,
        }.items():
            record[RUN[name][0] // 4] = value
        assert record.nbytes >= RUN_BYTES
        return record.tobytes()

    def _stages(
        self,
        specs: Sequence[LaunchSpec],
        grids: list[Dim3],
        plans: list[_Plan],
        measured: list[int],
    ) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """The `STAGE` records; the memory that they point to is kept in attributes."""
        count = len(specs)
        stages = np.zeros(count, _STAGE)
        stages["job"] = np.frombuffer(
            b"".join(
                _job_record(grid, spec.claims or cw.ONE_AT_A_TIME)
                for grid, spec in zip(grids, specs, strict=True)
            ),
            f"V{cw.JOB_BYTES}",
        )
        self._templates = np.frombuffer(
            bytearray(b"".join(plan.template for plan in plans)), _TEMPLATE
        )
        modes = [
            ClaimMode.KERNEL if spec.form == "persistent" else ClaimMode.LOOP for spec in specs
        ]
        # The grid that kernels read: the user's only where launches cannot be resized.
        raw = np.array(
            [
                grid if fixed else (total, 1, 1)
                for grid, fixed, total in zip(grids, self.fixed_stages, self.totals, strict=True)
            ],
            np.uint32,
        ).reshape(count, 3)
        for axis, name in enumerate(("nctaid_x", "nctaid_y", "nctaid_z")):
            self._templates[name] = raw[:, axis]
        stages["template"] = self._templates.ctypes.data + TEMPLATE_BYTES * np.arange(count)
        sizes, starts, packed = _pack([spec.parameters for spec in specs])
        hidden = [plan.control_at for plan in plans]
        # The hidden parameter is written into the block's own copy.
        sizes = np.maximum(sizes, [0 if at == NONE else at + 8 for at in hidden])
        self._params = np.frombuffer(bytearray(packed), np.uint8)
        stages["params"] = self._params.ctypes.data + starts
        stages["params_bytes"] = sizes
        stages["control_at"] = hidden
        stages["mode"] = modes
        stages["fixed"] = self.fixed_stages
        stages["occupancy"] = measured
        stages["width"], stages["height"] = raw[:, 0], raw[:, 1]
        for name in ("locals_at", "shared_at", "params_at"):
            stages[name] = [getattr(plan, name) for plan in plans]
        return stages


def _dtype(fields: dict[str, tuple[int, str]], size: int) -> np.dtype[np.void]:
    kinds = {"i32": "<u4", "i64": "<u8", "ptr": "<u8"}
    return np.dtype(
        {
            "names": list(fields),
            "offsets": [at for at, _ in fields.values()],
            "formats": [kinds.get(type_, type_) for _, type_ in fields.values()],
            "itemsize": size,
        }
    )


_STAGE = _dtype({"job": (0, f"V{cw.JOB_BYTES}"), **STAGE}, STAGE_BYTES)
_TEMPLATE = _dtype(
    {name: field for name, field in HEADER.items() if field[0] < TEMPLATE_BYTES}, TEMPLATE_BYTES
)
_job_record = lru_cache(maxsize=4096)(cw.job_record)


def _checked(device: CPUDevice, spec: LaunchSpec, grid: Dim3) -> _Plan:
    """Check a launch and return its plan.

    Raises:
        LaunchConfigError: the device does not allow this grid, block or shared memory.
        KernelRejected: the kernel uses something that the CPU device does not support.
        ValueError: the parameters' size is not the kernel's, or the kernel has no hidden one.
    """
    x, y, z = grid
    if x * y * z > cw.MAX_TASK_BLOCKS:
        raise LaunchConfigError(
            "grid",
            grid,
            f"{x * y * z} task blocks are over {cw.MAX_TASK_BLOCKS}; split the work into launches",
            limit=cw.MAX_TASK_BLOCKS,
        )
    kernel: CPUKernel = spec.kernel
    rewritten = spec.form in REWRITTEN
    if spec.form not in RESIZABLE:
        device.check_grid(grid)
    key = (as_dim3("block", spec.block), spec.shared, rewritten)
    plan: _Plan | None = kernel.plans.get(key)
    if plan is None:
        plan = kernel.plans[key] = _plan(device, kernel, *key)
    if len(spec.parameters) != plan.params_bytes:
        raise ValueError(
            f"{kernel.name} takes {plan.params_bytes} bytes of parameters, not "
            f"{len(spec.parameters)}"
        )
    return plan


def _plan(device: CPUDevice, kernel: CPUKernel, block: Dim3, shared: int, rewritten: bool) -> _Plan:
    parameters, control_at = kernel.parameters, NONE
    if rewritten:
        if not parameters or parameters[-1].size != 8:
            raise ValueError(f"{kernel.name} is no rewritten kernel: it has no hidden parameter")
        control_at = parameters[-1].offset
        parameters = parameters[:-1]
    occupancy = device.occupancy(kernel, block, shared)
    compiled = kernel.compiled(block)
    generated = compiled.generated
    _check_local(kernel.name, generated.local_bytes // compiled.shape.threads)
    locals_at = generated.block_bytes
    shared_at = align_up(locals_at + generated.local_bytes, 256)
    # Exact to the byte, so that an access just behind the last variable is caught.
    in_all = generated.dynamic_shared_at + shared if shared else generated.shared_bytes
    hidden = align_up(in_all, HIDDEN_ALIGNMENT) + generated.hidden_shared_bytes
    header = np.zeros(1, _TEMPLATE)
    for name, value in {
        "data": compiled.data.address,
        "shared_size": in_all,
        "nsmid": device.sms,
        "dynamic_shared": shared,
        "threads": compiled.shape.threads,
        "padded": align_up(compiled.shape.threads, WARP),
        "start": 0 if generated.starts_in_lockstep else 0xFFFFFFFF,
        **compiled.code.addresses,
    }.items():
        header[name] = value
    return _Plan(
        header.tobytes(),
        locals_at,
        shared_at,
        align_up(shared_at + hidden + _SHARED_SLACK_BYTES, 64),
        parameters[-1].offset + parameters[-1].size if parameters else 0,
        control_at,
        occupancy,
    )


def _check_local(kernel: str, bytes_of_a_thread: int) -> None:
    if bytes_of_a_thread > _MAX_LOCAL_BYTES:
        raise LimitExceeded(
            f"{kernel} needs {bytes_of_a_thread} bytes of local memory for each thread, and "
            f"{_MAX_LOCAL_BYTES} are the most; use an array in global memory",
            limit="local memory",
            value=_MAX_LOCAL_BYTES,
        )


def _pack(
    buffers: list[bytes],
) -> tuple[
    np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]], bytes
]:
    """(sizes, offsets, bytes) of concatenated buffers, each with room for a hidden parameter."""
    sizes = np.array([len(buffer) for buffer in buffers], np.int64)
    rooms = (sizes + 16 + 7) & ~np.int64(7)
    starts = np.concatenate(([0], np.cumsum(rooms)[:-1]))
    packed = b"".join(
        buffer.ljust(int(room), b"\0") for buffer, room in zip(buffers, rooms, strict=True)
    )
    return sizes, starts, packed
