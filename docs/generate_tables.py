"""Reference pages made of the tables in the code: control words, reason codes, instructions."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi import fault_record
from gpud.compiler.forms import classifier, rules
from gpud.compiler.forms.rules import RULES
from gpud.device.cpu.lower import LOWERINGS, unsupported
from gpud.errors import REJECTIONS

__all__ = ["CODE_GENERATOR", "control_words_page", "forms_page", "ptx_page"]

# -- control words -------------------------------------------------------------------------------

_WORDS_HEAD = """\
# Control words

<!-- Written by docs/generate.py from control_words.py and fault_record.py in gpud/compiler. -->

A rewritten kernel has one parameter more than it was written with: the address of its *launch
record*. That points to the *job record*, which all launches of a job share, and to the launch's
*status record*. All are little-endian, and the same on every device. How they are used is in
[How a kernel becomes resizable](../explanation/persistent-form.md).
"""

_WORDS_FOOT = """\
A *divider* is a multiplier m and a shift s such that `n // d == (2 * n * m >> 32) >> s` for every n
below 2^31: an addition, a high multiplication and a shift instead of a division. A grid has at most
{most} task blocks, so that claims never wrap.
"""


_LAUNCH_SIZE = (
    f"{words.launch_bytes(0)} bytes, and {words.ORDER_BYTES} for each {words.BLOCKS_A_PAIR} "
    "persistent blocks"
)
_STATUS_SIZE = f"{words.SM} bytes, and 3 for each persistent block"


def control_words_page() -> str:
    """Return the reference page of the records."""
    tables = [*_layouts(words.__doc__ or ""), *_layouts(fault_record.__doc__ or "")]
    assert len(tables) == 4, "three in control_words, one in fault_record"
    parts = [_WORDS_HEAD]
    launch, job = _offsets(words.LAUNCH_RECORD), _offsets(words.JOB_RECORD)
    status = _offsets(words.STATUS_RECORD)
    fault = {key.removeprefix("fault_"): at for key, at in job.items()}
    fault |= {f"thread_{letter}": fault["thread"] + 4 * n for n, letter in enumerate("xyz")}
    for name, size, offsets, rows in (
        ("Launch record", _LAUNCH_SIZE, launch, tables[0]),
        ("Status record", _STATUS_SIZE, status, tables[1]),
        ("Job record", f"{words.JOB_BYTES} bytes", {**job, "fault": words.FAULT}, tables[2]),
        (
            "Fault record, a part of the job record",
            f"{fault_record.SIZE_BYTES} bytes",
            fault,
            tables[3],
        ),
    ):
        for offset, _, field, _ in rows:
            assert not field or offsets[field] == int(offset), field
        lines = [
            f"| {offset} | {kind} | {_code(field)} | {text} |" for offset, kind, field, text in rows
        ]
        head = "| offset | type | name | meaning |\n| ---: | --- | --- | --- |"
        parts.append(f"## {name}: {size}\n\n{head}\n" + "\n".join(lines) + "\n")
    parts.append(_WORDS_FOOT.format(most=words.MAX_TASK_BLOCKS))
    return "\n".join(parts)


def _offsets(fields: list[Any]) -> dict[str, int]:
    """Return the offset of each field of a `numpy.dtype`, in bytes."""
    return {
        key: kind_and_offset[1] for key, kind_and_offset in (np.dtype(fields).fields or {}).items()
    }


def _layouts(text: str) -> Iterator[list[list[str]]]:
    """Yield a docstring's tables as rows of cells; a row without an offset continues the last."""
    lines = text.splitlines()
    rules = [n for n, line in enumerate(lines) if re.fullmatch(r"=+( =+)+", line)]
    for _, head, end in zip(rules[::3], rules[1::3], rules[2::3], strict=True):
        starts = [match.start() for match in re.finditer("=+", lines[head])]
        rows: list[list[str]] = []
        for line in lines[head + 1 : end]:
            cells = [
                line[a:b].strip().replace("``", "`")
                for a, b in zip(starts, [*starts[1:], None], strict=True)
            ]
            if cells[0]:
                rows.append(cells)
            else:
                rows[-1][3] += f" {cells[3]}"
        yield rows


# -- reasons -------------------------------------------------------------------------------------

_FORMS_HEAD = """\
# Reason codes of forms

<!-- Written by docs/generate.py from gpud/compiler/forms: change those. -->

Each kernel has a form and at least one reason for it (`KernelInfo.why`). A reason has a stable
code, a text, and, where one instruction decides, that instruction and its line in the PTX as it was
before rewriting. "..." stands for a name or a number of the kernel at hand. The forms themselves
are explained in [Forms](../explanation/forms.md).

| form | code | the kernel | from the rule |
| --- | --- | --- | --- |
"""

_REJECTIONS_HEAD = """
## Reasons of `KernelRejected`

A kernel may also be refused when it is launched, or loaded for a device. These are all the reasons
that the error carries:

| reason | the kernel |
| --- | --- |
"""


def forms_page() -> str:
    """Return the reference page of the reason codes."""
    rows = [
        f"| {form} | `{code}` | {text} | `{rule.__name__.lstrip('_')}` |"
        for form, rule in RULES
        for code, text in _reasons(rule)
    ]
    for function in (
        classifier._why_persistent,
        classifier._decide,
        rules.tensor_core_uses,
        classifier._forced,
    ):
        rows += [f"| any | `{code}` | {text} | |" for code, text in _reasons(function)]
    rejections = [f"| `{code}` | {meaning} |" for code, meaning in REJECTIONS.items()]
    return _FORMS_HEAD + "\n".join(rows) + "\n" + _REJECTIONS_HEAD + "\n".join(rejections) + "\n"


