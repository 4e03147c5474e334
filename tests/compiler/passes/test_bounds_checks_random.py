"""Random small programs: bounds checks do not change what they do, and no illegal access happens.

The programs move pointers across the bounds of the arena, a variable and the windows of generic
addresses, through branches and loops, to test merged, dropped and hoisted bounds checks. Each
program runs from several addresses.
"""

from __future__ import annotations

import random

import pytest

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.analysis.memory_accesses import accesses
from gpud.compiler.forms.classifier import classify
from gpud.compiler.instrumentation.bounds_checks import recognise
from gpud.compiler.passes.safety.bounds_checks import pass_bounds_checks
from gpud.compiler.ptx.model import Instruction, Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.ptx.verify import verify
from tests.compiler.support.bounds_oracle import ARENA, COEF, LOCAL, SHARED, TABLE, run
from tests.compiler.support.flat_programs import program

pytestmark = pytest.mark.ci

POINTERS = 3
MIDDLE = ARENA[0] + ARENA[1] // 2
EDGES = [
    *(base for base, _ in (ARENA, SHARED, LOCAL, TABLE, COEF)),
    *(base + size for base, size in (ARENA, SHARED, LOCAL, TABLE, COEF)),
]
KINDS = ("u8", "u32", "u32", "u64", "v2.u32", "v4.u32")
SMALL = (0, 0, 4, 4, 8, 12, 16, 20, 24, -4, -8, -16, 1, 64)
FAULT = ".func gpud_fault(.reg .u32 k, .reg .u32 s, .reg .u64 a);\n.const .align 16 .b64"


