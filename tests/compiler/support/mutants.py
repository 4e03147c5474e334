"""Mutants of the rewriter: each breaks persistent kernels in one known way.

They test the tests of the rewriter, here and in the stress run: each mutant must make them fail.
`MUTANTS` maps a mutant's name to the function that turns a correct module into a faulty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpud.compiler.abi import control_words as words
from gpud.compiler.ptx.model import (
    Address,
    Directive,
    Function,
    Immediate,
    Instruction,
    Module,
    Statement,
    Variable,
    opcode,
)

Change = Callable[[Instruction], Iterable[Statement]]


def one_slot(module: Module) -> Module:
    """The claim always goes through the same slot: a slow thread may find the next claim there."""

    def change(ins: Instruction) -> Iterable[Statement]:
        toggles = ins.opcode.text == "xor.b32" and ins.operands[0] == ins.operands[1]
        return () if toggles and _ours(ins) else (ins,)

    return _changed(module, change)


def no_barrier(module: Module) -> Module:
    """There is no barrier at the loop's head."""
    return _changed(module, lambda i: () if i.opcode.text == "barrier.sync" else (i,))


def lost_block(module: Module) -> Module:
    """The release is checked after the claim: a block that is told to release loses its claim."""
    claim = next(i for i in _instructions(module) if i.opcode.base == "atom" and _ours(i))

    def change(ins: Instruction) -> Iterable[Statement]:
        if ins is claim or (ins.opcode.base == "mov" and ins.operands[0] == claim.operands[0]):
            return ()
        if ins is look:
            return (claim, ins)
        return (ins,)

    look = next(i for i in _instructions(module) if i.opcode.has("volatile") and _ours(i))
    told = next(i for i in _instructions(module) if i.opcode.text == "setp.eq.u32" and _tells(i))
    return _changed(_changed(module, change), _after_look(claim, told))


def _tells(ins: Instruction) -> bool:
    """Whether the loop's code checks here whether its block is released."""
    return _ours(ins) and "_bits" in repr(ins.operands[1])


def _after_look(claim: Instruction, told: Instruction) -> Change:
    """A block that is told to release publishes "leave" instead of its claim."""
    register = claim.operands[0]
    nothing = Immediate(str(words.NOTHING), words.NOTHING)

    def change(ins: Instruction) -> Iterable[Statement]:
        if ins is told:
            guard = Instruction(opcode("selp.b32"), (register, nothing, register, ins.operands[0]))
            return (ins, guard)
        return (ins,)

    return change


def counted_twice(module: Module) -> Module:
    """Every finished task block is counted as two."""
    return _changed(
        module,
        lambda i: (
            (i, i) if i.opcode.base == "red" and _ours(i) and _offset(i) == words.DONE else (i,)
        ),
    )


def lost_rest(module: Module) -> Module:
    """A block drops the rest of a chunk, and what it has claimed in advance."""
    held = [i for i in _instructions(module) if i.opcode.text == "bra" and "_empty" in repr(i)]
    return _changed(module, lambda i: (replace(i, guard=None),) if i in held else (i,))


def long_chunk(module: Module) -> Module:
    """A block runs one task block more than it has claimed."""
    return _changed(module, lambda i: () if i.opcode.text == "sub.u32" and _ours(i) else (i,))


def early_advance(module: Module) -> Module:
    """A block claims in advance whenever it begins with a task block, not only with its last."""

    def change(ins: Instruction) -> Iterable[Statement]:
        if ins.opcode.text == "setp.eq.and.u32" and "_wants" in repr(ins.operands[0]):
            always = Instruction(opcode("mov.pred"), (ins.operands[0], ins.operands[-1]))
            return (always,)
        return (ins,)

    return _changed(module, change)


MUTANTS: dict[str, Callable[[Module], Module]] = {
    "one_slot": one_slot,
    "no_barrier": no_barrier,
    "lost_block": lost_block,
    "counted_twice": counted_twice,
    "lost_rest": lost_rest,
    "long_chunk": long_chunk,
    "early_advance": early_advance,
}


# -- helpers -----------------------------------------------------------------------------------


def _ours(ins: Instruction) -> bool:
    """Whether the loop's code holds this instruction: it names one of the loop's registers."""
    return any("gpud_loop" in repr(operand) for operand in ins.operands)


def _offset(ins: Instruction) -> int | None:
    target = ins.operands[0]
    return target.offset if isinstance(target, Address) else None


def _instructions(module: Module) -> Iterable[Instruction]:
    for function in module.functions():
        yield from (s for s in function.body or () if isinstance(s, Instruction))


def _changed(module: Module, change: Change) -> Module:
    items: list[Function | Variable | Directive] = []
    changes = 0
    for item in module.items:
        if isinstance(item, Function) and item.body is not None:
            body: list[Statement] = []
            for statement in item.body:
                new = list(change(statement)) if isinstance(statement, Instruction) else [statement]
                changes += new != [statement]
                body += new
            items.append(replace(item, body=body))
        else:
            items.append(item)
    assert changes, "the fault found no place"
    return replace(module, items=items)
