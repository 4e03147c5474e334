"""Placement of a module's variables, and numbering of the functions whose address it takes.

Separate from code generation, since the loader of compiled code needs only this.
"""

from __future__ import annotations

from gpud.compiler.abi.reserved_names import RANGES
from gpud.compiler.analysis.effects import is_call
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import ModuleLayout

__all__ = ["addressed_functions", "layout_module"]


def layout_module(module: ptx.Module) -> ModuleLayout:
    """Place a flattened module's ``.const`` and ``.global`` variables; number its functions."""
    # What bounds checks search on a GPU is not needed: here a check is one instruction.
    variables = [i for i in module.items if isinstance(i, ptx.Variable) and i.name != RANGES]
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
    """List the functions that the program uses as values: in ``mov`` or in an initialiser."""
    names = [f.name for f in module.functions() if f.kind == "func"]
    known = set(names)
    addressed: set[str] = set()

    def leaf(value: ptx.InitialValue | None) -> None:
        if isinstance(value, tuple):
            for item in value:
                leaf(item)
        elif isinstance(value, ptx.Initializer):
            addressed.add(value.name)

    for item in module.items:
        if isinstance(item, ptx.Variable):
            leaf(item.init)
        elif isinstance(item, ptx.Function):
            for statement in item.body or ():
                if isinstance(statement, ptx.Instruction) and not is_call(statement):
                    addressed.update(
                        o.name for o in statement.operands if isinstance(o, ptx.Symbol)
                    )
                elif isinstance(statement, ptx.Variable):
                    leaf(statement.init)
    return [name for name in dict.fromkeys(names) if name in addressed & known]
