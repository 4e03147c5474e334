"""The records of a run, laid out once for all sequences that differ only in their parameters.

Problem: preparing a launch costs many times as much as running an empty kernel, and a service's
launches mostly differ from the ones before in nothing but a pointer or a number.

Approach: a layout holds everything but the parameters' values: the checks that were made, the
headers of the blocks, and the bytes with which the records of a run begin. Nothing in these bytes
depends on where a run's records lie, so a run begins by copying them. A module keeps the layouts of
its own launches, up to a limit.

Properties:
* a layout is not changed once it is made, except for its free records;
* records are reused only after their run is over, by a run of the same layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import kernel_of
from gpud.device.cpu.abi.layout import HEADER, HIDDEN_ALIGNMENT, TEMPLATE_BYTES, WARP, align_up
from gpud.device.cpu.abi.records import (
    LAUNCH,
    LAUNCH_BYTES,
    NONE,
    RUN,
    RUN_BYTES,
    ClaimMode,
    launches_at,
)
from gpud.device.cpu.occupancy import DeviceLimits
from gpud.device.cpu.program.module import CPUKernel
from gpud.device.cpu.sm.stillness import WATCHED_BYTES
from gpud.device.interface import RESIZABLE, REWRITTEN, LaunchInfo, LaunchSpec, PlacedParameter
from gpud.device.launch_checks import checked_block, checked_grid, checked_occupancy, own_parameters
from gpud.errors import LimitExceeded

__all__ = ["CPURunRecords", "SequenceLayout", "layout_of"]

Dim3 = tuple[int, int, int]

_SHARED_SLACK_BYTES = 256
"""Padding behind shared memory, for vector accesses that reach beyond its end."""

_MAX_LOCAL_BYTES = 512 << 10
"""Most local memory of a thread; CUDA C++ Programming Guide 13.0, "Compute Capabilities"."""

_MOST_KEPT = 4096
"""Launches in the layouts that a module keeps; the next layout replaces all of them."""


class _Plan(NamedTuple):
    """What all launches of a kernel with one block shape and shared memory size share.

    Attributes:
        locals_at, shared_at, params_at: offsets of local memory, shared memory and parameters from
            the block's address.
        params_bytes: size of the parameters, without the hidden one.
        control_at: offset of the hidden parameter, `NONE` without one.
        occupancy: M.
        reads_clock: whether the kernel reads a clock.
    """

    template: bytes
    locals_at: int
    shared_at: int
    params_at: int
    params_bytes: int
    control_at: int
    occupancy: int
    reads_clock: bool


class CPURunRecords:
    """The records of one run of a sequence.

    Attributes:
        address: address of the `RUN` record.
        words: 32-bit words from that address on.
    """

    __slots__ = ("_memory", "_view", "address", "words")

    def __init__(self, size: int) -> None:
        self._memory = np.zeros(size + 64, np.uint8)
        first = self._memory.ctypes.data
        skip = -first % 64
        self.address: int = first + skip
        self._view = self._memory.data[skip : skip + size]
        self.words = self._view.cast("I")

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Return bytes of the records."""
        return bytes(self._view[offset : offset + size])

    def reset(self, fresh: bytes) -> None:
        """Reset to the state before a run."""
        self._view[:] = fresh


