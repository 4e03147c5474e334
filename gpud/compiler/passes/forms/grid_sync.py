"""Gives kernels that synchronise their whole grid a workspace in the job record.

Problem: cooperative groups' ``grid.sync()`` counts arrivals in a workspace whose address the driver
puts into two special registers at a cooperative launch. That memory is in no session's arena, so
bounds checks keep kernels from accessing it. A device without a driver has no such workspace.

Approach: two words of the job record (`gpud.compiler.abi.control_words`) are the workspace. They
are 0 when a launch begins, as the driver's are, and bounds checks allow access to them
(`gpud.compiler.passes.safety.bounds_checks`). A read of one of the registers becomes a read of one
half of their address. The launch must ensure that all blocks are resident: such kernels have form
whole.

Properties:
* in every function that reads one of the registers, the two read as the halves of one address,
  equal in all blocks of a launch, and different in launches that run at the same time;
* a module without such functions is returned as the same object.

Source: CUDA 13.0, ``cooperative_groups/details/driver_abi.h`` and ``sync.h``: the high half is in
``%envreg1``, the low one in ``%envreg2``; the word at offset 4 counts arrivals, and its highest bit
flips when all blocks have arrived, so that it can be used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.reserved_names import GRID_SYNC
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.forms.rules import GRID_REGISTERS
from gpud.compiler.instrumentation.kill_polls import JOB_REGISTER, with_job
from gpud.compiler.passes.builder import CodeBuilder, map_functions
from gpud.compiler.passes.forms.coordinates import replace_specials
from gpud.compiler.ptx.model import Function, Instruction, Module, Vector

__all__ = ["pass_grid_sync"]


def pass_grid_sync(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Let the entries of ``plan`` use the workspace in the job record for ``grid.sync()``.

    Args:
        module: flat; not changed.
        plan: the entries that will run; functions that none of them can reach are not changed.
    """
    concerned = {
        uses.function.name
        for uses in call_graph(module).closure(*plan)
        if any(name in uses.specials for name in GRID_REGISTERS)
    }
    return map_functions(module, lambda one: _rewrite(one) if one.name in concerned else one)


def _rewrite(function: Function) -> Function:
    if function.body is None:  # declared ahead
        return function
    code = CodeBuilder(GRID_SYNC)
    at, high, low = code.register("at", "b64"), code.register("high"), code.register("low")
    code("add.s64", at, JOB_REGISTER, words.GRID_SYNC)
    code("mov.b64", Vector((low, high)), at)
    halves = dict(zip(GRID_REGISTERS, (high, low), strict=True))
    body = with_job(replace_specials(function.body, halves))
    start = next(n for n, statement in enumerate(body) if isinstance(statement, Instruction))
    made = [*body[:start], *code.declarations, *code.body, *body[start:]]
    return replace(function, body=made)
