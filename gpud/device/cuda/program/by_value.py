"""Passes what a launch's records say for good by value, with the kernel's parameters.

Problem: a rewritten kernel's hidden parameter is the address of its launch record, which has the
addresses of the job record and of the status record; the job record has the grid, its dividers and
the number of task blocks per claim. Each block would read them one after the other, over the bus
where records are in host memory, and a persistent block again for each task block, from its SM's
cache at best; ptxas keeps few of them in registers.

Approach: `pass_by_value` gives each rewritten kernel one more parameter before the hidden one, a
structure with all words that the host sets before a launch and blocks never change, and has the
kernel read them there: a parameter is an operand of most instructions, takes no register, and is
there when the kernel begins. The records stay complete, for functions that are given their address.
The CPU device has no such operands, so only programs for a GPU are changed, as they are loaded.

The structure: the addresses of job record and status record, the sub-grid's first task block, and
the first `_JOB_BYTES` bytes of the job record as they are before the launch.

Properties:
* ``no reads``: no rewritten kernel reads a word from its records that is in the structure;
* a kernel whose parameters would take more than `_MOST_BYTES` is unchanged, and so are kernels
  without hidden parameter and all functions;
* the hidden parameter stays the last one.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import CONTROL
from gpud.compiler.analysis.data_layout import offsets
from gpud.compiler.passes.builder import map_functions
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Operand,
    Parameter,
    Statement,
    Symbol,
    opcode,
)
from gpud.device.cuda.program.report_blocks import is_rewritten

__all__ = [
    "JOB_AT",
    "VALUE_BYTES",
    "encode_addresses",
    "is_values",
    "job_values",
    "pass_by_value",
    "write_addresses",
]

_SUFFIX: Final = "_values"
_ADDRESSES = struct.Struct("<QQI4x")

JOB_AT: Final = _ADDRESSES.size
"""Offset of the beginning of the job record."""

_JOB_BYTES: Final = cw.AHEAD + 4
VALUE_BYTES: Final = JOB_AT + _JOB_BYTES
"""Size of the structure."""

_MOST_BYTES: Final = 4096
"""What parameters may take on every device: PTX ISA 9.0, section 5.1.6.4."""

_OF_LAUNCH: Final = {cw.JOB: 0, cw.STATUS: 8, cw.BASE: 16}
_OF_JOB: Final = frozenset(
    (cw.TOTAL, *(cw.GRID + 4 * axis for axis in range(3)), cw.FLAGS, cw.X_DIVIDER, cw.Y_DIVIDER,
     cw.CHUNK)
)  # fmt: skip
_READ: Final = "ld.global.nc."


def is_values(parameter: str) -> bool:
    """Return whether a parameter of this name is the structure."""
    return CONTROL in parameter and parameter.endswith(_SUFFIX)


def encode_addresses(job: int, status: int, base: int) -> bytes:
    """Return the structure's beginning for one launch; `job_values` follow it.

    Args:
        job: address of its job record.
        status: address of its status record.
        base: its first task block, in sliced form.
    """
    return _ADDRESSES.pack(job, status, base)


def write_addresses(buffer: bytearray, offset: int, encoded: bytes) -> None:
    """Write `encode_addresses` into a buffer."""
    buffer[offset : offset + _ADDRESSES.size] = encoded


def job_values(record: bytes) -> bytes:
    """Return the rest of the structure, from the initial job record."""
    return record[:_JOB_BYTES]


def pass_by_value(program: Module) -> Module:
    """Pass what does not change by value to each rewritten kernel of a flat program."""

    def change(function: Function) -> Function:
        if function.kind != "entry" or function.body is None or not is_rewritten(function):
            return function
        own = Parameter("b8", function.parameters[-1].name + _SUFFIX, (VALUE_BYTES,), align=8)
        parameters = (*function.parameters[:-1], own, function.parameters[-1])
        if offsets(parameters)[1] > _MOST_BYTES:
            return function
        return replace(function, parameters=parameters, body=_changed(function, Symbol(own.name)))

    return map_functions(program, change)


def _changed(entry: Function, values: Symbol) -> list[Statement]:
    control = Address(Symbol(entry.parameters[-1].name))
    launches: set[Operand] = set()  # registers with the address of the launch record
    jobs: set[Operand] = set()
    body: list[Statement] = []
    for statement in entry.body or ():
        if isinstance(statement, Instruction):
            name = statement.opcode.text
            if name == "ld.param.u64" and statement.operands[1] == control:
                launches.add(statement.operands[0])
            elif name.startswith(_READ):
                at = _place(statement, launches, jobs)
                if at is not None:
                    read = opcode("ld.param." + name.removeprefix(_READ))
                    where = Address(values, at)
                    statement = Instruction(  # noqa: PLW2901
                        read, (statement.operands[0], where), statement.guard, statement.line
                    )
        body.append(statement)
    return body


def _place(read: Instruction, launches: set[Operand], jobs: set[Operand]) -> int | None:
    """Return the offset in the structure of what is read; None: it is not there."""
    target, address = read.operands
    if not isinstance(address, Address) or not isinstance(address.offset, int):
        return None
    if address.base in launches and address.offset in _OF_LAUNCH:
        if address.offset == cw.JOB:
            jobs.add(target)
        return _OF_LAUNCH[address.offset]
    if address.base in jobs and address.offset in _OF_JOB:
        return JOB_AT + address.offset
    return None
