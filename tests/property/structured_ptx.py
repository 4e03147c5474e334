"""Structured kernels as PTX text."""

from __future__ import annotations

from tests.property.structured_kernels import (
    DEPTH,
    GROUPS,
    KEPT,
    LOCALS,
    UNIFORMS,
    VALUES,
    Expr,
    Function,
    Kernel,
    Statement,
)

_HEAD = """.version 8.0
.target sm_75
.address_size 64
"""
_ENTRY = """
.visible .entry k(.param .u64 k_out, .param .u64 k_data, .param .u64 k_own, .param .u32 k_n)
{{{registers}
.shared .align 4 .b8 s[4096];
.shared .align 4 .b8 cell[4];
.shared .align 4 .b8 counter[4];
.local .align 4 .b8 loc[16];
{body}
}}
"""
_FUNCTION = """
.func (.param .b32 result) {name}
    (.param .u64 k_data, .param .b32 first, .param .b32 second, .param .b32 equal)
{{{registers}
{body}
}}
"""


def to_ptx(kernel: Kernel) -> str:
    """PTX text of an entry ``k(out, data, own, n)``."""
    functions = [
        _FUNCTION.format(name=f"f{number}", **_Writer(kernel).function(function))
        for number, function in enumerate(kernel.functions)
    ]
    return "".join((_HEAD, *functions, _ENTRY.format(**_Writer(kernel).entry())))


_GUARDED = ("set", "gather", "add")


