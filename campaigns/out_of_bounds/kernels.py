"""Kernels around accesses: where a pointer comes from, and where the access stands.

Every kernel has the same parameters, so one compiled kernel serves many cases: they choose the bad
address, the threads, the task block and the iteration that use it. All other threads, and all
other iterations, access 32 bytes of the thread's own. What a thread read is stored in its word of
``out`` at its end, so nothing is stored by a thread that was ended.

Terms: a *mode* is how the address is computed; a *place* is where the access stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from campaigns.out_of_bounds.accesses import Access

SLOT_BYTES: Final = 32
LOOP: Final = 5
"""Iterations of a uniform loop; a divergent one has 1 + thread % 8."""

PARAMETERS: Final = (
    "u64 good", "u64 target", "u64 stride", "u64 out", "u64 table", "u64 salt", "u64 index",
    "u64 step", "u32 first", "u32 last", "u32 block", "u32 when", "u32 which", "u32 limit",
)  # fmt: skip


@dataclass(frozen=True)
class Mode:
    """How the address is computed.

    Attributes:
        scale: of index modes, bytes of an element; 0: the address is given.
        bits: of the index; 32 with a sign (``signed``), without, or wrapping (``wraps``).
        warps: needs whole warps, all of whose threads are there; ``meets``: a barrier likewise.
    """

    name: str
    scale: int = 0
    bits: int = 64
    signed: bool = True
    wraps: bool = False
    warps: bool = False
    meets: bool = False
    offset: int = 0

    def index_of(self, good: int, target: int) -> int | None:
        """The index with which ``good`` becomes ``target``; None: it has none."""
        distance = (target - good) & ((1 << 64) - 1)
        if self.bits == 64:
            if distance % self.scale:
                return None
            return distance // self.scale
        if self.signed and distance >> 63:
            distance -= 1 << 64
        if distance % self.scale:
            return None
        index = distance // self.scale
        low, high = (-(1 << 31), 1 << 31) if self.signed else (0, 1 << 32)
        # Room for the other threads' steps.
        return index if low + 4096 <= index < high - 4096 or 0 <= index < high - 4096 else None


MODES: Final = {
    mode.name: mode
    for mode in (
        Mode("parameter"),
        Mode("memory"),
        Mode("shared", meets=True),
        Mode("local"),
        Mode("variable"),
        Mode("constant"),
        Mode("shuffle", warps=True),
        Mode("index64x1", 1),
        Mode("index64x4", 4),
        Mode("index64x16", 16),
        Mode("index32x1", 1, 32),
        Mode("index32x8", 8, 32),
        Mode("unsigned32x4", 4, 32, signed=False),
        Mode("wrapping32x1", 1, 32, signed=False, wraps=True),
        Mode("offset+16", offset=16),
        Mode("offset-4096", offset=-4096),
        Mode("offset+65528", offset=65528),
    )
}


@dataclass(frozen=True)
class Place:
    """Where the access stands.

    Attributes:
        loop: "", "uniform", "divergent" or "barrier" (uniform, with a barrier a turn).
        function: "", "direct", "deep" (three calls), "recursive", "pointer".
        limit: threads from ``limit`` on do not come to the access: "", "guard", "branch", "exit"
            (they are gone before a barrier that the others meet).
    """

    name: str
    loop: str = ""
    function: str = ""
    limit: str = ""

    def turns(self, thread: int) -> int:
        """How many iterations a thread does."""
        return {"": 1, "divergent": 1 + thread % 8}.get(self.loop, LOOP)


PLACES: Final = {
    place.name: place
    for place in (
        Place("straight"),
        Place("guard", limit="guard"),
        Place("branch", limit="branch"),
        Place("exit", limit="exit"),
        Place("uniform loop", loop="uniform"),
        Place("divergent loop", loop="divergent"),
        Place("barrier loop", loop="barrier"),
        Place("guarded loop", loop="uniform", limit="guard"),
        Place("function", function="direct"),
        Place("deep function", function="deep"),
        Place("recursion", function="recursive"),
        Place("function pointer", function="pointer"),
        Place("function in a loop", loop="divergent", function="direct"),
        Place("function behind a branch", function="direct", limit="branch"),
    )
}


def fits(mode: Mode, place: Place, threads: int) -> bool:
    """Whether the mode's meetings of threads can stand at that place."""
    if mode.warps and threads % 32:
        return False
    return not (mode.warps or mode.meets) or (place.loop != "divergent" and place.limit != "exit")


