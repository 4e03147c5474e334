"""Warp collectives and barriers in three steps: offer operands, exchange, resume with results.

Problem: ``shfl``, ``vote``, ``match``, ``redux``, ``elect``, ``activemask``, products of
matrices and ``bar.red`` compute from the values of several threads, and threads of a block run one
after another.

Approach: three steps. *Offer*: a thread writes its sources, its member mask and the collective's
key into its block's arrays and waits. *Exchange*: when all lanes that the mask names wait with the
same key, the results of all of them are computed (`gpud.device.cpu.codegen.runtime.warp_exchange`).
*Resume*: the thread copies its result into its registers and goes on. Exchange is separate from
resume because a lane that has gone on may already offer to the next collective while others have
not yet read its value. Threads in lockstep whose mask is known to name all lanes offer only their
sources.

Terms: the *key* numbers the distinct collectives (opcode with modifiers) of a kernel; lanes take
part in one exchange if key and mask agree, even at different instructions; a *group* is those
lanes, as a bit mask.

Properties:
* results depend only on the offers of the group, not on the order in which lanes arrived;
* lanes of a warp that do not exist (partial warps) or have ended are not waited for;
* a source lane outside the group gives the reader 0: the ISA leaves it undefined, and the reduction
  of CUDA's samples, which is right on GPUs, adds what such lanes give.

Source: PTX ISA 9.0, sections 9.7.9.6 (shfl.sync), 9.7.13 (vote, match, activemask, redux, elect).
"""

from __future__ import annotations

from gpud.compiler.analysis.effects import barrier
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
from gpud.device.cpu.codegen.runtime.matrix_exchange import offer_product, resume_product
from gpud.device.cpu.codegen.runtime.warp_exchange import ExchangeFunctions
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.lower.collectives import collective_kind
from gpud.device.cpu.lower.matrix_products import is_product

__all__ = ["Collectives"]

_ALL = 0xFFFFFFFF
_NO_MASK = "0"
"""Mask of a collective that does not wait: its group is the lanes that stand at the same
instruction."""


