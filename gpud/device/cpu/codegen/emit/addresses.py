"""Special registers, symbols and state spaces of a thread in generated code.

A thread is an index into its block's arrays. Regions of a kernel keep local variables in the
block's memory; functions, which are called with the block and that index, keep theirs on the stack.
The callback `KernelAddresses.local` returns their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpud.device.cpu.abi.layout import (
    HEADER,
    HIDDEN_ALIGNMENT,
    WARP,
    BlockLayout,
    ModuleLayout,
    Shape,
)
from gpud.device.cpu.ir.emitter import Emitter
from gpud.errors import KernelRejected

__all__ = ["RESERVED", "RESERVED_BYTES", "KernelAddresses", "header_field"]

RESERVED = "%reserved_smem"
"""Name of the shared memory that the system reserves, and prefix of the registers that describe it.
A block has it only if its program reads these: cooperative groups use it for tiles of several
warps, from compute capability 8.0 on."""

RESERVED_BYTES = 1024  # CUDA C++ Programming Guide 13.0, "Compute Capabilities"


def header_field(emitter: Emitter, name: str, *, constant: bool = True) -> str:
    """Load a header field of the block ``%b``; ``constant``: it does not change during a run."""
    offset, type_ = HEADER[name]
    pointer = emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")
    suffix = ", !invariant.load !0" if constant else ""
    return emitter.value(f"load {type_}, ptr {pointer}{suffix}")


class KernelAddresses:
    """Implements `gpud.device.cpu.ir.thread.Addresses` for one thread.

    Args:
        emitter: the function being written; its first argument is ``ptr %b``, the block.
        shape: the block's dimensions, known at compile time.
        thread: i32 index of the thread in its block, x fastest.
        tid: the thread's coordinates as i32, if the caller has them without division.
        parameters: offset by name of the kernel's parameters; empty in functions.
        local: returns a local or ``.param`` variable's address, ``None`` if it is not one.
    """

    def __init__(
        self,
        emitter: Emitter,
        shape: Shape,
        module: ModuleLayout,
        layout: BlockLayout,
        thread: str,
        tid: tuple[str, str, str] | None,
        parameters: Mapping[str, int],
        parameter_size: int,
        local: Callable[[str], str | None],
    ) -> None:
        self.emitter = emitter
        self.shape = shape
        self.module = module
        self.layout = layout
        self.thread = thread
        self.parameters = parameters
        self.parameter_size = parameter_size
        self.local = local
        self.local_size = "0"
        self.own_local_size = 0
        self.frame: tuple[str, str] | None = None
        self.used = "0"
        """i32: bytes of the frames that the functions on the call path have taken."""
        self.tid = tid or thread_coordinates(emitter, shape, thread)

    # -- special registers

    def special(self, name: str) -> tuple[str, str]:
        """Return (value, LLVM type) of a special register."""
        emitter = self.emitter
        base, _, part = name.partition(".")
        axis = {"x": 0, "y": 1, "z": 2}.get(part, -1)
        shape = (self.shape.x, self.shape.y, self.shape.z)
        match base:
            case "%tid":
                return self.tid[axis], "i32"
            case "%ntid":
                return str(shape[axis]), "i32"
            case "%ctaid" | "%nctaid":
                return header_field(emitter, f"{base[1:]}_{part}"), "i32"
            case "%laneid":
                return emitter.value(f"and i32 {self.thread}, {WARP - 1}"), "i32"
            case "%warpid":
                return emitter.value(f"lshr i32 {self.thread}, 5"), "i32"
            case "%nwarpid":
                return str(self.layout.warps), "i32"
            case "%smid" | "%nsmid":
                return header_field(emitter, base[1:], constant=False), "i32"
            case "%gridid":
                return header_field(emitter, "grid_id"), "i64"
            case "%dynamic_smem_size":
                return header_field(emitter, "dynamic_shared"), "i32"
            case "%total_smem_size" | "%aggr_smem_size":
                size = emitter.value(f"trunc i64 {header_field(emitter, 'shared_size')} to i32")
                if base == "%total_smem_size" and RESERVED in self.module.shared.offsets:
                    size = emitter.value(f"sub i32 {size}, {RESERVED_BYTES}")
                return size, "i32"
            case "%clock" | "%clock64" | "%clock_hi":
                return self._clock(base)
            case "%globaltimer" | "%globaltimer_lo" | "%globaltimer_hi":
                return self._timer(base)
            case "%clusterid" | "%cluster_ctaid" | "%cluster_ctarank":
                return "0", "i32"
            case "%nclusterid" | "%cluster_nctaid" | "%cluster_nctarank":
                return "1", "i32"
            case "%is_explicit_cluster":
                return "false", "i1"
        if base.startswith("%lanemask_"):
            return self._lane_mask(base.removeprefix("%lanemask_")), "i32"
        if base.startswith(RESERVED):
            begin = self.module.shared.offsets[RESERVED]
            which = {"end": begin + RESERVED_BYTES, "cap": RESERVED_BYTES}
            return str(which.get(base.rpartition("_")[2], begin)), "i32"
        if base.startswith("%pm"):
            return "0", "i32"
        raise KernelRejected(
            "unsupported-instruction", f"the CPU device has no special register {name}", name
        )

    def _lane_mask(self, which: str) -> str:
        emitter = self.emitter
        lane = emitter.value(f"and i32 {self.thread}, {WARP - 1}")
        equal = emitter.value(f"shl i32 1, {lane}")
        below = emitter.value(f"sub i32 {equal}, 1")
        match which:
            case "eq":
                return equal
            case "lt":
                return below
            case "le":
                return emitter.value(f"or i32 {below}, {equal}")
            case "ge":
                return emitter.value(f"xor i32 {below}, -1")
        upto = emitter.value(f"or i32 {below}, {equal}")
        return emitter.value(f"xor i32 {upto}, -1")

    def _clock(self, name: str) -> tuple[str, str]:
        self.emitter.module.declare("declare i64 @llvm.readcyclecounter()")
        value = self.emitter.value("call i64 @llvm.readcyclecounter()")
        return self._half(value, name, "%clock64", "%clock_hi")

    def _timer(self, name: str) -> tuple[str, str]:
        # CLOCK_REALTIME is 0 on Linux and macOS; a timespec is two 64-bit words there.
        self.emitter.module.declare("declare i32 @clock_gettime(i32, ptr)")
        time = self.emitter.alloca("[2 x i64]", "time")
        self.emitter.do(f"call i32 @clock_gettime(i32 0, ptr {time})")
        seconds = self.emitter.value(f"load i64, ptr {time}")
        rest = self.emitter.value(f"getelementptr i64, ptr {time}, i64 1")
        nanoseconds = self.emitter.value(f"load i64, ptr {rest}")
        scaled = self.emitter.value(f"mul i64 {seconds}, 1000000000")
        value = self.emitter.value(f"add i64 {scaled}, {nanoseconds}")
        return self._half(value, name, "%globaltimer", "%globaltimer_hi")

    def _half(self, value: str, name: str, whole: str, high: str) -> tuple[str, str]:
        if name == whole:
            return value, "i64"
        if name == high:
            value = self.emitter.value(f"lshr i64 {value}, 32")
        return self.emitter.value(f"trunc i64 {value} to i32"), "i32"

    # -- symbols and spaces

    def symbol(self, name: str) -> str:
        """Return the i64 address of a symbol in its own state space."""
        module = self.module
        if name == "WARP_SZ":
            return str(WARP)
        local = self.local(name)
        if local is not None:
            return local
        if name in self.parameters:
            base = self.emitter.value(f"ptrtoint ptr {header_field(self.emitter, 'params')} to i64")
            return self.emitter.value(f"add i64 {base}, {self.parameters[name]}")
        if name in module.dynamic_names:
            return str(module.dynamic_shared)
        if name in module.shared.offsets:
            return str(module.shared.offsets[name])
        if name in module.hidden.offsets:
            end = self.emitter.value(f"add i64 {self.shared_size()}, {HIDDEN_ALIGNMENT - 1}")
            base = self.emitter.value(f"and i64 {end}, {-HIDDEN_ALIGNMENT}")
            return self.emitter.value(f"add i64 {base}, {module.hidden.offsets[name]}")
        if name in module.data.offsets:
            base = self.emitter.value(f"ptrtoint ptr {header_field(self.emitter, 'data')} to i64")
            return self.emitter.value(f"add i64 {base}, {module.data.offsets[name]}")
        if name in module.functions:
            return str(module.functions[name])
        raise KernelRejected(
            "unresolved-external", f"{name} is declared but not defined in this program", name
        )

    def shared_base(self) -> str:
        """Return a ``ptr`` to the block's shared memory."""
        return header_field(self.emitter, "shared")

    def shared_size(self) -> str:
        """Return the bytes (i64) of the block's shared memory that the program may access."""
        return header_field(self.emitter, "shared_size")

    def local_range(self) -> tuple[str, str]:
        """Return (i64 address, i64 bytes) of all threads' local memory."""
        base = self.emitter.value(f"ptrtoint ptr {header_field(self.emitter, 'locals')} to i64")
        return base, self.local_size

    def thread_local_range(self) -> tuple[str, str]:
        """Return (i64 address, i64 bytes) of the thread's local memory of the kernel itself."""
        base, _ = self.local_range()
        index = self.emitter.value(f"zext i32 {self.thread} to i64")
        mine = self.emitter.value(f"mul i64 {index}, {self.own_local_size}")
        return self.emitter.value(f"add i64 {base}, {mine}"), str(self.own_local_size)

    def own_local_range(self) -> tuple[str, str]:
        """Return (i64 address, i64 bytes) of the thread's local memory, its frame in functions."""
        if self.frame is not None:
            return self.frame
        return self.thread_local_range()

    def const_range(self) -> tuple[str, str]:
        """Return (i64 address, i64 bytes) of the module's constant memory."""
        base = self.emitter.value(f"ptrtoint ptr {header_field(self.emitter, 'data')} to i64")
        return base, str(self.module.const_size)

    def param_range(self) -> tuple[str, str]:
        """Return (i64 address, i64 bytes) of the kernel's parameters."""
        base = self.emitter.value(f"ptrtoint ptr {header_field(self.emitter, 'params')} to i64")
        return base, str(self.parameter_size)


def thread_coordinates(emitter: Emitter, shape: Shape, thread: str) -> tuple[str, str, str]:
    """Return (x, y, z) of a thread from its index, as i32; divisions are by constants."""
    if shape.y == 1 and shape.z == 1:
        return thread, "0", "0"
    x = emitter.value(f"urem i32 {thread}, {shape.x}")
    rest = emitter.value(f"udiv i32 {thread}, {shape.x}")
    if shape.z == 1:
        return x, rest, "0"
    y = emitter.value(f"urem i32 {rest}, {shape.y}")
    z = emitter.value(f"udiv i32 {rest}, {shape.y}")
    return x, y, z
