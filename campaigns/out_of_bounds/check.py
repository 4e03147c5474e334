"""Runs a case and says what was wrong with what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpud_client as gc
from campaigns.out_of_bounds.cases import Case, Layout, Miss
from campaigns.out_of_bounds.kernels import SLOT_BYTES, KernelSpec, module_text
from campaigns.out_of_bounds.world import BLOCKS, PAGE, THREADS, TIMEOUT_S, World

_SENTINEL = b"\xee" * 8
_GOOD = b"\xa5" * (BLOCKS * THREADS * SLOT_BYTES)
_OUT = _SENTINEL * (BLOCKS * THREADS)
_EDGE = b"\xa5" * (2 * PAGE)


@dataclass(frozen=True)
class Loaded:
    """A kernel in the attacker's session."""

    spec: KernelSpec
    kernel: gc.Kernel
    text: str
    pointer: Any
    constant: Any


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        kind: "refused", "ran", or the error's name.
        problems: what was not as it must be.
    """

    kind: str
    problems: tuple[str, ...]


def load(world: World, specs: list[KernelSpec]) -> list[Loaded]:
    """Compiles kernels, all of one form, as one module."""
    text = module_text(specs)
    module = world.gpu.module(text, [spec.name for spec in specs], form=specs[0].form)
    assert {spec.form for spec in specs} == {specs[0].form}
    return [
        Loaded(
            spec,
            module.kernel(spec.name),
            text,
            module.symbol(f"{spec.name}_pointer"),
            module.symbol(f"{spec.name}_constant"),
        )
        for spec in specs
    ]


def run(world: World, loaded: Loaded, case: Case) -> Outcome:
    """Runs a case through the daemon and looks at everything it may have touched."""
    layout = world.layout
    reset(world, layout)
    target = case.target.to_bytes(8, "little")
    world.write(layout.table + 8, target)
    mode = loaded.spec.mode.name
    if mode == "variable":
        loaded.pointer.set(target)
    elif mode == "constant":
        loaded.constant.set(target)
    before = world.file.read()
    job = loaded.kernel.submit(
        case.grid,
        loaded.spec.block,
        case.arguments(layout),
        timeout=TIMEOUT_S if loaded.spec.timed else None,
    )
    error = job.exception(TIMEOUT_S)
    after = world.file.read()
    if error is None:
        kind = "ran"
    else:
        kind = "refused" if isinstance(error, gc.IllegalAddress) else type(error).__name__
    if case.twin:
        problems = _twin_problems(case, layout, error, before, after)
    else:
        problems = _problems(case, loaded, world, error, before, after)
    return Outcome(kind, tuple(problems))


def reset(world: World, layout: Layout) -> None:
    world.write(layout.good, _GOOD)
    world.write(layout.out, _OUT)
    world.write(layout.base, _EDGE)
    world.write(layout.end - len(_EDGE), _EDGE)


# -- twins -------------------------------------------------------------------------------------


def _twin_problems(
    case: Case, layout: Layout, error: BaseException | None, before: bytearray, after: bytearray
) -> list[str]:
    if error is not None:
        return [f"a legal access was refused: {type(error).__name__}: {error}"]
    expected = bytearray(before)
    words = case.run(expected, layout, layout.base)
    if case.access.model is None:  # only where it may write
        for first, last in _touched(case, layout):
            expected[first:last] = after[first:last]
    for (block, thread), word in words.items():
        at = layout.out - layout.base + 8 * (block * case.kernel.threads + thread)
        expected[at : at + 8] = after[at : at + 8] if word is None else word.to_bytes(8, "little")
    return differences(expected, after, layout)


def _touched(case: Case, layout: Layout) -> list[tuple[int, int]]:
    """Offsets in the arena of legal accesses: the threads' own bytes, and targets in range."""
    start = layout.good - layout.base
    found = [(start, start + len(_GOOD))]
    for thread in range(case.first, case.last + 1):
        first = case.target + thread * case.stride - layout.base
        if first < layout.size and first + case.access.span > 0:
            found.append((max(first, 0), min(first + case.access.span, layout.size)))
    return found


