"""The exchange step of warp collectives: results of all lanes of a warp, as vector operations.

The offers are in the block's arrays (see `gpud.device.cpu.codegen.runtime.collectives`), and a
warp's part of such an array is one LLVM vector of 32 numbers. So a vote is a comparison, and a
shuffle whose lanes are known at compile time is one ``shufflevector``.

Terms: a *group* is the lanes that take part in one exchange, as an i32 with a bit for each.

Source: PTX ISA 9.0, sections 9.7.9.6 (shfl.sync), 9.7.13 (vote, match, activemask, redux, elect).
"""

from __future__ import annotations

from collections.abc import Sequence

from gpud.device.cpu.abi.layout import WARP, BlockLayout
from gpud.device.cpu.codegen.runtime.matrix_exchange import define_product
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.lower.collectives import CollectiveKind

__all__ = ["ExchangeFunctions", "array_slot"]

_LANES = f"<{WARP} x i32>"
_BITS = f"<{WARP} x i1>"


class ExchangeFunctions:
    """Writes the exchange functions of one kernel.

    Args:
        tags: metadata of accesses to the blocks' arrays.

    Attributes:
        keys: the key of each distinct collective of the kernel.
    """

    def __init__(self, layout: BlockLayout, tags: str) -> None:
        self.layout = layout
        self.tags = tags
        self.keys: dict[CollectiveKind, int] = {}

    def define_exchange(self, emitter: Emitter) -> None:
        """Emit the body of ``void @exchange(ptr %b, i32 %first, i32 %group, i32 %key)``.

        It computes the results of the lanes in ``group`` of the warp that begins at thread
        ``first``.
        """
        done = emitter.label("exchanged")
        targets = {key: (kind, emitter.label(kind.name)) for kind, key in self.keys.items()}
        arms = " ".join(f"i32 {key}, label %{label}" for key, (_, label) in targets.items())
        emitter.end(f"switch i32 %key, label %{done} [{arms}]")
        for key, (kind, label) in targets.items():
            emitter.place(label)
            emitter.do(f"call void @exchange.{key}(ptr %b, i32 %first, i32 %group)")
            emitter.jump(done)
            header = f"define internal void @exchange.{key}(ptr %b, i32 %first, i32 %group)"
            one = Emitter(emitter.module, header)
            if kind.product is None:
                self._exchange(one, kind)
            else:
                define_product(one, self.layout, kind.product, f"product.{key}")
            one.end("ret void")
            one.finish()
        emitter.place(done)
        emitter.end("ret void")

    def shuffle_known(
        self, emitter: Emitter, mode: str, lanes: tuple[int, int], first: str, group: int
    ) -> None:
        """Emit ``shfl`` with known operands b and c in the warp that begins at thread ``first``."""
        sources = [_source(mode, lane, *lanes) for lane in range(WARP)]
        # The second vector is read for lanes that take no part.
        known = [
            n if not inside else source if group >> source & 1 else WARP
            for n, (source, inside) in enumerate(sources)
        ]
        mine = self._lanes(emitter, "xa", first)
        others = (
            f"shufflevector {_LANES} {mine}, {_LANES} zeroinitializer, {_LANES} {_constant(known)}"
        )
        self._store_lanes(emitter, "result", first, emitter.value(others))
        self._store_lanes(
            emitter, "result_pred", first, _constant([int(inside) for _, inside in sources])
        )

    def _exchange(self, emitter: Emitter, kind: CollectiveKind) -> None:
        match kind.name:
            case "shfl":
                self._shuffle(emitter, kind.mode)
            case "match":
                self._match(emitter, kind)
            case "vote":
                self._set_result(emitter, self._vote(emitter, kind.mode))
            case "redux":
                reduce = self._reduce_floats if kind.type == "f32" else self._reduce
                self._set_result(emitter, reduce(emitter, kind))
            case "activemask":
                self._set_result(emitter, "%group")
            case "elect":
                leader = _lowest(emitter, "%group")
                self._set_result(emitter, leader)
                chosen = emitter.value(
                    f"icmp eq {_LANES} {_constant(range(WARP))}, {_splat(emitter, leader)}"
                )
                self._set_results(
                    emitter, "result_pred", emitter.value(f"zext {_BITS} {chosen} to {_LANES}")
                )

    # -- lanes

    def _at(self, emitter: Emitter, name: str, thread: str) -> str:
        return array_slot(emitter, self.layout, name, thread)

    def _lanes(self, emitter: Emitter, name: str, first: str) -> str:
        return emitter.value(
            f"load {_LANES}, ptr {self._at(emitter, name, first)}, align 64{self.tags}"
        )

    def _store_lanes(self, emitter: Emitter, name: str, first: str, value: str) -> None:
        emitter.do(
            f"store {_LANES} {value}, ptr {self._at(emitter, name, first)}, align 64{self.tags}"
        )

    def _set_results(self, emitter: Emitter, name: str, value: str) -> None:
        """Store the results of the lanes in ``%group``; others may not have read theirs yet."""
        members = emitter.value(f"bitcast i32 %group to {_BITS}")
        old = self._lanes(emitter, name, "%first")
        new = emitter.value(f"select {_BITS} {members}, {_LANES} {value}, {_LANES} {old}")
        self._store_lanes(emitter, name, "%first", new)

    def _set_result(self, emitter: Emitter, value: str) -> None:
        self._set_results(emitter, "result", _splat(emitter, value))

    def _get(self, emitter: Emitter, name: str, thread: str) -> str:
        return emitter.value(f"load i32, ptr {self._at(emitter, name, thread)}{self.tags}")

    def _put(self, emitter: Emitter, name: str, thread: str, value: str) -> None:
        emitter.do(f"store i32 {value}, ptr {self._at(emitter, name, thread)}{self.tags}")

    # -- the collectives

    def _shuffle(self, emitter: Emitter, mode: str) -> None:
        """Emit a shuffle whose source lanes may differ between threads: see `_source`."""
        with emitter.count("0", str(WARP)) as lane:
            bit = emitter.value(f"shl i32 1, {lane}")
            member = emitter.value(f"icmp ne i32 {emitter.value(f'and i32 {bit}, %group')}, 0")
            with emitter.when(member):
                self._shuffle_lane(emitter, mode, lane, emitter.value(f"add i32 %first, {lane}"))

    def _shuffle_lane(self, emitter: Emitter, mode: str, lane: str, thread: str) -> None:
        b = emitter.value(f"and i32 {self._get(emitter, 'xb', thread)}, 31")
        c = self._get(emitter, "xc", thread)
        clamp = emitter.value(f"and i32 {c}, 31")
        segment = emitter.value(f"and i32 {emitter.value(f'lshr i32 {c}, 8')}, 31")
        inverse = emitter.value(f"xor i32 {segment}, 31")
        low = emitter.value(f"and i32 {lane}, {segment}")
        top = emitter.value(f"or i32 {low}, {emitter.value(f'and i32 {clamp}, {inverse}')}")
        match mode:
            case "up":
                source = emitter.value(f"sub i32 {lane}, {b}")
            case "down":
                source = emitter.value(f"add i32 {lane}, {b}")
            case "bfly":
                source = emitter.value(f"xor i32 {lane}, {b}")
            case _:
                source = emitter.value(f"or i32 {low}, {emitter.value(f'and i32 {b}, {inverse}')}")
        order = "sge" if mode == "up" else "sle"
        inside = emitter.value(f"icmp {order} i32 {source}, {top}")
        chosen = emitter.value(f"select i1 {inside}, i32 {source}, i32 {lane}")
        bit = emitter.value(f"shl i32 1, {chosen}")
        there = emitter.value(f"icmp ne i32 {emitter.value(f'and i32 {bit}, %group')}, 0")
        chosen = emitter.value(f"select i1 {there}, i32 {chosen}, i32 {lane}")
        other = emitter.value(f"add i32 %first, {chosen}")
        value = self._get(emitter, "xa", other)
        value = emitter.value(f"select i1 {there}, i32 {value}, i32 0")
        self._put(emitter, "result", thread, value)
        self._put(emitter, "result_pred", thread, emitter.value(f"zext i1 {inside} to i32"))

    def _match(self, emitter: Emitter, kind: CollectiveKind) -> None:
        names = ("xa", "xb") if kind.type.endswith("64") else ("xa",)
        values = {name: self._lanes(emitter, name, "%first") for name in names}

        def same(lane: str) -> str:
            """Return the mask of the lanes of the group that offer the same value as ``lane``."""
            mask, thread = "%group", emitter.value(f"add i32 %first, {lane}")
            for name, value in values.items():
                one = _splat(emitter, self._get(emitter, name, thread))
                alike = _mask(emitter, emitter.value(f"icmp eq {_LANES} {value}, {one}"))
                mask = emitter.value(f"and i32 {mask}, {alike}")
            return mask

        if kind.mode == "all":
            every = emitter.value(f"icmp eq i32 {same(_lowest(emitter, '%group'))}, %group")
            self._set_result(emitter, emitter.value(f"select i1 {every}, i32 %group, i32 0"))
            held = _splat(emitter, emitter.value(f"zext i1 {every} to i32"))
            self._set_results(emitter, "result_pred", held)
            return
        with emitter.count("0", str(WARP)) as lane:
            bit = emitter.value(f"shl i32 1, {lane}")
            with emitter.when(
                emitter.value(f"icmp ne i32 {emitter.value(f'and i32 {bit}, %group')}, 0")
            ):
                self._put(emitter, "result", emitter.value(f"add i32 %first, {lane}"), same(lane))

    def _vote(self, emitter: Emitter, mode: str) -> str:
        offered = self._lanes(emitter, "xa", "%first")
        held = _mask(emitter, emitter.value(f"icmp ne {_LANES} {offered}, zeroinitializer"))
        ballot = emitter.value(f"and i32 {held}, %group")
        if mode == "ballot":
            return ballot
        all_ = emitter.value(f"icmp eq i32 {ballot}, %group")
        any_ = emitter.value(f"icmp ne i32 {ballot}, 0")
        agree = emitter.value(f"or i1 {all_}, {emitter.value(f'xor i1 {any_}, true')}")
        answer = {"all": all_, "any": any_, "uni": agree}[mode]
        return emitter.value(f"zext i1 {answer} to i32")

    def _reduce(self, emitter: Emitter, kind: CollectiveKind) -> str:
        name = kind.mode
        if name in ("min", "max"):
            name = kind.type[0] + name
        none = {"and": -1, "umin": -1, "smin": (1 << 31) - 1, "smax": -(1 << 31)}.get(name, 0)
        members = emitter.value(f"bitcast i32 %group to {_BITS}")
        offered = self._lanes(emitter, "xa", "%first")
        value = emitter.value(
            f"select {_BITS} {members}, {_LANES} {offered}, {_LANES} splat (i32 {none})"
        )
        function = f"@llvm.vector.reduce.{name}.v{WARP}i32"
        emitter.module.declare(f"declare i32 {function}({_LANES})")
        return emitter.value(f"call i32 {function}({_LANES} {value})")

    def _reduce_floats(self, emitter: Emitter, kind: CollectiveKind) -> str:
        """Emit minimum or maximum lane by lane, to follow PTX's rules for NaNs."""
        mode = kind.mode.split(".")
        name = f"llvm.{mode[0]}{'imum' if 'NaN' in mode else 'imumnum'}.f32"
        emitter.module.declare(f"declare float @{name}(float, float)")
        emitter.module.declare("declare float @llvm.fabs.f32(float)")

        def offered(lane: str) -> str:
            bits = self._get(emitter, "xa", emitter.value(f"add i32 %first, {lane}"))
            value = emitter.value(f"bitcast i32 {bits} to float")
            if "abs" not in mode:
                return value
            return emitter.value(f"call float @llvm.fabs.f32(float {value})")

        best = emitter.alloca("float", "best")
        emitter.do(f"store float {offered(_lowest(emitter, '%group'))}, ptr {best}")
        with emitter.count("0", str(WARP)) as lane:
            bit = emitter.value(f"shl i32 1, {lane}")
            with emitter.when(
                emitter.value(f"icmp ne i32 {emitter.value(f'and i32 {bit}, %group')}, 0")
            ):
                sofar = emitter.value(f"load float, ptr {best}")
                better = emitter.value(f"call float @{name}(float {sofar}, float {offered(lane)})")
                emitter.do(f"store float {better}, ptr {best}")
        return emitter.value(f"load i32, ptr {best}")


