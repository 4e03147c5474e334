"""The gate between two launches of a job: a kernel of one thread that opens the next launch.

Problem: launches of a job follow each other; a service's take 5 to 50 us each, so the host cannot
act between them. But queuing them is not enough: a launch may be told to release in the middle,
which leaves task blocks unclaimed, and the next one must not begin then.

Approach: a job's launches are queued on one stream with a gate before each. Every launch but the
first is initially *closed*: its ``next`` is ``total``, so that its blocks find nothing to claim and
leave. The gate opens it, by setting ``next`` to 0, if all task blocks of the one before are done;
else it and all gates behind it leave the rest closed, and the host launches them again when it
gives the job more slices.

Terms: *run words*: one job's words in host memory that the GPU sees: `CURRENT`, the last launch
that was opened, written by gates; `STOP`, written by the host: open nothing more; `HELPED`, written
by the host before it adds a helper to a running launch: the number of the launch after that.

Why `HELPED`: the stream has only waited for its own launches. A helper's writes are certainly
visible only when that launch is over, and a task block is counted as done a little earlier. So
the gate stays closed behind a launch with a helper, and the host, which waits for all launches,
continues with the next launch.

Order: the next launch sees the writes of the launch before because both are on one stream with the
gate between them. So task blocks need no fence when they count themselves as done. Two orderings
are the gate's own: it reads `HELPED` after ``done``, which is an acquire load (a helper that has
counted a task block was launched after the host had written `HELPED`); and the host, which reads
`CURRENT` and then launches a helper, must see what the gate has seen and done: a release store.

Properties:
* a launch is opened at most once, and only after all task blocks of the one before are done and
  their writes are visible;
* `CURRENT` never decreases, and is written after the launch was opened;
* a gate waits for nothing.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from gpud.compiler.abi import control_words as cw

__all__ = ["CURRENT", "GATE", "HELPED", "PTX", "RUN_BYTES", "STOP", "GateParameters"]

CURRENT: Final = 0
STOP: Final = 2
HELPED: Final = 3
_VALUES: Final = struct.Struct("<4Q")
RUN_BYTES: Final = 64
"""Size of the run words; `CURRENT`, `STOP` and `HELPED` are indices of 32-bit words.

The gate reads the last two at once: each read over the bus takes about a microsecond.
"""

assert (STOP % 2, HELPED) == (0, STOP + 1), "they are loaded as one vector"

GATE: Final = "gpud_gate"

PTX: Final = f"""
.version 6.4
.target sm_75
.address_size 64

.visible .entry {GATE}(
    .param .u64 job, .param .u64 previous, .param .u64 run, .param .u32 number)
.maxntid 1, 1, 1
{{
    .reg .b64 %job, %previous, %run;
    .reg .b32 %number, %done, %total, %stop, %helped;
    .reg .pred %yes, %follows;
    ld.param.u64 %job, [job];
    ld.param.u64 %previous, [previous];
    ld.param.u64 %run, [run];
    ld.param.u32 %number, [number];
    setp.ne.u64 %follows, %previous, 0;
    @!%follows bra $words;
    ld.acquire.sys.global.u32 %done, [%previous+{cw.DONE}];
    ld.global.u32 %total, [%previous+{cw.TOTAL}];
    setp.ne.u32 %yes, %done, %total;
    @%yes bra $closed;
$words:
    ld.volatile.global.v2.u32 {{%stop, %helped}}, [%run+{STOP * 4}];
    setp.ne.u32 %yes, %stop, 0;
    @%yes bra $closed;
    setp.eq.and.u32 %yes, %helped, %number, %follows;
    @%yes bra $closed;
    st.volatile.global.u32 [%job+{cw.NEXT}], 0;
    st.release.sys.global.u32 [%run+{CURRENT * 4}], %number;
$closed:
    ret;
}}
"""


class GateParameters:
    """The gate's parameters in the form that a launch takes; used by one launch at a time.

    Attributes:
        pointers: address of the array of pointers to them.
    """

    def __init__(self) -> None:
        self._values = bytearray(_VALUES.size)
        first = np.frombuffer(self._values, np.uint8).ctypes.data
        self._pointers = first + 8 * np.arange(4, dtype=np.uint64)
        self.pointers: int = int(self._pointers.ctypes.data)

    def set(self, job: int, previous: int, run: int, number: int) -> Any:
        """Set the values; ``previous`` 0: open unconditionally. Returns `pointers`."""
        _VALUES.pack_into(self._values, 0, job, previous, run, number)
        return self.pointers