def differences(expected: bytearray, after: bytearray, layout: Layout) -> list[str]:
    if expected == after:
        return []
    pairs = enumerate(zip(expected, after, strict=True))
    at = next(index for index, (want, have) in pairs if want != have)
    count = sum(a != b for a, b in zip(expected, after, strict=True))
    names = {layout.good: "good", layout.out: "out", layout.table: "table", layout.base: "edge"}
    place = max((address, name) for address, name in names.items() if address <= layout.base + at)
    low = at & -8
    where = f"{place[1]}+{layout.base + at - place[0]:#x}"
    values = f"{after[low : low + 8].hex()} is not {expected[low : low + 8].hex()}"
    return [f"{count} bytes of the attacker's arena are wrong, the first at {where}: {values}"]


# -- bad accesses ------------------------------------------------------------------------------


def _problems(
    case: Case,
    loaded: Loaded,
    world: World,
    error: BaseException | None,
    before: bytearray,
    after: bytearray,
) -> list[str]:
    layout = world.layout
    misses = case.misses(layout)
    problems = []
    if error is None:
        problems.append("the job did not fail")
    elif not isinstance(error, gc.IllegalAddress):
        problems.append(f"{type(error).__name__} instead of IllegalAddress: {error}")
    else:
        problems += _report_problems(case, loaded, world, error, misses)
    # Nothing that a bad access gave is stored, and nothing else is changed.
    out = layout.out - layout.base
    for block, thread in misses:
        at = out + 8 * (block * case.kernel.threads + thread)
        if after[at : at + 8] != _SENTINEL:
            problems.append(f"thread {thread} of block {block} went on after its bad access")
            break
    expected = bytearray(before)
    for first, last in (*_touched(case, layout), (out, out + len(_OUT))):
        expected[first:last] = after[first:last]
    return problems + differences(expected, after, layout)


def _report_problems(
    case: Case,
    loaded: Loaded,
    world: World,
    error: gc.IllegalAddress,
    misses: dict[tuple[int, int], Miss],
) -> list[str]:
    problems = []
    where = _place(case, error)
    miss = misses.get(where) if where is not None else None
    if miss is None:
        problems.append(
            f"reported task block {error.task_block}, thread {error.thread}, which did not miss"
        )
        miss = next(iter(misses.values()))
        if len(misses) > 1:
            return problems
    if error.address != miss.address:
        problems.append(f"reported address {error.address:#x}, not {miss.address:#x}")
    words = (error.instruction or "").replace(";", " ").split()
    if miss.opcode not in words:
        problems.append(f"reported instruction {error.instruction!r}, not {miss.opcode}")
    line = loaded.text.splitlines()[error.line - 1] if error.line else ""
    if miss.opcode not in line.split():
        problems.append(f"reported line {error.line}: {line!r}, which has no {miss.opcode}")
    if error.kernel != loaded.spec.name:
        problems.append(f"reported kernel {error.kernel!r}, not {loaded.spec.name!r}")
    return problems + array_problems(world, error, miss.address)


def _place(case: Case, error: gc.IllegalAddress) -> tuple[int, int] | None:
    """(task block number, linear thread) of the report."""
    if error.task_block is None or error.thread is None:
        return None
    x, y, z = error.task_block
    block = (z * case.grid[1] + y) * case.grid[0] + x
    x, y, z = error.thread
    return block, (z * case.kernel.block[1] + y) * case.kernel.block[0] + x


def array_problems(world: World, error: gc.IllegalAddress, address: int) -> list[str]:
    """The nearest array of the session, and how far it is; 0 is inside."""
    nearest = min(_distance(address, array) for array in world.array_sizes())
    if error.array is None:
        return ["no nearest array was reported"]
    problems = []
    if tuple(error.array) not in world.array_sizes():
        problems.append(f"reported array {error.array}, which the session does not have")
    elif _distance(address, error.array) != nearest:
        problems.append(f"reported array {error.array} is not the nearest")
    if error.distance != nearest:
        problems.append(f"reported distance {error.distance}, not {nearest}")
    return problems


def _distance(address: int, array: tuple[int, int]) -> int:
    """Bytes between an address and an array; 0: inside."""
    start, size = array
    if address < start:
        return start - address
    return max(0, address - (start + size - 1))