class Collectives(ExchangeFunctions):
    """The collectives of one kernel: assigns keys and emits offers, exchanges and resumes."""

    # -- offers

    def offer(self, code: ThreadCode, ins: ptx.Instruction, *, lockstep: bool = False) -> None:
        """Emit the current thread's offer for ``ins``.

        ``lockstep``: all threads of the block reach it in lockstep.
        """
        kind = collective_kind(ins)
        operands = ins.operands
        met = lockstep and self.involves_full_warps(ins)
        match kind.name:
            case "shfl":
                self._store(code, "xa", code.read(operands[1], "b32"))
                if not met or _known_lanes(ins) is None:
                    self._store(code, "xb", code.read(operands[2], "b32"))
                    self._store(code, "xc", code.read(operands[3], "b32"))
            case "vote":
                held = code.read(operands[1], "pred")
                self._store(code, "xa", code.convert(held, "i1", "i32"))
            case "match" if kind.type.endswith("64"):
                value = code.read(operands[1], kind.type)
                high = code.emitter.value(f"lshr i64 {value}, 32")
                self._store(code, "xa", code.convert(value, "i64", "i32"))
                self._store(code, "xb", code.convert(high, "i64", "i32"))
            case "match" | "redux":
                self._store(code, "xa", code.read(operands[1], "b32"))
            case "mma":
                offer_product(code, self.layout, ins)
        if met:
            return
        key = self.keys.setdefault(kind, len(self.keys) + 1)
        self._store(code, "key", str(key))
        mask = self.mask_of(ins)
        self._store(code, "mask", _NO_MASK if mask is None else code.read(mask, "b32"))

    def offer_barrier(self, code: ThreadCode, ins: ptx.Instruction) -> None:
        """Emit barrier number, expected threads (0: all) and predicate of a block-wide barrier."""
        parts = barrier(ins)
        self._store(code, "key", code.read(parts.id, "b32"))
        self._store(code, "count", "0" if parts.count is None else code.read(parts.count, "b32"))
        if parts.action == "red":
            held = code.read(ins.operands[-1], "pred")
            self._store(code, "xa", code.convert(held, "i1", "i32"))

    # -- resuming

    def resume(self, code: ThreadCode, ins: ptx.Instruction) -> None:
        """Emit the results of the wait before a ``gpud.resume`` instruction."""
        if not ins.operands:
            return
        names = ins.opcode.modifiers[1:]
        if names[0] in ("mma", "wmma"):
            resume_product(code, self.layout, ins)
            return
        target = ins.operands[0]
        second: ptx.Operand | None = None
        if isinstance(target, ptx.Pair):
            second = target.second
            target = target.first
        value = self._load(code, "result")
        if names[0] in ("bar", "barrier"):
            self._resume_reduction(code, target, names, value)
        elif names[0] == "vote" and "ballot" not in names:
            code.write(target, "pred", code.emitter.value(f"trunc i32 {value} to i1"))
        else:
            code.write(target, "b32", value)
        if second is not None:
            flag = self._load(code, "result_pred")
            code.write(second, "pred", code.emitter.value(f"trunc i32 {flag} to i1"))

    def _resume_reduction(
        self, code: ThreadCode, target: ptx.Operand, names: tuple[str, ...], ones: str
    ) -> None:
        """Emit the result of ``bar.red`` from ``ones``, the true predicates, and all threads."""
        emitter = code.emitter
        if "popc" in names:
            code.write(target, "u32", ones)
        elif "and" in names:
            threads = self._load(code, "result_pred")
            code.write(target, "pred", emitter.value(f"icmp eq i32 {ones}, {threads}"))
        else:
            code.write(target, "pred", emitter.value(f"icmp ne i32 {ones}, 0"))

    def _store(self, code: ThreadCode, name: str, value: str) -> None:
        self._put(code.emitter, name, code.places.thread, value)

    def _load(self, code: ThreadCode, name: str) -> str:
        return self._get(code.emitter, name, code.places.thread)

    # -- exchanges in lockstep

    @staticmethod
    def mask_of(ins: ptx.Instruction) -> ptx.Operand | None:
        """Return the member mask operand, None for a collective without one."""
        base, operands = ins.opcode.base, ins.operands
        if is_product(ins):
            return ptx.Immediate("-1", -1)
        position = {"shfl": 4, "vote": 2, "match": 2, "redux": 2, "elect": 1, "bar": 0}
        at = position.get("bar" if base == "barrier" else base)
        return operands[at] if at is not None and at < len(operands) else None

    @classmethod
    def involves_full_warps(cls, ins: ptx.Instruction) -> bool:
        """Return whether ``ins``, reached in lockstep, surely involves all lanes of each warp."""
        mask = cls.mask_of(ins)
        if isinstance(mask, ptx.Immediate):
            return mask.value & _ALL == _ALL
        return mask is None

    def _existing(self) -> int:
        """Return the mask of the existing lanes of the last warp, as an i32."""
        lanes = self.layout.threads - (self.layout.warps - 1) * 32
        return -1 if lanes == 32 else (1 << lanes) - 1

    def masks_are_full(self, emitter: Emitter) -> str:
        """Return an i1: whether every thread's mask names all existing lanes of its warp."""
        slot = emitter.alloca("i32", "partial")
        emitter.do(f"store i32 0, ptr {slot}")
        final = (self.layout.warps - 1) * 32
        with emitter.count("0", str(self.layout.threads)) as thread:
            last = emitter.value(f"icmp sge i32 {thread}, {final}")
            need = emitter.value(f"select i1 {last}, i32 {self._existing()}, i32 -1")
            absent = emitter.value(f"xor i32 {self._get(emitter, 'mask', thread)}, -1")
            missing = emitter.value(f"and i32 {need}, {absent}")
            sofar = emitter.value(f"load i32, ptr {slot}")
            emitter.do(f"store i32 {emitter.value(f'or i32 {sofar}, {missing}')}, ptr {slot}")
        return emitter.value(f"icmp eq i32 {emitter.value(f'load i32, ptr {slot}')}, 0")

    def exchange_all(self, emitter: Emitter, ins: ptx.Instruction) -> None:
        """Exchange in every warp of the block; all of its lanes have made their offers."""
        kind = collective_kind(ins)
        if kind.name == "bar":
            return
        lanes = _known_lanes(ins)
        key = 0 if lanes else self.keys.setdefault(kind, len(self.keys) + 1)

        def exchange(first: str, group: int) -> None:
            if lanes:
                self.shuffle_known(emitter, kind.mode, lanes, first, group)
            else:
                emitter.do(f"call void @exchange.{key}(ptr %b, i32 {first}, i32 {group})")

        whole = self.layout.warps - (0 if self._existing() == -1 else 1)
        if whole:
            with emitter.count("0", str(whole)) as warp:
                exchange(emitter.value(f"mul i32 {warp}, 32"), -1)
        if whole < self.layout.warps:
            exchange(str(whole * 32), self._existing())

    def reduce_all(self, emitter: Emitter) -> None:
        """Compute the reduction of a barrier that all threads of the block have reached."""
        ones = emitter.alloca("i32", "ones")
        emitter.do(f"store i32 0, ptr {ones}")
        with emitter.count("0", str(self.layout.threads)) as thread:
            bit = emitter.value(f"and i32 {self._get(emitter, 'xa', thread)}, 1")
            sofar = emitter.value(f"load i32, ptr {ones}")
            emitter.do(f"store i32 {emitter.value(f'add i32 {sofar}, {bit}')}, ptr {ones}")
        total = emitter.value(f"load i32, ptr {ones}")
        with emitter.count("0", str(self.layout.threads)) as thread:
            self._put(emitter, "result", thread, total)
            self._put(emitter, "result_pred", thread, str(self.layout.threads))


def _known_lanes(ins: ptx.Instruction) -> tuple[int, int] | None:
    """Return the operands b and c of a ``shfl``, if both are immediates."""
    if ins.opcode.base != "shfl":
        return None
    b, c = ins.operands[2:4]
    if isinstance(b, ptx.Immediate) and isinstance(c, ptx.Immediate):
        return b.value, c.value
    return None
