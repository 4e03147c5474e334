"""The products of tensor cores as exchanges of a warp: all lanes' fragments in, all results out.

Problem: ``mma`` multiplies matrices whose elements lie in the registers of 32 threads.

Approach: it is a warp collective. Lanes offer the registers of A, B and C in arrays of the block,
word after word; the exchange unpacks them by tables into matrices, multiplies, and packs D where
the operands were. One function for each kind of product, with loops: code stays small, and speed
was not the aim.

Rounding: integers are exact and wrap, or saturate once at the end. Products of f16, bf16, tf32 and
eight-bit floats are exact; they are added in double precision, C first and then by k, and the sum
is rounded once, to nearest even. The ISA asks for at least single precision and leaves the order
open; a GPU's results may differ in the last places. f64 is one ``fma`` after the other in the order
of k. NaNs are canonical. Of tf32 the low 13 bits are ignored.

Source: PTX ISA 9.0, sections 9.7.14.4 and 9.7.14.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import BlockLayout
from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.values import Value
from gpud.device.cpu.lower.floats.formats import canonical, narrow, round_to_odd, widen
from gpud.device.cpu.lower.floats.minifloats import widen_minifloat
from gpud.device.cpu.lower.matrix_products import Fragment, MatrixProduct, matrix_product

__all__ = ["define_product", "offer_product", "resume_product"]

_WORDS = 32
"""Words of a lane in the largest product: f64, m16n8k16."""


def offer_product(code: ThreadCode, layout: BlockLayout, ins: ptx.Instruction) -> None:
    """Emit the current thread's offer of its registers of A, B and C."""
    product = matrix_product(ins)
    word = 0
    for operand, part in zip(ins.operands[1:], (product.a, product.b, product.c), strict=True):
        for register in _items(operand):
            word = _put(code, layout, word, register, wide=part.bits == 64)


def resume_product(code: ThreadCode, layout: BlockLayout, ins: ptx.Instruction) -> None:
    """Emit the current thread's results, behind the ``gpud.resume`` of a product."""
    original = ptx.opcode(".".join(ins.opcode.modifiers[1:]))
    types = [m for m in original.modifiers if m in ("f16", "f32", "f64", "s32")]
    word = 0
    for register in _items(ins.operands[0]):
        value = code.emitter.value(f"load i32, ptr {_slot(code, layout, word)}")
        word += 1
        if types[0] == "f64":
            high = code.emitter.value(f"load i32, ptr {_slot(code, layout, word)}")
            word += 1
            low, high = (code.emitter.value(f"zext i32 {part} to i64") for part in (value, high))
            high = code.emitter.value(f"shl i64 {high}, 32")
            code.write(register, "b64", code.emitter.value(f"or i64 {low}, {high}"))
        else:
            code.write(register, "b32", value)


def define_product(
    emitter: Emitter, layout: BlockLayout, product: MatrixProduct, name: str
) -> None:
    """Emit the body of ``void @exchange.KEY(ptr %b, i32 %first, i32 %group)``.

    Args:
        emitter: of that function.
        layout: of the block.
        product: what to compute.
        name: of the function, for its tables.
    """
    first = emitter.value("zext i32 %first to i64")
    first = emitter.value(f"shl i64 {first}, 2")
    base = emitter.value(f"getelementptr i8, ptr %b, i64 {_base(layout)}")
    base = emitter.value(f"getelementptr i8, ptr {base}, i64 {first}")
    builder = _Product(emitter, 4 * layout.padded, base, name)
    type_ = "i64" if product.c.type == "s32" else "double"
    word = 0
    matrices = []
    for part in (product.a, product.b, product.c):
        matrices.append(builder.unpack(part, word, type_))
        word += part.words
    builder.multiply(product, matrices, type_)
    builder.pack(product.d, matrices[2], type_, saturates=product.saturates)


# -- the block's arrays ------------------------------------------------------------------------


