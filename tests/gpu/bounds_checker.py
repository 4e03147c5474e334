"""Runs the generated out-of-bounds kernels on any device in one process, without a daemon.

Three arenas lie side by side in one piece of device memory; programs may access the middle one.
After every case all three are checked. What the daemon adds to a report is not checked here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.gpu.instrumentation.device_memory import DeviceMemory
from campaigns.out_of_bounds.accesses import Access
from campaigns.out_of_bounds.cases import Case, Layout, Miss, cases_of, kernels_of
from campaigns.out_of_bounds.kernels import SLOT_BYTES, KernelSpec, module_text
from gpud.compiler.pipeline import Program, compile_program
from gpud.device.interface import LaunchSpec
from gpud.errors import GpudError, IllegalAddress
from tests.support.resizable_run import ResizableRun

_ARENA = 1 << 20
_BLOCKS, _THREADS = 4, 128
_EDGE = 8192
_GOOD_AT = 1 << 16
_OUT_AT = _GOOD_AT + _BLOCKS * _THREADS * SLOT_BYTES
_TABLE_AT = _OUT_AT + _BLOCKS * _THREADS * 8
_SENTINEL = b"\xee" * 8
_TIMEOUT_S = 60.0
_MASK = 2**64 - 1


class BoundsChecker:
    """Runs cases and checks memory and reports; see the module.

    Args:
        device: a `CUDADevice` or a `CPUDevice`.
        checked: whether programs are loaded with their arena.
    """

    def __init__(self, device: Any, *, checked: bool = True) -> None:
        self._device = device
        self._memory = DeviceMemory(device, 3 * _ARENA)
        low = self._memory.address
        base = low + _ARENA
        self._arena = (base, _ARENA) if checked else None
        size = _ARENA // 4
        self.layout = Layout(
            base, _ARENA, base + _GOOD_AT, base + _OUT_AT, base + _TABLE_AT,
            ((base - size, size), (base + _ARENA, size)),
            {"below": low, "above": base + 2 * _ARENA - 4096},
        )  # fmt: skip
        rng = np.random.default_rng(1)
        first = rng.integers(1, 256, 3 * _ARENA, np.uint8)
        attacker = first[_ARENA : 2 * _ARENA]
        attacker[:_EDGE] = attacker[-_EDGE:] = 0xA5
        attacker[_GOOD_AT:_OUT_AT] = 0xA5
        attacker[_OUT_AT:_TABLE_AT] = 0xEE
        pointer = (self.layout.table + 8).to_bytes(8, "little")
        attacker[_TABLE_AT : _TABLE_AT + 8] = np.frombuffer(pointer, np.uint8)
        self._first = first

    def campaign(self, accesses: Sequence[Access], seed: int) -> tuple[int, list[str]]:
        """Run kernels with each kind of access: how many cases, and the problems."""
        cases, problems = 0, []
        for spec in kernels_of(random.Random(seed), accesses, most=8):
            program = compile_program(module_text([spec]), form=spec.form)
            module = self._device.load(program.ptx, self._arena)
            made = cases_of(random.Random(f"{seed}/{spec.name}"), spec, self.layout)
            for case in itertools.islice(made, len(spec.accesses)):
                cases += 1
                problems += [
                    f"seed {seed} {case}: {one}" for one in self.run(case, program, module)
                ]
        return cases, problems

    def run(self, case: Case, program: Program, module: Any) -> list[str]:
        """Run a case; the problems, as sentences."""
        before = self._first.copy()
        target = np.frombuffer(case.target.to_bytes(8, "little"), np.uint8)
        at = _ARENA + _TABLE_AT + 8
        before[at : at + 8] = target
        self._memory.write(before)
        if case.kernel.mode.name in ("variable", "constant"):
            kind = "pointer" if case.kernel.mode.name == "variable" else "constant"
            symbol = module.symbol(f"{case.kernel.name}_{kind}")
            symbol[0:8] = target
            symbol[0:8].tobytes()  # wait until it is there
        error = self._launch(case, program, module)
        after = np.frombuffer(self._memory.read(), np.uint8)
        problems = []
        for name, part in (("below", slice(0, _ARENA)), ("above", slice(2 * _ARENA, None))):
            if not np.array_equal(before[part], after[part]):
                problems.append(f"the neighbour {name} has changed")
        mine = bytearray(after[_ARENA : 2 * _ARENA].tobytes())
        was = bytearray(before[_ARENA : 2 * _ARENA].tobytes())
        if case.twin:
            return problems + self._twin(case, error, was, mine)
        return problems + self._bad(case, program, error, mine)

    def _launch(self, case: Case, program: Program, module: Any) -> GpudError | None:
        spec: KernelSpec = case.kernel
        info = program.kernels[spec.name]
        kernel = module.kernel(info.entry_for(spec.block, killable=spec.timed))
        form: Any = str(info.form_for(spec.block))
        sizes = [parameter.size for parameter in info.parameters]
        values = [
            (value & _MASK).to_bytes(8, "little")[:size]
            for value, size in zip(case.arguments(self.layout), sizes, strict=True)
        ]
        job = ResizableRun(
            self._device, [LaunchSpec.of(kernel, form, case.grid, spec.block, values)]
        )
        job.resize(_BLOCKS * 3)
        assert job.wait(_TIMEOUT_S), f"{case} does not end"
        return job.error

    def _twin(
        self, case: Case, error: GpudError | None, was: bytearray, now: bytearray
    ) -> list[str]:
        if error is not None:
            return [f"a legal access was refused: {error}"]
        if case.access.model is None:
            return []  # its effect is not modelled
        words = case.run(was, self.layout, self.layout.base)
        for (block, thread), word in words.items():
            at = _OUT_AT + 8 * (block * case.kernel.threads + thread)
            was[at : at + 8] = now[at : at + 8] if word is None else word.to_bytes(8, "little")
        return [] if was == now else ["a legal access left other bytes than it should"]

    def _bad(
        self, case: Case, program: Program, error: GpudError | None, now: bytearray
    ) -> list[str]:
        if not isinstance(error, IllegalAddress):
            return [f"{type(error).__name__} instead of IllegalAddress: {error}"]
        misses = case.misses(self.layout)
        problems = self._report(case, program, error, misses)
        for block, thread in misses:
            at = _OUT_AT + 8 * (block * case.kernel.threads + thread)
            if now[at : at + 8] != _SENTINEL:
                problems.append(f"thread {thread} of block {block} went on after its bad access")
                break
        return problems

    def _report(
        self,
        case: Case,
        program: Program,
        error: IllegalAddress,
        misses: dict[tuple[int, int], Miss],
    ) -> list[str]:
        if error.task_block is None or error.thread is None:
            return ["reported no task block or no thread"]
        x, y, z = error.task_block
        u, v, w = error.thread
        width, height, _ = case.kernel.block
        where = (z * case.grid[1] + y) * case.grid[0] + x, (w * height + v) * width + u
        if where not in misses:
            return [f"reported block and thread {where}, which did not miss"]
        problems = []
        miss = misses[where]
        if error.address != miss.address:
            problems.append(f"reported address {error.address:#x}, not {miss.address:#x}")
        said = "" if error.site is None else program.sites[error.site].instruction
        if error.site is not None and miss.opcode not in said.replace(";", " ").split():
            problems.append(f"reported instruction {said!r}, not {miss.opcode}")
        return problems
