"""Syntax errors: their positions and messages."""

from __future__ import annotations

import pytest

from gpud.compiler.ptx.lexicon import NEWEST_VERSION
from gpud.compiler.ptx.parser import parse
from gpud.errors import CallerError, EmptySource, PTXSyntaxError, PTXVersionError

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def error_of(text: str) -> PTXSyntaxError:
    with pytest.raises(PTXSyntaxError) as caught:
        parse(text)
    return caught.value


def body_error(text: str) -> PTXSyntaxError:
    """The error of a kernel whose body's first line is line 5."""
    return error_of(f"{HEADER}.entry k() {{\n{text}\n}}\n")


@pytest.mark.parametrize("text", ["", "  \n\t", "// only a comment\n/* and another */\n"])
def test_empty_text(text: str) -> None:
    with pytest.raises(EmptySource):
        parse(text)


@pytest.mark.parametrize(
    ("text", "line", "column", "found"),
    [
        ("__global__ void k() {}", 1, 1, "'__global__'"),
        ("\n  hello", 2, 3, "'hello'"),
        ("\x7fELF\x02\x01", 1, 1, r"'\x7f'"),
        (".target sm_90\n.version 8.0", 1, 1, "'.target'"),
        ("/* never closed", 1, 1, "the end of the text"),
    ],
)
def test_text_that_is_not_ptx(text: str, line: int, column: int, found: str) -> None:
    error = error_of(text)
    assert (error.line, error.column) == (line, column)
    assert found in str(error)


def test_a_version_from_the_future() -> None:
    major, minor = NEWEST_VERSION
    for version in (f"{major + 1}.0", "99.9"):
        with pytest.raises(PTXVersionError) as caught:
            parse(f".version {version}\n.target sm_90\n")
        assert caught.value.version == version
        assert caught.value.newest == f"{major}.x"
    assert parse(f".version {major}.{minor + 1}\n.target sm_90\n").version == (major, minor + 1)