def _reasons(rule: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """(code, text) of every reason that a function gives."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    assigned = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "reason"
        ):
            code, text = node.args[0], node.args[1]
            assert isinstance(code, ast.Constant), "a reason code is written out"
            yield str(code.value), _text(text, assigned).replace("``", "`")


def _text(node: ast.expr, assigned: dict[str, ast.expr]) -> str:
    """Return a string expression as people read it, with "..." for what differs by kernel."""
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            return "".join(_text(part, assigned) for part in node.values)
        case ast.BinOp():
            return _text(node.left, assigned) + _text(node.right, assigned)
        case ast.IfExp():
            return f"{_text(node.body, assigned)}, or {_text(node.orelse, assigned)}"
        case ast.Name() if node.id in assigned:
            return _text(assigned[node.id], assigned)
    return "..."


# -- instructions --------------------------------------------------------------------------------

_PTX_HEAD = """\
# PTX on the CPU device

<!-- Written by docs/generate.py from gpud/device/cpu/lower/ and the table in
docs/generate_tables.py: change those. -->

What the CPU device runs, by opcode. A modifier that is not known is refused with the
instruction, never ignored. How exact results are is in
[The CPU device](../explanation/cpu-device.md). Refusals are `KernelRejected`, raised when the
kernel is compiled for its first block shape; other kernels of the program run.

Programs for `sm_1x` follow the rules of their time in one respect: `mad.f32` without a rounding is
accepted, and rounds once, to nearest. A shuffle from a lane that takes no part gives 0.

## Instructions that compute or touch memory

Where an opcode is one of several families, the types are listed; elsewhere the module says.

| opcode | types | source |
| --- | --- | --- |
"""

CODE_GENERATOR: dict[str, str] = {
    "activemask": "the lanes that stand at the same instruction",
    "bar": "`bar.sync`, `bar.arrive`, `bar.red` with numbers and counts; `bar.warp.sync`",
    "barrier": "like `bar`; `barrier.cluster` is refused",
    "bra": "a jump, with or without a guard",
    "brkpt": "ends the block like `trap`",
    "brx": "`brx.idx`, a jump through a table",
    "call": "direct and indirect; `vprintf`, `malloc`, `free` and `__assertfail` are built in",
    "elect": "one lane of a mask",
    "exit": "ends the thread, in functions too",
    "ldmatrix": "matrices of 8x8 elements of 16 bits, from shared memory",
    "match": "`any` and `all`",
    "mma": "f16, bf16, tf32, f64, eight-bit floats, s8, u8, s4, u4 and b1, in all dense shapes but "
    "`.m8n8k4` of f16; sums of floats are added in double precision and rounded once",
    "movmatrix": "as `ldmatrix`",
    "nanosleep": "nothing: a loop that waits gives way at its back edge",
    "redux": "integer and bitwise, and `f32` minimum and maximum",
    "ret": "returns; ends the thread in a kernel",
    "shfl": "all modes, with and without `.sync`",
    "stmatrix": "as `ldmatrix`",
    "trap": "ends the block, and the job fails with `KernelTrap`",
    "wmma": "as `mma`, in all its shapes; fragments lie as this device has them",
    "vote": "`all`, `any`, `uni` and `ballot`, with and without `.sync`",
}
"""Opcodes that the code generator runs itself: those that steer threads or let them meet."""

_CONTROL_HEAD = """
## Control flow, barriers and warp collectives

| opcode | |
| --- | --- |
"""

_REFUSED_HEAD = """
## Refused

Fetches from texture and surface objects (`tex`, `suld`, `sust`, `txq` in one to three dimensions)
are not in this list of what reaches the device: the compiler makes calls of them before, for every
device. What it does not know of them is refused for every device, too.

A kernel with `.reqnctapercluster` (`__cluster_dims__`) of several blocks is refused as well, with
the directive and its line; so are the instructions below.

| instruction | reason code | why |
| --- | --- | --- |
"""


def ptx_page() -> str:
    """Return the reference page of the instructions that the CPU device runs and refuses."""
    rows = []
    for base, lowering in sorted(LOWERINGS.items()):
        by_type: dict[str, Any] = getattr(lowering, "by_type", {})
        functions: Sequence[Any] = list(by_type.values()) or [lowering]
        modules = sorted({function.__module__.rpartition(".")[2] for function in functions})
        types = " ".join(sorted(by_type, key=_type_order))
        if not types:
            types = f"see {_first_line(functions[0].__module__)}"
        rows.append(f"| `{base}` | {types} | {', '.join(f'`{name}.py`' for name in modules)} |")
    control = [f"| `{base}` | {text} |" for base, text in sorted(CODE_GENERATOR.items())]
    refused = [(base, *refusal) for base, refusal in unsupported._BY_BASE.items()]
    refused += [(".".join(key), *refusal) for key, refusal in unsupported._BY_MODIFIER.items()]
    lines = [f"| `{name}` | `{code}` | {why} |" for name, code, why in sorted(refused)]
    parts = (_PTX_HEAD, rows, _CONTROL_HEAD, control, _REFUSED_HEAD, lines)
    return "".join(p if isinstance(p, str) else "\n".join(p) + "\n" for p in parts)


def _first_line(module: str) -> str:
    text = (import_module(module).__doc__ or "").partition("\n")[0].rstrip(".")
    return f'"{text}"'


def _type_order(name: str) -> tuple[str, int, str]:
    bits = re.search(r"\d+", name)
    return name[0], int(bits[0]) if bits else 0, name


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
