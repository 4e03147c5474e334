"""Warp collectives and barriers: what a thread offers, how offers meet, what it gets back.

Problem: ``shfl``, ``vote``, ``match``, ``redux``, ``elect``, ``activemask`` and ``bar.red`` compute
from the values of several threads, and threads of a block run one after another.

Approach: three steps. *Offer*: a thread writes its sources, its member mask and the collective's
key into its block's arrays and waits. *Exchange*: when all lanes that the mask names wait with the
same key, one loop over them computes each one's result. *Resume*: the thread copies its result
into its registers and goes on. Exchange is separate from resume because a lane that has gone on
may already offer to the next collective while others have not yet read its value.

Terms: the *key* numbers the spelling of a collective within a kernel; lanes meet when key and
mask agree, wherever in the program each stands; a *group* is the lanes that meet, as a bit mask.

Properties:
* results depend only on the offers of the group, not on the order in which lanes arrived;
* lanes of a warp that do not exist (partial warps) or have ended are not waited for;
* a source lane outside the group gives the reader its own value, so that nothing undefined is read.

Source: PTX ISA 9.0, sections 9.7.9.6 (shfl.sync), 9.7.13 (vote, match, activemask, redux, elect).
"""

from __future__ import annotations

from gpud.compiler.analysis.effects import barrier
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.codegen.body import ThreadCode
from gpud.device.cpu.codegen.emitter import Emitter
from gpud.device.cpu.codegen.exchange import Exchanges, Kind, array_slot
from gpud.device.cpu.codegen.layout import BlockLayout
from gpud.errors import KernelRejected

__all__ = ["Collectives"]

_ALONE = "0"
"""Mask of a collective that does not wait: it meets whoever stands at the same instruction."""


