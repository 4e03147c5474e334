"""Makes persistent kernels poll a word in host memory now and then.

Problem: where launch records are in device memory (`gpud.device.cuda.launch.release_path`), only
the driver can tell blocks to release; and while a driver call waits for kernels to leave, the
driver does nothing else (`gpud.device.cuda.driver.watchdog`).

Approach: before a claim the leader also reads the word ``halt`` of the status record, which is in
host memory, if `PERIOD` clocks of its SM have passed since it last did. A read over the bus takes a
microsecond or two; one in a hundred microseconds costs little, and is soon enough for a call that
is stuck for milliseconds. The time of the last read is kept beside the claims, in the word of the
slots that the loop does not use.

That word is uninitialised at first: the first read may come at once, or a period late.

Properties:
* ``obeyed``: a block that finds ``halt`` set leaves as if it had been told to release;
* kernels of other forms, and all functions, are unchanged.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpud.compiler.abi import control_words as cw
from gpud.compiler.passes.builder import CodeBuilder, map_functions
from gpud.compiler.passes.forms.persistent import claim_and_slot
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Register,
    SpecialRegister,
    Statement,
    Symbol,
    immediate,
)
from gpud.device.cuda.program.report_blocks import is_persistent, load_status

__all__ = ["PERIOD", "add_host_poll", "reads_order"]

PERIOD: Final = 1 << 17
"""Clocks from one read to the next: 66 us at 2 GHz, 100 at 1.3."""

_LAST_POLL = 12  # offset in the slots


def add_host_poll(program: Module) -> Module:
    """Have persistent kernels of a flat program also read ``halt``."""

    def change(function: Function) -> Function:
        return _changed(function) if is_persistent(function) else function

    return map_functions(program, change)


def _changed(entry: Function) -> Function:
    control = entry.parameters[-1].name
    _, slot = claim_and_slot(entry)
    code = CodeBuilder(f"{control}_far")
    body: list[Statement] = []
    statements = entry.body or []
    for number, statement in enumerate(statements):
        if reads_order(statement):
            release = next(
                one.operands[0]
                for one in statements[number:]
                if isinstance(one, Instruction) and one.opcode.base == "bra"
            )
            assert isinstance(release, Symbol)
            _emit_poll(code, f"near{number}", entry, slot, release)
            body += code.body
            code.body = []
        body.append(statement)
    return replace(entry, body=[*code.declarations, *body])


def reads_order(statement: Statement) -> bool:
    """Return whether the loop reads here whether its block is to release."""
    return (
        isinstance(statement, Instruction)
        and statement.opcode.text == "ld.volatile.global.v2.u32"
        and isinstance(statement.operands[1], Address)
        and statement.operands[1].offset == cw.ORDERS
        and "_orders" in repr(statement.operands[1].base)
    )


def _emit_poll(
    code: CodeBuilder, behind: str, entry: Function, slot: Register, release: Symbol
) -> None:
    """Go to ``release`` if it is time to look and the host has all blocks release."""
    place, now, since = (code.register(name) for name in ("place", "now", "since"))
    yes, near = code.register("yes", "pred"), code.label(behind)
    code("and.b32", place, slot, immediate(-8))
    code("mov.u32", now, SpecialRegister("%clock"))
    code("ld.shared.u32", since, Address(place, _LAST_POLL))
    code("sub.u32", since, now, since)
    code("setp.lt.u32", yes, since, PERIOD)
    code("bra", near, when=yes)
    code("st.shared.u32", Address(place, _LAST_POLL), now)
    status = load_status(code, entry)
    code("ld.volatile.global.u32", since, Address(status, cw.HALT))
    code("setp.ne.u32", yes, since, 0)
    code("bra", release, when=yes)
    code.place(near)
