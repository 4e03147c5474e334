"""Values that uniform registers had before a later instruction of their stage changed them.

Problem: the uniform instructions of a stage run first, once, and the others in a loop over threads.
One of the others that precedes a uniform one in the program must read the registers from before it.

Approach: before a uniform instruction runs, the old values of the registers that it writes are
copied, if an earlier instruction of the loop reads them; that instruction reads the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from gpud.compiler.analysis.effects import read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.thread_code import ThreadCode

__all__ = ["EarlierValues"]


class EarlierValues:
    """The copied values of one stage.

    Args:
        ordinal: order of each instruction (by identity) in the stage.
    """

    def __init__(self, code: ThreadCode, ordinal: Mapping[int, int]) -> None:
        self._code = code
        self._ordinal = ordinal
        self._copies: dict[str, list[tuple[int, str]]] = {}
        """By register: the order of an instruction that changes it, and the slot from before."""

    def save(self, ins: ptx.Instruction, readers: Mapping[str, Sequence[int]]) -> None:
        """Copy the registers that ``ins`` is about to write, if they are still needed.

        Args:
            ins: a uniform instruction.
            readers: the order of the instructions in the loop that read a register, by name.
        """
        now = self._ordinal[id(ins)]
        emitter = self._code.emitter
        for register in written(ins):
            name = register.name
            done = self._copies.get(name, [(-2, "")])[-1][0]
            if any(done < at < now for at in readers.get(name, ())):
                type_ = self._code.storage[name]
                slot = emitter.alloca(type_, "old")
                value = emitter.value(f"load {type_}, ptr {self._code.slot(name)}")
                emitter.do(f"store {type_} {value}, ptr {slot}")
                self._copies.setdefault(name, []).append((now, slot))

    @contextmanager
    def as_of(self, ins: ptx.Instruction, now: int | None = None) -> Iterator[None]:
        """Make uniform registers read as before later instructions of the stage changed them.

        ``now`` is -1 for instructions that run before the stage's own.
        """
        if now is None:
            now = self._ordinal[id(ins)]
        changed: dict[str, str] = {}
        for register in read(ins):
            for upto, slot in self._copies.get(register.name, ()):
                if now < upto:
                    if register.name not in changed:
                        changed[register.name] = self._code.slot(register.name)
                        self._code.redirect(register.name, slot)
                    break
        yield
        for name, slot in changed.items():
            self._code.redirect(name, slot)
