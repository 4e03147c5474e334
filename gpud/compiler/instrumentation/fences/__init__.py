"""Fences: the check that stands before an access to memory, as PTX and as one record.

Problem: an access that misses its session's arena must not happen. The check is PTX, so that every
device can run it as it stands; but a device that knows a faster way (the CPU device does) must be
able to find every check, know exactly what it means, and put its own in its place.

Approach: one canonical sequence of instructions for a `Fence`
(`gpud.compiler.instrumentation.fences.record`), written by `emit`
(`gpud.compiler.instrumentation.fences.emitter`). `recognise`
(`gpud.compiler.instrumentation.fences.matcher`)
reads it back: it guesses the record from a few operands, emits that, and compares statement by
statement, so what it returns is what stands there and nothing else. `fold` replaces it.

Terms: a *member* is one access that the fence stands for: bytes ``[register + low, register + low
+ span)``, whose first must be a multiple of ``align``. The *hull* of a fence is the range from its
first member's byte to its last. A *window* is a range of generic addresses that means other
memory: ``shared``, ``local``, ``param``. The *hot* part stands before the first of the accesses;
the *cold* part at the end of the function, and is only reached if the hot one finds something.

Algorithm. Hot: one unsigned comparison tells whether the hull lies in the arena (offset from the
base > size - span: out), one more whether its first byte is aligned; a guard of the accesses takes
part in the predicate, so nothing is found for threads that make no access. Cold: each member for
itself, in order: in the arena, in one of the windows (first and last byte), in one of the module's
variables? If not, or if it is not aligned, ``call gpud_fault`` with the member's site and address.
If all members are legal, back to the hot part's end. Where the arena alone is legal for the one
member, there is nothing more to find out than which fault it is, and no way back.

Properties:
* ``inverse``: `recognise` of what `emit` made gives the same record, after printing and parsing;
* ``exact``: the fault is reported if and only if some member is illegal, and names the first;
* the hot part has no branch but the one to the cold part; the cold part writes no register of the
  program's;
* all registers begin with ``%gpud_fence_``, all labels with ``$gpud_fence_``, and end with the
  fence's number, unique in its function.

Source: design, section 4.3; PTX ISA 9.0, sections 5.1 (state spaces) and 9.7.9 (``isspacep``).
"""

from __future__ import annotations

from gpud.compiler.instrumentation.fences.emitter import declarations, emit, fence_register
from gpud.compiler.instrumentation.fences.matcher import FenceMatch, fold, recognise
from gpud.compiler.instrumentation.fences.record import Fence, Member, Range

__all__ = [
    "Fence",
    "FenceMatch",
    "Member",
    "Range",
    "declarations",
    "emit",
    "fence_register",
    "fold",
    "recognise",
]
