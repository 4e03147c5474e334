"""Random structured kernels: generated, written as PTX, and interpreted in NumPy.

Problem: the CPU device runs a block's threads together while they are converged, one by one where
they diverge, and reconverges them. In every case the results must be those that each thread would
compute on its own.

Approach: a kernel is a tree of statements. `Generator` makes one, `tests.property.structured_ptx`
writes it down, and `tests.property.structured_interpreter` runs it with a mask of active threads,
knowing nothing of cuts, stages or LLVM.

Terms: a *context* says which threads are certain to run a statement together: those of a ``block``,
of a ``warp``, a ``group`` of a warp's for which a condition held, or just the ``thread``. Barriers
stand in block context, shuffles and votes in all but the last. ``v`` registers differ between
threads, ``u`` registers are equal in a block; an *opaque* expression is equal too, but made from a
thread number, so that no analysis can know.

Properties: no generated kernel has a data race, reads memory that was not written, or depends on
the order in which threads run; so there is one right answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

Expr = tuple[Any, ...]

KEPT = 8
"""Words that a thread leaves in ``out``."""
VALUES, UNIFORMS, DEPTH, LOCALS, GROUPS = 4, 2, 4, 4, 2
_CONTEXTS = ("block", "warp", "group", "thread")
_BINARY = ("add", "sub", "mul", "and", "or", "xor", "min", "max", "mulhi", "maxs")
_COMPARE = ("lt", "le", "eq", "ne", "gt", "ge")


@dataclass
class Statement:
    """``kind`` with its operands; ``body``, ``other`` and ``arms`` hold statements."""

    kind: str
    operands: tuple[Any, ...] = ()
    body: list[Statement] = field(default_factory=list)
    other: list[Statement] = field(default_factory=list)
    arms: list[list[Statement]] = field(default_factory=list)


@dataclass
class Function:
    """Gives ``v0`` of registers of its own, from two values and an equal one.

    It may be called in ``context`` and in all that are wider.
    """

    context: str
    body: list[Statement]


@dataclass
class Kernel:
    """A kernel for blocks of ``shape`` in a one-dimensional grid of ``blocks``."""

    shape: tuple[int, int, int]
    blocks: int
    body: list[Statement]
    functions: list[Function] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.shape)


class Generator:
    """Generates kernels from a source of random numbers."""

    SHAPES = (
        *((n, 1, 1) for n in (1, 7, 31, 32, 33, 48, 64, 96, 128)), (16, 4, 1), (3, 5, 2), (8, 2, 4)
    )  # fmt: skip

    def __init__(self, random: Random, size: int = 14) -> None:
        self.random = random
        self.size = size
        self.left = 0
        self.groups = 0
        self.functions: list[Function] = []
        self.function = ""
        """The context of the function that is being made, "" in the kernel."""

    def kernel(self) -> Kernel:
        """A kernel of about ``size`` statements, and at most two small functions."""
        shape = self.random.choice(self.SHAPES)
        for context in self.random.choices(("thread", "warp"), k=self.random.randint(0, 2)):
            self.function = context
            self.functions.append(Function(context, self._whole(context, 4)))
        self.function = ""
        body = self._whole("block", self.size)
        return Kernel(shape, self.random.randint(1, 3), body, self.functions)

    def _whole(self, context: str, size: int) -> list[Statement]:
        body: list[Statement] = []
        self.left = size
        while self.left > 0:
            body += self._body(context, (), "")
        return body

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
        kinds = ["set", "set", "gather", "walk", "if", "if", "loop", "loop", "switch"]
        place = _CONTEXTS.index(context)
        callees = [n for n, f in enumerate(self.functions) if place <= _CONTEXTS.index(f.context)]
        if not self.function:
            kinds += ["local", "own", "add"] + ["call"] * bool(callees)
        if context == "block":
            kinds += ["setu", "loadu", "barrier", "exchange", "exchange", "broadcast", "count"]
            kinds += ["counter"]
        if context != "thread":
            kinds += ["shuffle", "shuffle", "ballot"] + ["group"] * (self.groups < GROUPS)
        if loop:
            kinds += ["break"]
        # Lanes that leave a function alone would be missed by the shuffles in it.
        if self.function != "warp" or context == "warp":
            kinds += ["return"] * (pick(0, 3) == 0)
        kind = choose(kinds)
        v, u = pick(0, VALUES - 1), pick(0, UNIFORMS - 1)
        if kind == "if":
            condition, inner = self._condition(context, loops)
            still = loop if inner == context else ""
            body = self._body(inner, loops, still)
            other = self._body(inner, loops, still) if pick(0, 1) else []
            return Statement("if", (condition,), body, other)
        if kind == "switch":
            number, inner = self._count(context, loops)
            still, arms = loop if inner == context else "", pick(2, 3)
            bodies = [self._body(inner, loops, still) for _ in range(arms)]
            return Statement("switch", (("rem", number, arms + 1),), arms=bodies)
        if kind == "group":
            mask, condition = self.groups, self._any(loops)
            self.groups += 1
            body = self._body("group", loops, "")
            self.groups -= 1
            return Statement("group", (condition, mask), body)
        if kind == "loop" and len(loops) < DEPTH:
            count, inner = self._count(context, loops)
            # A loop that threads may leave one by one has no barrier in it.
            parting = pick(0, 3) == 0
            inner = "thread" if parting else inner
            equal = (*loops, "block" if inner == "block" else "thread")
            rotated = bool(pick(0, 1))
            body = self._body(inner, equal, inner)
            return Statement("loop", (count, len(loops), rotated), body)
        if kind == "break":
            alone = loop == "thread" and pick(0, 1)
            return Statement("break", (self._any(loops) if alone else self._same(loop, loops),))
        if kind == "return":
            whole = self.function == "warp"
            condition = self._same("warp", loops) if whole else self._condition("block", loops)[0]
            return Statement("return", (condition, bool(pick(0, 1))))
        made: dict[str, tuple[Any, ...]] = {
            "set": (("v", v), self._value(loops)),
            "setu": (("u", u), self._equal(loops)),
            "loadu": (("u", u), self._equal(loops)),
            "gather": (("v", v), self._value(loops)),
            "walk": (("v", v), self._value(loops), self._count(context, loops)[0]),
            "local": (("v", v), self._value(loops), self._value(loops)),
            "own": (("v", v), self._value(loops), choose(("", "", "exch", "add", "max"))),
            "add": (self._value(loops),),
            "barrier": (),
            "exchange": (("v", v), pick(0, 40)),
            "broadcast": (("u", u), self._value(loops), pick(0, 31)),
            "count": (("v", v), self._any(loops)),
            "counter": (("u", u),),
            "shuffle": (("v", v), choose(("bfly", "up", "down", "idx")), pick(0, 31), self.groups),
            "ballot": (("v", v), self._any(loops), self.groups),
            "call": (
                ("v", v),
                self._value(loops),
                self._value(loops),
                self._equal(loops),
                choose(callees or [0]),
            ),
        }
        if kind not in made:
            kind = "set"
        return Statement(kind, made[kind])

    # -- expressions

    def _value(self, loops: tuple[str, ...], depth: int = 0) -> Expr:
        pick, choose = self.random.randint, self.random.choice
        if depth == 2 or pick(0, 2) == 0:
            leaves: list[Expr] = [("v", pick(0, VALUES - 1)), ("v", pick(0, VALUES - 1)), ("tid",)]
            leaves += [("u", pick(0, UNIFORMS - 1)), ("c", choose((0, 1, 3, 31, 40503, 2**32 - 1)))]
            leaves += [("i", n) for n in range(len(loops))]
            return choose(leaves)
        left = self._value(loops, depth + 1)
        if pick(0, 7) == 0:
            return ("sel", self._any(loops, depth + 1), left, self._value(loops, depth + 1))
        if pick(0, 3) == 0:
            return (choose(("shl", "shr", "rem", "shrs")), left, pick(1, 9))
        return (choose(_BINARY), left, self._value(loops, depth + 1))

    def _equal(self, loops: tuple[str, ...], depth: int = 0) -> Expr:
        """Equal in the whole block."""
        pick, choose = self.random.randint, self.random.choice
        if depth == 2 or pick(0, 1) == 0:
            leaves: list[Expr] = [("u", pick(0, UNIFORMS - 1)), ("ctaid",), ("c", pick(0, 5))]
            leaves += [("i", n) for n, kind in enumerate(loops) if kind == "block"]
            return choose(leaves)
        return (choose(_BINARY), self._equal(loops, depth + 1), self._equal(loops, depth + 1))

    def _any(self, loops: tuple[str, ...], depth: int = 0) -> Expr:
        value = self._small(self._value(loops, depth))
        return (self.random.choice(_COMPARE), value, self._constant())

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
        condition = self._any(loops) if wanted == "thread" else self._same(wanted, loops)
        return condition, max(context, wanted, key=_CONTEXTS.index)

    def _count(self, context: str, loops: tuple[str, ...]) -> tuple[Expr, str]:
        wanted = self.random.choice(("block", "block", "warp", "thread"))
        if wanted == "thread":
            return ("and", self._value(loops), ("c", 3)), "thread"
        value: Expr = ("and", self._equal(loops), ("c", 3))
        if self.random.randint(0, 2) == 0:
            value = ("add", value, ("shr", ("tid",), 10))
        if wanted == "warp":
            value = ("and", ("add", value, ("shr", ("tid",), 5)), ("c", 3))
        return value, max(context, wanted, key=_CONTEXTS.index)

    def _small(self, value: Expr) -> Expr:
        return ("rem", value, self.random.randint(2, 7)) if self.random.randint(0, 3) else value

    def _constant(self) -> Expr:
        return ("c", self.random.randint(0, 4))