class Collectives(Exchanges):
    """The collectives of one kernel: gives out keys, emits offers, exchanges and resumes."""

    def __init__(self, layout: BlockLayout, tags: str) -> None:
        super().__init__(layout)
        self.tags = tags

    # -- offers

    def offer(self, code: ThreadCode, ins: ptx.Instruction) -> None:
        """Write what ``ins`` offers for the current thread."""
        kind = self._kind(ins)
        key = self.keys.setdefault(kind, len(self.keys) + 1)
        self._store(code, "key", str(key))
        operands = ins.operands
        mask: ptx.Operand | None = None
        match kind.name:
            case "shfl":
                value = code.read(operands[1], "b32")
                self._store(code, "xa", code.convert(value, "i32", "i64"))
                self._store(code, "xb", code.read(operands[2], "b32"))
                self._store(code, "xc", code.read(operands[3], "b32"))
                mask = operands[4] if len(operands) > 4 else None
            case "vote":
                held = code.read(operands[1], "pred")
                self._store(code, "xa", code.convert(held, "i1", "i64"))
                mask = operands[2] if len(operands) > 2 else None
            case "match" | "redux":
                wide = kind.type if kind.type != "f32" else "b32"
                value = code.read(operands[1], wide)
                bits = "i64" if wide.endswith("64") else "i32"
                self._store(code, "xa", code.convert(value, bits, "i64"))
                mask = operands[2]
            case "elect":
                mask = operands[1]
            case "bar":
                mask = operands[0]
        self._store(code, "mask", _ALONE if mask is None else code.read(mask, "b32"))

    def offer_barrier(self, code: ThreadCode, ins: ptx.Instruction) -> None:
        """Write barrier number, expected threads (0: all) and predicate of a block-wide barrier."""
        parts = barrier(ins)
        self._store(code, "key", code.read(parts.id, "b32"))
        self._store(code, "count", "0" if parts.count is None else code.read(parts.count, "b32"))
        if parts.action == "red":
            held = code.read(ins.operands[-1], "pred")
            self._store(code, "xa", code.convert(held, "i1", "i64"))

    # -- resuming

    def resume(self, code: ThreadCode, ins: ptx.Instruction) -> None:
        """Write the results of the wait before a ``gpud.resume`` instruction."""
        if not ins.operands:
            return
        names = ins.opcode.modifiers[1:]
        target = ins.operands[0]
        second: ptx.Operand | None = None
        if isinstance(target, ptx.Pair):
            second = target.second
            target = target.first
        value = self._load(code, "result", "i64")
        if names[0] in ("bar", "barrier"):
            self._resume_reduction(code, target, names, value)
            return
        if names[0] == "vote":
            type_ = "b32" if "ballot" in names else "pred"
        else:
            type_ = "b32"
        narrow = "i1" if type_ == "pred" else "i32"
        code.write(target, type_, code.e.value(f"trunc i64 {value} to {narrow}"))
        if second is not None:
            flag = self._load(code, "result_pred", "i32")
            code.write(second, "pred", code.e.value(f"trunc i32 {flag} to i1"))

    @staticmethod
    def _resume_reduction(
        code: ThreadCode, target: ptx.Operand, names: tuple[str, ...], value: str
    ) -> None:
        """``bar.red``: the low half of the result counts true predicates, the high half threads."""
        e = code.e
        ones = e.value(f"trunc i64 {value} to i32")
        if "popc" in names:
            code.write(target, "u32", ones)
            return
        if "and" in names:
            threads = e.value(f"trunc i64 {e.value(f'lshr i64 {value}, 32')} to i32")
            code.write(target, "pred", e.value(f"icmp eq i32 {ones}, {threads}"))
        else:
            code.write(target, "pred", e.value(f"icmp ne i32 {ones}, 0"))

    def _store(self, code: ThreadCode, name: str, value: str) -> None:
        _, type_ = self.layout.array(name, "i32")
        slot = array_slot(code.e, self.layout, name, code.places.thread)
        code.e.do(f"store {type_} {value}, ptr {slot}{self.tags}")

    def _load(self, code: ThreadCode, name: str, type_: str) -> str:
        slot = array_slot(code.e, self.layout, name, code.places.thread)
        return code.e.value(f"load {type_}, ptr {slot}{self.tags}")

    # -- exchanges of a block whose threads are together

    @staticmethod
    def mask_of(ins: ptx.Instruction) -> ptx.Operand | None:
        """The member mask operand, None for a collective without one."""
        base, operands = ins.opcode.base, ins.operands
        position = {"shfl": 4, "vote": 2, "match": 2, "redux": 2, "elect": 1, "bar": 0}
        at = position.get("bar" if base == "barrier" else base)
        return operands[at] if at is not None and at < len(operands) else None

    def _existing(self) -> int:
        """The lanes of the last warp that exist, as an i32."""
        lanes = self.layout.threads - (self.layout.warps - 1) * 32
        return -1 if lanes == 32 else (1 << lanes) - 1

    def masks_are_full(self, e: Emitter) -> str:
        """i1: whether every thread's mask names all lanes of its warp that exist."""
        slot = e.alloca("i32", "partial")
        e.do(f"store i32 0, ptr {slot}")
        final = (self.layout.warps - 1) * 32
        with e.count("0", str(self.layout.threads)) as thread:
            last = e.value(f"icmp sge i32 {thread}, {final}")
            need = e.value(f"select i1 {last}, i32 {self._existing()}, i32 -1")
            absent = e.value(f"xor i32 {self._get(e, 'mask', thread)}, -1")
            missing = e.value(f"and i32 {need}, {absent}")
            sofar = e.value(f"load i32, ptr {slot}")
            e.do(f"store i32 {e.value(f'or i32 {sofar}, {missing}')}, ptr {slot}")
        return e.value(f"icmp eq i32 {e.value(f'load i32, ptr {slot}')}, 0")

    def exchange_all(self, e: Emitter, ins: ptx.Instruction) -> None:
        """Exchange in every warp of the block, all of whose lanes have offered."""
        kind = self._kind(ins)
        if kind.name == "bar":
            return
        key = self.keys.setdefault(kind, len(self.keys) + 1)
        whole = self.layout.warps - (0 if self._existing() == -1 else 1)
        if whole:
            with e.count("0", str(whole)) as warp:
                first = e.value(f"mul i32 {warp}, 32")
                e.do(f"call void @exchange.{key}(ptr %b, i32 {first}, i32 -1)")
        if whole < self.layout.warps:
            call = f"call void @exchange.{key}(ptr %b, i32 {whole * 32}, i32 {self._existing()})"
            e.do(call)

    def reduce_all(self, e: Emitter) -> None:
        """The reduction of a barrier that all threads of the block have come to."""
        ones = e.alloca("i64", "ones")
        e.do(f"store i64 {self.layout.threads << 32}, ptr {ones}")
        with e.count("0", str(self.layout.threads)) as thread:
            bit = e.value(f"and i64 {self._get(e, 'xa', thread)}, 1")
            sofar = e.value(f"load i64, ptr {ones}")
            e.do(f"store i64 {e.value(f'add i64 {sofar}, {bit}')}, ptr {ones}")
        total = e.value(f"load i64, ptr {ones}")
        with e.count("0", str(self.layout.threads)) as thread:
            self._put(e, "result", thread, total)

    def _kind(self, ins: ptx.Instruction) -> Kind:
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        words = [m for m in modifiers if m not in ("sync", "aligned")]
        if base == "shfl":
            return Kind("shfl", words[0], "b32")
        if base == "vote":
            return Kind("vote", words[0], words[-1])
        if base == "match":
            return Kind("match", words[0], words[-1])
        if base == "redux":
            return Kind("redux", ".".join(words[:-1]), words[-1])
        if base in ("activemask", "elect", "bar", "barrier"):
            return Kind("bar" if base == "barrier" else base, "", "")
        raise KernelRejected(
            "tensor-core"
            if base in ("mma", "wmma", "wgmma", "tcgen05")
            else "unsupported-instruction",
            f"the CPU device does not run {base}",
            print_instruction(ins),
            ins.line,
        )
