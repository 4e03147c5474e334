"""The rules that exclude forms of a kernel: one function each, in one table.

Problem and terms: `gpud.compiler.forms.classifier`. A rule examines a `Case` and returns the
`Reason` that it found, or ``None``; the table says to which form the reason restricts the kernel.
A new rule is one function and one row.

Properties:
* a rule examines only the entry and what it can reach;
* the reason of a rule names the first instruction, in call order, to which it applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

from gpud.compiler.analysis.barrier_divergence import (
    DivergenceHazards,
    SyncKind,
    find_divergence_hazards,
)
from gpud.compiler.analysis.barrier_ids import full_barrier_id, loop_barrier_id
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.data_layout import layout_bytes
from gpud.compiler.analysis.effects import (
    BARRIER,
    CLUSTER,
    EXIT,
    SURFACE,
    TENSOR,
    TEXTURE,
    flags,
    symbols,
)
from gpud.compiler.analysis.spin_loops import SpinLoop, find_spin_loops
from gpud.compiler.forms.form import Form, Reason
from gpud.compiler.ptx.model import Instruction, Variable
from gpud.compiler.ptx.printer import print_instruction

__all__ = [
    "GRID_REGISTERS",
    "KNOWN_EXTERNALS",
    "PARAMETER_BYTES",
    "PROGRESS",
    "RULES",
    "SLOT_BYTES",
    "Case",
    "reason",
    "tensor_core_uses",
]

INDEPENDENT, BLOCKS = PROGRESS = ("independent", "blocks")
"""What a program may say of a kernel's task blocks: that none waits for one that has not begun, or
that they wait for one another, so that all must be resident."""

GRID_REGISTERS = ("%envreg1", "%envreg2")
"""The registers in which cooperative groups find the address of the workspace of ``grid.sync()``,
its high and its low half. ``cooperative_groups/details/driver_abi.h``, CUDA 11.1 to 13.0."""

KNOWN_EXTERNALS = frozenset(("vprintf", "__assertfail", "malloc", "free"))
"""Functions without a body that every device provides."""

SLOT_BYTES = 16
"""Shared memory that the persistent form adds, padded to dynamic memory's alignment: two claim
slots, and the last task block that the block holds."""

_STATIC_SHARED_BYTES = 48 * 1024  # CUDA C++ Programming Guide, table of compute capabilities
PARAMETER_BYTES = 4352
"""The most bytes of parameters of a kernel before PTX 8.1."""

_LARGE_PARAMETER_BYTES = 32764  # from PTX 8.1 and sm_70 on
_CONTROL_BYTES = 8


class Case:
    """One entry of a module, with the results of analyses that several rules use.

    ``progress`` is what the program says of its blocks, one of `PROGRESS`; None: nothing.
    """

    def __init__(self, call_graph: CallGraph, entry: str, progress: str | None = None) -> None:
        self.call_graph = call_graph
        self.entry = entry
        self.progress = progress
        self.closure = call_graph.closure(entry)
        self.function = call_graph.functions[entry]

    @cached_property
    def hazards(self) -> DivergenceHazards:
        """Barriers and collectives before which threads may have exited."""
        return find_divergence_hazards(self.call_graph, self.entry)

    @cached_property
    def spin_loops(self) -> list[SpinLoop]:
        """Loops that wait for other blocks."""
        return find_spin_loops(self.call_graph, self.entry)

    @cached_property
    def needs_exit_aware(self) -> bool:
        """Whether threads can leave before a full-block barrier that others reach."""
        return self.hazards.first(SyncKind.FULL_BARRIER) is not None

    @cached_property
    def barrier(self) -> int | None:
        """The barrier number of the persistent loop; ``None`` if none is free."""
        return loop_barrier_id(self.call_graph, self.entry, share_full=self.needs_exit_aware)

    def first(self, bits: int) -> Instruction | None:
        """Return the first reachable instruction with one of the effects ``bits``."""
        for uses in self.closure:
            if uses.bits & bits:
                for ins in uses.noted:
                    if flags(ins.opcode) & bits:
                        return ins
        return None

    def special(self, *prefixes: str) -> tuple[str, Instruction] | None:
        """Return the first reachable use of a special register whose name starts with a prefix."""
        for uses in self.closure:
            for name, ins in uses.specials.items():
                if name.startswith(prefixes):
                    return name, ins
        return None

    def base(self, *bases: str) -> Instruction | None:
        """Return the first reachable instruction whose opcode starts with one of ``bases``."""
        for uses in self.closure:
            for base in bases:
                if base in uses.bases:
                    return uses.bases[base]
        return None


def reason(code: str, text: str, ins: Instruction | None = None) -> Reason:
    """Return a reason, with the text and line of ``ins`` if one instruction is decisive."""
    if ins is None:
        return Reason(code, text)
    return Reason(code, text, print_instruction(ins).strip(), ins.line or None)


# -- rejected ----------------------------------------------------------------------------------


def _unresolved_external(case: Case) -> Reason | None:
    for name, ins in case.call_graph.externals(case.entry).items():
        if name not in KNOWN_EXTERNALS:
            launches = "launches from the device, which only clients can (gpu.sequence)"
            what = launches if _launches(name) else f"calls {name}, not defined"
            return reason("unresolved-external", what, ins)
    return None


def _unresolved_variable(case: Case) -> Reason | None:
    variables = [item for item in case.call_graph.module.items if type(item) is Variable]
    defined = {item.name for item in variables if item.linkage != "extern"}
    missing = {
        item.name
        for item in variables
        if item.linkage == "extern" and item.space != "shared" and item.name not in defined
    }
    if not missing:
        return None
    for uses in case.closure:
        for statement in uses.function.body or ():
            if isinstance(statement, Instruction):
                for name in symbols(statement):
                    if name in missing:
                        text = f"uses the variable {name}, not defined"
                        return reason("unresolved-external", text, statement)
    return None


def _launches(name: str) -> bool:
    return name.startswith(("cudaLaunch", "cudaGetParameterBuffer", "__cudaCDP"))


def _texture(case: Case) -> Reason | None:
    ins = case.first(TEXTURE | SURFACE)
    if ins is not None:
        return reason("texture", "uses a texture or a surface as gpud has no code for", ins)
    kinds = ("texref", "surfref", "samplerref")
    if any(p.type.lstrip(".") in kinds for p in case.function.parameters):
        return reason("texture", "takes a texture, surface or sampler that is no object")
    return None


def _environment(case: Case) -> Reason | None:
    for uses in case.closure:
        for name, ins in uses.specials.items():
            if name.startswith("%envreg") and name not in GRID_REGISTERS:
                return reason("unsupported-instruction", f"reads {name}, set by a driver", ins)
    return None


def _parameters_too_large(case: Case) -> Reason | None:
    used = layout_bytes(case.function.parameters)
    if _fits_with_control(used, _LARGE_PARAMETER_BYTES):
        return None
    return reason("parameters-full", f"has {used} bytes of parameters, and no room for 8 more")


# -- whole -------------------------------------------------------------------------------------


def _cluster(case: Case) -> Reason | None:
    directives = (".explicitcluster", ".reqnctapercluster", ".maxclusterrank")
    if any(text.startswith(directives) for text in case.function.attributes):
        return reason("cluster", "is launched in thread block clusters")
    use = case.special("%cluster", "%ncluster", "%is_explicit_cluster")
    ins = case.first(CLUSTER) if use is None else use[1]
    return None if ins is None else reason("cluster", "uses thread block clusters", ins)


def _grid_sync(case: Case) -> Reason | None:
    for uses in case.closure:
        for name in GRID_REGISTERS:
            if name in uses.specials:
                text = "synchronises the whole grid (cooperative launch)"
                return reason("grid-sync", text, uses.specials[name])
    return None


def _grid_barrier(case: Case) -> Reason | None:
    wait = next((wait for wait in case.spin_loops if wait.for_grid), None)
    if wait is None or case.progress == INDEPENDENT:
        return None
    text = "waits in a loop for all blocks of the grid; if it does not, say progress='independent'"
    return reason("grid-barrier", text, wait.read)


def _waits_on_any_block(case: Case) -> Reason | None:
    wait = next((wait for wait in case.spin_loops if wait.for_any), None)
    if wait is None or case.progress == INDEPENDENT:
        return None
    text = (
        "waits in a loop for blocks that its data chooses; if none waits for a later one, say "
        "progress='independent'"
    )
    return reason("waits-on-any-block", text, wait.read)


def _progress_blocks(case: Case) -> Reason | None:
    if case.progress != BLOCKS:
        return None
    return reason("progress-blocks", "its blocks wait for one another, as its program says")


def _parameters_full(case: Case) -> Reason | None:
    large = case.call_graph.module.version >= (8, 1)
    used = layout_bytes(case.function.parameters)
    if _fits_with_control(used, _LARGE_PARAMETER_BYTES if large else PARAMETER_BYTES):
        return None
    return reason("parameters-full", f"its {used} bytes of parameters leave no room for 8 more")


def _fits_with_control(used: int, limit: int) -> bool:
    return -(-used // _CONTROL_BYTES) * _CONTROL_BYTES + _CONTROL_BYTES <= limit


def _vector_coordinates(case: Case) -> Reason | None:
    for uses in case.closure:
        for name in ("%ctaid", "%nctaid"):
            if name in uses.specials:
                return reason("vector-register", f"reads {name} as a vector", uses.specials[name])
    return None


# -- sliced ------------------------------------------------------------------------------------


def _collective_after_exit(case: Case) -> Reason | None:
    hazard = case.hazards.first(SyncKind.COLLECTIVE)
    if hazard is None:
        return None
    text = f"lanes can leave before a warp collective{_because(hazard.branch, hazard.instruction)}"
    return reason("collective-after-exit", text, hazard.instruction)


def _barrier_after_exit(case: Case) -> Reason | None:
    hazard = case.hazards.first(SyncKind.OTHER_BARRIER)
    if hazard is None:
        return None
    text = "threads can leave before a counted, named or reducing barrier"
    return reason(
        "barrier-after-exit", text + _because(hazard.branch, hazard.instruction), hazard.instruction
    )


def _because(branch: Instruction, instruction: Instruction) -> str:
    if branch is instruction or not branch.line:
        return ""
    return f", by the branch in line {branch.line}"


def _hidden_barrier(case: Case) -> Reason | None:
    """Exit-aware barriers in functions called through pointers would change other kernels too."""
    if not case.needs_exit_aware:
        return None
    for uses in case.closure:
        if uses.indirect is not None and _has_full_barrier(case, case.call_graph.addressed):
            text = "threads can leave before a barrier in a function called through a pointer"
            return reason("barrier-behind-pointer", text, uses.indirect)
    return None


def _has_full_barrier(case: Case, names: Iterable[str]) -> bool:
    return any(
        full_barrier_id(case.call_graph.barrier(ins, uses)) is not None
        for uses in case.call_graph.closure(*names)
        if uses.bits & BARRIER
        for ins in uses.noted
        if flags(ins.opcode) & BARRIER
    )


def _no_free_barrier(case: Case) -> Reason | None:
    if case.barrier is not None:
        return None
    text = "uses all barriers of the block, or names one by a register"
    return reason("no-free-barrier", text, case.first(BARRIER))


def _exit_in_function(case: Case) -> Reason | None:
    for uses in case.closure[1:]:
        if uses.bits & EXIT:
            ins = next(ins for ins in uses.noted if flags(ins.opcode) & EXIT)
            return reason("exit-in-function", f"{uses.function.name} ends the thread", ins)
    return None


def _shared_memory_full(case: Case) -> Reason | None:
    declared: list[object] = [*case.call_graph.module.items]
    for uses in case.closure:
        declared += uses.declared
    used = layout_bytes(
        one
        for one in declared
        if type(one) is Variable and one.space == "shared" and one.linkage != "extern"
    )
    if used + SLOT_BYTES <= _STATIC_SHARED_BYTES:
        return None
    text = f"its {used} bytes of static shared memory leave no room for {SLOT_BYTES} more"
    return reason("shared-memory-full", text)


def _register_reallocation(case: Case) -> Reason | None:
    ins = case.base("setmaxnreg")
    text = "changes its warps' registers, which cannot be undone for the next task block"
    return None if ins is None else reason("register-reallocation", text, ins)


def _stack_allocation(case: Case) -> Reason | None:
    ins = case.base("alloca") if "alloca" in case.closure[0].bases else None
    text = "allocates on the stack, which would grow with every task block"
    return None if ins is None else reason("stack-allocation", text, ins)


Rule = Callable[[Case], Reason | None]

RULES: tuple[tuple[Form, Rule], ...] = (
    (Form.REJECTED, _unresolved_external),
    (Form.REJECTED, _unresolved_variable),
    (Form.REJECTED, _texture),
    (Form.REJECTED, _environment),
    (Form.REJECTED, _parameters_too_large),
    (Form.WHOLE, _cluster),
    (Form.WHOLE, _grid_sync),
    (Form.WHOLE, _grid_barrier),
    (Form.WHOLE, _waits_on_any_block),
    (Form.WHOLE, _progress_blocks),
    (Form.WHOLE, _parameters_full),
    (Form.WHOLE, _vector_coordinates),
    (Form.SLICED, _collective_after_exit),
    (Form.SLICED, _barrier_after_exit),
    (Form.SLICED, _hidden_barrier),
    (Form.SLICED, _no_free_barrier),
    (Form.SLICED, _exit_in_function),
    (Form.SLICED, _shared_memory_full),
    (Form.SLICED, _register_reallocation),
    (Form.SLICED, _stack_allocation),
)
"""The rules, with the form to which each restricts a kernel, most restricted first."""


def tensor_core_uses(case: Case) -> Reason | None:
    """Return the first tensor-core instruction that ``case`` reaches: not every device has them."""
    ins = case.first(TENSOR)
    return None if ins is None else reason("tensor-core", "uses tensor cores", ins)