@dataclass(frozen=True)
class KernelSpec:
    """A kernel: some accesses, of which a launch chooses one, in one mode and place.

    ``timed``: its jobs have a timeout, for which they run a twin that can be ended.
    """

    name: str
    accesses: tuple[Access, ...]
    mode: Mode
    place: Place
    block: tuple[int, int, int]
    form: str | None = None
    timed: bool = False

    @property
    def threads(self) -> int:
        """Of a block."""
        x, y, z = self.block
        return x * y * z

    def __str__(self) -> str:
        many = " | ".join(access.name for access in self.accesses)
        form = "" if self.form is None else f", {self.form}"
        return f"{many} by {self.mode.name} at {self.place.name}, block {self.block}{form}"


HEADER: Final = ".version 8.6\n.target sm_90\n.address_size 64\n"


def module_text(specs: Sequence[KernelSpec]) -> str:
    """PTX of a module with these kernels."""
    return HEADER + "\n".join(_Writer(spec).text() for spec in specs)


class _Writer:
    """Writes one kernel, with the variables and functions that it needs."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.mode, self.place = spec.mode, spec.place
        self.labels = 0

    def text(self) -> str:
        name, threads = self.spec.name, self.spec.threads
        parts = [
            f".shared .align 16 .b8 {name}_pads[{16 * threads}];",
            f".shared .align 8 .u64 {name}_box[{threads}];",
            f".global .align 8 .u64 {name}_pointer;",
            f".const .align 8 .u64 {name}_constant;",
        ]
        if self.place.function:
            parts += self._functions()
        parameters = ",\n  ".join(
            f".param .{kind} {name}_{word}" for kind, word in (p.split() for p in PARAMETERS)
        )
        parts.append(f".visible .entry {name}(\n  {parameters}\n)")
        parts.append("{")
        parts += [f"  {line}" for line in self._body()]
        parts.append("}")
        return "\n".join(parts) + "\n"

    def _label(self, what: str) -> str:
        self.labels += 1
        return f"${what}_{self.labels}"

    # -- the entry

    def _body(self) -> list[str]:
        name, place = self.spec.name, self.place
        lines = [
            ".reg .b32 %t<10>; .reg .b64 %u<20>;",
            ".reg .b32 %thread, %threads, %task, %who, %j, %turns, %padat;",
            ".reg .b64 %gid, %slot, %value, %acc, %res, %a, %bad, %sel;",
            ".reg .pred %p, %q, %chosen, %inside;",
            ".local .align 8 .u64 kept;",
        ]
        for parameter in PARAMETERS:
            kind, word = parameter.split()
            lines.append(f".reg .b{kind[1:]} %{word};")
            lines.append(f"ld.param.{kind} %{word}, [{name}_{word}];")
        lines += [
            "mov.u32 %t0, %tid.x; mov.u32 %t1, %tid.y; mov.u32 %t2, %tid.z;",
            "mov.u32 %t3, %ntid.x; mov.u32 %t4, %ntid.y; mov.u32 %t5, %ntid.z;",
            "mad.lo.u32 %t1, %t2, %t4, %t1; mad.lo.u32 %thread, %t1, %t3, %t0;",
            "mul.lo.u32 %threads, %t3, %t4; mul.lo.u32 %threads, %threads, %t5;",
            "mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ctaid.y; mov.u32 %t2, %ctaid.z;",
            "mov.u32 %t3, %nctaid.x; mov.u32 %t4, %nctaid.y;",
            "mad.lo.u32 %t1, %t2, %t4, %t1; mad.lo.u32 %task, %t1, %t3, %t0;",
            "mad.lo.u32 %t6, %task, %threads, %thread; cvt.u64.u32 %gid, %t6;",
            "mad.lo.u64 %value, %gid, 81985529216486895, %salt;",
            f"mov.u32 %t7, {name}_pads; mad.lo.u32 %padat, %thread, 16, %t7;",
            "mov.b64 %acc, 0; mov.b64 %res, 0; mov.u32 %j, 0;",
            "setp.lt.u32 %inside, %thread, %limit;",
        ]
        if place.limit == "exit":
            lines += ["@!%inside exit;", "bar.sync 0;"]
        if place.loop:
            lines += self._loop()
        else:
            lines += self._turn()
        lines += [
            "mul.lo.u64 %u0, %gid, 8; add.s64 %u0, %out, %u0;",
            "st.global.u64 [%u0], %acc;",
            "ret;",
        ]
        return lines

    def _loop(self) -> list[str]:
        head = self._label("head")
        if self.place.loop == "divergent":
            turns = "and.b32 %turns, %thread, 7; add.u32 %turns, %turns, 1;"
        else:
            turns = f"mov.u32 %turns, {LOOP};"
        meet = ["bar.sync 0;"] if self.place.loop == "barrier" else []
        return [
            turns,
            f"{head}:",
            *self._turn(),
            *meet,
            "add.u32 %j, %j, 1;",
            "setp.lt.u32 %p, %j, %turns;",
            f"@%p bra {head};",
        ]

    def _turn(self) -> list[str]:
        lines = self._pointer()
        skip = self._label("skip")
        guard = ""
        if self.place.limit == "branch":
            lines.append(f"@!%inside bra {skip};")
        elif self.place.limit == "guard":
            guard = "%inside"
        if self.place.function:
            lines += self._call()
        else:
            lines += self._accesses("%a", "%padat", guard)
        lines.append("mad.lo.u64 %acc, %acc, 3, %res;")
        lines.append(f"{skip}:")
        return lines

    # -- pointers

    def _pointer(self) -> list[str]:
        """``%a`` for this turn; the access is at ``[%a+offset]``."""
        mode, name = self.mode, self.spec.name
        if mode.meets:  # the next thread computes it
            lines = ["add.u32 %who, %thread, 1; setp.eq.u32 %p, %who, %threads;",
                     "selp.b32 %who, 0, %who, %p;"]  # fmt: skip
        elif mode.warps:
            lines = ["xor.b32 %who, %thread, 1;"]
        else:
            lines = ["mov.u32 %who, %thread;"]
        lines += [
            "setp.ge.u32 %chosen, %who, %first; setp.le.and.u32 %chosen, %who, %last, %chosen;",
            "setp.eq.and.u32 %chosen, %j, %when, %chosen;",
            "setp.eq.u32 %p, %task, %block; setp.eq.u32 %q, %block, -1; or.pred %p, %p, %q;",
            "and.pred %chosen, %chosen, %p;",
            "mad.lo.u32 %t6, %task, %threads, %who; cvt.u64.u32 %u1, %t6; cvt.u64.u32 %u2, %who;",
        ]
        if mode.scale:
            lines += self._indexed()
        else:
            lines += [
                f"mad.lo.u64 %slot, %u1, {SLOT_BYTES}, %good;",
                *self._target(),
                "mad.lo.u64 %bad, %u2, %stride, %bad;",
                "selp.b64 %sel, %bad, %slot, %chosen;",
            ]
            if mode.offset:
                lines.append(f"add.s64 %sel, %sel, {-mode.offset};")
        if mode.meets:
            lines += [
                f"mov.u32 %t7, {name}_box; mad.lo.u32 %t8, %who, 8, %t7;",
                "st.shared.u64 [%t8], %sel;",
                "bar.sync 0;",
                "mad.lo.u32 %t8, %thread, 8, %t7; ld.shared.u64 %a, [%t8];",
                "bar.sync 0;",
            ]
        elif mode.warps:
            lines += [
                "mov.b64 {%t6, %t7}, %sel;",
                "shfl.sync.bfly.b32 %t6, %t6, 1, 31, -1; shfl.sync.bfly.b32 %t7, %t7, 1, 31, -1;",
                "mov.b64 %a, {%t6, %t7};",
            ]
        else:
            lines.append("mov.b64 %a, %sel;")
        return lines

    def _target(self) -> list[str]:
        """``%bad``, without the stride."""
        name = self.spec.name
        return {
            "memory": ["ld.global.u64 %u3, [%table];", "ld.global.u64 %bad, [%u3];"],
            "variable": [f"ld.global.u64 %bad, [{name}_pointer];"],
            "constant": [f"ld.const.u64 %bad, [{name}_constant];"],
            "local": ["st.local.u64 [kept], %target;", "ld.local.u64 %bad, [kept];"],
        }.get(self.mode.name, ["mov.b64 %bad, %target;"])

    def _indexed(self) -> list[str]:
        scale = self.mode.scale
        lines = [
            f"mul.lo.u64 %u4, %u1, {SLOT_BYTES // scale};",
            "mad.lo.u64 %u5, %u2, %step, %index;",
            "selp.b64 %u6, %u5, %u4, %chosen;",
        ]
        if self.mode.bits == 64:
            return [*lines, f"mad.lo.u64 %sel, %u6, {scale}, %good;"]
        lines.append("cvt.u32.u64 %t6, %u6;")
        kind = "s32" if self.mode.signed else "u32"
        if self.mode.wraps:  # past 2^32, and back
            lines += ["add.u32 %t6, %t6, 2415919104;", "add.u32 %t6, %t6, 1879048192;"]
        return [*lines, f"mul.wide.{kind} %u7, %t6, {scale};", "add.s64 %sel, %good, %u7;"]

    # -- accesses

    def _accesses(self, pointer: str, pad: str, guard: str = "") -> list[str]:
        """The chosen one, on ``[pointer+offset]``; a guard is on the instructions themselves."""
        offset = self.mode.offset
        address = f"{pointer}{offset:+d}" if offset else pointer
        lines = []
        end = self._label("done")
        for number, access in enumerate(self.spec.accesses):
            code = access.code.format(a=address, base=pointer, offset=offset)
            code = code.replace("%pad", pad)
            if offset:
                code = _add_offsets(code, address)
            if guard:
                code = _guarded(code, guard, access)
            if len(self.spec.accesses) == 1:
                return code.split("\n")
            after = self._label("not")
            lines.append(f"setp.ne.u32 %p, %which, {number}; @%p bra {after};")
            lines += code.split("\n")
            lines += [f"bra {end};", f"{after}:"]
        return [*lines, f"{end}:"]

    # -- functions

    def _functions(self) -> list[str]:
        name, kind = self.spec.name, self.place.function
        head = (
            "(.param .b64 r) {}(.param .b64 pa, .param .b64 pv, .param .b32 pw, .param .b32 pp, "
            ".param .b32 pd)"
        )
        start = [
            "{",
            "  .reg .b64 %a, %value, %res; .reg .b32 %which, %padat, %depth; .reg .pred %p;",
            "  ld.param.b64 %a, [pa]; ld.param.b64 %value, [pv]; ld.param.b32 %which, [pw];",
            "  ld.param.b32 %padat, [pp]; ld.param.b32 %depth, [pd]; mov.b64 %res, 0;",
        ]
        end = ["  st.param.b64 [r], %res;", "  ret;", "}"]
        inner = f"{name}_f"
        access = self._accesses("%a", "%padat")
        parts = []
        if kind == "recursive":
            again, done = self._label("again"), self._label("returned")
            body = [
                f"  setp.ne.u32 %p, %depth, 0; @%p bra {again};",
                *access,
                f"  bra {done};",
                f"{again}:",
                "  sub.u32 %depth, %depth, 1;",
                *self._passed(inner),
                f"{done}:",
            ]
            parts += [f".func {head.format(inner)}", *start, *body, *end]
        else:
            parts += [f".func {head.format(inner)}", *start, *access, *end]
        if kind == "deep":
            for level in (1, 2):
                outer = f"{name}_f{level}"
                parts += [f".func {head.format(outer)}", *start, *self._passed(inner), *end]
                inner = outer
        return parts

    def _passed(self, function: str, through: str = "") -> list[str]:
        """A call with everything in registers of the standard names."""
        return [
            "  { .param .b64 ca; .param .b64 cv; .param .b32 cw; .param .b32 cp_; .param .b32 cd;",
            "  .param .b64 cr;",
            "  st.param.b64 [ca], %a; st.param.b64 [cv], %value; st.param.b32 [cw], %which;",
            "  st.param.b32 [cp_], %padat; st.param.b32 [cd], %depth;",
            f"  call (cr), {function}, (ca, cv, cw, cp_, cd){through};",
            "  ld.param.b64 %res, [cr]; }",
        ]

    def _call(self) -> list[str]:
        inner = f"{self.spec.name}_f"
        lines = ["{ .reg .b32 %depth; mov.u32 %depth, 3;"]
        if self.place.function == "pointer":
            proto = self._label("proto").replace("$", "")
            words = ", ".join(f".param .b{bits} _" for bits in (64, 64, 32, 32, 32))
            lines += [
                ".reg .b64 %fp;",
                f"mov.u64 %fp, {inner};",
                f"{proto}: .callprototype (.param .b64 _) _ ({words});",
                *self._passed("%fp", f", {proto}"),
            ]
        else:
            deep = "2" if self.place.function == "deep" else ""
            lines += self._passed(inner + deep)
        return [*lines, "}"]


def _add_offsets(code: str, address: str) -> str:
    """``[%a+16+4]`` is no PTX: one sum."""
    base, _, _ = address.replace("-", "+").partition("+")
    start = int(address[len(base) :])
    pieces = code.split(f"[{address}")
    out = pieces[0]
    for piece in pieces[1:]:
        inner, _, rest = piece.partition("]")
        out += f"[{base}{start + int(inner or 0):+d}]{rest}"
    return out


def _guarded(code: str, guard: str, access: Access) -> str:
    """The accesses under a guard; results are those of the executed instruction only."""
    opcodes: set[str] = {part.opcode for part in access.parts}
    lines = []
    for line in code.split("\n"):
        stripped = line.strip()
        guarded = stripped.split(" ", 1)[0] in opcodes
        lines.append(f"@{guard} {stripped}" if guarded else line)
    return "\n".join(lines)
