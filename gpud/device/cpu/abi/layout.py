"""Memory layout of a resident block and of a module's variables.

A resident block is one piece of host memory: a header that the SM loop and the generated code
share, arrays with one element for each thread (its state, its operands for a warp collective, the
result, and each register that is live across a wait), the threads' local memory, and the block's
shared memory. Arrays are padded to whole warps and aligned to 64 bytes, so that a loop over threads
can be vectorised.

Sizes and offsets are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.ir.thread import width

__all__ = [
    "BASE_ARRAYS",
    "BLOCK_ARGUMENT",
    "HEADER",
    "HEADER_SIZE",
    "HIDDEN_ALIGNMENT",
    "STATE_STATUS_SHIFT",
    "TEMPLATE_BYTES",
    "WARP",
    "BlockLayout",
    "DataLayout",
    "Failure",
    "ModuleLayout",
    "Setup",
    "Shape",
    "Space",
    "Status",
    "align_up",
    "base_array_offset",
    "is_dynamic_shared",
]

WARP = 32
STATE_STATUS_SHIFT = 24

HIDDEN_ALIGNMENT = 16
"""Alignment of gpud's own shared variables, which follow the program's."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Threads of a block in each dimension."""

    x: int
    y: int = 1
    z: int = 1

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return self.x * self.y * self.z


class Setup:
    """What must be set up before the block of a slot can run: the header's ``setup``."""

    NONE = 0
    STATES = 1
    """The block's coordinates are new; its threads start from the beginning."""
    BLOCK = 2
    """The slot has no block: the SM loop looks for one."""


class Status:
    """Why a thread stopped: the top byte of its state word, above the block where it resumes."""

    RUN = 0
    BARRIER = 1
    COLLECTIVE = 2
    YIELD = 3
    DONE = 4
    TRAP = 5


class Failure:
    """Why a block failed: the header's ``error``."""

    NONE = 0
    TRAP = 1
    DEADLOCK = 2
    """No thread of the block can ever make progress."""
    ASSERT = 3
    ADDRESS = 4
    MISALIGNED = 5
    BREAKPOINT = 6
    KILLED = 7
    STACK = 8
    """Nested calls need more local memory than is reserved for them."""
    TARGET = 9
    """A jump or call goes to none of its possible targets."""


class Space:
    """State space of a failed access: the header's ``error_space``."""

    GLOBAL = 0
    """Includes generic addresses."""
    SHARED = 1
    LOCAL = 2
    CONST = 3
    PARAM = 4


_FIELDS: tuple[tuple[str, str], ...] = (
    ("params", "ptr"),
    ("shared", "ptr"),
    ("locals", "ptr"),
    ("data", "ptr"),
    ("run_lockstep", "ptr"),
    ("run_region", "ptr"),
    ("begin_diverged", "ptr"),
    ("exchange", "ptr"),
    ("uniform_table", "ptr"),
    ("shared_size", "i64"),
    ("grid_id", "i64"),
    ("nctaid_x", "i32"),
    ("nctaid_y", "i32"),
    ("nctaid_z", "i32"),
    ("nsmid", "i32"),
    ("dynamic_shared", "i32"),
    ("threads", "i32"),
    ("padded", "i32"),
    ("start", "i32"),
    ("ctaid_x", "i32"),
    ("ctaid_y", "i32"),
    ("ctaid_z", "i32"),
    ("smid", "i32"),
    ("by_vote", "i32"),
    ("taken_state", "i32"),
    ("fallthrough_state", "i32"),
    ("setup", "i32"),
    ("lockstep_block", "i32"),
    ("claim", "i32"),
    ("error", "i32"),
    ("error_thread", "i32"),
    ("error_line", "i32"),
    ("error_site", "i32"),
    ("error_claim", "i32"),
    ("error_space", "i32"),
    ("error_address", "i64"),
    ("error_file", "i64"),
    ("error_function", "i64"),
)
"""Header fields in order; those before ``ctaid_x`` are the same for all blocks of a launch.

``run_lockstep``, ``run_region``, ``begin_diverged``, ``exchange`` and ``uniform_table`` point into
the kernel's own code (see `gpud.device.cpu.codegen.kernel`). ``threads`` is the block's size,
``padded`` the same in whole warps. ``setup`` is a `Setup`. ``lockstep_block`` is the number of the
kernel's block at which all threads run in lockstep, -1 if they have diverged; ``start`` is its
initial value. When threads
diverge, ``taken_state`` and ``fallthrough_state`` are their new state words, chosen by each
thread's ``key`` if ``by_vote`` is set; otherwise all get ``taken_state``. ``claim`` is the current
task block of a persistent block, `NOTHING` before its first.

``error`` is a `Failure`. The fields that describe it are written once, by the first thread that
fails: ``error_thread`` (x fastest), ``error_line`` (of the PTX text; of the source file for
ASSERT), ``error_site`` (-1 if unknown), ``error_claim`` (the task block, `NOTHING` if unknown),
``error_space`` (a `Space`), ``error_address`` (the accessed address; for ASSERT that of the
message), ``error_file`` and ``error_function`` (addresses of strings, for ASSERT).
"""


