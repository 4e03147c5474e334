"""The checking pass: calls of the CPU device's checking mode around memory accesses and barriers.

Problem: a bounds check keeps a kernel within its session's memory, but does not notice that it
writes to another array than it should, reads what was never written, or races with itself.

Approach: the pass only says what the program does, and in which order; what that means is decided
by code of the device (`gpud.device.cpu.codegen.checking`), which has these functions:

* ``(place) gpud_check_access (address, origin, how, site)`` before an access to global or generic
  memory, which is made at ``place``: another address, if this one is wrong. So the access has the
  guard that it had, and no new way through the program. ``origin`` is the pointer from which the
  address was computed, 0 if it is not known;
* ``gpud_check_shared (address, how, site)`` before one to shared memory;
* ``gpud_check_stored (how, site)`` after a store of either;
* ``gpud_check_shuffle (mode, lane, bounds, members, site)`` before a shuffle, with its operands;
  ``mode`` is the index in `SHUFFLE_MODES`;
* ``gpud_check_sync (what, barrier)``, a `Sync` and the number of a barrier, around whatever orders
  the accesses of several threads.

Terms: ``how`` is the number of bytes plus the bits `READS`, `WRITES` and `STRONG`; an access is
*strong* if it is atomic, volatile or has a memory order, so that several threads may make it at
once; so is a load that only gets a compare-and-swap its first value to try. ``site`` is the
  instruction's number in the site table.

Properties:
* every access of the program to global or generic memory of which the size is known is announced,
  and to shared memory if it is ``ld``, ``st``, ``atom`` or ``red``, or written by ``cp.async``;
* the accesses of code that other passes add are not: this is the first pass;
* without the option, programs are not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi.check_calls import (
    ACCESS,
    READS,
    SHARED,
    SHUFFLE,
    SHUFFLE_MODES,
    STORED,
    STRONG,
    SYNC,
    WRITES,
    Sync,
)
from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.analysis.access_origins import AccessOrigins
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.effects import (
    ATOMIC,
    BARRIER,
    CLUSTER,
    MEMORY_READ,
    MEMORY_WRITE,
    VOLATILE,
    flags,
    state_space,
    written,
)
from gpud.compiler.analysis.memory_accesses import MemoryAccess, accesses, own_bytes
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.passes.builder import map_functions
from gpud.compiler.passes.safety.access_checks import RegisterWidths
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    Module,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    SymbolOffset,
    Tuple,
    immediate,
    opcode,
)

__all__ = ["pass_checking"]

_STEM = "gpud_check_"
_WARP_BASES = ("shfl", "vote", "match", "redux")
_FENCES = ("membar", "fence")
_RELEASES = ("release", "acq_rel", "sc")
_MOST_BYTES = 255
_SHUFFLE_OPERANDS = 5


def pass_checking(module: Module, plan: Mapping[str, Decision], sites: SiteTable) -> Module:
    """Announce the accesses and barriers of all that the entries of ``plan`` can reach.

    Args:
        module: flat; not changed.
        plan: the entries that will run.
        sites: the table to which the announced instructions are added.
    """
    call_graph = call_graph_of(module)
    reached = {uses.function.name for uses in call_graph.closure(*plan)}

    def change(function: Function) -> Function:
        if function.name not in reached or function.body is None:
            return function
        return _Announcer(function, sites).announced()

    return map_functions(module, change)


class _Announcer:
    """Adds the calls to one function."""

    def __init__(self, function: Function, sites: SiteTable) -> None:
        self._function = function
        self._sites = sites
        self._widths = RegisterWidths(function)
        self._origins = AccessOrigins(function)
        self._tries = _first_tries(function)
        self._made: list[Statement] = []
        self._counts = {"b64": 0}

    def announced(self) -> Function:
        """Return the function with the calls."""
        for statement in self._function.body or ():
            if isinstance(statement, Instruction):
                self._instruction(statement)
            else:
                self._made.append(statement)
        declared = [
            RegisterDeclaration(kind, f"%{_STEM}{kind}_", count)
            for kind, count in self._counts.items()
            if count
        ]
        return replace(self._function, body=[*declared, *self._made])

    # -- one instruction

    def _instruction(self, ins: Instruction) -> None:
        op = ins.opcode
        bits = flags(op)
        base = op.base
        if base in _FENCES and not op.has("proxy"):
            self._sync(Sync.RELEASE, ins)
            self._made.append(ins)
        elif bits & (BARRIER | CLUSTER) and base in ("bar", "barrier"):
            self._sync(Sync.ARRIVE, ins)
            self._made.append(ins)
            if not op.has("arrive"):
                self._sync(Sync.PASS, ins)
        elif base in _WARP_BASES or op.text.startswith("bar.warp"):
            if base == "shfl":
                self._shuffle(ins)
            self._sync(Sync.WARP_ARRIVE, ins)
            self._made.append(ins)
            self._sync(Sync.WARP_PASS, ins)
        elif base == "mbarrier":
            self._sync(Sync.RELEASE, ins)
            self._made.append(ins)
            self._sync(Sync.ACQUIRE, ins)
        elif bits & (MEMORY_READ | MEMORY_WRITE):
            self._accesses(ins, bits)
        else:
            self._made.append(ins)

    def _accesses(self, ins: Instruction, bits: int) -> None:
        op = ins.opcode
        if any(op.has(order) for order in _RELEASES):
            self._sync(Sync.RELEASE, ins)
        together = bits & VOLATILE or op.has("reduce") or id(ins) in self._tries
        strong = STRONG if together else 0
        changed, stores = ins, 0
        for access in accesses(ins):
            how = _how(op.base, op.modifiers, access.writes) | strong
            changed = self._global(ins, changed, access, how)
            if how & WRITES and not how & READS:
                stores = how | access.span
        if state_space(op) == "shared" and op.base in ("ld", "ldu", "st", "atom", "red"):
            writes = op.base in ("st", "atom", "red")
            how = _how(op.base, op.modifiers, writes) | strong | op.used_of(own_bytes(ins))
            self._shared(ins, 1 if op.base in ("ld", "ldu", "atom") else 0, how)
            if how & WRITES and not how & READS:
                stores = how
        self._made.append(changed)
        if stores and stores & _MOST_BYTES:
            self._call(STORED, changed, immediate(stores), immediate(self._site(ins)))
        if bits & VOLATILE and bits & (MEMORY_READ | ATOMIC):
            self._sync(Sync.ACQUIRE, changed)

    def _global(
        self, ins: Instruction, changed: Instruction, access: MemoryAccess, how: int
    ) -> Instruction:
        """Announce an access; return the instruction with the address that it has now."""
        address = ins.operands[access.operand]
        if access.size is not None or access.only_if is not None or access.rows > 1:
            return changed
        if not isinstance(address, Address) or not 0 < access.span <= _MOST_BYTES:
            return changed
        if isinstance(address.base, Symbol):
            return changed  # a variable of the module
        target = self._new("b64")
        origin = self._origins.of(address)
        arguments = (
            self._place(address),
            immediate(0) if origin is None else origin,
            immediate(how | access.span),
            immediate(self._site(ins)),
        )
        self._made.append(
            Instruction(
                opcode("call.uni"),
                (Tuple((target,)), Symbol(ACCESS), Tuple(arguments)),
                ins.guard,
                ins.line,
            )
        )
        operands = list(changed.operands)
        operands[access.operand] = Address(target)
        return replace(changed, operands=tuple(operands))

    def _shared(self, ins: Instruction, operand: int, how: int) -> None:
        address = ins.operands[operand]
        if not isinstance(address, Address) or not how & _MOST_BYTES:
            return
        place = self._place(address)
        self._call(SHARED, ins, place, immediate(how), immediate(self._site(ins)))

    def _place(self, address: Address) -> Operand:
        """Return the address as a value of 64 bits."""
        base, offset = address.base, address.offset
        if isinstance(base, Register) and self._widths.of(base) == 64 and not offset:
            return base
        place = self._new("b64")
        if base is None:
            self._do("mov.u64", place, immediate(offset))
        elif isinstance(base, Symbol):
            named: Operand = SymbolOffset(base, offset) if offset else base
            self._do("mov.u64", place, named)
        elif self._widths.of(base) == 64:
            self._do("add.s64", place, base, immediate(offset))
        else:
            self._do("cvt.u64.u32", place, base)
            if offset:
                self._do("add.s64", place, place, immediate(offset))
        return place

    def _shuffle(self, ins: Instruction) -> None:
        modes = [mode for mode in ins.opcode.modifiers if mode in SHUFFLE_MODES]
        if not ins.opcode.has("sync") or not modes or len(ins.operands) != _SHUFFLE_OPERANDS:
            return  # without .sync it has no members
        mode = immediate(SHUFFLE_MODES.index(modes[0]))
        self._call(SHUFFLE, ins, mode, *ins.operands[2:], immediate(self._site(ins)))

    # -- pieces

    def _sync(self, what: Sync, ins: Instruction) -> None:
        barrier: Operand = immediate(0)
        if what in (Sync.ARRIVE, Sync.PASS) and not ins.opcode.has("cluster"):
            number = ins.operands[1 if ins.opcode.has("red") else 0]
            barrier = number if isinstance(number, Register | Immediate) else barrier
        self._call(SYNC, ins, immediate(int(what)), barrier)

    def _call(self, name: str, ins: Instruction, *arguments: Operand) -> None:
        self._made.append(
            Instruction(opcode("call.uni"), (Symbol(name), Tuple(arguments)), ins.guard, ins.line)
        )

    def _do(self, text: str, *operands: Operand) -> None:
        self._made.append(Instruction(opcode(text), operands))

    def _new(self, kind: str) -> Register:
        number = self._counts[kind]
        self._counts[kind] = number + 1
        return Register(f"%{_STEM}{kind}_{number}")

    def _site(self, ins: Instruction) -> int:
        return self._sites.add(self._function.name, ins)


def _first_tries(function: Function) -> set[int]:
    """Return the loads, by identity, whose value is what a compare-and-swap there expects.

    Programs get a first value to try by a plain load: the swap notices if it was a bad one.
    """
    made: dict[str, list[Instruction]] = {}
    swaps = []
    for statement in function.body or ():
        if isinstance(statement, Instruction):
            for register in written(statement):
                made.setdefault(register.name, []).append(statement)
            if statement.opcode.base == "atom" and statement.opcode.has("cas"):
                swaps.append(statement)
    found: set[int] = set()
    for swap in swaps:
        work, seen = [swap.operands[2]], set[str]()
        while work:
            value = work.pop()
            if not isinstance(value, Register) or value.name in seen:
                continue
            seen.add(value.name)
            for ins in made.get(value.name, ()):
                if ins.opcode.base == "mov":
                    work.append(ins.operands[1])
                elif ins.opcode.base == "ld" and ins.operands[1] == swap.operands[1]:
                    found.add(id(ins))
    return found


def _how(base: str, modifiers: tuple[str, ...], writes: bool) -> int:
    """Return whether an access reads, writes or both; an exchange does not use what it reads."""
    if base in ("atom", "red", "multimem") or "reduce" in modifiers:
        return WRITES if "exch" in modifiers else READS | WRITES
    return WRITES if writes else READS
