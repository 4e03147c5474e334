"""Make one PTX kernel that applies a list of instructions to the same inputs.

Problem: PTX has some hundred arithmetic instructions in a thousand spellings, and most of them
never come out of a C++ compiler. Approach: a table of `Op`, each one or a few instructions between
registers named ``a``, ``b``, ``c`` (inputs) and ``d`` (result) with a reference on whole arrays.
`sweep` writes a kernel with one output buffer for each of them, so that a mismatch names the
instruction.

Every instruction stands in a scope of its own with registers that lack the ``%``, as hand-written
PTX does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import Array, Case, Expected, ExpectedForm, count_ptx
from .reference import each


@dataclass(frozen=True)
class Op:
    """Instructions that compute ``d`` from ``a``, ``b`` and ``c``.

    Attributes:
        text: the instructions; may declare further registers.
        result: the NumPy dtype of ``d``, as ``"u4"``.
        reference: the expected array, from the input arrays in order.
    """

    text: str
    result: str
    reference: Callable[..., Expected]


def integer_op(text: str, result: str, function: Callable[..., int]) -> Op:
    """An `Op` whose reference is a function of Python integers, wrapped to the result's width."""
    dtype = np.dtype(result)
    bits = 8 * dtype.itemsize
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def reference(*arrays: Array) -> Array:
        wrapped = each(lambda *row: int(function(*row)) & ((1 << bits) - 1), unsigned, *arrays)
        return wrapped.view(dtype)

    return Op(text, result, reference)


def sweep(
    name: str,
    ops: Sequence[Op],
    inputs: Sequence[str],
    values: Callable[[np.random.Generator], Sequence[Array]],
    *,
    block: int = 96,
    arch: str = "compute_75",
    version: str = "8.0",
    covers: str = "",
    declarations: str = "",
    before: str = "",
    expected_form: ExpectedForm = "persistent",
) -> Case:
    """A case that applies every op to every row of the inputs.

    Args:
        name: of the case and the entry.
        ops: what to compute.
        inputs: NumPy dtypes of ``a``, ``b``, ``c``, as ``("i4", "i4", "u1")``.
        values: the input arrays, all of one length.
        block: threads of a task block.
        arch: the target.
        version: the PTX ISA version that the module declares.
        covers: words; see `Case`.
        declarations: module-level PTX before the entry.
        before: PTX to run once before the ops, after the inputs are loaded.
        expected_form: see `Case`.
    """
    rows = len(values(np.random.default_rng(0))[0])
    source = _source(name, ops, inputs, block, arch, version, declarations, before)
    first_output = len(inputs) + 1

    def make(rng: np.random.Generator) -> list[Any]:
        arrays = [
            np.ascontiguousarray(array, dtype=dtype)
            for array, dtype in zip(values(rng), inputs, strict=True)
        ]
        outputs = [np.full(rows, _FILL[np.dtype(op.result).itemsize], op.result) for op in ops]
        return [*arrays, np.uint32(rows), *outputs]

    def expect(args: list[Any]) -> dict[int | str, Expected]:
        arrays = args[: len(inputs)]
        with np.errstate(all="ignore"):
            return {first_output + k: op.reference(*arrays) for k, op in enumerate(ops)}

    return Case(
        name,
        source,
        (-(-rows // block),),
        (block,),
        make,
        expect,
        arch=arch,
        covers=frozenset(covers.split()),
        expected_form=expected_form,
        opcodes=True,
        labels=(*"abcd"[: len(inputs)], "rows", *(" ".join(op.text.split()) for op in ops)),
    )


_FILL = {1: 17, 2: 17, 4: 17, 8: 17}


def _register_bits(dtype: str) -> int:
    return max(8 * np.dtype(dtype).itemsize, 16)


def _memory_type(dtype: str) -> str:
    kind = np.dtype(dtype)
    if kind.itemsize == 1:
        return "s8" if kind.kind == "i" else "u8"
    return f"b{8 * kind.itemsize}"


def _source(
    name: str,
    ops: Sequence[Op],
    inputs: Sequence[str],
    block: int,
    arch: str,
    version: str,
    declarations: str,
    before: str,
) -> str:
    letters = ["x", "y", "z"][: len(inputs)]
    parameters = [f"    .param .u64 in_{letter}" for letter in letters]
    parameters.append("    .param .u32 rows")
    parameters += [f"    .param .u64 out_{k}" for k in range(len(ops))]
    parameters.append("    .param .u64 runs")
    lines = [
        f".version {version}",
        f".target {arch.replace('compute', 'sm')}",
        ".address_size 64",
        declarations,
        f".visible .entry {name}(",
        ",\n".join(parameters),
        f")\n.maxntid {block}, 1, 1\n{{",
        "    .reg .pred %outside;",
        "    .reg .b32 %row, %n, %thread, %block, %width;",
        "    .reg .b64 %address;",
        f"    {count_ptx('runs')}",
        "    mov.u32 %thread, %tid.x;",
        "    mov.u32 %block, %ctaid.x;",
        "    mov.u32 %width, %ntid.x;",
        "    mad.lo.s32 %row, %block, %width, %thread;",
        "    ld.param.u32 %n, [rows];",
        "    setp.ge.u32 %outside, %row, %n;",
        "    @%outside ret;",
    ]
    for letter, dtype in zip("abc", inputs, strict=False):
        size = np.dtype(dtype).itemsize
        lines += [
            f"    .reg .b{_register_bits(dtype)} {letter};",
            f"    ld.param.u64 %address, [in_{letters['abc'.index(letter)]}];",
            "    cvta.to.global.u64 %address, %address;",
            f"    mad.wide.u32 %address, %row, {size}, %address;",
            f"    ld.global.{_memory_type(dtype)} {letter}, [%address];",
        ]
    lines.append(before)
    for k, op in enumerate(ops):
        size = np.dtype(op.result).itemsize
        lines += [
            "    {",
            f"        .reg .b{_register_bits(op.result)} d;",
            f"        {op.text}",
            f"        ld.param.u64 %address, [out_{k}];",
            "        cvta.to.global.u64 %address, %address;",
            f"        mad.wide.u32 %address, %row, {size}, %address;",
            f"        st.global.b{8 * size} [%address], d;",
            "    }",
        ]
    lines += ["    ret;", "}", ""]
    return "\n".join(lines)