def test_the_header_is_checked() -> None:
    error = error_of(".version 8.0\n\n.entry k() { ret; }")
    assert (error.line, error.column) == (3, 1)
    assert "expected .target, found '.entry'" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("add.s32 %r1, %r2, %r3\nret;", 6, 1, "expected ',' or ';', found 'ret'"),
        ("add.s32 %r1, , %r3;", 5, 14, "expected an operand, found ','"),
        ("add.s32 %r1, %r2,;", 5, 18, "expected an operand, found ';'"),
        ("ld.global.u32 %r1, [%rd1;", 5, 20, "expected a closing bracket for '['"),
        ("ld.global.u32 %r1, %rd1];", 5, 24, "expected an operand, ',' or ';', found ']'"),
        ("ld.global.u32 %r1, [];", 5, 21, "expected an address, found ']'"),
        ("mov.b64 {%r1, }, %rd1;", 5, 15, "expected an operand, found '}'"),
        ("mov.b64 {}, %rd1;", 5, 10, "expected an element, found '}'"),
        ("mov.u32 %r1, 09;", 5, 14, "expected an octal number"),
        ("mov.u64 %rd1, 0x1FFFFFFFFFFFFFFFF;", 5, 15, "expected an integer of at most 64 bits"),
        ("mov.u32 %r1, #5;", 5, 14, "expected an operand, found '#'"),
        ("mov.u32 %r1, 5/0;", 5, 14, "expected a divisor other than zero"),
        ("and.pred %p1, !5, %p2;", 5, 16, "expected a predicate register after '!', found '5'"),
        ("@5 bra L;", 5, 1, "expected a statement or '}', found '@'"),
        ("@%p1 .reg .b32 x;", 5, 6, "expected an instruction, found '.reg'"),
        ("@%p1 { ret; }", 5, 6, "expected an instruction, found '{'"),
        (";", 5, 1, "expected a statement or '}', found ';'"),
        (".reg %r1;", 5, 6, "expected a register type such as .b32, found '%r1'"),
        (".reg .b32 5;", 5, 11, "expected a register name, found '5'"),
        (".reg .b32 %r<x>;", 5, 14, "expected a count, found 'x'"),
        (".reg .b32 %r<9999999>;", 5, 14, "expected a count of at most 1048576"),
        (".shared .b32 x[2;", 5, 17, "expected ']', found ';'"),
        (".shared .b32 x = {1, 2;", 5, 23, "expected ',' or '}', found ';'"),
        (".shared .f32 .u32 x;", 5, 14, "expected one type only, found '.u32'"),
        (".pragma nounroll;", 5, 9, "expected a string, found 'nounroll'"),
        ("b: .branchtargets ;", 5, 19, "expected a name, found ';'"),
        ("ret /* open", 5, 5, "expected '*/' at the end of the comment"),
        ("add..s32 %r1, %r2, %r3;", 5, 4, "expected a modifier, found"),
    ],
)
def test_errors_in_bodies(text: str, line: int, column: int, message: str) -> None:
    error = body_error(text)
    assert message in str(error)
    assert (error.line, error.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        (".entry k() { ret;", 4, 18, "expected '}' for the '{' in line 4, found the end"),
        (".entry k() ret;", 4, 12, "expected '{', ';' or a directive such as .maxntid"),
        (".entry k(.b32 x) { ret; }", 4, 10, "expected a parameter (.param or .reg)"),
        (".entry k(.param .b32 x .param .b32 y) {}", 4, 24, "expected ',' or ')'"),
        (".entry k(.param x) { ret; }", 4, 17, "expected a type such as .b32, found 'x'"),
        (".entry (.param .b32 x) {}", 4, 8, "expected a function name, found '('"),
        (".visible .reg .b32 x;", 4, 10, "expected .entry, .func or a state space"),
        (".global .b32 x y;", 4, 16, "expected ',', '=' or ';', found 'y'"),
        (".global x;", 4, 9, "expected a type such as .b32, found 'x'"),
        (".global .b32 x = ;", 4, 18, "expected a number or a symbol"),
        ("add.s32 %r1, %r2, %r3;", 4, 1, "expected a function, a variable or a directive"),
        ("}", 4, 1, "expected a function, a variable or a directive, found '}'"),
        (".section .debug { .b8 1", 4, 17, "expected a closing '}'"),
    ],
)
def test_errors_in_modules(text: str, line: int, column: int, message: str) -> None:
    error = error_of(HEADER + text)
    assert message in str(error)
    assert (error.line, error.column) == (line, column)


def test_the_error_shows_its_line_and_blames_the_caller() -> None:
    error = body_error("\tmov.u32 \t%r1, #5; // note")
    assert error.text == "mov.u32 \t%r1, #5; // note"
    assert "PTX line 5, column 16" in str(error)
    assert isinstance(error, CallerError)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        "mov.b64 " + "{" * 100_000 + ";",
        "mov.u32 %r1, " + "(" * 50_000 + "1" + ")" * 50_000 + ";",
        "mov.u32 %r1, " + "-" * 900 + "1;",
        "mov.u32 %r1, " + "1?" * 190 + "1" + ":0" * 190 + ";",
        "mov.u32 %r1, " + "0?1:" * 190 + "1;",
        ".shared .b32 x[2] = " + "{" * 100_000 + ";",
        "mov.u32 %r1, " + "9" * 100_000 + ";",
    ],
    ids=["scopes", "vectors", "parentheses", "signs", "then", "else", "initialisers", "digits"],
)
def test_deep_and_long_input_is_refused_in_order(text: str) -> None:
    body_error(text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "mov.u32 %r1, " + "1+" * 200_000 + "1",
        "a" * 500_000,
        "/ " * 300_000,
        "/*" + "*" * 500_000,
        ".shared .b8 x[9] = {" + "1, " * 200_000,
        "ret;\n" * 50_000 + "$",
        '"' * 100_000,
        ".loc 1 1 1 , function_name " * 20_000,
    ],
    ids=["sum", "word", "slashes", "comment", "list", "statements", "quotes", "loc"],
)
def test_refusing_takes_linear_time(text: str) -> None:
    body_error(text)