class _Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.axes = "xyz"[
            : max(n for n, extent in enumerate(kernel.shape, 1) if n == 1 or extent > 1)
        ]
        self.lines: list[str] = []
        self.temps = 0
        self.guard = ""
        """In front of the one instruction that a guarded statement is."""
        self.leave = ""
        """Where a function ends; a kernel ends anywhere."""

    def entry(self) -> dict[str, str]:
        """Registers and body of the kernel."""
        self.prologue()
        self.block(self.kernel.body, "")
        self.epilogue()
        return self._parts()

    def function(self, function: Function) -> dict[str, str]:
        """Registers and body of one of its functions."""
        self.leave = "$Lleave"
        self.do("ld.param.b32 %v0, [first]", "ld.param.b32 %v1, [second]")
        self.do(f"mov.u32 %v2, {self.value(('tid',))}", "mov.u32 %v3, 0")
        self.do("ld.param.b32 %u0, [equal]", "mov.u32 %u1, %ctaid.x")
        self.do(*(f"mov.u32 %i{n}, 0" for n in range(DEPTH)))
        self.block(function.body, "")
        self.lines.append(f"{self.leave}:")
        self.do("st.param.b32 [result], %v0", "ret")
        return self._parts()

    def _parts(self) -> dict[str, str]:
        kinds = {"v": VALUES, "u": UNIFORMS, "i": DEPTH, "c": DEPTH, "m": GROUPS}
        words = ", ".join(f"%{name}<{count}>" for name, count in kinds.items())
        registers = (
            f"\n.reg .b32 {words}, %t<{self.temps + 1}>;"
            f"\n.reg .b64 %rd<{self.temps + 1}>;\n.reg .pred %p<{self.temps + 1}>;"
        )
        return {"registers": registers, "body": "\n".join(self.lines)}

    def do(self, *lines: str) -> None:
        self.lines += [f"{line};" for line in lines]

    def temp(self, kind: str = "t") -> str:
        self.temps += 1
        return f"%{kind}{self.temps}"

    def value(self, expr: Expr) -> str:
        """Operand that holds ``expr``."""
        kind = expr[0]
        if kind in ("v", "u", "i"):
            return f"%{kind}{expr[1]}"
        if kind == "c":
            return str(expr[1])
        target = self.temp()
        if kind == "ctaid":
            self.do(f"mov.u32 {target}, %ctaid.x")
        elif kind == "tid":
            self.do(f"mov.u32 {target}, %tid.{'xyz'[len(self.axes) - 1]}")
            for axis in self.axes[-2::-1]:
                extent, number = self.temp(), self.temp()
                self.do(f"mov.u32 {extent}, %ntid.{axis}", f"mov.u32 {number}, %tid.{axis}")
                self.do(f"mad.lo.u32 {target}, {target}, {extent}, {number}")
        elif kind == "sel":
            chosen = self.predicate(expr[1])
            self.do(f"selp.b32 {target}, {self.value(expr[2])}, {self.value(expr[3])}, {chosen}")
        else:
            left = self.value(expr[1])
            right = expr[2] if isinstance(expr[2], int) else self.value(expr[2])
            name = {
                "mul": "mul.lo.u32", "and": "and.b32", "or": "or.b32", "xor": "xor.b32",
                "shl": "shl.b32", "mulhi": "mul.hi.u32", "maxs": "max.s32", "shrs": "shr.s32",
            }.get(kind, f"{kind}.u32")  # fmt: skip
            if left.isdigit():
                self.do(f"mov.u32 {target}, {left}")
                left = target
            self.do(f"{name} {target}, {left}, {right}")
        return target

    def predicate(self, condition: Expr) -> str:
        left, right = self.value(condition[1]), self.value(condition[2])
        if left.isdigit():
            held = self.temp()
            self.do(f"mov.u32 {held}, {left}")
            left = held
        target = self.temp("p")
        self.do(f"setp.{condition[0]}.u32 {target}, {left}, {right}")
        return target

    def address(self, base: str, index: str, scale: int = 4) -> str:
        """64-bit address of word ``index`` behind the parameter or local variable ``base``."""
        pointer, target = self.temp("rd"), self.temp("rd")
        if base.startswith("k_"):
            loaded = self.temp("rd")
            self.do(f"ld.param.u64 {loaded}, [{base}]", f"cvta.to.global.u64 {pointer}, {loaded}")
        else:
            self.do(f"mov.u64 {pointer}, {base}")
        offset = self.temp("rd")
        self.do(
            f"mul.wide.u32 {offset}, {index}, {scale}", f"add.s64 {target}, {pointer}, {offset}"
        )
        return target

    def shared(self, index: str) -> str:
        base, offset, target = self.temp(), self.temp(), self.temp()
        self.do(
            f"mov.u32 {base}, s",
            f"shl.b32 {offset}, {index}, 2",
            f"add.u32 {target}, {base}, {offset}",
        )
        return target

    def label(self, name: str) -> str:
        self.temps += 1
        return f"$L{name}{self.temps}"

    # -- statements

    def prologue(self) -> None:
        tid = self.value(("tid",))
        self.do("ld.param.u32 %u0, [k_n]", "mov.u32 %u1, %ctaid.x")
        self.do(f"mov.u32 %v0, {tid}", f"mul.lo.u32 %v1, {tid}, 40503", "mov.u32 %v2, 7")
        self.do(f"add.u32 %v3, {tid}, %u1")
        self.do(*(f"mov.u32 %i{n}, 0" for n in range(DEPTH)))
        self.do(*(f"st.local.u32 [loc+{4 * n}], {n}" for n in range(LOCALS)))
        self.do(f"st.shared.u32 [{self.shared(tid)}], 0")
        first = self.predicate(("eq", ("tid",), ("c", 0)))
        self.do(f"@{first} st.shared.u32 [cell], 0", f"@{first} st.shared.u32 [counter], 0")
        self.do("bar.sync 0")

    def epilogue(self) -> None:
        gid = self._global_number()
        at = self.address("k_out", gid, 4 * KEPT)
        for n in range(VALUES):
            self.do(f"st.global.u32 [{at}+{4 * n}], %v{n}")
        for n in range(UNIFORMS):
            self.do(f"st.global.u32 [{at}+{4 * (VALUES + n)}], %u{n}")
        self.do("ret")

    def _global_number(self) -> str:
        tid, target, block = self.value(("tid",)), self.temp(), self.temp()
        self.do(f"mov.u32 {block}, %ctaid.x")
        self.do(f"mad.lo.u32 {target}, {block}, {self.kernel.threads}, {tid}")
        return target

    def block(self, body: list[Statement], end: str) -> None:
        for statement in body:
            getattr(self, f"_{statement.kind}")(statement, end)

    def _set(self, s: Statement, _: str) -> None:
        target, value = map(self.value, s.operands)
        self.do(f"{self.guard}mov.u32 {target}, {value}")

    _setu = _set

    def _if(self, s: Statement, end: str) -> None:
        predicate = self.predicate(s.operands[0])
        if len(s.body) == 1 and s.body[0].kind in _GUARDED and not s.other:
            self.guard = f"@{predicate} "  # as compilers do, instead of a branch
            self.block(s.body, end)
            self.guard = ""
            return
        other, join = self.label("else"), self.label("join")
        self.do(f"@!{predicate} bra {other}")
        self.block(s.body, end)
        self.do(f"bra {join}")
        self.lines.append(f"{other}:")
        self.block(s.other, end)
        self.lines.append(f"{join}:")

    def _switch(self, s: Statement, end: str) -> None:
        chosen, join, table = self.value(s.operands[0]), self.label("join"), self.label("table")
        labels = [self.label("arm") for _ in s.arms]
        self.lines.append(f"{table}: .branchtargets {', '.join((*labels, join))};")
        self.do(f"brx.idx {chosen}, {table}")
        for label, arm in zip(labels, s.arms, strict=True):
            self.lines.append(f"{label}:")
            self.block(arm, end)
            self.do(f"bra {join}")
        self.lines.append(f"{join}:")

    def _group(self, s: Statement, end: str) -> None:
        condition, number = s.operands
        predicate, join = self.predicate(condition), self.label("join")
        self.do(f"vote.sync.ballot.b32 %m{number}, {predicate}, {self.mask(number)}")
        self.do(f"@!{predicate} bra {join}")
        self.block(s.body, end)
        self.lines.append(f"{join}:")

    @staticmethod
    def mask(groups: int) -> str:
        """Operand with the lanes that run a statement in ``groups`` groups together."""
        return f"%m{groups - 1}" if groups else "-1"

    def _call(self, s: Statement, _: str) -> None:
        target, *arguments, number = s.operands
        data = self.temp("rd")
        self.do(f"ld.param.u64 {data}, [k_data]")
        values = [self.value(argument) for argument in arguments]
        self.lines.append("{")
        self.do(".param .b64 p0", *(f".param .b32 p{n}" for n in (1, 2, 3)), ".param .b32 got")
        self.do(f"st.param.b64 [p0], {data}")
        self.do(*(f"st.param.b32 [p{n}], {value}" for n, value in enumerate(values, 1)))
        self.do(f"call (got), f{number}, (p0, p1, p2, p3)")
        self.do(f"ld.param.b32 {self.value(target)}, [got]")
        self.lines.append("}")

    def _loop(self, s: Statement, _: str) -> None:
        count, depth, rotated = s.operands
        head, end = self.label("head"), self.label("end")
        index, bound = f"%i{depth}", f"%c{depth}"
        self.do(f"mov.u32 {bound}, {self.value(count)}", f"mov.u32 {index}, 0")
        over = self.temp("p")
        if rotated:
            self.do(f"setp.eq.u32 {over}, {bound}, 0", f"@{over} bra {end}")
        self.lines.append(f"{head}:")
        if not rotated:
            self.do(f"setp.ge.u32 {over}, {index}, {bound}", f"@{over} bra {end}")
        self.block(s.body, end)
        self.do(f"add.u32 {index}, {index}, 1")
        if rotated:
            self.do(f"setp.lt.u32 {over}, {index}, {bound}", f"@{over} bra {head}")
        else:
            self.do(f"bra {head}")
        self.lines.append(f"{end}:")

    def _break(self, s: Statement, end: str) -> None:
        self.do(f"@{self.predicate(s.operands[0])} bra {end}")

    def _return(self, s: Statement, _: str) -> None:
        predicate = self.predicate(s.operands[0])
        leave = f"bra {self.leave}" if self.leave else "exit" if s.operands[1] else "ret"
        self.do(f"@{predicate} {leave}")

    def _gather(self, s: Statement, _: str) -> None:
        index = self.value(("and", s.operands[1], ("c", 63)))
        at = self.address("k_data", index)
        self.do(f"{self.guard}ld.global.u32 {self.value(s.operands[0])}, [{at}]")

    _loadu = _gather

    def _walk(self, s: Statement, _: str) -> None:
        target, start, count = s.operands
        at = self.address("k_data", self.value(("and", start, ("c", 31))))
        left, loaded, over = self.temp(), self.temp(), self.temp("p")
        head, end = self.label("walk"), self.label("walked")
        self.do(f"mov.u32 {left}, {self.value(count)}", f"setp.eq.u32 {over}, {left}, 0")
        self.do(f"@{over} bra {end}")
        self.lines.append(f"{head}:")
        self.do(
            f"ld.global.u32 {loaded}, [{at}]",
            f"add.u32 {self.value(target)}, {self.value(target)}, {loaded}",
            f"add.s64 {at}, {at}, 4",
            f"sub.u32 {left}, {left}, 1",
            f"setp.ne.u32 {over}, {left}, 0",
            f"@{over} bra {head}",
        )
        self.lines.append(f"{end}:")

    def _local(self, s: Statement, _: str) -> None:
        target, where, what = s.operands
        at = self.address("loc", self.value(("and", where, ("c", LOCALS - 1))))
        value = self.value(what)
        self.do(f"st.local.u32 [{at}], {value}")
        other = self.address("loc", self.value(("and", target, ("c", LOCALS - 1))))
        self.do(f"ld.local.u32 {self.value(target)}, [{other}]")

    def _own(self, s: Statement, _: str) -> None:
        target, expr, how = s.operands
        value, old = self.value(expr), self.temp()
        at = self.address("k_own", self._global_number())
        if how:
            kind = "b32" if how == "exch" else "u32"
            self.do(f"atom.global.{how}.{kind} {old}, [{at}], {value}")
        else:
            self.do(f"ld.global.u32 {old}, [{at}]", f"st.global.u32 [{at}], {value}")
        self.do(f"add.u32 {self.value(target)}, {self.value(target)}, {old}")

    def _add(self, s: Statement, _: str) -> None:
        value = self.value(s.operands[0])
        self.do(f"{self.guard}red.shared.add.u32 [counter], {value}")

    def _barrier(self, _: Statement, __: str) -> None:
        self.do("bar.sync 0")

    def _exchange(self, s: Statement, _: str) -> None:
        target, shift = s.operands
        mine = self.shared(self.value(("tid",)))
        self.do(f"st.shared.u32 [{mine}], {self.value(target)}", "bar.sync 0")
        index = self.value(("rem", ("add", ("tid",), ("c", shift)), self.kernel.threads))
        self.do(f"ld.shared.u32 {self.value(target)}, [{self.shared(index)}]", "bar.sync 0")

    def _broadcast(self, s: Statement, _: str) -> None:
        target, expr, writer = s.operands
        value = self.value(expr)
        predicate = self.predicate(("eq", ("tid",), ("c", writer)))
        self.do(f"@{predicate} st.shared.u32 [cell], {value}", "bar.sync 0")
        self.do(f"ld.shared.u32 {self.value(target)}, [cell]", "bar.sync 0")

    def _counter(self, s: Statement, _: str) -> None:
        self.do("bar.sync 0", f"ld.shared.u32 {self.value(s.operands[0])}, [counter]", "bar.sync 0")

    def _count(self, s: Statement, _: str) -> None:
        predicate = self.predicate(s.operands[1])
        self.do(f"bar.red.popc.u32 {self.value(s.operands[0])}, 0, {predicate}")

    def _shuffle(self, s: Statement, _: str) -> None:
        target, mode, by, groups = s.operands
        name, clamp = self.value(target), 0 if mode == "up" else 31
        self.do(f"shfl.sync.{mode}.b32 {name}, {name}, {by}, {clamp}, {self.mask(groups)}")

    def _ballot(self, s: Statement, _: str) -> None:
        target, condition, groups = s.operands
        predicate, mask = self.predicate(condition), self.mask(groups)
        self.do(f"vote.sync.ballot.b32 {self.value(target)}, {predicate}, {mask}")
