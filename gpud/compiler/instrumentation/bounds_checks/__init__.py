"""Bounds checks before memory accesses, as PTX and as records.

Problem: an access outside its session's arena must not happen. The check is PTX, so that every
device can run it unchanged; a device with a faster way (the CPU device has one) must be able to
find every check, know its exact meaning, and replace it by its own.

Approach: one canonical sequence of instructions for a `BoundsCheck`
(`gpud.compiler.instrumentation.bounds_checks.record`), written by `emit`
(`gpud.compiler.instrumentation.bounds_checks.emitter`). `recognise`
(`gpud.compiler.instrumentation.bounds_checks.matcher`) reads it back: it reconstructs the record
from a few operands, emits that again, and compares statement by statement, so that the record is
exact. `fold` replaces each sequence by one statement.

Terms: a *member* is one access that the check is for: bytes ``[register + low, register +
low + span)``, whose first address must be a multiple of ``align``. The *hull* of a bounds check is
the smallest range with all its members. A *window* is a range of generic addresses that maps
another space: ``shared``, ``local``, ``param``. The *hot* part stands before the first of the
accesses; the *cold* part stands at the end of the function, and is only reached if the hot part's
check fails.

Algorithm. Hot: one unsigned comparison tests whether the hull lies in the arena (offset from the
base > size - span: outside), a second whether its first byte is aligned; the guard of the accesses
is part of the predicate, so the check cannot fail for threads without an access. Cold: tests each
member, in order: does it lie in the arena, in one of the windows (first and last byte), or in one
of the module's variables, of which a loop searches the table `RANGES`? If not, or if it is not
aligned, ``call gpud_fault`` with the member's site and address. If all members are legal, branch
back to the end of the hot part. A bounds check with one member for which only the arena is legal
just determines the kind of fault, and never branches back. A matrix's rows are at a distance that
only the running program knows: the hot part tests the first and the last, the cold part is a loop
over them.

Properties:
* ``inverse``: `recognise` of what `emit` made gives the same record, after printing and parsing;
* ``exact``: a fault is reported if and only if some member is illegal, and names the first;
* ``constant``: the size of the code does not depend on how many variables the module has;
* the hot part has no branch but the one to the cold part; the cold part writes none of the
  program's registers;
* all registers begin with ``%gpud_bounds_``, all labels with ``$gpud_bounds_``, and end with the
  check's number, unique in its function.

Source: docs/explanation/decisions.md, "Addresses are checked, not masked"; PTX ISA 9.0, sections
5.1 (state spaces) and 9.7.9 (``isspacep``).
"""

from __future__ import annotations

from gpud.compiler.instrumentation.bounds_checks.emitter import check_register, declarations, emit
from gpud.compiler.instrumentation.bounds_checks.matcher import CheckMatch, fold, recognise
from gpud.compiler.instrumentation.bounds_checks.record import BoundsCheck, Member, Range

__all__ = [
    "BoundsCheck",
    "CheckMatch",
    "Member",
    "Range",
    "check_register",
    "declarations",
    "emit",
    "fold",
    "recognise",
]