# -- helpers -----------------------------------------------------------------------------------


def _source(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Return the source lane of one lane of a ``shfl``, and whether it is inside the segment.

    PTX ISA 9.0, 9.7.9.6: the segment mask is in bits 8-12 of c, the clamp in bits 0-4.
    """
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    low = lane & segment
    top = low | clamp & ~segment
    match mode:
        case "up":
            return lane - b, lane - b >= top
        case "down":
            return lane + b, lane + b <= top
        case "bfly":
            return lane ^ b, lane ^ b <= top
        case _:
            source = low | b & ~segment
            return source, source <= top


def _constant(numbers: Sequence[int]) -> str:
    return f"<{', '.join(f'i32 {number}' for number in numbers)}>"


def _splat(emitter: Emitter, value: str) -> str:
    one = emitter.value(f"insertelement {_LANES} poison, i32 {value}, i32 0")
    return emitter.value(f"shufflevector {_LANES} {one}, {_LANES} poison, {_LANES} zeroinitializer")


def _mask(emitter: Emitter, bits: str) -> str:
    return emitter.value(f"bitcast {_BITS} {bits} to i32")


def _lowest(emitter: Emitter, group: str) -> str:
    emitter.module.declare("declare i32 @llvm.cttz.i32(i32, i1)")
    return emitter.value(f"call i32 @llvm.cttz.i32(i32 {group}, i1 false)")


def array_slot(
    emitter: Emitter, layout: BlockLayout, name: str, thread: str, type_: str = ""
) -> str:
    """Return a ``ptr`` to the element of thread ``thread`` (i32) in one of the block's arrays."""
    offset, element = layout.array(name, type_ or "i32")
    base = emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")
    wide = emitter.value(f"zext i32 {thread} to i64")
    return emitter.value(f"getelementptr {element}, ptr {base}, i64 {wide}")