class SequenceLayout:
    """What all sequences of the same launches share, whatever their parameters are.

    Attributes:
        launches: a description of each launch for messages.
        totals: task blocks of each launch.
        blocks_before: for each launch, the task blocks of all launches before it.
        total: task blocks in all.
        largest: for each launch, the largest number of task blocks of it or a later one.
        occupancy: M of the sequence.
        fixed: persistent blocks that no resize takes away: the most that a launch in form whole
            needs.
        fixed_launches: whether each launch cannot be resized once it runs.
        block_bytes: memory of a persistent block that is enough for all launches.
        launches_at: bytes from a run's record to its first launch's.
        block_shapes: threads of a block of each launch, in x, y, z.
        owner: the arena that its modules were loaded with, None without one. Compared by identity:
            another session may later have an arena at the same addresses.
        checked: whether a kernel was compiled for the checking mode.
        params_bytes: size of each launch's parameters, without the hidden one.
        image: the bytes of a run's records up to the parameters.
        free: records that no run uses.
    """

    def __init__(
        self, limits: DeviceLimits, specs: Sequence[LaunchSpec], occupancy: int | None
    ) -> None:
        grids = [checked_grid(spec) for spec in specs]
        shapes = [checked_block(spec.block, limits.sm.threads_per_block) for spec in specs]
        plans = [_plan(limits, spec, shape) for spec, shape in zip(specs, shapes, strict=True)]
        self.launches = tuple(
            LaunchInfo(kernel_of(spec.kernel.name), spec.form, grid)
            for spec, grid in zip(specs, grids, strict=True)
        )
        self._kernels: list[CPUKernel] = [spec.kernel for spec in specs]  # keeps their code alive
        self._plans = plans
        self.block_shapes = shapes
        measured = [
            spec.occupancy or plan.occupancy for spec, plan in zip(specs, plans, strict=True)
        ]
        self.occupancy = checked_occupancy(measured, occupancy)
        self.max_occupancy = max(measured)
        self.owner = self._kernels[0].module.arena
        self.checked = any(kernel.module.announces for kernel in self._kernels)
        self.totals = [x * y * z for x, y, z in grids]
        self.blocks_before = [0, *accumulate(self.totals)]
        self.total = self.blocks_before.pop()
        self.largest = list(accumulate(reversed(self.totals), max))[::-1]
        self.fixed_launches = [spec.form not in RESIZABLE for spec in specs]
        self.fixed = max(
            (n for n, fixed in zip(self.totals, self.fixed_launches, strict=True) if fixed),
            default=0,
        )
        self.launches_at = launches_at(limits.sms)
        self.params_bytes = [plan.params_bytes for plan in plans]
        # Each with room for the hidden parameter, which is written into the block's own copy.
        self._params_rooms = [size + 23 & ~7 for size in self.params_bytes]
        launches = self._launch_records(specs, grids, measured)
        needed = int((launches["params_at"] + launches["params_bytes"]).max())
        # Rounded to few sizes, so that jobs can share blocks: at most a fifth is wasted.
        self.block_bytes = align_up(needed, 1 << max(10, needed.bit_length() - 3))
        self.image = self._run_record() + launches.tobytes()
        self.free: list[CPURunRecords] = []

    def fresh(self, parameters: Sequence[bytes]) -> bytes:
        """Return the records with which a run with these parameter buffers begins."""
        rooms = self._params_rooms
        if len(rooms) == 1:
            return self.image + parameters[0].ljust(rooms[0], b"\0")
        packed = [one.ljust(room, b"\0") for one, room in zip(parameters, rooms, strict=True)]
        return self.image + b"".join(packed)

    def kernel_of(self, launch: int) -> CPUKernel:
        """Return a launch's kernel."""
        return self._kernels[launch]

    def parameters(self, launch: int) -> tuple[PlacedParameter, ...]:
        """Return the parameters of a launch's kernel."""
        return self._kernels[launch].parameters

    def parameter_buffer(self, records: CPURunRecords, launch: int) -> bytes:
        """Return the parameters that a run was given for a launch."""
        first = sum(self._params_rooms[:launch])
        return records.bytes_at(len(self.image) + first, self.params_bytes[launch])

    def reach(self, launch: int, block: int) -> tuple[tuple[int, int], ...]:
        """Return (address, size) of what the block at ``block`` may read through its pointers."""
        plan = self._plans[launch]
        own = plan.params_at + plan.params_bytes - plan.locals_at
        return (*self._kernels[launch].module.readable, (block + plan.locals_at, own))

    def _run_record(self) -> bytes:
        record = np.zeros(self.launches_at // 4, np.uint32)
        for name, value in {
            "launches": len(self.totals),
            "occupancy": self.occupancy,
            "max_occupancy": self.max_occupancy,
            "fixed": self.fixed,
            "launches_at": self.launches_at,
            "watched_bytes": self.block_bytes if self.is_watched() else 0,
        }.items():
            record[RUN[name][0] // 4] = value
        assert record.nbytes >= RUN_BYTES
        return record.tobytes()

    def is_watched(self) -> bool:
        """Return whether blocks that spin can be told from others by their memory."""
        clocks = any(plan.reads_clock for plan in self._plans)
        return self.block_bytes <= WATCHED_BYTES and not clocks

    def _launch_records(
        self, specs: Sequence[LaunchSpec], grids: list[Dim3], measured: list[int]
    ) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Return the `LAUNCH` records; the templates that they point to are kept."""
        count, plans = len(specs), self._plans
        launches = np.zeros(count, _LAUNCH)
        launches["job"] = np.frombuffer(
            b"".join(
                _job_record(grid, spec.claims or cw.ONE_AT_A_TIME)
                for grid, spec in zip(grids, specs, strict=True)
            ),
            f"V{cw.JOB_BYTES}",
        )
        self._templates = np.frombuffer(
            bytearray(b"".join(plan.template for plan in plans)), _TEMPLATE
        )
        # The grid that kernels read: the user's only where launches cannot be resized.
        raw = np.array(
            [
                grid if fixed else (total, 1, 1)
                for grid, fixed, total in zip(grids, self.fixed_launches, self.totals, strict=True)
            ],
            np.uint32,
        ).reshape(count, 3)
        for axis, name in enumerate(("nctaid_x", "nctaid_y", "nctaid_z")):
            self._templates[name] = raw[:, axis]
        launches["template"] = self._templates.ctypes.data + TEMPLATE_BYTES * np.arange(count)
        first = self.launches_at + LAUNCH_BYTES * count
        launches["params"] = [*accumulate(self._params_rooms[:-1], initial=first)]
        launches["params_bytes"] = [
            max(plan.params_bytes, 0 if plan.control_at == NONE else plan.control_at + 8)
            for plan in plans
        ]
        launches["mode"] = [
            ClaimMode.KERNEL if spec.form == "persistent" else ClaimMode.LOOP for spec in specs
        ]
        launches["fixed"] = self.fixed_launches
        launches["occupancy"] = measured
        launches["width"], launches["height"] = raw[:, 0], raw[:, 1]
        for name in ("control_at", "locals_at", "shared_at", "params_at"):
            launches[name] = [getattr(plan, name) for plan in plans]
        return launches


def layout_of(
    limits: DeviceLimits, specs: Sequence[LaunchSpec], occupancy: int | None
) -> SequenceLayout:
    """Return the layout of these launches, made now or for an earlier sequence.

    Raises:
        LaunchConfigError: the device does not allow a grid, block or shared memory size.
        KernelRejected: a kernel uses something that the CPU device does not support.
        ValueError: there is no launch, a kernel has no hidden parameter, or M is impossible.
    """
    if not specs:
        raise ValueError("a job has one launch or more")
    kept = specs[0].kernel.module.layouts
    key = (occupancy, *[spec[:4] + spec[5:] for spec in specs])
    layout: SequenceLayout | None = kept.get(key)
    if layout is None:
        layout = SequenceLayout(limits, specs, occupancy)
        if sum(len(one.launches) for one in kept.values()) + len(specs) > _MOST_KEPT:
            kept.clear()
        # Kernels of other modules would live as long as this one.
        if len({spec.kernel.module for spec in specs}) == 1:
            kept[key] = layout
    return layout


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


_LAUNCH = _dtype({"job": (0, f"V{cw.JOB_BYTES}"), **LAUNCH}, LAUNCH_BYTES)
_TEMPLATE = _dtype(
    {name: field for name, field in HEADER.items() if field[0] < TEMPLATE_BYTES}, TEMPLATE_BYTES
)
_job_record = lru_cache(maxsize=4096)(cw.job_record)


def _plan(limits: DeviceLimits, spec: LaunchSpec, block: Dim3) -> _Plan:
    """Return the plan of a launch, made now or for an earlier one."""
    kernel: CPUKernel = spec.kernel
    key = (block, spec.shared, spec.form in REWRITTEN)
    plan: _Plan | None = kernel.plans.get(key)
    if plan is None:
        plan = kernel.plans[key] = _new_plan(limits, spec, block)
    return plan


def _new_plan(limits: DeviceLimits, spec: LaunchSpec, block: Dim3) -> _Plan:
    kernel, shared = spec.kernel, spec.shared
    parameters = own_parameters(kernel, spec.form)
    control_at = kernel.parameters[-1].offset if spec.form in REWRITTEN else NONE
    occupancy = limits.occupancy(kernel, block, shared)
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
        "nsmid": limits.sms,
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
        generated.reads_clock,
    )


def _check_local(kernel: str, bytes_of_a_thread: int) -> None:
    if bytes_of_a_thread > _MAX_LOCAL_BYTES:
        raise LimitExceeded(
            f"{kernel} needs {bytes_of_a_thread} bytes of local memory for each thread, and "
            f"{_MAX_LOCAL_BYTES} are the most; use an array in global memory",
            limit="local memory",
            value=_MAX_LOCAL_BYTES,
        )
