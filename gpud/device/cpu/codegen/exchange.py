"""Warp collectives, second step: one loop over the lanes that met computes what each gets back.

The offers are in the block's arrays (`gpud.device.cpu.codegen.collectives` has the protocol).

Source: PTX ISA 9.0, sections 9.7.9.6 (shfl.sync), 9.7.13 (vote, match, activemask, redux, elect).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpud.device.cpu.codegen.emitter import Emitter
from gpud.device.cpu.codegen.layout import BlockLayout

__all__ = ["Exchanges", "Kind", "array_slot"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A spelling of a collective: its name, mode (``bfly``, ``all``, ``min.abs``) and type."""

    name: str
    mode: str
    type: str


class Exchanges:
    """Writes the exchange functions of one kernel.

    Attributes:
        keys: the number of each spelling that the kernel uses.
    """

    def __init__(self, layout: BlockLayout) -> None:
        self.layout = layout
        self.keys: dict[Kind, int] = {}

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

    def _exchange(self, e: Emitter, kind: Kind) -> None:
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

    def _gather(self, e: Emitter, kind: Kind, total: str) -> None:
        if kind.name in ("activemask", "elect"):
            if kind.name == "activemask":
                value = "%group"
            else:
                e.module.declare("declare i32 @llvm.cttz.i32(i32, i1)")
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
                e.module.declare("declare float @llvm.fabs.f32(float)")
                fb = e.value(f"call float @llvm.fabs.f32(float {fb})")
            family = "imum" if "NaN" in mode else "imumnum"
            name = f"llvm.{mode[0]}{family}.f32"
            e.module.declare(f"declare float @{name}(float, float)")
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


def array_slot(e: Emitter, layout: BlockLayout, name: str, thread: str, type_: str = "") -> str:
    """``ptr`` to the element of thread ``thread`` (i32) in one of the block's arrays."""
    offset, found = layout.array(name, type_ or "i32")
    base = e.value(f"getelementptr i8, ptr %b, i64 {offset}")
    wide = e.value(f"zext i32 {thread} to i64")
    return e.value(f"getelementptr {found}, ptr {base}, i64 {wide}")