def align_up(value: int, alignment: int) -> int:
    """Round ``value`` up to a multiple of ``alignment``, a power of two."""
    return (value + alignment - 1) & -alignment


def _header() -> tuple[dict[str, tuple[int, str]], int]:
    offsets, at = {}, 0
    for name, type_ in _FIELDS:
        size = 4 if type_ == "i32" else 8
        at = align_up(at, size)
        offsets[name] = (at, type_)
        at += size
    offsets["arrived"] = (at, "i32")  # 16 barriers' counts of bar.arrive
    return offsets, align_up(at + 64, 64)


HEADER, HEADER_SIZE = _header()
"""Header field -> (offset, LLVM type)."""

TEMPLATE_BYTES = HEADER["ctaid_x"][0]
"""The part of a header that is the same for all blocks of a launch."""


@dataclass(slots=True)
class DataLayout:
    """Variables of one state space, placed one after another."""

    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def add(self, variable: ptx.Variable) -> int:
        """Place ``variable`` and return its offset; a name that is already placed keeps its own."""
        if variable.name not in self.offsets:
            size, alignment = size_and_align(variable)
            self.size = align_up(self.size, alignment)
            self.offsets[variable.name] = self.size
            self.size += size
        return self.offsets[variable.name]


@dataclass(slots=True)
class ModuleLayout:
    """Offsets of a module's variables, and the numbers of its addressed functions.

    ``data`` holds ``.const`` variables first (``const_size`` bytes), then ``.global`` ones.
    ``shared`` are offsets in the block's shared memory; ``.extern .shared`` arrays begin at
    ``dynamic_shared``. ``hidden`` are gpud's own shared variables, the claim slots of the
    persistent loop: they follow all the shared memory of the launch, where no access of the program
    is legal. ``functions`` are the values of function pointers, never 0.
    """

    data: DataLayout = field(default_factory=DataLayout)
    const_size: int = 0
    shared: DataLayout = field(default_factory=DataLayout)
    dynamic_names: frozenset[str] = frozenset()
    dynamic_shared: int = 0
    hidden: DataLayout = field(default_factory=DataLayout)
    functions: Mapping[str, int] = field(default_factory=dict)


def is_dynamic_shared(variable: ptx.Variable) -> bool:
    """Return whether the size of a ``.shared`` variable is given at launch."""
    return variable.linkage == "extern" or None in variable.dims


BLOCK_ARGUMENT = f"ptr noalias align 256 dereferenceable({HEADER_SIZE}) %b"
"""The block as an LLVM parameter: no other pointer reaches the memory that it points to."""

BASE_ARRAYS: dict[str, str] = {
    "state": "i32",
    "mask": "i32",
    "key": "i32",
    "count": "i32",
    "xb": "i32",
    "xc": "i32",
    "result_pred": "i32",
    "xa": "i32",
    "result": "i32",
}
"""Arrays that every block has, in order, and the LLVM type of their elements. They directly follow
the header, so kernel-independent code can locate them from ``padded`` alone."""


def base_array_offset(name: str) -> int:
    """Return how many bytes lie before a base array, behind the header, per padded thread."""
    at = 0
    for other, type_ in BASE_ARRAYS.items():
        if other == name:
            return at
        at += width(type_) // 8
    raise KeyError(name)


class BlockLayout:
    """The memory of one resident block of ``threads`` threads.

    Per-thread arrays are added with `array` while code is generated; `size` is final after that.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.padded = align_up(threads, WARP)
        self.warps = self.padded // WARP
        self._at = HEADER_SIZE
        self._arrays: dict[str, tuple[int, str]] = {}
        for name, type_ in BASE_ARRAYS.items():
            self.array(name, type_)

    def array(self, name: str, type_: str) -> tuple[int, str]:
        """Return (offset, LLVM type) of the array ``name``, added on first use."""
        array = self._arrays.get(name)
        if array is None:
            size = 1 if type_ in ("i1", "i8") else 8 if type_ == "ptr" else width(type_) // 8
            array = self._arrays[name] = (self._at, type_)
            self._at = align_up(self._at + size * self.padded, 64)
        return array

    def word(self, name: str) -> tuple[int, str]:
        """Return (offset, LLVM type) of an 8-byte block-wide variable, added on first use."""
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = (self._at, "i64")
            self._at += 64
        return array

    def region(self, name: str, size: int) -> int:
        """Return the offset of ``size`` bytes for the block as a whole, added on first use."""
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = (self._at, "i8")
            self._at = align_up(self._at + size, 64)
        return array[0]

    @property
    def size(self) -> int:
        """Bytes of the header and of the arrays added so far."""
        return self._at
