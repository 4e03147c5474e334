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

from dataclasses import dataclass

from gpud.compiler.analysis.effects import barrier
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.codegen.body import ThreadCode
from gpud.device.cpu.codegen.emitter import Emitter
from gpud.device.cpu.codegen.layout import BlockLayout
from gpud.errors import KernelRejected

__all__ = ["Collectives", "array_slot"]

_ALONE = "0"
"""Mask of a collective that does not wait: it meets whoever stands at the same instruction."""


def array_slot(e: Emitter, layout: BlockLayout, name: str, thread: str, type_: str = "") -> str:
    """``ptr`` to the element of thread ``thread`` (i32) in one of the block's arrays."""
    offset, found = layout.array(name, type_ or "i32")
    base = e.value(f"getelementptr i8, ptr %b, i64 {offset}")
    wide = e.value(f"zext i32 {thread} to i64")
    return e.value(f"getelementptr {found}, ptr {base}, i64 {wide}")


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    mode: str
    type: str


class Collectives:
    """The collectives of one kernel: gives out keys, emits offers, exchanges and resumes."""

    def __init__(self, layout: BlockLayout, tags: str) -> None:
        self.layout = layout
        self.tags = tags
        self.keys: dict[_Kind, int] = {}

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

    # -- exchanges

    def _kind(self, ins: ptx.Instruction) -> _Kind:
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        words = [m for m in modifiers if m not in ("sync", "aligned")]
        if base == "shfl":
            return _Kind("shfl", words[0], "b32")
        if base == "vote":
            return _Kind("vote", words[0], words[-1])
        if base == "match":
            return _Kind("match", words[0], words[-1])
        if base == "redux":
            return _Kind("redux", ".".join(words[:-1]), words[-1])
        if base in ("activemask", "elect", "bar", "barrier"):
            return _Kind("bar" if base == "barrier" else base, "", "")
        raise KernelRejected(
            "tensor-core"
            if base in ("mma", "wmma", "wgmma", "tcgen05")
            else "unsupported-instruction",
            f"the CPU device does not run {base}",
            print_instruction(ins),
            ins.line,
        )

    def define_exchange(self, e: Emitter) -> None:
        """Emit the body of ``void @exchange(ptr %b, i32 %first, i32 %group, i32 %key)``.

        It computes the results of the lanes in ``group`` of the warp that begins at thread
        ``first``.
        """
        done = e.label("exchanged")
        targets = {key: (kind, e.label(kind.name)) for kind, key in self.keys.items()}
        arms = " ".join(f"i32 {key}, label %{label}" for key, (_, label) in targets.items())
        e.end(f"switch i32 %key, label %{done} [{arms}]")
        for key, (kind, label) in targets.items():
            e.place(label)
            e.do(f"call void @exchange.{key}(ptr %b, i32 %first, i32 %group)")
            e.jump(done)
            header = f"define internal void @exchange.{key}(ptr %b, i32 %first, i32 %group)"
            one = Emitter(e.module, header)
            self._exchange(one, kind)
            one.end("ret void")
            one.finish()
        e.place(done)
        e.end("ret void")

    def _exchange(self, e: Emitter, kind: _Kind) -> None:
        if kind.name in ("bar", "barrier"):
            return
        total = e.alloca("i64", "total")
        if kind.name in ("vote", "redux", "activemask", "elect"):
            self._gather(e, kind, total)
        with e.count("0", "32") as lane:
            bit = e.value(f"shl i32 1, {lane}")
            member = e.value(f"icmp ne i32 {e.value(f'and i32 {bit}, %group')}, 0")
            with e.when(member):
                thread = e.value(f"add i32 %first, {lane}")
                match kind.name:
                    case "shfl":
                        self._shuffle(e, kind.mode, lane, thread)
                    case "match":
                        self._match(e, kind.mode, thread)
                    case "elect":
                        leader = e.value(f"load i64, ptr {total}")
                        self._put(e, "result", thread, leader)
                        wide = e.value(f"zext i32 {lane} to i64")
                        first = e.value(f"icmp eq i64 {leader}, {wide}")
                        self._put(e, "result_pred", thread, e.value(f"zext i1 {first} to i32"))
                    case _:
                        self._put(e, "result", thread, e.value(f"load i64, ptr {total}"))

    def _get(self, e: Emitter, name: str, thread: str) -> str:
        _, type_ = self.layout.array(name, "i32")
        return e.value(f"load {type_}, ptr {array_slot(e, self.layout, name, thread)}")

    def _put(self, e: Emitter, name: str, thread: str, value: str) -> None:
        _, type_ = self.layout.array(name, "i32")
        e.do(f"store {type_} {value}, ptr {array_slot(e, self.layout, name, thread)}")

    def _shuffle(self, e: Emitter, mode: str, lane: str, thread: str) -> None:
        """PTX ISA 9.0, 9.7.9.6: the segment mask is in bits 8-12 of c, the clamp in bits 0-4."""
        b = e.value(f"and i32 {self._get(e, 'xb', thread)}, 31")
        c = self._get(e, "xc", thread)
        clamp = e.value(f"and i32 {c}, 31")
        segment = e.value(f"and i32 {e.value(f'lshr i32 {c}, 8')}, 31")
        inverse = e.value(f"xor i32 {segment}, 31")
        low = e.value(f"and i32 {lane}, {segment}")
        top = e.value(f"or i32 {low}, {e.value(f'and i32 {clamp}, {inverse}')}")
        match mode:
            case "up":
                source = e.value(f"sub i32 {lane}, {b}")
                inside = e.value(f"icmp sge i32 {source}, {top}")
            case "down":
                source = e.value(f"add i32 {lane}, {b}")
                inside = e.value(f"icmp sle i32 {source}, {top}")
            case "bfly":
                source = e.value(f"xor i32 {lane}, {b}")
                inside = e.value(f"icmp sle i32 {source}, {top}")
            case _:
                source = e.value(f"or i32 {low}, {e.value(f'and i32 {b}, {inverse}')}")
                inside = e.value(f"icmp sle i32 {source}, {top}")
        chosen = e.value(f"select i1 {inside}, i32 {source}, i32 {lane}")
        bit = e.value(f"shl i32 1, {chosen}")
        there = e.value(f"icmp ne i32 {e.value(f'and i32 {bit}, %group')}, 0")
        chosen = e.value(f"select i1 {there}, i32 {chosen}, i32 {lane}")
        other = e.value(f"add i32 %first, {chosen}")
        self._put(e, "result", thread, self._get(e, "xa", other))
        self._put(e, "result_pred", thread, e.value(f"zext i1 {inside} to i32"))

    def _match(self, e: Emitter, mode: str, thread: str) -> None:
        mine = self._get(e, "xa", thread)
        same = e.alloca("i32", "same")
        e.do(f"store i32 0, ptr {same}")
        with e.count("0", "32") as lane:
            bit = e.value(f"shl i32 1, {lane}")
            member = e.value(f"icmp ne i32 {e.value(f'and i32 {bit}, %group')}, 0")
            other = self._get(e, "xa", e.value(f"add i32 %first, {lane}"))
            equal = e.value(f"icmp eq i64 {mine}, {other}")
            both = e.value(f"and i1 {member}, {equal}")
            add = e.value(f"select i1 {both}, i32 {bit}, i32 0")
            sofar = e.value(f"load i32, ptr {same}")
            e.do(f"store i32 {e.value(f'or i32 {sofar}, {add}')}, ptr {same}")
        found = e.value(f"load i32, ptr {same}")
        if mode == "all":
            every = e.value(f"icmp eq i32 {found}, %group")
            found = e.value(f"select i1 {every}, i32 %group, i32 0")
            self._put(e, "result_pred", thread, e.value(f"zext i1 {every} to i32"))
        self._put(e, "result", thread, e.value(f"zext i32 {found} to i64"))

    # -- values that all lanes of a group share

    def _gather(self, e: Emitter, kind: _Kind, total: str) -> None:
        if kind.name in ("activemask", "elect"):
            if kind.name == "activemask":
                value = "%group"
            else:
                e.module.declare("cttz32", "declare i32 @llvm.cttz.i32(i32, i1)")
                value = e.value("call i32 @llvm.cttz.i32(i32 %group, i1 false)")
            e.do(f"store i64 {e.value(f'zext i32 {value} to i64')}, ptr {total}")
            return
        mode = kind.mode.split(".")
        first = {"and": -1, "all": -1}.get(mode[0], 0)
        started = e.alloca("i1", "started")
        e.do(f"store i1 false, ptr {started}")
        e.do(f"store i64 {first}, ptr {total}")
        with e.count("0", "32") as lane:
            bit = e.value(f"shl i32 1, {lane}")
            member = e.value(f"icmp ne i32 {e.value(f'and i32 {bit}, %group')}, 0")
            with e.when(member):
                offered = self._get(e, "xa", e.value(f"add i32 %first, {lane}"))
                sofar = e.value(f"load i64, ptr {total}")
                if kind.name == "vote":
                    value = self._vote(e, mode[0], sofar, offered, lane)
                else:
                    value = self._reduce(e, mode, kind.type, sofar, offered, started)
                e.do(f"store i64 {value}, ptr {total}")
                e.do(f"store i1 true, ptr {started}")
        if kind.name == "vote":
            self._finish_vote(e, mode[0], total)

    @staticmethod
    def _vote(e: Emitter, mode: str, sofar: str, offered: str, lane: str) -> str:
        if mode == "all":
            return e.value(f"and i64 {sofar}, {offered}")
        if mode == "any":
            return e.value(f"or i64 {sofar}, {offered}")
        wide = e.value(f"zext i32 {lane} to i64")  # ballot, and uni by way of it
        return e.value(f"or i64 {sofar}, {e.value(f'shl i64 {offered}, {wide}')}")

    @staticmethod
    def _finish_vote(e: Emitter, mode: str, total: str) -> None:
        value = e.value(f"load i64, ptr {total}")
        if mode == "uni":
            group = e.value("zext i32 %group to i64")
            all_ = e.value(f"icmp eq i64 {value}, {group}")
            none = e.value(f"icmp eq i64 {value}, 0")
            same = e.value(f"or i1 {all_}, {none}")
            e.do(f"store i64 {e.value(f'zext i1 {same} to i64')}, ptr {total}")
        elif mode == "all":
            e.do(f"store i64 {e.value(f'and i64 {value}, 1')}, ptr {total}")

    @staticmethod
    def _reduce(
        e: Emitter, mode: list[str], type_: str, sofar: str, offered: str, started: str
    ) -> str:
        if mode[0] in ("and", "or", "xor", "add") and type_ != "f32":
            return e.value(f"{mode[0]} i64 {sofar}, {offered}")
        a = e.value(f"trunc i64 {sofar} to i32")
        b = e.value(f"trunc i64 {offered} to i32")
        if type_ == "f32":
            fa = e.value(f"bitcast i32 {a} to float")
            fb = e.value(f"bitcast i32 {b} to float")
            if "abs" in mode:
                e.module.declare("fabs", "declare float @llvm.fabs.f32(float)")
                fb = e.value(f"call float @llvm.fabs.f32(float {fb})")
            family = "imum" if "NaN" in mode else "imumnum"
            name = f"llvm.{mode[0]}{family}.f32"
            e.module.declare(name, f"declare float @{name}(float, float)")
            best = e.value(f"call float @{name}(float {fa}, float {fb})")
            picked = e.value(f"select i1 {_flag(e, started)}, float {best}, float {fb}")
            bits = e.value(f"bitcast float {picked} to i32")
        else:
            sign = "s" if type_[0] == "s" else "u"
            order = "lt" if mode[0] == "min" else "gt"
            better = e.value(f"icmp {sign}{order} i32 {a}, {b}")
            keep = e.value(f"and i1 {better}, {_flag(e, started)}")
            bits = e.value(f"select i1 {keep}, i32 {a}, i32 {b}")
        return e.value(f"zext i32 {bits} to i64")


def _flag(e: Emitter, slot: str) -> str:
    return e.value(f"load i1, ptr {slot}")
