"""A PTX interpreter that runs threads one instruction at a time, in random order.

The CPU device schedules threads in a fixed order, which hides races in the claim loop. Here a
random generator picks the next thread of all resident blocks, so that fast leaders, slow warps, and
a host that shrinks and grows between any two instructions all occur. It knows the instructions that
the passes write and those of the kernels in these tests, integers only.

Hardware rules that matter: a barrier waits for the threads of its block that have not exited; every
thread counts for itself; memory is sequentially consistent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fast_division import coordinates
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Not,
    Operand,
    Pair,
    Register,
    SpecialRegister,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
)
from tests.compiler.support.integers import compute, is_computed, width

SMS = 3
"""The blocks of a launch are dealt out among so many SMs."""

_STATUS = 1 << 30  # from a launch record to its status record

MASK = {8: 0xFF, 16: 0xFFFF, 32: 0xFFFFFFFF, 64: 0xFFFFFFFFFFFFFFFF}


class MachineError(Exception):
    """The program did something illegal."""


class Deadlock(MachineError):
    """No thread can go on, and not all have exited."""


class IllegalAddress(MachineError):
    """An access to global memory that is not allocated."""


class Trapped(MachineError):
    """A thread executed ``trap``, which ends the whole context on a GPU."""


@dataclass(slots=True)
class Frame:
    """One call of a function by one thread."""

    function: Function
    at: int
    registers: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    results: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Thread:
    """One thread: its stack of frames, and where it waits."""

    block: Block
    index: tuple[int, int, int]
    frames: list[Frame]
    waits: int | None = None
    says: bool = False
    answer: str | None = None


@dataclass(slots=True, eq=False)
class Block:
    """One resident block with its shared memory."""

    index: int
    grid: tuple[int, int, int]
    size: tuple[int, int, int]
    shared: dict[int, int] = field(default_factory=dict)
    threads: list[Thread] = field(default_factory=list)


Place = tuple[dict[int, int], int]
"""A memory, and an address in it."""


def _parameter(operand: Operand) -> str:
    """The name in ``[name]``."""
    assert isinstance(operand, Address)
    assert isinstance(operand.base, Symbol)
    return operand.base.name


class Machine:
    """Global memory and resident blocks; words of 4 or 8 bytes at addresses, by first byte."""

    def __init__(self, module: Module, seed: int) -> None:
        self.functions = {f.name: f for f in module.functions() if f.body is not None}
        self.random = random.Random(seed)
        self.memory: dict[int, int] = {}
        self.blocks: list[Block] = []
        self.steps = 0
        self._labels: dict[str, dict[str, int]] = {}
        self._shared: dict[str, int] = {}
        at = 0
        for function in self.functions.values():
            body = function.body or []
            self._labels[function.name] = {
                s.name: n for n, s in enumerate(body) if isinstance(s, Label)
            }
            for statement in body:
                if isinstance(statement, Variable) and statement.space == "shared":
                    at = -(-at // 16) * 16
                    self._shared[statement.name] = at
                    at += 4096

    # -- host side -----------------------------------------------------------------------------

    def words(self, address: int, data: bytes) -> None:
        """Write ``data`` as 32-bit words."""
        for offset in range(0, len(data), 4):
            word = int.from_bytes(data[offset : offset + 4], "little")
            self.memory[address + offset] = word

    def control(self, ctl: int, job: int, blocks: int, *, base: int = 0, named: int = 0) -> None:
        """Write a launch record and its status record, of so many persistent blocks."""
        status = ctl + _STATUS
        self.words(ctl, words.launch_record(job, status, blocks, base=base, named=named))
        self.words(status, words.status_record(blocks))

    def live(self, ctl: int) -> int:
        """How many persistent blocks of a launch have not left."""
        return self.memory[ctl + _STATUS + words.LIVE]

    def launch(
        self,
        name: str,
        blocks: int | tuple[int, int, int],
        size: tuple[int, int, int],
        *values: int,
    ) -> None:
        """Make ``blocks`` blocks, or a grid of them, of the kernel resident."""
        grid = (blocks, 1, 1) if isinstance(blocks, int) else blocks
        function = self.functions[name]
        parameters = dict(zip((p.name for p in function.parameters), values, strict=True))
        for index in range(grid[0] * grid[1] * grid[2]):
            block = Block(index, grid, size)
            x, y, z = size
            for number in range(x * y * z):
                place = (number % x, number // x % y, number // (x * y))
                frame = Frame(function, 0, parameters=dict(parameters))
                block.threads.append(Thread(block, place, [frame]))
            self.blocks.append(block)

    def run(self, steps: int | None = None) -> None:
        """Run ``steps`` instructions, or until all threads have exited.

        Now and then one thread alone runs for a while: that is how leaders overtake slow warps.
        """
        favourite: Thread | None = None
        while steps is None or steps > 0:
            ready = [t for b in self.blocks for t in b.threads if t.waits is None]
            if not ready:
                if any(block.threads for block in self.blocks):
                    raise Deadlock(f"after {self.steps} instructions")
                return
            if favourite not in ready or self.random.random() < 0.02:
                favourite = self.random.choice(ready)
            assert favourite is not None
            self._step(favourite)
            self.steps += 1
            assert self.steps < 2_000_000, "a livelock"
            steps = None if steps is None else steps - 1

    # -- instructions --------------------------------------------------------------------------

    def _step(self, thread: Thread) -> None:
        frame = thread.frames[-1]
        body = frame.function.body or []
        if frame.at >= len(body):
            self._return(thread)
            return
        statement = body[frame.at]
        frame.at += 1
        if not isinstance(statement, Instruction):
            return
        guard = statement.guard
        if guard is not None and bool(frame.registers[guard.register.name]) is guard.negated:
            return
        if is_computed(statement):
            values = [self._get(thread, operand) for operand in statement.operands[1:]]
            self._set(frame, statement.operands[0], compute(statement, values))
            return
        name = "atom" if statement.opcode.base == "red" else statement.opcode.base
        getattr(self, f"_do_{name}")(thread, frame, statement)

    def _get(self, thread: Thread, operand: Operand) -> int:
        frame = thread.frames[-1]
        match operand:
            case Register(name):
                return frame.registers[name]
            case Not(register):
                return int(not frame.registers[register.name])
            case Immediate():
                return operand.value
            case SpecialRegister(name):
                return self._special(thread, name)
            case Symbol(name):
                return self._shared[name]
            case SymbolOffset(symbol, offset):
                return self._shared[symbol.name] + offset
        raise AssertionError(operand)

    def _special(self, thread: Thread, name: str) -> int:
        base, _, axis = name.partition(".")
        block = thread.block
        if name == "%smid":
            return block.index % SMS
        values = {
            "%tid": thread.index,
            "%ntid": block.size,
            "%ctaid": coordinates(block.index, block.grid),
            "%nctaid": block.grid,
        }
        return values[base]["xyz".index(axis)]

    def _set(self, frame: Frame, operand: Operand, value: int, bits: int = 64) -> None:
        if isinstance(operand, Pair):
            operand = operand.first
        if operand == Symbol("_"):
            return
        assert isinstance(operand, Register)
        frame.registers[operand.name] = value & MASK[bits]

    # -- memory --------------------------------------------------------------------------------

    def _place(self, thread: Thread, ins: Instruction, operand: Operand, size: int) -> Place | None:
        """Where an instruction accesses ``size`` bytes; None: a load gives 0, a store nothing."""
        address = self._address(thread, operand)
        if ins.opcode.has("shared"):
            # What nobody has written yet is garbage.
            thread.block.shared.setdefault(address, self.random.getrandbits(32))
            return thread.block.shared, address
        if address not in self.memory:
            raise IllegalAddress(hex(address))
        return self.memory, address

    def _address(self, thread: Thread, operand: Operand) -> int:
        assert isinstance(operand, Address)
        base = 0 if operand.base is None else self._get(thread, operand.base)
        return base + operand.offset & MASK[64]

    def _read(self, place: Place, size: int) -> int:
        memory, address = place
        low = memory[address]
        return low | memory[address + 4] << 32 if size == 8 else low

    def _write(self, place: Place, size: int, value: int) -> None:
        memory, address = place
        memory[address] = value & MASK[32]
        if size == 8:
            memory[address + 4] = value >> 32 & MASK[32]

    def _do_ld(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        target, source = ins.operands
        bits = width(ins.opcode.modifiers[-1])
        if ins.opcode.has("param"):
            self._set(frame, target, frame.parameters[_parameter(source)], bits)
            return
        targets = target.items if isinstance(target, Vector) else (target,)
        size = bits // 8
        place = self._place(thread, ins, source, size * len(targets))
        for number, one in enumerate(targets):
            value = 0 if place is None else self._read((place[0], place[1] + number * size), size)
            self._set(frame, one, value, bits)

    def _do_st(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        target, source = ins.operands
        if ins.opcode.has("param"):
            frame.parameters[_parameter(target)] = self._get(thread, source)
            return
        sources = source.items if isinstance(source, Vector) else (source,)
        size = width(ins.opcode.modifiers[-1]) // 8
        place = self._place(thread, ins, target, size * len(sources))
        for number, one in enumerate(sources):
            if place is not None:
                self._write((place[0], place[1] + number * size), size, self._get(thread, one))

    def _do_atom(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        result = ins.opcode.base == "atom"
        bits = width(ins.opcode.modifiers[-1])
        place = self._place(thread, ins, ins.operands[1 if result else 0], bits // 8)
        old = 0 if place is None else self._read(place, bits // 8)
        value = self._get(thread, ins.operands[-1]) & MASK[bits]
        if ins.opcode.has("cas"):
            expected = self._get(thread, ins.operands[-2]) & MASK[bits]
            value = value if old == expected else old
        elif ins.opcode.has("max"):
            value = max(old, value)
        else:
            assert ins.opcode.has("add")
            value = (old + value) & MASK[bits]
        if place is not None:
            self._write(place, bits // 8, value)
        if result:
            self._set(frame, ins.operands[0], old, bits)

    def _do_membar(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        pass

    # -- control -------------------------------------------------------------------------------

    def _do_bra(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        target = ins.operands[0]
        assert isinstance(target, Symbol)
        frame.at = self._labels[frame.function.name][target.name]

    def _do_trap(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        raise Trapped(f"thread {thread.index} of block {thread.block.index}")

    def _do_ret(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        self._return(thread)

    def _do_exit(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        thread.frames.clear()
        self._gone(thread)

    def _return(self, thread: Thread) -> None:
        done = thread.frames.pop()
        if not thread.frames:
            self._gone(thread)
            return
        for result, formal in zip(done.results, done.function.returns, strict=True):
            thread.frames[-1].parameters[result] = done.parameters[formal.name]

    def _do_call(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        operands = list(ins.operands)
        first = operands[0]
        results = first.items if isinstance(first, Tuple) else ()
        operands = operands[1:] if isinstance(first, Tuple) else operands
        target = operands.pop(0)
        assert isinstance(target, Symbol)
        function = self.functions[target.name]
        actuals = operands[0] if operands else None
        given = actuals.items if isinstance(actuals, Tuple) else ()
        new = Frame(function, 0, results=tuple(r.name for r in results if isinstance(r, Symbol)))
        for formal, actual in zip(function.parameters, given, strict=True):
            if formal.space == "reg":
                new.registers[formal.name] = self._get(thread, actual) & MASK[64]
                continue
            assert isinstance(actual, Symbol)
            new.parameters[formal.name] = frame.parameters[actual.name]
        thread.frames.append(new)

    def _do_bar(self, thread: Thread, frame: Frame, ins: Instruction) -> None:
        if ins.opcode.has("warp"):
            return
        reduces = ins.opcode.has("red")
        operands = ins.operands[1:] if reduces else ins.operands
        number = operands[0]
        assert isinstance(number, Immediate)
        thread.waits = number.value
        thread.answer = None
        thread.says = False
        if reduces:
            assert isinstance(ins.operands[0], Register)
            thread.answer = ins.operands[0].name
            thread.says = bool(self._get(thread, operands[1]))
        self._release(thread.block)

    _do_barrier = _do_bar

    def _gone(self, thread: Thread) -> None:
        thread.block.threads.remove(thread)
        self._release(thread.block)

    def _release(self, block: Block) -> None:
        """Release the block's threads if all that have not exited wait at one barrier."""
        if len({t.waits for t in block.threads}) != 1 or block.threads[0].waits is None:
            return
        anyone = any(t.says for t in block.threads)
        kinds = {t.answer is None for t in block.threads}
        assert len(kinds) == 1, "plain and reducing barriers mixed on one number"
        for thread in block.threads:
            if thread.answer is not None:
                thread.frames[-1].registers[thread.answer] = anyone
            thread.waits = None
