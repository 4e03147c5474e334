"""Random structured kernels: generated, written as PTX, and interpreted in NumPy.

Problem: the CPU device runs a block's threads as one while they go the same way, one by one where
they part, and brings them together again. Every way in which that can happen must give what each
thread would compute on its own.

Approach: a kernel is a tree of statements. `Generator` makes one, `to_ptx` writes it down, and
`Machine` runs it with a mask of active threads, knowing nothing of cuts, stages or LLVM.

Terms: a *context* says which threads are certain to run a statement together: ``block``, ``warp``
or just the ``thread``. Barriers stand in block context, shuffles and votes in block or warp
context. ``v`` registers differ between threads, ``u`` registers are equal in a block; an *opaque*
expression is equal too, but made from a thread number, so that no analysis can know.

Properties: no generated kernel has a data race, reads memory that was not written, or depends on
the order in which threads run; so there is one right answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["KEPT", "Generator", "Kernel", "Machine", "to_ptx"]

Expr = tuple[Any, ...]
Words = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

KEPT = 8
"""Words that a thread leaves in ``out``."""
_V, _U, _DEPTH, _LOCALS = 4, 2, 4, 4
_BINARY = ("add", "sub", "mul", "and", "or", "xor", "min", "max")
_COMPARE = ("lt", "le", "eq", "ne", "gt", "ge")


@dataclass
class Statement:
    """``kind`` with its operands; ``body`` and ``other`` hold statements."""

    kind: str
    operands: tuple[Any, ...] = ()
    body: list[Statement] = field(default_factory=list)
    other: list[Statement] = field(default_factory=list)


@dataclass
class Kernel:
    """A kernel for blocks of ``shape`` in a one-dimensional grid of ``blocks``."""

    shape: tuple[int, int]
    blocks: int
    body: list[Statement]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.shape[0] * self.shape[1]


class Generator:
    """Makes kernels from a source of random numbers."""

    SHAPES = ((32, 1), (64, 1), (48, 1), (16, 4), (33, 1), (7, 1), (1, 1), (128, 1))

    def __init__(self, random: Random, size: int = 14) -> None:
        self.random = random
        self.left = size

    def kernel(self) -> Kernel:
        """A kernel of about ``size`` statements."""
        shape = self.random.choice(self.SHAPES)
        body: list[Statement] = []
        while self.left > 0:
            body += self._body("block", (), "")
        return Kernel(shape, self.random.randint(1, 3), body)

    def _body(self, context: str, loops: tuple[str, ...], loop: str) -> list[Statement]:
        """Some statements for a place in the kernel.

        Args:
            context: which threads run them together.
            loops: whether each surrounding loop's index is equal in the block.
            loop: the context of the innermost loop, if threads may leave it here, else "".
        """
        body = []
        for _ in range(self.random.randint(1, 4 if len(loops) < 2 else 3)):
            if self.left <= 0:
                break
            self.left -= 1
            body.append(self._statement(context, loops, loop))
        return body

    def _statement(self, context: str, loops: tuple[str, ...], loop: str) -> Statement:
        choose, pick = self.random.choice, self.random.randint
        kinds = ["set", "set", "gather", "walk", "local", "own", "add", "if", "if", "loop", "loop"]
        if context == "block":
            kinds += ["setu", "loadu", "barrier", "exchange", "exchange", "broadcast", "count"]
            kinds += ["counter"]
        if context != "thread":
            kinds += ["shuffle", "shuffle", "ballot"]
        if loop:
            kinds += ["break"]
        kinds += ["return"] * (pick(0, 3) == 0)
        kind = choose(kinds)
        v, u = pick(0, _V - 1), pick(0, _U - 1)
        if kind == "if":
            condition, inner = self._condition(context, loops)
            still = loop if inner == context else "thread" if loop else ""
            body = self._body(inner, loops, still)
            other = self._body(inner, loops, still) if pick(0, 1) else []
            return Statement("if", (condition,), body, other)
        if kind == "loop" and len(loops) < _DEPTH:
            count, inner = self._count(context, loops)
            # A loop that threads may leave one by one has no barrier in it.
            parting = pick(0, 3) == 0
            inner = "thread" if parting else inner
            equal = (*loops, "block" if inner == "block" else "thread")
            rotated = bool(pick(0, 1))
            body = self._body(inner, equal, inner)
            return Statement("loop", (count, len(loops), rotated), body)
        if kind == "break":
            condition = self._same(loop, loops) if loop == context else self._any(loops)
            if loop != context and loop != "thread":
                return Statement("set", (("v", v), self._value(loops)))
            return Statement("break", (condition,))
        if kind == "return":
            condition, _ = self._condition("block", loops)
            return Statement("return", (condition, bool(pick(0, 1))))
        made: dict[str, tuple[Any, ...]] = {
            "set": (("v", v), self._value(loops)),
            "setu": (("u", u), self._equal(loops)),
            "loadu": (("u", u), self._equal(loops)),
            "gather": (("v", v), self._value(loops)),
            "walk": (("v", v), self._value(loops), self._count(context, loops)[0]),
            "local": (("v", v), self._value(loops), self._value(loops)),
            "own": (("v", v), self._value(loops)),
            "add": (self._value(loops),),
            "barrier": (),
            "exchange": (("v", v), pick(0, 40)),
            "broadcast": (("u", u), self._value(loops), pick(0, 31)),
            "count": (("v", v), self._any(loops)),
            "counter": (("u", u),),
            "shuffle": (("v", v), choose(("bfly", "up", "down", "idx")), pick(0, 31)),
            "ballot": (("v", v), self._any(loops)),
        }
        if kind not in made:
            kind = "set"
        return Statement(kind, made[kind])

    # -- expressions

    def _value(self, loops: tuple[str, ...], depth: int = 0) -> Expr:
        pick, choose = self.random.randint, self.random.choice
        if depth == 2 or pick(0, 2) == 0:
            leaves: list[Expr] = [("v", pick(0, _V - 1)), ("v", pick(0, _V - 1)), ("tid",)]
            leaves += [("u", pick(0, _U - 1)), ("c", choose((0, 1, 3, 31, 40503, 2**32 - 1)))]
            leaves += [("i", n) for n in range(len(loops))]
            return choose(leaves)
        left = self._value(loops, depth + 1)
        if pick(0, 3) == 0:
            return (choose(("shl", "shr", "rem")), left, pick(1, 9))
        return (choose(_BINARY), left, self._value(loops, depth + 1))

    def _equal(self, loops: tuple[str, ...], depth: int = 0) -> Expr:
        """Equal in the whole block."""
        pick, choose = self.random.randint, self.random.choice
        if depth == 2 or pick(0, 1) == 0:
            leaves: list[Expr] = [("u", pick(0, _U - 1)), ("ctaid",), ("c", pick(0, 5))]
            leaves += [("i", n) for n, kind in enumerate(loops) if kind == "block"]
            return choose(leaves)
        return (choose(_BINARY), self._equal(loops, depth + 1), self._equal(loops, depth + 1))

    def _any(self, loops: tuple[str, ...]) -> Expr:
        return (self.random.choice(_COMPARE), self._small(self._value(loops)), self._constant())

    def _same(self, context: str, loops: tuple[str, ...]) -> Expr:
        """A condition that holds for all threads of the context or for none."""
        value = self._equal(loops)
        if self.random.randint(0, 1):
            value = ("add", value, ("shr", ("tid",), 10))  # opaque
        if context != "block" and self.random.randint(0, 1):
            value = ("add", value, ("shr", ("tid",), 5))
        return (self.random.choice(_COMPARE), self._small(value), self._constant())

    def _condition(self, context: str, loops: tuple[str, ...]) -> tuple[Expr, str]:
        """A condition and the context of what it guards."""
        wanted = self.random.choice(("block", "block", "warp", "thread"))
        if wanted == "block":
            return self._same("block", loops), context
        if wanted == "warp":
            return self._same("warp", loops), "thread" if context == "thread" else "warp"
        return self._any(loops), "thread"

    def _count(self, context: str, loops: tuple[str, ...]) -> tuple[Expr, str]:
        wanted = self.random.choice(("block", "block", "warp", "thread"))
        if wanted == "thread":
            return ("and", self._value(loops), ("c", 3)), "thread"
        value: Expr = ("and", self._equal(loops), ("c", 3))
        if self.random.randint(0, 2) == 0:
            value = ("add", value, ("shr", ("tid",), 10))
        if wanted == "block":
            return value, context
        value = ("and", ("add", value, ("shr", ("tid",), 5)), ("c", 3))
        return value, "thread" if context == "thread" else "warp"

    def _small(self, value: Expr) -> Expr:
        return ("rem", value, self.random.randint(2, 7)) if self.random.randint(0, 3) else value

    def _constant(self) -> Expr:
        return ("c", self.random.randint(0, 4))


# -- as PTX ------------------------------------------------------------------------------------

_HEAD = """.version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 k_out, .param .u64 k_data, .param .u64 k_own, .param .u32 k_n)
{{
.reg .b32 %v<4>, %u<2>, %i<4>, %c<4>, %t<{temps}>;
.reg .b64 %rd<{temps}>;
.reg .pred %p<{temps}>;
.shared .align 4 .b8 s[4096];
.shared .align 4 .b8 cell[4];
.shared .align 4 .b8 counter[4];
.local .align 4 .b8 loc[16];
"""


def to_ptx(kernel: Kernel) -> str:
    """PTX text of an entry ``k(out, data, own, n)``."""
    writer = _Writer(kernel)
    writer.prologue()
    writer.block(kernel.body, "")
    writer.epilogue()
    return _HEAD.format(temps=writer.temps + 1) + "\n".join(writer.lines) + "\n}\n"


class _Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.temps = 0

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
            parts = [self.temp() for _ in range(3)]
            self.do(
                f"mov.u32 {parts[0]}, %tid.x",
                f"mov.u32 {parts[1]}, %tid.y",
                f"mov.u32 {parts[2]}, %ntid.x",
                f"mad.lo.u32 {target}, {parts[1]}, {parts[2]}, {parts[0]}",
            )
        else:
            left = self.value(expr[1])
            right = expr[2] if isinstance(expr[2], int) else self.value(expr[2])
            name = {
                "mul": "mul.lo.u32", "and": "and.b32", "or": "or.b32", "xor": "xor.b32",
                "shl": "shl.b32",
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
        self.do(*(f"mov.u32 %i{n}, 0" for n in range(_DEPTH)))
        self.do(*(f"st.local.u32 [loc+{4 * n}], {n}" for n in range(_LOCALS)))
        self.do(f"st.shared.u32 [{self.shared(tid)}], 0")
        first = self.predicate(("eq", ("tid",), ("c", 0)))
        self.do(f"@{first} st.shared.u32 [cell], 0", f"@{first} st.shared.u32 [counter], 0")
        self.do("bar.sync 0")

    def epilogue(self) -> None:
        gid = self._global_number()
        at = self.address("k_out", gid, 4 * KEPT)
        for n in range(_V):
            self.do(f"st.global.u32 [{at}+{4 * n}], %v{n}")
        for n in range(_U):
            self.do(f"st.global.u32 [{at}+{4 * (_V + n)}], %u{n}")
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
        self.do(f"mov.u32 {self.value(s.operands[0])}, {self.value(s.operands[1])}")

    _setu = _set

    def _if(self, s: Statement, end: str) -> None:
        predicate = self.predicate(s.operands[0])
        alone = len(s.body) == 1 and s.body[0].kind == "set" and not s.other
        if alone:  # as compilers do: a guard instead of a branch
            target, expr = s.body[0].operands
            self.do(f"@{predicate} mov.u32 {self.value(target)}, {self.value(expr)}")
            return
        other, join = self.label("else"), self.label("join")
        self.do(f"@!{predicate} bra {other}")
        self.block(s.body, end)
        self.do(f"bra {join}")
        self.lines.append(f"{other}:")
        self.block(s.other, end)
        self.lines.append(f"{join}:")

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
        self.do(f"@{predicate} {'exit' if s.operands[1] else 'ret'}")

    def _gather(self, s: Statement, _: str) -> None:
        index = self.value(("and", s.operands[1], ("c", 63)))
        self.do(f"ld.global.u32 {self.value(s.operands[0])}, [{self.address('k_data', index)}]")

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
        at = self.address("loc", self.value(("and", where, ("c", _LOCALS - 1))))
        value = self.value(what)
        self.do(f"st.local.u32 [{at}], {value}")
        other = self.address("loc", self.value(("and", target, ("c", _LOCALS - 1))))
        self.do(f"ld.local.u32 {self.value(target)}, [{other}]")

    def _own(self, s: Statement, _: str) -> None:
        target, expr = s.operands
        value, old = self.value(expr), self.temp()
        at = self.address("k_own", self._global_number())
        self.do(f"ld.global.u32 {old}, [{at}]", f"st.global.u32 [{at}], {value}")
        self.do(f"add.u32 {self.value(target)}, {self.value(target)}, {old}")

    def _add(self, s: Statement, _: str) -> None:
        self.do(f"red.shared.add.u32 [counter], {self.value(s.operands[0])}")

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
        target, mode, by = s.operands
        name = self.value(target)
        clamp = 0 if mode == "up" else 31
        self.do(f"shfl.sync.{mode}.b32 {name}, {name}, {by}, {clamp}, -1")

    def _ballot(self, s: Statement, _: str) -> None:
        predicate = self.predicate(s.operands[1])
        self.do(f"vote.sync.ballot.b32 {self.value(s.operands[0])}, {predicate}, -1")


# -- the interpreter ---------------------------------------------------------------------------


class Machine:
    """One block of a kernel, interpreted; ``out`` and ``own`` are its threads' parts of memory.

    Args:
        kernel: what to run.
        number: of the block.
        n: the kernel's last argument.
        data: 64 words that it reads.
        own: one word for each thread, changed in place.
    """

    def __init__(self, kernel: Kernel, number: int, n: int, data: Words, own: Words) -> None:
        threads = self.threads = kernel.threads
        self.data, self.own = data, own
        self.number = number
        self.tid = np.arange(threads, dtype=np.uint32)
        same = np.ones(threads, np.uint32)
        self.registers = {
            "v": [self.tid.copy(), self.tid * np.uint32(40503), same * np.uint32(7),
                  self.tid + np.uint32(number)],
            "u": [same * np.uint32(n), same * np.uint32(number)],
            "i": [same * np.uint32(0) for _ in range(_DEPTH)],
        }  # fmt: skip
        self.alive: Mask = np.ones(threads, np.bool_)
        self.broken: Mask = np.zeros(threads, np.bool_)
        self.shared = np.zeros(threads, np.uint32)
        self.cell, self.counter = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        self.local = np.tile(np.arange(_LOCALS, dtype=np.uint32), (threads, 1))
        self.run(kernel.body, self.alive.copy())

    def results(self, before: Words) -> Words:
        """What the block's threads leave in ``out``, (threads, KEPT), if it held ``before``."""
        out = before.copy()
        kept = [*self.registers["v"], *self.registers["u"]]
        for n, values in enumerate(kept):
            out[self.alive, n] = values[self.alive]
        return out

    def run(self, body: list[Statement], active: Mask) -> None:
        for statement in body:
            live = active & self.alive & ~self.broken
            if live.any():
                getattr(self, f"_{statement.kind}")(statement, live)

    # -- expressions

    def value(self, expr: Expr) -> Words:
        kind = expr[0]
        if kind in self.registers:
            return self.registers[kind][expr[1]]
        if kind in ("c", "ctaid", "tid"):
            if kind == "tid":
                return self.tid
            number = expr[1] if kind == "c" else self.number
            return np.full(self.threads, number, np.uint32)
        a = self.value(expr[1])
        b = np.uint32(expr[2]) if isinstance(expr[2], int) else self.value(expr[2])
        functions: dict[str, Any] = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and,
            "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum,
            "shl": np.left_shift, "shr": np.right_shift, "rem": np.remainder,
            "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
            "gt": np.greater, "ge": np.greater_equal,
        }  # fmt: skip
        result: Words = functions[kind](a, b)
        return result

    def assign(self, target: Expr, values: Words, live: Mask) -> None:
        self.registers[target[0]][target[1]] = np.where(live, values, self.value(target))

    # -- statements

    def _set(self, s: Statement, live: Mask) -> None:
        self.assign(s.operands[0], self.value(s.operands[1]), live)

    _setu = _set

    def _if(self, s: Statement, live: Mask) -> None:
        held = self.value(s.operands[0]).astype(np.bool_)
        self.run(s.body, live & held)
        self.run(s.other, live & ~held)

    def _loop(self, s: Statement, live: Mask) -> None:
        count, depth, _ = s.operands
        bound = self.value(count).copy()
        outer, self.broken = self.broken, np.zeros(self.threads, np.bool_)
        self.assign(("i", depth), np.zeros(self.threads, np.uint32), live)
        while True:
            live = live & self.alive & ~self.broken & (self.registers["i"][depth] < bound)
            if not live.any():
                break
            self.run(s.body, live)
            live = live & self.alive & ~self.broken
            self.assign(("i", depth), self.registers["i"][depth] + np.uint32(1), live)
        self.broken = outer

    def _break(self, s: Statement, live: Mask) -> None:
        self.broken = self.broken | (live & self.value(s.operands[0]).astype(np.bool_))

    def _return(self, s: Statement, live: Mask) -> None:
        self.alive &= ~(live & self.value(s.operands[0]).astype(np.bool_))

    def _gather(self, s: Statement, live: Mask) -> None:
        self.assign(s.operands[0], self.data[self.value(s.operands[1]) & 63], live)

    _loadu = _gather

    def _walk(self, s: Statement, live: Mask) -> None:
        target, start, count = s.operands
        at, left = self.value(start) & 31, self.value(count).copy()
        total = self.value(target).copy()
        for step in range(int(left[live].max())):
            total += np.where(step < left, self.data[(at + step) & 63], np.uint32(0))
        self.assign(target, total, live)

    def _local(self, s: Statement, live: Mask) -> None:
        target, where, what = s.operands
        rows = np.flatnonzero(live)
        self.local[rows, (self.value(where) & 3)[rows]] = self.value(what)[rows]
        self.assign(target, self.local[np.arange(self.threads), self.value(target) & 3], live)

    def _own(self, s: Statement, live: Mask) -> None:
        target, expr = s.operands
        old, new = self.own.copy(), self.value(expr).copy()
        self.own[live] = new[live]
        self.assign(target, self.value(target) + old, live)

    def _add(self, s: Statement, live: Mask) -> None:
        self.counter += self.value(s.operands[0])[live].sum(dtype=np.uint32)

    def _barrier(self, _: Statement, __: Mask) -> None:
        pass

    def _exchange(self, s: Statement, live: Mask) -> None:
        target, shift = s.operands
        self.shared[live] = self.value(target)[live]
        self.assign(target, self.shared[(self.tid + shift) % self.threads], live)

    def _broadcast(self, s: Statement, live: Mask) -> None:
        target, expr, writer = s.operands
        if writer < self.threads and live[writer]:
            self.cell[0] = self.value(expr)[writer]
        self.assign(target, np.full(self.threads, self.cell[0], np.uint32), live)

    def _counter(self, s: Statement, live: Mask) -> None:
        self.assign(s.operands[0], np.full(self.threads, self.counter[0], np.uint32), live)

    def _count(self, s: Statement, live: Mask) -> None:
        held = np.count_nonzero(self.value(s.operands[1]).astype(np.bool_) & live)
        self.assign(s.operands[0], np.full(self.threads, held, np.uint32), live)

    def _shuffle(self, s: Statement, live: Mask) -> None:
        target, mode, by = s.operands
        lane = self.tid.astype(np.int64) & 31
        source = {"bfly": lane ^ by, "up": lane - by, "down": lane + by, "idx": lane * 0 + by}[mode]
        thread = (self.tid.astype(np.int64) & ~31) + source
        here = (source >= 0) & (source < 32) & (thread < self.threads)
        thread = np.where(here, thread, self.tid)
        thread = np.where(live[thread], thread, self.tid)
        self.assign(target, self.value(target)[thread], live)

    def _ballot(self, s: Statement, live: Mask) -> None:
        held = self.value(s.operands[1]).astype(np.bool_) & live
        bits = np.zeros(-(-self.threads // 32), np.uint32)
        np.bitwise_or.at(bits, self.tid >> 5, np.where(held, np.uint32(1) << (self.tid & 31), 0))
        self.assign(s.operands[0], bits[self.tid >> 5], live)