def _items(operand: ptx.Operand) -> Sequence[ptx.Operand]:
    return operand.items if isinstance(operand, ptx.Vector) else (operand,)


def _base(layout: BlockLayout) -> int:
    """Return the offset of the first array of words; they follow each other without a gap."""
    offsets = [layout.array(f"matrix{word}", "i32")[0] for word in range(_WORDS)]
    assert offsets[-1] - offsets[0] == (_WORDS - 1) * 4 * layout.padded
    return offsets[0]


def _slot(code: ThreadCode, layout: BlockLayout, word: int) -> str:
    offset = _base(layout) + word * 4 * layout.padded
    array = code.emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")
    thread = code.emitter.value(f"zext i32 {code.places.thread} to i64")
    return code.emitter.value(f"getelementptr i32, ptr {array}, i64 {thread}")


def _put(
    code: ThreadCode, layout: BlockLayout, word: int, operand: ptx.Operand, *, wide: bool
) -> int:
    emitter = code.emitter
    if not wide:
        emitter.do(f"store i32 {code.read(operand, 'b32')}, ptr {_slot(code, layout, word)}")
        return word + 1
    value = code.read(operand, "b64")
    high = emitter.value(f"lshr i64 {value}, 32")
    for part in (value, high):
        low = emitter.value(f"trunc i64 {part} to i32")
        emitter.do(f"store i32 {low}, ptr {_slot(code, layout, word)}")
        word += 1
    return word


# -- the product -------------------------------------------------------------------------------


