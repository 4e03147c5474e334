"""What else comes from outside: settings files, PTX, compiler options, command lines; spoilt.

Each generator begins with something good and spoils it in a few places, as the messages are in
`campaigns.fuzz.messages`. Each check says what may come of it; anything else is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from campaigns.fuzz.choices import Choices
from gpud.compiler.pipeline import compile_program
from gpud.config import SETTINGS, load
from gpud.errors import CallerError, CompileError, InternalError, InvalidArgument, KernelRejected
from gpud_client.cli.kernel_arguments import parse_argument, parse_dim, parse_output

_WORD = re.compile(r"%?[A-Za-z_]\w*|\.\w+|\d\w*")
_TOKEN = re.compile(r"[%.$\w]+|[^\s\w]")
_VALUES = (
    "0", "1", "-1", "2", "1e9", "0.5", "-0.0", "nan", "inf", "9" * 30, "9" * 5000, "0x10", "true",
    "false", '""', '"1"', '"0"', '"-1 s"', '"50%"', '"150%"', '"1 GiB"', '"1 PiB"',
    '"99999999 TiB"', '"1/0"', '"cpu"', '"cpu:0"', '"cpu:99999999999"', '"cuda:-1"', '"\\u0000"',
    '"/"', '"' + "x" * 5000 + '"', '"é\\U0001F600"', "[]", "[1]", '["cpu", "cpu"]', "[[[[]]]]",
    "{}", "{a = 1}", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "'''\nx'''",
)  # fmt: skip
_PIECES = (
    "", " ", "\n", "\t", "\0", "\r", ";", ",", ".", ":", "{", "}", "(", ")", "[", "]", "<", ">",
    "%", "@", "!", "=", "+", "-", "*", "/", "|", '"', "'", "\\", "#", "$", "_", "é", "\u2028",
    "\U0001f600", "0", "1", "-1", "0x", "0f", "0f7F800000", "0d", "9" * 20, "9" * 5000, "1e999",
    "%r0", "%tid.x", "%p", ".reg", ".b32", ".entry", ".func", ".param", ".global", ".align",
    ".version", ".loc", "ret;", "bra $L;", "//", "/*", "*/", "((((((((", "{{{{{{{{", "[[[[[[[[",
    "(" * 3000, "{" * 3000, "x" * 300,
)  # fmt: skip
OPTIONS = (
    "-DN=4", "-DN", "-D", "--bogus", "-", "--", "", " ", "-G", "--device-debug", "-lineinfo",
    "-std=c++20", "--std=c++99", "-I", "-I/nowhere", "--include-path=", "-arch=sm_90",
    "--gpu-architecture=compute_1", "--maxrregcount=0", "--maxrregcount=-1",
    "--maxrregcount=99999999999", "-use_fast_math", "-dc", "-dlto", "--time=-",
    "--fdevice-time-trace=/nowhere/x", "--create-pch=/nowhere/x", "-pch", "é", "\n-G",
    "-D" + "x" * 4000, "-DX=" + "(" * 2000, "--relocatable-device-code=true", "-ewp",
    "--ptxas-options=-O9", "-Xptxas", "@file", "--minimal", "--builtin-move-forward=maybe",
    "--diag-suppress=1,2,", "--version-ident=true", "-ftz=maybe",
)  # fmt: skip
_ARGUMENTS = (
    "7", "-2.5", "0x10", "1e400", "nan", "-inf", "true", "null", "f32:2.0", "i32:7", "u64:1",
    "i8:999", "f16:1e9", "bool:2", "zeros:f32:16", "zeros:f32:0", "zeros:f32:", "zeros:", "zeros",
    "ones:f64:4x4", "arange:i32:10", "random:u8:5", "arange:bool:5", "file:", "file:/nowhere",
    "file:/dev/null", "x:1", ":", "::", "", " ", "é", "\uff11", "zeros:f32:99999999999999999999",
    "zeros:f32:1x1x1x1x1x1x1x1x1", "u64:" + "9" * 5000, "9" * 5000, "0x" + "f" * 400, "f32:0x10",
    "i32:1_000", "_1", "zeros:f32:-1", "zeros:f32:1e3", "zeros:f32:\u0663",
)  # fmt: skip


def spoilt_text(choices: Choices, text: str, times: int) -> str:
    """``text``, changed in so many places: by its own words and lines, and by nasty pieces.

    Half of the changes keep to the grammar more often than not: a word for another that begins
    alike, a line taken out, doubled or moved.
    """
    for _ in range(times):
        if choices.below(2):
            text = _spoilt_lines(choices, text) if choices.below(2) else _swapped(choices, text)
        else:
            text = _spoilt_words(choices, text)
    return text


def _spoilt_lines(choices: Choices, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, to = choices.below(len(lines)), choices.below(len(lines))
    way = choices.below(3)
    line = lines[at] if way == 1 else lines.pop(at)
    if way:
        lines.insert(to, line)
    return "".join(lines)


def _swapped(choices: Choices, text: str) -> str:
    """A register for a register, a number for a number, a part of an opcode for another."""
    words = [match.span() for match in _WORD.finditer(text)]
    if not words:
        return text
    start, end = choices.pick(words)
    digit = text[start].isdigit()
    alike = [
        (low, high)
        for low, high in words
        if (text[low].isdigit() if digit else text[low : low + 2] == text[start : start + 2])
    ]
    return text[:start] + text[slice(*choices.pick(alike))] + text[end:]


def _spoilt_words(choices: Choices, text: str) -> str:
    words = [match.span() for match in _TOKEN.finditer(text[:20_000])]
    if not words:
        return text + choices.pick(_PIECES)
    start, end = choices.pick(words)
    other = choices.pick(words)
    way = choices.below(7)
    if way == 0:
        return text[:start] + text[end:]
    if way == 1:
        return text[:start] + choices.pick(_PIECES) + text[end:]
    if way == 2:
        return text[:start] + choices.pick(_PIECES) + text[start:]
    if way == 3:
        return text[:start] + text[slice(*other)] + text[end:]
    if way == 4:
        return text[:end] + text[start:]
    if way == 5:
        low, high = sorted((start, other[0]))
        return text[:low] + text[high:] if high - low < 400 else text[:start]
    return text[:start] + chr(choices.below(0x250)) + text[start + 1 :]


# -- settings ----------------------------------------------------------------------------------


def settings_text(choices: Choices) -> str:
    """A settings file, mostly with something wrong."""
    lines = []
    for _ in range(choices.below(5)):
        setting = choices.pick(SETTINGS)
        good = f'"{setting.default}"' if setting.default is not None else '"x"'
        value = choices.pick((good, choices.pick(_VALUES), choices.pick(_VALUES)))
        lines.append(f"{setting.key} = {value}\n")
    text = "".join(lines)
    return spoilt_text(choices, text, choices.pick((0, 0, 1, 3))) if text else text


def check_settings(text: str, folder: Path) -> str:
    """Reads it as the daemon does: "accepted" or "refused"."""
    file = folder / "gpud.toml"
    file.write_text(text, errors="surrogatepass")
    try:
        load({}, {"HOME": str(folder)}, file)
    except InvalidArgument as error:
        if len(str(error)) > 2000:
            raise AssertionError("a message that nobody can read") from error
        return "refused"
    return "accepted"


# -- PTX ---------------------------------------------------------------------------------------


def ptx_text(choices: Choices, samples: Sequence[str]) -> str:
    """A PTX program, changed in a few places."""
    return spoilt_text(choices, choices.pick(samples), choices.pick((1, 1, 2, 4)))


def check_ptx(text: str) -> str:
    """Compiles it as the compile process does: "accepted" or "refused"; never for CUDA C++."""
    if not text.lstrip().startswith("."):
        text = ".version 8.0\n" + text
    try:
        compile_program(text)
    except InternalError:
        raise
    except (CompileError, KernelRejected, CallerError):
        return "refused"
    return "accepted"


# -- command lines -----------------------------------------------------------------------------


def command_line(choices: Choices) -> list[str]:
    """What might stand behind ``gpuctl run``."""
    found = ["k.cu", "k", "--grid", _dim(choices), "--block", _dim(choices)]
    for _ in range(choices.below(4)):
        found += ["--arg", _spoilt(choices, choices.pick(_ARGUMENTS))]
    if not choices.below(3):
        out = choices.pick(("0=x.npy", "9=x", "=x", "0=", "x", "-1=x", "0==", "\uff19=x"))
        found += ["--out", _spoilt(choices, out)]
    if not choices.below(3):
        share = choices.pick(("1", "25%", "0", "-1", "nan", "1/0", "1e9", "é", "9" * 5000, ""))
        found += [choices.pick(("--quota", "--reservation")), _spoilt(choices, share)]
    if not choices.below(3):
        found += ["--timeout", choices.pick(("1", "0", "-1", "nan", "inf", "1e400", "x"))]
    return found


def _dim(choices: Choices) -> str:
    dims = (
        "1",
        "16,16",
        "16x16x1",
        "0",
        "-1",
        "1,2,3,4",
        "",
        ",",
        "9" * 5000,
        "\uff11",
        "1e3",
        "0x10",
    )
    return _spoilt(choices, choices.pick(dims))


def _spoilt(choices: Choices, text: str) -> str:
    return spoilt_text(choices, text, 1) if not choices.below(4) else text


def check_arguments(line: Sequence[str]) -> str:
    """Reads each value of a command line: how many of them were accepted."""
    readers: dict[str, Callable[[str], object]] = {
        "--arg": parse_argument,
        "--grid": lambda text: parse_dim(text, "grid"),
        "--block": lambda text: parse_dim(text, "block"),
        "--out": lambda text: parse_output(text, 3),
    }
    accepted = read = 0
    for option, value in zip(line[2::2], line[3::2], strict=True):
        reader = readers.get(option)
        if reader is None:
            continue
        read += 1
        try:
            reader(value)
            accepted += 1
        except typer.BadParameter:
            pass
    return "accepted" if accepted == read else "refused"