class Writer:
    """Writes one random program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.number = 0
        self.pointers = self.random.randint(1, POINTERS)
        self.guarded = self.pick((0.0, 0.1, 0.4))
        self.generic = self.pick((0.0, 0.3, 0.8))
        self.kinds: tuple[str, ...] = KINDS
        self.distances: tuple[int, ...] = SMALL
        if self.random.random() < 0.5:  # few addresses: facts often meet
            self.pointers, self.kinds, self.distances = 1, ("u32",), (0, 0, 4)

    def pointer(self) -> str:
        return f"%d{self.random.randrange(self.pointers)}"

    def guard(self) -> str:
        if self.random.random() >= self.guarded:
            return ""
        return self.pick(("@%p1 ", "@%p1 ", "@!%p1 ", "@%p2 "))

    def access(self) -> str:
        space = "" if self.random.random() < self.generic else ".global"
        address, guard = f"[{self.pointer()}+{self.pick(self.distances)}]", self.guard()
        what = self.pick(("ld", "ld", "ld", "st", "st", "atom", "pointer"))
        if what == "atom":
            return f"{guard}atom{space}.add.u32 %r1, {address}, 1;"
        if what == "pointer":
            return f"{guard}ld{space}.u64 {self.pointer()}, {address};"
        kind = self.pick(self.kinds)
        names = {"v2": "{%r2, %r3}", "v4": "{%r2, %r3, %r4, %r5}", "u6": "%q2"}
        value = names.get(kind[:2], "%r2")
        operands = f"{value}, {address}" if what == "ld" else f"{address}, {value}"
        return f"{guard}{what}{space}.{kind} {operands};"

    def change(self) -> str:
        what = self.pick(
            ("add", "add", "add", "sub", "mov", "cvta", "pred", "pred", "turn", "call", "bar", "at")
        )
        target, source, guard = self.pointer(), self.pointer(), self.guard()
        if self.random.random() < 0.5:
            source = target
        if what in ("add", "sub"):
            return f"{guard}{what}.s64 {target}, {source}, {self.pick(self.distances)};"
        if what == "mov":
            return f"{guard}mov.u64 {target}, {source};"
        if what == "cvta":
            return f"{guard}cvta.to.global.u64 {target}, {source};"
        if what == "pred":
            return f"setp.{self.pick(('lt', 'ge'))}.u32 {self.pick(('%p1', '%p2'))}, %c0, 2;"
        if what == "turn":
            return f"not.pred %p{self.pick('12')}, %p{self.pick('12')};"
        if what == "at":
            return f"{guard}mov.u64 {target}, {self.pick(EDGES) - self.pick((8, 16, 32))};"
        return "call nothing;" if what == "call" else "bar.sync 0;"

    def lines(self, depth: int = 0) -> list[str]:
        """Some statements, with conditions and loops inside."""
        found: list[str] = []
        for _ in range(self.random.randint(1, 6 if depth == 0 else 3)):
            choice = self.random.random()
            if choice < 0.55 or depth == 3:
                found.append(self.access())
            elif choice < 0.75:
                found.append(self.change())
            elif choice < 0.87:
                found += self.condition(depth)
            else:
                found += self.loop(depth)
        return found

    def condition(self, depth: int) -> list[str]:
        self.number += 1
        n, inner = self.number, self.lines(depth + 1)
        turned = self.pick(("@%p1", "@!%p1", "@%p2"))
        if self.random.random() < 0.5:
            return [f"{turned} bra $L{n};", *inner, f"$L{n}:"]
        other = self.lines(depth + 1)
        return [f"{turned} bra $L{n};", *inner, f"bra $E{n};", f"$L{n}:", *other, f"$E{n}:"]

    def loop(self, depth: int) -> list[str]:
        """Tested at the top (perhaps not entered) or at the bottom, with or without a way round."""
        self.number += 1
        n, inner, count = self.number, self.lines(depth + 1), self.random.randint(0, 3)
        start = [f"mov.u32 %c{n}, 0;"]
        again = [f"add.u32 %c{n}, %c{n}, 1;", f"mov.u32 %c0, %c{n};"]
        if self.random.random() < 0.4:
            leave = [f"setp.ge.u32 %p3, %c{n}, {count};", f"@%p3 bra $E{n};"]
            return [*start, f"$L{n}:", *leave, *inner, *again, f"bra $L{n};", f"$E{n}:"]
        if self.random.random() < 0.3:
            start.append(f"@%p1 bra $E{n};")
        way = self.random.random()
        if way < 0.1:
            start.append(f"bra $L{n};")
        elif way < 0.2:
            start += [f"@%p2 bra $L{n};", *self.lines(depth + 1)]
        elif way < 0.3:
            start += [f"@%p2 bra $L{n};", f"bra $E{n};"]
        bottom = [f"setp.lt.u32 %p3, %c{n}, {count};", f"@%p3 bra $L{n};", f"$E{n}:"]
        return [*start, f"$L{n}:", *inner, *again, *bottom]

    def starts(self) -> list[tuple[dict[str, int], dict[str, int]]]:
        """(parameters, registers) of several runs; the first few make no illegal access."""
        places = [[MIDDLE, MIDDLE + 64, MIDDLE + 8]] * 2
        for _ in range(8):
            places.append(
                [
                    self.pick((*EDGES, ARENA[0] + ARENA[1])) - self.pick((0, 8, 16, 24, 32, 40, 64))
                    if self.random.random() < 0.6
                    else MIDDLE
                    for _ in range(POINTERS)
                ]
            )
        return [
            (
                {f"d{n}": at for n, at in enumerate(row)},
                {"%p1": self.random.randint(0, 1), "%p2": self.random.randint(0, 1)},
            )
            for row in places
        ]


def module_of(lines: list[str]) -> Module:
    """A kernel of these lines, one a line, in a module whose variables are addressed."""
    head = (
        ".global .align 4 .b8 table[24];\n.const .align 16 .b8 coef[32];\n"
        ".func nothing() { ret; }\n"
        ".visible .entry windows() { .reg .b64 %d<4>; cvta.shared.u64 %d1, %d1;"
        " cvta.local.u64 %d1, %d1; cvta.const.u64 %d1, coef; mov.u64 %d2, table; ret; }\n"
    )
    parameters = ", ".join(f".param .u64 d{n}" for n in range(POINTERS))
    loads = "\n".join(f"ld.param.u64 %d{n}, [d{n}];" for n in range(POINTERS))
    registers = f".reg .b64 %d<{POINTERS}>; .reg .b64 %q<3>; .reg .b32 %r<6>; .reg .b32 %c<199>;"
    body = "\n".join(lines)
    return program(
        f"{head}.visible .entry k({parameters})\n{{ {registers} .reg .pred %p<4>;\n"
        f"{loads}\n{body}\nret;\n}}"
    )


def checked(module: Module) -> tuple[Module, SiteTable]:
    """The module after the bounds check pass, printed and parsed."""
    sites = SiteTable(module)
    plan = {name: classify(module, name) for name in module.entries()}
    made = pass_bounds_checks(module, plan, sites)
    text = print_module(made)
    again = parse(text)
    assert again == made
    verify(parse(text.replace(".const .align 16 .b64", FAULT, 1)))
    return again, sites


def compare(seed: int) -> tuple[int, int]:
    """Compare runs with and without bounds checks; return the numbers of checks and of accesses."""
    writer = Writer(seed)
    module = module_of(writer.lines())
    made, sites = checked(module)
    for parameters, registers in writer.starts():
        plain = run(module, parameters, registers, constants=True)
        run_checked = run(made, parameters, registers, constants=True)
        assert not run_checked.illegal, f"seed {seed}: an illegal access happened"
        addresses = [touch.address for touch in plain.touches]
        if not plain.illegal:
            assert run_checked.fault is None, f"seed {seed}: a legal program was stopped"
            assert run_checked.memory == plain.memory, f"seed {seed}"
            assert [touch.address for touch in run_checked.touches] == addresses, f"seed {seed}"
            continue
        assert run_checked.fault is not None, f"seed {seed}: nothing was reported"
        kind, site, address = run_checked.fault
        reported = (kind, sites.sites[site].line, address)
        wrong = [(touch.kind, touch.line, touch.address) for touch in plain.illegal]
        assert reported in wrong, f"seed {seed}: an access was reported that was not made"
        made_before = [touch.address for touch in run_checked.touches]
        assert made_before == addresses[: len(made_before)], f"seed {seed}"
    body = [one for one in module.entries()["k"].body or () if isinstance(one, Instruction)]
    return len(recognise(made.entries()["k"])), sum(len(list(accesses(one))) for one in body)


@pytest.mark.parametrize("first", range(0, 800, 100))
def test_same_or_reported(first: int) -> None:
    done = [compare(seed) for seed in range(first, first + 100)]
    assert 0 < sum(checks for checks, _ in done) < 0.9 * sum(made for _, made in done)


@pytest.mark.parametrize("offset", [0, 4, 8, -4, 20, 24, 28])
def test_the_world_notices(offset: int) -> None:
    """The checker itself: an access over the variable's edge is illegal, one inside is not."""
    module = module_of([f"ld.global.u32 %r1, [%d0+{offset}];"])
    found = run(module, {f"d{n}": TABLE[0] for n in range(POINTERS)})
    assert bool(found.illegal) is not (0 <= offset <= 20)
    assert len(recognise(checked(module)[0].entries()["k"])) == 1
