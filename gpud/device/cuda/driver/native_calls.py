"""Makes several driver calls on one stream by one call of native code, without Python in between.

Problem: from Python a driver call costs some microseconds besides the driver's own time: arguments
are converted, a status object is made, Python's lock is given up and taken again. A request of many
short kernels takes longer to queue than to run.

Approach: a table of *commands* in memory, each a call with its arguments, and a function of some
fifty instructions, compiled by LLVM, which makes the calls one after the other at the addresses
that the driver gives of its functions (``cuGetProcAddress``). It stops at the first that fails.
Python's lock is given up once for all of them.

Terms: a command is 64 bytes: its kind, then its arguments as the driver takes them, except for the
stream, which is the same for all and given when they are made.

Properties:
* ``in order``: calls are made in the order of the table, none after one that fails;
* no status is lost: it becomes the error of `Driver.error_of`;
* without LLVM, or where the driver does not give an address, there are no native calls:
  `native_calls` returns None.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpud.device.cuda.driver.calls import Driver, DriverError

__all__ = ["COPY", "GRAPH", "KERNEL", "NOTIFY", "RECORD", "CommandTable", "NativeCalls",
           "native_calls"]  # fmt: skip

KERNEL, COPY, RECORD, NOTIFY, GRAPH = range(5)
"""Kinds of commands, in the order of `_FUNCTIONS`."""

_FUNCTIONS: Final = (
    "cuLaunchKernel", "cuMemcpyDtoHAsync", "cuEventRecord", "cuLaunchHostFunc", "cuGraphLaunch",
)  # fmt: skip
_CUDA: Final = 12000
"""The version of the functions: of all drivers that gpud supports."""

_WORDS: Final = 8
_DONE_SHIFT: Final = 32
_NAME: Final = "gpud_make_calls"

_IR: Final = f"""
define i64 @{_NAME}(ptr %functions, ptr %commands, i64 %first, i64 %count, ptr %stream) {{
entry:
  br label %head
head:
  %n = phi i64 [ %first, %entry ], [ %next, %made ]
  %over = icmp uge i64 %n, %count
  br i1 %over, label %end, label %make
make:
  %command = getelementptr [{_WORDS} x i64], ptr %commands, i64 %n
  %kind = load i64, ptr %command
  %slot = getelementptr ptr, ptr %functions, i64 %kind
  %function = load ptr, ptr %slot
  %at1 = getelementptr i64, ptr %command, i64 1
  %at2 = getelementptr i64, ptr %command, i64 2
  %at3 = getelementptr i64, ptr %command, i64 3
  %pointer1 = load ptr, ptr %at1
  %pointer2 = load ptr, ptr %at2
  %word2 = load i64, ptr %at2
  %word3 = load i64, ptr %at3
  switch i64 %kind, label %unknown [
    i64 {KERNEL}, label %kernel
    i64 {COPY}, label %copy
    i64 {RECORD}, label %on_stream
    i64 {NOTIFY}, label %notify
    i64 {GRAPH}, label %on_stream
  ]
kernel:
  %x_at = getelementptr i32, ptr %command, i64 4
  %y_at = getelementptr i32, ptr %command, i64 5
  %z_at = getelementptr i32, ptr %command, i64 6
  %block_x_at = getelementptr i32, ptr %command, i64 7
  %block_y_at = getelementptr i32, ptr %command, i64 8
  %block_z_at = getelementptr i32, ptr %command, i64 9
  %shared_at = getelementptr i32, ptr %command, i64 10
  %parameters_at = getelementptr i64, ptr %command, i64 6
  %x = load i32, ptr %x_at
  %y = load i32, ptr %y_at
  %z = load i32, ptr %z_at
  %block_x = load i32, ptr %block_x_at
  %block_y = load i32, ptr %block_y_at
  %block_z = load i32, ptr %block_z_at
  %shared = load i32, ptr %shared_at
  %parameters = load ptr, ptr %parameters_at
  %launched = call i32 %function(ptr %pointer1, i32 %x, i32 %y, i32 %z, i32 %block_x, i32 %block_y,
                                 i32 %block_z, i32 %shared, ptr %stream, ptr %parameters, ptr null)
  br label %made_call
copy:
  %copied = call i32 %function(ptr %pointer1, i64 %word2, i64 %word3, ptr %stream)
  br label %made_call
on_stream:
  %put = call i32 %function(ptr %pointer1, ptr %stream)
  br label %made_call
notify:
  %notified = call i32 %function(ptr %stream, ptr %pointer1, ptr %pointer2)
  br label %made_call
made_call:
  %status = phi i32 [ %launched, %kernel ], [ %copied, %copy ], [ %put, %on_stream ],
                    [ %notified, %notify ]
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %fail, label %made
made:
  %next = add i64 %n, 1
  br label %head
fail:
  %done = shl i64 %n, {_DONE_SHIFT}
  %wide = zext i32 %status to i64
  %both = or i64 %done, %wide
  ret i64 %both
end:
  %all = shl i64 %n, {_DONE_SHIFT}
  ret i64 %all
unknown:
  unreachable
}}
"""


class CommandTable:
    """Commands to be made together; appended to while it is set up.

    Attributes:
        words: the commands; uint64[n, 8].
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._words: npt.NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def words(self) -> npt.NDArray[np.uint64]:
        """The commands; uint64[n, 8], at an address that stays until one is appended."""
        if self._words is None:
            self._words = np.zeros((len(self._rows), _WORDS), np.uint64)
            for index, row in enumerate(self._rows):
                self._words[index, : len(row)] = row
        return self._words

    def kind(self, index: int) -> int:
        """Return the kind of a command."""
        return self._rows[index][0]

    def kernel(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        parameters: int,
    ) -> None:
        """Append a launch; ``parameters``: address of the array of pointers to its parameters."""
        (x, y, z), (block_x, block_y, block_z) = grid, block
        self._add(
            KERNEL, int(function), x | y << 32, z | block_x << 32, block_y | block_z << 32, shared,
            parameters,
        )  # fmt: skip

    def copy(self, to: int, source: int, size: int) -> None:
        """Append a copy of ``size`` bytes from device memory to host memory."""
        self._add(COPY, to, source, size)

    def record(self, event: Any) -> None:
        """Append a record of an event."""
        self._add(RECORD, int(event))

    def notify(self, function: Any, argument: int) -> None:
        """Append a call of a host function when the stream gets there."""
        self._add(NOTIFY, int(function), argument)

    def graph(self, executable: Any) -> None:
        """Append a launch of a graph."""
        self._add(GRAPH, int(executable))

    def _add(self, *row: int) -> None:
        self._rows.append(row)
        self._words = None


