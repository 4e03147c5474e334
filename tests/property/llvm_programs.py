"""Random kernels in LLVM IR, for LLVM's NVPTX back end, with exact results.

Problem: compilers for GPUs other than NVIDIA's make PTX by way of LLVM, whose back end writes other
code than NVRTC does: integers of any width, switches as jump tables, predicates in registers.
Approach: a program is drawn as straight code, selections, a switch and a loop over integers of 1 to
128 bits; the same draw is evaluated with Python's integers. Nothing of LLVM's is compared with
itself.

Terms: a *row* is one thread's pair of inputs, 64 bits each; a *step* makes one more value.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import llvmlite.binding as llvm

__all__ = ["Drawn", "draw", "ptx_of"]

Get = Callable[[list[int]], int]
"""A value of a program, from the values before it."""

_WIDTHS = (1, 3, 7, 8, 13, 16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 128)
_MOST_STEPS = 14
_BINARY: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, w: a + b,
    "sub": lambda a, b, w: a - b,
    "mul": lambda a, b, w: a * b,
    "and": lambda a, b, w: a & b,
    "or": lambda a, b, w: a | b,
    "xor": lambda a, b, w: a ^ b,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ult": lambda a, b: a < b,
    "uge": lambda a, b: a >= b,
}


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


@dataclass
class Drawn:
    """A program: its text in LLVM IR, and what it computes of a row.

    Attributes:
        ir: the module, with one kernel ``k(in, out)``: thread i reads two words and writes one.
    """

    ir: str
    steps: list[Get] = field(default_factory=list)

    def evaluate(self, first: int, second: int) -> int:
        """The 64 bits that a thread writes."""
        values = [first, second]
        for step in self.steps:
            values.append(step(values))
        return values[-1]


class _Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.widths = [64, 64]
        self.steps: list[Get] = []
        self.temporaries = 0

    def new(self, width: int, step: Callable[[list[int]], int]) -> str:
        self.widths.append(width)
        mask = (1 << width) - 1
        self.steps.append(lambda values: step(values) & mask)
        return f"%v{len(self.widths) - 1}"

    def operand(self, width: int) -> tuple[str, Get]:
        """A value in ``width`` bits: converted as needed, or a constant."""
        if self.rng.random() < 0.2:
            number = self.rng.choice((0, 1, (1 << width) - 1, self.rng.getrandbits(width)))
            number &= (1 << width) - 1
            return str(_signed(number, width)), lambda _: number
        index = self.rng.randrange(len(self.widths))
        have, mask = self.widths[index], (1 << width) - 1
        if have == width:
            return f"%v{index}", lambda values: values[index]
        self.temporaries += 1
        name = f"%t{self.temporaries}"
        if have > width:
            self.lines.append(f"  {name} = trunc i{have} %v{index} to i{width}")
            return name, lambda values: values[index] & mask
        if self.rng.random() < 0.5:
            self.lines.append(f"  {name} = zext i{have} %v{index} to i{width}")
            return name, lambda values: values[index]
        self.lines.append(f"  {name} = sext i{have} %v{index} to i{width}")
        return name, lambda values: _signed(values[index], have) & mask

    def step(self) -> None:
        width = self.rng.choice(_WIDTHS)
        kind = self.rng.choice(("binary", "binary", "shift", "compare", "divide", "switch", "loop"))
        a, get_a = self.operand(width)
        b, get_b = self.operand(width)
        getattr(self, f"_{kind}")(width, a, b, get_a, get_b)

    def _binary(self, width: int, a: str, b: str, get_a: Get, get_b: Get) -> None:
        name = self.rng.choice(list(_BINARY))
        function = _BINARY[name]
        new = self.new(width, lambda v: function(get_a(v), get_b(v), width))
        self.lines.append(f"  {new} = {name} i{width} {a}, {b}")

    def _shift(self, width: int, a: str, b: str, get_a: Get, get_b: Get) -> None:
        amount = self.rng.randrange(width)
        name = self.rng.choice(("shl", "lshr", "ashr"))
        function: Callable[[int], int] = {
            "shl": lambda x: x << amount,
            "lshr": lambda x: x >> amount,
            "ashr": lambda x: _signed(x, width) >> amount,
        }[name]
        new = self.new(width, lambda v: function(get_a(v)))
        self.lines.append(f"  {new} = {name} i{width} {a}, {amount}")

    def _compare(self, width: int, a: str, b: str, get_a: Get, get_b: Get) -> None:
        signed = self.rng.random() < 0.3
        name = "slt" if signed else self.rng.choice(list(_COMPARE))

        def holds(v: list[int]) -> bool:
            x, y = get_a(v), get_b(v)
            return _signed(x, width) < _signed(y, width) if signed else _COMPARE[name](x, y)

        self.temporaries += 1
        condition = f"%t{self.temporaries}"
        self.lines.append(f"  {condition} = icmp {name} i{width} {a}, {b}")
        new = self.new(width, lambda v: get_b(v) if holds(v) else get_a(v))
        self.lines.append(f"  {new} = select i1 {condition}, i{width} {b}, i{width} {a}")

    def _divide(self, width: int, a: str, b: str, get_a: Get, get_b: Get) -> None:
        """By an odd number: never by zero, and unsigned, so that nothing overflows."""
        if width > 64:  # a call of the run-time library, which NVPTX does not have
            self._binary(width, a, b, get_a, get_b)
            return
        name = self.rng.choice(("udiv", "urem"))
        self.temporaries += 1
        odd = f"%t{self.temporaries}"
        self.lines.append(f"  {odd} = or i{width} {b}, {1 if width > 1 else 'true'}")

        def result(v: list[int]) -> int:
            return divmod(get_a(v), get_b(v) | 1)[0 if name == "udiv" else 1]

        new = self.new(width, result)
        self.lines.append(f"  {new} = {name} i{width} {a}, {odd}")

    def _switch(self, width: int, a: str, b: str, get_a: Get, get_b: Get) -> None:
        chosen, get = self.operand(8)
        table = [self.rng.getrandbits(width) for _ in range(self.rng.randint(3, 9))]
        tag = len(self.widths)
        cases = " ".join(f"i8 {n}, label %c{tag}.{n}" for n in range(len(table)))
        before = f"s{tag}"
        self.lines.append(f"  br label %{before}\n{before}:")
        self.lines.append(f"  switch i8 {chosen}, label %e{tag} [ {cases} ]")
        pairs = [f"[ {a}, %{before} ]"]
        for n, number in enumerate(table):
            self.temporaries += 1
            made = f"%t{self.temporaries}"
            self.lines.append(f"c{tag}.{n}:")
            self.lines.append(f"  {made} = xor i{width} {b}, {_signed(number, width)}")
            self.lines.append(f"  br label %e{tag}")
            pairs.append(f"[ {made}, %c{tag}.{n} ]")

        def result(v: list[int]) -> int:
            which = get(v)
            return get_b(v) ^ table[which] if which < len(table) else get_a(v)

        new = self.new(width, result)
        self.lines.append(f"e{tag}:\n  {new} = phi i{width} {', '.join(pairs)}")

    def _loop(self, width: int, a: str, b: str, get_a: Get, get_b: Get) -> None:
        """``x = x * 3 ^ b``, as often as the low bits of a value say."""
        count, get = self.operand(4)
        tag = len(self.widths)
        mask = (1 << width) - 1
        new = self.new(width, lambda v: _looped(get_a(v), get_b(v), get(v), mask))
        three = _signed(3 & mask, width)
        self.lines.append(f"  br label %b{tag}\nb{tag}:\n  br label %h{tag}\nh{tag}:")
        self.lines.append(f"  %n{tag} = phi i4 [ {count}, %b{tag} ], [ %m{tag}, %l{tag} ]")
        self.lines.append(f"  {new} = phi i{width} [ {a}, %b{tag} ], [ %y{tag}, %l{tag} ]")
        self.lines.append(f"  %z{tag} = icmp eq i4 %n{tag}, 0")
        self.lines.append(f"  br i1 %z{tag}, label %o{tag}, label %l{tag}\nl{tag}:")
        self.lines.append(f"  %x{tag} = mul i{width} {new}, {three}")
        self.lines.append(f"  %y{tag} = xor i{width} %x{tag}, {b}")
        self.lines.append(f"  %m{tag} = sub i4 %n{tag}, 1\n  br label %h{tag}\no{tag}:")


def _looped(x: int, b: int, count: int, mask: int) -> int:
    for _ in range(count):
        x = x * 3 & mask ^ b
    return x


_HEAD = """target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %size = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %first = mul i32 %block, %size
  %i = add i32 %first, %tid
  %two = mul i32 %i, 2
  %p0 = getelementptr i64, ptr addrspace(1) %in, i32 %two
  %p1 = getelementptr i64, ptr addrspace(1) %p0, i32 1
  %v0 = load i64, ptr addrspace(1) %p0
  %v1 = load i64, ptr addrspace(1) %p1
