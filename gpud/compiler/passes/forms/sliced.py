"""The sliced form: lets a grid be launched as sub-grids, one after the other.

Problem: some kernels cannot loop over task blocks (lanes exit before a shuffle, for instance), but
their share of the device must still change while they run.

Approach: ``k(params)`` becomes ``k(params, u64 ctl)`` and is launched with as many blocks as its
allocation has room for; block i of a sub-grid is task block ``launch.base + i``. The host chooses
the size of each sub-grid. The rest of the kernel is unchanged: threads exit as before.

Terms: *base*: number of a sub-grid's first task block.

Properties:
* ``%ctaid`` and ``%nctaid`` mean the user's grid, everywhere;
* ``exits``, barriers and everything else are not changed;
* sub-grids with bases and sizes that tile 0..total-1 run every task block exactly once.

The kernel does not check that a sub-grid has no more blocks than are left; the launch must.

Source: docs/explanation/decisions.md, "What cannot loop is sliced, what cannot be sliced runs
whole".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi import control_words as words
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.passes.builder import CodeBuilder, fresh_stem, map_functions, split_declarations
from gpud.compiler.passes.forms.coordinates import compute, replace_specials, used_coordinates
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Module,
    Parameter,
    SpecialRegister,
    Symbol,
)

__all__ = ["pass_sliced"]


def pass_sliced(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Rewrite the entries of ``plan`` into sliced form.

    Args:
        module: flat; functions have their coordinates as parameters. Not changed.
        plan: the decision for each entry to rewrite; all of them sliced.
    """
    if not plan:
        return module
    call_graph = call_graph_of(module)
    stem = fresh_stem(call_graph, "gpud_slice")

    def change(function: Function) -> Function:
        if function.name not in plan or function.kind != "entry" or function.body is None:
            return function
        return _slice(function, used_coordinates(call_graph.uses[function.name].specials), stem)

    return map_functions(module, change)


def _slice(entry: Function, needed: tuple[str, ...], stem: str) -> Function:
    code = CodeBuilder(stem)
    control = Symbol(f"{stem}_control")
    declarations, body = split_declarations(entry.body or [])
    if needed:
        ctl, job = code.register("control", "b64"), code.register("job", "b64")
        index, number = code.register("index"), code.register("number")
        code("ld.param.u64", ctl, Address(control))
        code("ld.global.nc.u64", job, Address(ctl, words.JOB))
        code("ld.global.nc.u32", number, Address(ctl, words.BASE))
        code("mov.u32", index, SpecialRegister("%ctaid.x"))
        code("add.u32", number, number, index)
        body = replace_specials(body, compute(code, number, job, needed))
    return replace(
        entry,
        parameters=(*entry.parameters, Parameter("u64", control.name)),
        body=[*declarations, *code.declarations, *code.body, *body],
    )