class CallsMade(NamedTuple):
    """What became of commands: how many were made, from the table's first on, and the error."""

    done: int
    error: Exception | None


class NativeCalls:
    """Makes the calls of a `CommandTable`.

    Args:
        driver: whose functions are called.
    """

    def __init__(self, driver: Driver, addresses: list[int], function: Any) -> None:
        self._driver = driver
        self._addresses = np.array(addresses, np.uint64)
        self._at = int(self._addresses.ctypes.data)
        self._function = function

    def make(
        self, table: CommandTable, stream: Any, first: int = 0, count: int | None = None
    ) -> CallsMade:
        """Make the commands from ``first`` on, up to ``count``; the context is current.

        The error is a `DriverError` or `gpud.errors.DeviceLost`.
        """
        end = len(table) if count is None else count
        said = self._function(self._at, table.words.ctypes.data, first, end, int(stream))
        done, status = said >> _DONE_SHIFT, said & 0xFFFFFFFF
        if not status:
            return CallsMade(done, None)
        return CallsMade(done, self._driver.error_of(_FUNCTIONS[table.kind(done)], status))


@cache
def _compiled() -> Any:
    """Compile the code; it stays as long as the process does."""
    from gpud.device import jit  # not needed where nothing is launched

    kind = ctypes.CFUNCTYPE(
        ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64,
        ctypes.c_void_p,
    )  # fmt: skip
    code = jit.assemble(_IR, (_NAME,))
    function = code.function(_NAME, kind)
    function.code = code  # it is unloaded with the object
    return function


def native_calls(driver: Driver) -> NativeCalls | None:
    """Return what makes native calls; None: there is no LLVM here, or a function has no address."""
    try:
        found = [
            int(driver.call("cuGetProcAddress", name.encode(), _CUDA, 0)[0] or 0)
            for name in _FUNCTIONS
        ]
        return NativeCalls(driver, found, _compiled()) if all(found) else None
    except (DriverError, ImportError):
        return None
