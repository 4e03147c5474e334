"""What generated code gives to whoever loads it, and where it has its module's data.

Problem: a device needs both for every program. Where another process makes the machine code, it
needs nothing else of the code generator, and loading that would take a third of its start.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpud.compiler.analysis.effects import is_call
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.addresses import ModuleLayout

__all__ = ["ENTRY_POINTS", "GeneratedKernel", "addressed_functions", "layout_module"]

ENTRY_POINTS = ("run_lockstep", "run_region", "exchange", "common")
"""What generated code exports, each with a header field of that name."""


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """Generated code and what a launch must provide.

    Attributes:
        ir: LLVM assembly that defines `ENTRY_POINTS`.
        parameters: offset in bytes by name in the parameter buffer.
        parameter_bytes: size of the parameter buffer.
        block_bytes: size of a resident block's header and arrays.
        local_bytes: local memory of all its threads.
        shared_bytes: static shared memory.
        dynamic_shared_at: where dynamic shared memory begins in a block's.
        hidden_shared_bytes: what gpud itself needs behind both, see `ModuleLayout`.
        starts_together: whether a block's threads begin as one.
    """

    ir: str
    parameters: dict[str, int]
    parameter_bytes: int
    block_bytes: int
    local_bytes: int
    shared_bytes: int
    dynamic_shared_at: int
    hidden_shared_bytes: int
    starts_together: bool


def layout_module(module: ptx.Module) -> ModuleLayout:
    """Place a flattened module's ``.const`` and ``.global`` variables; number its functions."""
    variables = [i for i in module.items if isinstance(i, ptx.Variable)]
    for function in module.functions():
        variables += [s for s in function.body or () if isinstance(s, ptx.Variable)]
    layout = ModuleLayout()
    for space in ("const", "global"):
        for variable in variables:
            if variable.space == space and variable.linkage != "extern":
                layout.data.add(variable)
        if space == "const":
            layout.const_size = layout.data.size
    layout.functions = {name: n + 1 for n, name in enumerate(addressed_functions(module))}
    return layout


def addressed_functions(module: ptx.Module) -> list[str]:
    """Functions that the program uses as values: in ``mov`` or in an initialiser."""
    names = [f.name for f in module.functions() if f.kind == "func"]
    known = set(names)
    found: set[str] = set()

    def leaf(value: ptx.InitialValue | None) -> None:
        if isinstance(value, tuple):
            for item in value:
                leaf(item)
        elif isinstance(value, ptx.Initializer):
            found.add(value.name)

    for item in module.items:
        if isinstance(item, ptx.Variable):
            leaf(item.init)
        elif isinstance(item, ptx.Function):
            for statement in item.body or ():
                if isinstance(statement, ptx.Instruction) and not is_call(statement):
                    found.update(o.name for o in statement.operands if isinstance(o, ptx.Symbol))
                elif isinstance(statement, ptx.Variable):
                    leaf(statement.init)
    return [name for name in dict.fromkeys(names) if name in found & known]