"""


def draw(seed: int) -> Drawn:
    """Draw a program; equal seeds give equal ones."""
    rng = random.Random(seed)
    writer = _Writer(rng)
    for _ in range(rng.randint(3, _MOST_STEPS)):
        writer.step()
    parts = []
    for index, width in list(enumerate(writer.widths))[2:]:
        wide = f"%w{index}"
        if width < 64:
            writer.lines.append(f"  {wide} = zext i{width} %v{index} to i64")
        elif width > 64:
            writer.lines.append(f"  {wide}.h = lshr i{width} %v{index}, {width - 64}")
            writer.lines.append(f"  {wide} = trunc i{width} {wide}.h to i64")
        else:
            writer.lines.append(f"  {wide} = add i64 %v{index}, 0")
        parts.append((index, width))
    total = "0"
    for index, _ in parts:  # all values count
        writer.lines.append(f"  %q{index} = mul i64 {total}, 31")
        writer.lines.append(f"  %u{index} = add i64 %q{index}, %w{index}")
        total = f"%u{index}"

    def folded(values: list[int]) -> int:
        result = 0
        for index, width in parts:
            shown = values[index] >> max(width - 64, 0)
            result = (result * 31 + shown) & ((1 << 64) - 1)
        return result

    tail = (
        "  %to = getelementptr i64, ptr addrspace(1) %out, i32 %i\n"
        f"  store i64 {total}, ptr addrspace(1) %to\n  ret void\n}}\n"
    )
    return Drawn(_HEAD + "\n".join(writer.lines) + "\n" + tail, [*writer.steps, folded])


def ptx_of(ir: str, level: int) -> str:
    """Compile with LLVM's NVPTX back end, optimised to ``level``."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        cpu="sm_80", opt=level
    )
    module = llvm.parse_assembly(ir)
    module.verify()
    if level:
        builder = llvm.create_pass_builder(
            machine, llvm.create_pipeline_tuning_options(speed_level=level)
        )
        builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))
