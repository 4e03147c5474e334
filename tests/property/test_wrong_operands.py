"""Programs with a wrong operand, opcode or type somewhere: refused in words, or compiled.

No assertion of the compiler or of the code generator may be reachable by a program.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.abi.linked_memory import LinkedMemory
from gpud.device.cpu.codegen.kernel import generate_kernel
from gpud.device.cpu.codegen.preparation.module_layout import layout_module
from gpud.errors import GpudError, InternalError
from tests.conformance.runner import source_of

PROGRAMS = (
    "not_inlined", "pointer_table", "waiting_signatures", "barrier_inside", "divergent",
    "guarded_barrier", "spelled_atomics", "generic_addressing", "volatile_warp", "generations",
)  # fmt: skip
ARENA, HEAP = LinkedMemory(4096, 1 << 28), LinkedMemory(4096, 1 << 23)
TRIES = 12


def spoilt(text: str, dice: random.Random) -> str:
    """A program in which one instruction is changed."""
    module = flatten_module(parse(text))
    bodies = [f.body for f in module.functions() if f.body]
    everything = [s for body in bodies for s in body if isinstance(s, ptx.Instruction)]
    body = dice.choice(bodies)
    at = dice.choice([n for n, s in enumerate(body) if isinstance(s, ptx.Instruction)])
    ins = body[at]
    assert isinstance(ins, ptx.Instruction)
    operands, other = list(ins.operands), dice.choice(everything)
    match dice.randrange(4):
        case 0 if operands and other.operands:
            operands[dice.randrange(len(operands))] = dice.choice(other.operands)
            body[at] = replace(ins, operands=tuple(operands))
        case 1:
            body[at] = replace(ins, opcode=other.opcode)
        case 2 if ins.opcode.modifiers and other.opcode.modifiers:
            words = [ins.opcode.base, *ins.opcode.modifiers]
            words[dice.randrange(1, len(words))] = dice.choice(other.opcode.modifiers)
            body[at] = replace(ins, opcode=ptx.opcode(".".join(words)))
        case _ if operands:
            operands.pop(dice.randrange(len(operands)))
            body[at] = replace(ins, operands=tuple(operands))
    return print_module(module)


def outcome(text: str) -> str:
    """Compile it for the CPU device, up to LLVM: what came of it."""
    try:
        program = compile_program(text)
        module = flatten_module(parse(program.ptx))
        layout = layout_module(module)
        for name in module.entries():
            generate_kernel(module, name, Shape(64), layout, ARENA, HEAP)
    except InternalError:
        raise
    except GpudError:
        return "refused"
    return "compiled"


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_reaches_an_assertion(name: str) -> None:
    source, dice = source_of(name).ptx, random.Random(name)
    found = Counter(outcome(spoilt(source, dice)) for _ in range(TRIES))
    assert found["refused"] > 1  # the changes do reach the checks