class _Product:
    """Writes the parts of one exchange.

    Args:
        pitch: bytes from one word's array to the next.
        base: LLVM value of the first word of the warp's first lane.
    """

    def __init__(self, emitter: Emitter, pitch: int, base: str, name: str) -> None:
        self.emitter = emitter
        self.pitch = pitch
        self.base = base
        self.name = name

    def unpack(self, part: Fragment, word: int, type_: str) -> str:
        """Emit the loop that fills a matrix of ``type_``, row by row; return its ``ptr``."""
        emitter = self.emitter
        size = part.rows * part.columns
        matrix = emitter.alloca(f"[{size} x {type_}]", "matrix")
        table = self._table(part, word)
        with emitter.count("0", str(size)) as index:
            value = self._load(table, index, part)
            number = _number(value, part.type)
            self._store(matrix, index, number, type_)
        return matrix

    def multiply(self, product: MatrixProduct, matrices: Sequence[str], type_: str) -> None:
        """Emit C += A B, for each element in the order of k."""
        emitter = self.emitter
        a, b, c = matrices
        rows, columns, inner = product.c.rows, product.c.columns, product.a.columns
        total = emitter.alloca(type_, "sum")
        with emitter.count("0", str(rows)) as m, emitter.count("0", str(columns)) as n:
            at = self._index(m, columns, n)
            emitter.do(f"store {type_} {self._element(c, at, type_).text}, ptr {total}")
            with emitter.count("0", str(inner)) as k:
                left = self._element(a, self._index(m, inner, k), type_)
                right = self._element(b, self._index(k, columns, n), type_)
                sofar = Value(emitter, type_, emitter.value(f"load {type_}, ptr {total}"))
                match product.operation:
                    case "xor":
                        more = sofar + (left ^ right)
                    case "and":
                        more = sofar + (left & right)
                    case _ if product.a.type == "f64":
                        more = left.fma(right, sofar)
                    case _:
                        more = sofar + left * right
                emitter.do(f"store {type_} {more.text}, ptr {total}")
            final = Value(emitter, type_, emitter.value(f"load {type_}, ptr {total}"))
            self._store(c, at, final, type_)

    def pack(self, part: Fragment, matrix: str, type_: str, *, saturates: bool) -> None:
        """Emit the loop that writes the results where the lanes read them."""
        emitter = self.emitter
        table = self._table(part, 0)
        with emitter.count("0", str(part.rows * part.columns)) as index:
            value = self._element(matrix, index, type_)
            entry = self._entry(table, index)
            at = entry >> 8
            match part.type:
                case "s32":
                    if saturates:
                        value = value.max_s(-(1 << 31)).min_s((1 << 31) - 1)
                    self._store_bits(value.trunc("i32"), at)
                case "f32":
                    self._store_bits(canonical(value.cast("fptrunc", "float")).bits(), at)
                case "f16":
                    half = narrow(round_to_odd(value), "f16")
                    self._store_bits(half, at + ((entry & 0xFF) >> 3))
                case _:
                    bits = canonical(value).bits()
                    self._store_bits(bits.trunc("i32"), at)
                    self._store_bits((bits >> 32).trunc("i32"), at + self.pitch)

    # -- elements

    def _table(self, part: Fragment, word: int) -> str:
        """Return a constant array: for each element its byte from ``base``, and its bit there."""
        entries = [
            ((word + bit // 32) * self.pitch + 4 * lane) << 8 | bit % 32
            for bit, lane in part.elements()
        ]
        name = f"@{self.name}.{word}.{part.type}.{part.role}"
        numbers = ", ".join(f"i32 {entry}" for entry in entries)
        type_ = f"[{len(entries)} x i32]"
        self.emitter.module.declare(f"{name} = private constant {type_} [{numbers}]")
        return name

    def _entry(self, table: str, index: str) -> Value:
        slot = self.emitter.value(f"getelementptr i32, ptr {table}, i32 {index}")
        return Value(self.emitter, "i32", self.emitter.value(f"load i32, ptr {slot}"))

    def _load(self, table: str, index: str, part: Fragment) -> Value:
        entry = self._entry(table, index)
        at = entry >> 8
        word = self._word(at)
        if part.bits == 64:
            high = self._word(at + self.pitch).zext("i64") << 32
            return word.zext("i64") | high
        return word >> (entry & 0xFF)

    def _word(self, at: Value) -> Value:
        slot = self._at(at)
        return Value(self.emitter, "i32", self.emitter.value(f"load i32, ptr {slot}"))

    def _at(self, at: Value) -> str:
        return self.emitter.value(f"getelementptr i8, ptr {self.base}, i32 {at.text}")

    def _store_bits(self, bits: Value, at: Value) -> None:
        self.emitter.do(f"store {bits.type} {bits.text}, ptr {self._at(at)}")

    def _index(self, row: str, columns: int, column: str) -> str:
        start = self.emitter.value(f"mul i32 {row}, {columns}")
        return self.emitter.value(f"add i32 {start}, {column}")

    def _element(self, matrix: str, index: str, type_: str) -> Value:
        slot = self.emitter.value(f"getelementptr {type_}, ptr {matrix}, i32 {index}")
        return Value(self.emitter, type_, self.emitter.value(f"load {type_}, ptr {slot}"))

    def _store(self, matrix: str, index: str, value: Value, type_: str) -> None:
        slot = self.emitter.value(f"getelementptr {type_}, ptr {matrix}, i32 {index}")
        self.emitter.do(f"store {type_} {value.text}, ptr {slot}")


def _number(bits: Value, type_: str) -> Value:
    """Return an element, in the low bits of ``bits``, as an i64 or a double."""
    match type_:
        case "f64":
            return bits.as_type("double")
        case "f32":
            return bits.as_type("float").cast("fpext", "double")
        case "tf32":
            return (bits & 0xFFFFE000).as_type("float").cast("fpext", "double")
        case "f16" | "bf16":
            return widen(bits.trunc("i16"), type_).cast("fpext", "double")
        case "e4m3" | "e5m2":
            return widen_minifloat(bits & 0xFF, type_).cast("fpext", "double")
        case "s32":
            return bits.sext("i64")
    width = int(type_[1:])
    if type_[0] == "s":
        return (bits << (32 - width)).sar(32 - width).sext("i64")
    return (bits & ((1 << width) - 1)).zext("i64")
