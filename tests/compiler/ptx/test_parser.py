"""The parser, construct by construct: the node for each kind of text."""

from __future__ import annotations

import pytest

from gpud.compiler.ptx.constants import evaluate
from gpud.compiler.ptx.lexicon import covers_special_register
from gpud.compiler.ptx.model import (
    Address,
    BranchTargets,
    CallPrototype,
    CallTargets,
    Directive,
    Function,
    Guard,
    Immediate,
    Initializer,
    Instruction,
    Label,
    Location,
    Module,
    Not,
    Operand,
    Pair,
    Parameter,
    Pragma,
    RawOperand,
    Register,
    RegisterDeclaration,
    Scope,
    SpecialRegister,
    Statement,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
    opcode,
)
from gpud.compiler.ptx.operands import parse_operand
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module, print_statement

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def module_of(text: str) -> Module:
    return parse(HEADER + text)


def body_of(text: str) -> list[Statement]:
    """The statements of a kernel body that starts in line 5."""
    body = module_of(f".entry k()\n{{\n{text}\n}}\n").entries()["k"].body
    assert body is not None
    return body


def instruction_of(text: str) -> Instruction:
    (statement,) = body_of(text)
    assert isinstance(statement, Instruction)
    return statement


def variable_of(text: str) -> Variable:
    (item,) = module_of(text).items
    assert isinstance(item, Variable)
    return item


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("%r1", Register("%r1")),
        ("%tid.x", SpecialRegister("%tid.x")),
        ("%laneid", SpecialRegister("%laneid")),
        ("%envreg31", SpecialRegister("%envreg31")),
        ("%clock64", SpecialRegister("%clock64")),
        ("%envreg32", Register("%envreg32")),
        ("%v.x", Register("%v.x")),
        ("table", Symbol("table")),
        ("[table.x]", Address(Symbol("table.x"))),
        ("$str", Symbol("$str")),
        ("_", Symbol("_")),
        ("WARP_SZ", Symbol("WARP_SZ")),
        ("5", Immediate("5", 5)),
        ("-5", Immediate("-5", -5)),
        ("- 5", Immediate("-5", -5)),
        ("0x1F", Immediate("0x1F", 31)),
        ("017", Immediate("017", 15)),
        ("0b101", Immediate("0b101", 5)),
        ("7U", Immediate("7U", 7)),
        ("0xFFFFFFFFFFFFFFFFU", Immediate("0xFFFFFFFFFFFFFFFFU", 2**64 - 1)),
        ("0f3F800000", Immediate("0f3F800000", 0x3F800000, "f32")),
        ("0dBFF0000000000000", Immediate("0dBFF0000000000000", 0xBFF0 << 48, "f64")),
        ("1.5", Immediate("1.5", 0x3FF8 << 48, "f64")),
        ("-2e1", Immediate("-2e1", 0xC034 << 48, "f64")),
        ("[%rd1]", Address(Register("%rd1"))),
        ("[%rd1+8]", Address(Register("%rd1"), 8)),
        ("[ %rd1 + 8 ]", Address(Register("%rd1"), 8)),
        ("[%rd1+-4]", Address(Register("%rd1"), -4)),
        ("[%rd1-4]", Address(Register("%rd1"), -4)),
        ("[%rd1+0x10]", Address(Register("%rd1"), 16)),
        ("[%rd1+4*2]", Address(Register("%rd1"), 8)),
        ("[table]", Address(Symbol("table"))),
        ("[table+4]", Address(Symbol("table"), 4)),
        ("[4096]", Address(None, 4096)),
        ("table+8", SymbolOffset(Symbol("table"), 8)),
        ("table[0]", Symbol("table")),
        ("{%r1, %r2}", Vector((Register("%r1"), Register("%r2")))),
        ("{%r1,_}", Vector((Register("%r1"), Symbol("_")))),
        ("%r1|%p1", Pair(Register("%r1"), Register("%p1"))),
        ("_|%p1", Pair(Symbol("_"), Register("%p1"))),
        ("!%p1", Not(Register("%p1"))),
        ("(%r1, 5)", Tuple((Register("%r1"), Immediate("5", 5)))),
        ("()", Tuple(())),
        ("4*3+1", Immediate("13", 13)),
        ("(1<<4)|1", Immediate("17", 17)),
        ("1 ? 2 : 3", Immediate("2", 2)),
        ("-7/2", Immediate("-3", -3)),
        ("%r1.b0", RawOperand("%r1.b0")),
        ("-%r1", RawOperand("-%r1")),
        ("[%rd2, {%r1, %r2}]", RawOperand("[%rd2, {%r1, %r2}]")),
    ],
)
def test_operands(text: str, operand: Operand) -> None:
    alone = instruction_of(f"future.op {text};")
    assert alone.operands == (operand,)
    among = instruction_of(f"future.op %x,{text} , 1;")
    assert among.operands == (Register("%x"), operand, Immediate("1", 1))
    with_vector = instruction_of(f"future.op {{%a, %b}}, {text};")
    assert with_vector.operands[1:] == (operand,)


def test_a_plain_instruction() -> None:
    add = instruction_of("\tadd.s32 \t%r3, %r1, -5;")
    assert add.opcode is opcode("add.s32")
    assert add.opcode.base == "add"
    assert add.opcode.modifiers == ("s32",)
    assert add.operands == (Register("%r3"), Register("%r1"), Immediate("-5", -5))
    assert add.guard is None
    assert add.line == 6


@pytest.mark.parametrize(
    ("text", "guard"),
    [
        ("@%p1 bra L;", Guard(Register("%p1"))),
        ("@!%p1 bra L;", Guard(Register("%p1"), negated=True)),
        ("@ ! %p1 bra L;", Guard(Register("%p1"), negated=True)),
        ("@done bra L;", Guard(Register("done"))),
    ],
)
def test_guards(text: str, guard: Guard) -> None:
    assert instruction_of(text).guard == guard


def test_opcodes_keep_colons_and_loose_modifiers() -> None:
    load = instruction_of("ld.global.L1::evict_last.L2::128B.u32 %r1, [%rd1];")
    assert load.opcode.modifiers == ("global", "L1::evict_last", "L2::128B", "u32")
    assert instruction_of("mov .u32 %r1, 5;").opcode == opcode("mov.u32")


def test_statements_may_share_and_span_lines() -> None:
    statements = body_of("L: mov.u32 %r1, 1; mov.u32 %r2,\n /* ; */ 2 // ;\n ; ret;")
    assert statements == [
        Label("L"),
        Instruction(opcode("mov.u32"), (Register("%r1"), Immediate("1", 1))),
        Instruction(opcode("mov.u32"), (Register("%r2"), Immediate("2", 2))),
        Instruction(opcode("ret")),
    ]
    assert [statement.line for statement in statements] == [6, 6, 6, 8]


def test_lines_count_comments_and_blanks() -> None:
    text = "// one\n\n/* two\n three */ add.s32 %r1, %r2, 1;\n\nL:\n\n// x\n  ret;\n{\n trap;\n}"
    statements = body_of(text)
    assert [statement.line for statement in statements] == [9, 11, 14, 15]
    scope = statements[-1]
    assert isinstance(scope, Scope)
    assert scope.body[0].line == 16
    first, second, kernel = module_of(
        ".section .debug_x\n{\n.b8 1\n}\n.global .attribute(.unified(1,\n 2)) .b32 t;\n"
        ".entry k(.param .b64\n p)\n{}"
    ).items
    assert isinstance(kernel, Function)
    assert (first.line, second.line, kernel.line) == (4, 8, 10)


def test_carriage_returns_count_as_line_ends() -> None:
    text = HEADER + ".entry k()\n{\n\tret;\n}\n"
    dos = parse(text.replace("\n", "\r\n"))
    assert dos == parse(text)
    (ret,) = dos.entries()["k"].body or []
    assert ret.line == 6


def test_bare_names_are_registers_where_they_are_declared_so() -> None:
    outer, scope, after = body_of("mov.u32 x, y;\n{ .reg .b32 x; mov.u32 x, y; }\nmov.u32 x, y;")
    assert isinstance(scope, Scope)
    symbols = (Symbol("x"), Symbol("y"))
    assert isinstance(outer, Instruction)
    assert isinstance(after, Instruction)
    assert outer.operands == after.operands == symbols
    inner = scope.body[1]
    assert isinstance(inner, Instruction)
    assert inner.operands == (Register("x"), Symbol("y"))


def test_numbered_and_listed_registers() -> None:
    statements = body_of(".reg .b32 %r<5>, t<2>, one;\n.reg .v4 .f32 %v;\nmov.b32 t1, one;")
    assert statements[:4] == [
        RegisterDeclaration("b32", "%r", 5),
        RegisterDeclaration("b32", "t", 2),
        RegisterDeclaration("b32", "one"),
        RegisterDeclaration("f32", "%v", None, "v4"),
    ]
    assert isinstance(statements[4], Instruction)
    assert statements[4].operands == (Register("t1"), Register("one"))


def test_names_that_mislead() -> None:
    (_, use) = body_of(".reg .b32 %tid;\nmov.u32 %tid, %tid.x;")
    assert isinstance(use, Instruction)
    assert use.operands == (Register("%tid"), SpecialRegister("%tid.x"))
    (_, use) = body_of(".shared .b32 %place;\nst.shared.u32 [%place], 1;")
    assert isinstance(use, Instruction)
    assert use.operands[0] == Address(Symbol("%place"))
    function = module_of(".func f(.param .b32 %p) { ld.param.b32 %r1, [%p]; }").functions()[0]
    (use,) = function.body or []
    assert isinstance(use, Instruction)
    assert use.operands[1] == Address(Symbol("%p"))
    (jump, _) = body_of("bra %done;\n%done: ret;")[:2]
    assert isinstance(jump, Instruction)
    assert jump.operands == (Symbol("%done"),)


def test_variables() -> None:
    assert variable_of(".visible .global .align 4 .u32 n = 5;") == Variable(
        "global", "u32", "n", (), 4, None, "visible", Immediate("5", 5)
    )
    assert variable_of(".extern .shared .align 16 .b8 smem[];") == Variable(
        "shared", "b8", "smem", (None,), 16, linkage="extern"
    )
    assert variable_of(".const .align 4 .b8 c[3] = {1, 2, 3};").init == (
        Immediate("1", 1),
        Immediate("2", 2),
        Immediate("3", 3),
    )
    assert variable_of(".common .global .align 8 .u64 env;").linkage == "common"
    assert variable_of(".global .v4 .f32 q[2][3];") == Variable(
        "global", "f32", "q", (2, 3), vector="v4"
    )
    assert variable_of(".global .attribute(.managed) .b32 m;").attributes == (".managed",)


def test_initialisers_name_symbols() -> None:
    init = variable_of(
        ".global .u64 t[7] = {f, f+8, generic(g), generic(g)+4, 0xFF00(g), 0xFF(generic(g)+4), -1};"
    ).init
    assert init == (
        Initializer("f"),
        Initializer("f", 8),
        Initializer("g", 0, generic=True),
        Initializer("g", 4, generic=True),
        Initializer("g", 0, mask=0xFF00),
        Initializer("g", 4, generic=True, mask=0xFF),
        Immediate("-1", -1),
    )
    nested = variable_of(".global .u32 m[2][2] = {{1, 2}, {3}};").init
    assert nested == ((Immediate("1", 1), Immediate("2", 2)), (Immediate("3", 3),))
    assert variable_of(".global .u32 e[2] = {};").init == ()


def test_lists_of_variables_become_one_node_each() -> None:
    items = module_of(".global .b32 a, b[2], c = 7;\n.global .b32 n<2>;").items
    assert items == [
        Variable("global", "b32", "a"),
        Variable("global", "b32", "b", (2,)),
        Variable("global", "b32", "c", init=Immediate("7", 7)),
        Variable("global", "b32", "n0"),
        Variable("global", "b32", "n1"),
    ]


def test_functions() -> None:
    (function,) = module_of(
        ".visible .func (.param .align 8 .b8 r[16]) f(.param .b32 a, .reg .b64 b) .noreturn\n;"
    ).items
    assert function == Function(
        "func",
        "f",
        (Parameter("b32", "a"), Parameter("b64", "b", space="reg")),
        (Parameter("b8", "r", (16,), 8),),
        (".noreturn",),
        None,
        "visible",
    )


def test_kernel_parameters_and_directives() -> None:
    (kernel,) = module_of(
        ".weak .entry k(.param .u64 .ptr .global .align 16 p, .param .u64 .ptr q,\n"
        '.param .align 4 .b8 s[20])\n.maxntid 256, 1,1\n.minnctapersm 2 .pragma "a","b";\n{ret;}'
    ).items
    assert isinstance(kernel, Function)
    assert kernel.parameters == (
        Parameter("u64", "p", pointer=".global .align 16"),
        Parameter("u64", "q", pointer=""),
        Parameter("b8", "s", (20,), 4),
    )
    assert kernel.attributes == (".maxntid 256, 1, 1", ".minnctapersm 2", '.pragma "a", "b"')
    assert kernel.linkage == "weak"


def test_a_kernel_without_a_parameter_list() -> None:
    assert module_of(".entry k { ret; }").entries()["k"].parameters == ()


def test_calls() -> None:
    *_, call = body_of("call.uni (%r1), \nf, \n(\nparam0, \n%r2\n)\n, proto;")
    assert call == Instruction(
        opcode("call.uni"),
        (
            Tuple((Register("%r1"),)),
            Symbol("f"),
            Tuple((Symbol("param0"), Register("%r2"))),
            Symbol("proto"),
        ),
    )
    assert instruction_of("call f;").operands == (Symbol("f"),)


def test_labelled_lists() -> None:
    statements = body_of(
        "p : .callprototype (.param .b32 _) _ (.param .b64 _, .param .align 8 .b8 _[16])"
        " .noreturn;\n"
        "q: .callprototype _ ();\nc: .calltargets f, g;\nb: .branchtargets\n L1,\n L2;\n"
        "alone:\n .branchtargets L1;"
    )
    assert statements == [
        CallPrototype(
            "p",
            (Parameter("b32", "_"),),
            (Parameter("b64", "_"), Parameter("b8", "_", (16,), 8)),
            noreturn=True,
        ),
        CallPrototype("q", (), ()),
        CallTargets("c", ("f", "g")),
        BranchTargets("b", ("L1", "L2")),
        BranchTargets("alone", ("L1",)),
    ]


def test_debug_information_is_kept() -> None:
    statements = body_of(
        '.loc\t1 12 3\n.loc 1 13 5, function_name $L__s0, inlined_at 1 20 7\n.pragma "nounroll";'
    )
    assert statements == [
        Location("1 12 3"),
        Location("1 13 5, function_name $L__s0, inlined_at 1 20 7"),
        Pragma('"nounroll"'),
    ]
    items = module_of('.file 1 "a b;.cu", 12, 34\n.section .debug_x\n{\n.b8 1 // }\n.b8 2\n}').items
    assert items == [
        Directive('.file 1 "a b;.cu", 12, 34'),
        Directive(".section .debug_x\n{\n.b8 1 // }\n.b8 2\n}"),
    ]


def test_a_pragma_of_used_bytes_is_part_of_the_load_behind_it() -> None:
    load = "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r5];"
    for mask in ("4095", "0xFFF", "0xfffU"):
        text = f'.pragma "used_bytes_mask {mask}";\n@%p1 {load}'
        (statement,) = body_of(text)
        assert isinstance(statement, Instruction)
        assert statement.opcode == opcode("ld.shared.v4.u32", 4095)
        printed = '\t.pragma "used_bytes_mask 4095";\n\t@%p1 ' + load
        assert print_statement(statement) == printed
    assert body_of(f'{{ .pragma "used_bytes_mask 1"; ld.u32 %r1, [a]; }} {load}') == [
        Scope([Instruction(opcode("ld.u32", 1), (Register("%r1"), Address(Symbol("a"))))]),
        instruction_of(load),
    ]
    # What no load follows says nothing that is known.
    pragma, *_ = body_of('.pragma "used_bytes_mask 15"; mov.u32 %r1, 0;')
    assert pragma == Pragma('"used_bytes_mask 15"')


def test_what_is_not_known_is_kept() -> None:
    items = module_of(".future 1, x;\n.blocky name { { } }\n.alias f, g;").items
    assert items == [
        Directive(".future 1, x;"),
        Directive(".blocky name { { } }"),
        Directive(".alias f, g;"),
    ]
    future = instruction_of("@%p1 tcgen99.mma.cta_group::2 [%rd1], {%r1, %r2}, 0x10, <3>;")
    assert future.opcode.base == "tcgen99"
    assert future.operands[-1] == RawOperand("<3>")


def test_the_header() -> None:
    module = parse(".version 9.0 .target sm_90a, debug\n")
    assert module == Module((9, 0), ("sm_90a", "debug"), 64)
    assert parse("// c\n.version 1.4\n.target sm_10\n.address_size 32").address_size == 32
    assert parse(".version 8.0\n.target sm_90\n\0") == Module((8, 0), ("sm_90",))


def test_fast_and_slow_variables_agree() -> None:
    lines = [
        ".global .align 4 .b8 a[8] = {1, 2, -3, 0};",
        ".visible .const .align 8 .u64 b = 77;",
        ".weak .global .align 16 .f32 c[4];",
        ".global .align 4 .u32 d[0];",
        ".global .align 4 .u32 octal[010];",
        ".shared .align 4 .s32 e;",
    ]
    for line in lines:
        spread = line.replace(" ", " /**/\n")
        assert module_of(line + "\n").items == module_of(spread + "\n").items


def test_a_thousand_operands_of_one_module_share_their_nodes() -> None:
    first, second = body_of("add.s32 %r1, %r1, %r1;\nsub.s32 %r1, %r1, 4;")
    assert isinstance(first, Instruction)
    assert isinstance(second, Instruction)
    assert first.operands[0] is second.operands[0]


@pytest.mark.parametrize(
    ("attributes", "pointer"),
    [
        (".ptr", ""),
        (".ptr .global .align 16", ".global .align 16"),
        (".ptr .shared .align 8", ".shared .align 8"),
        (".ptr .local", ".local"),
        (".ptr .const .align 4", ".const .align 4"),
    ],
)
def test_attributes_of_pointers(attributes: str, pointer: str) -> None:
    module = module_of(f".entry k(.param .u64 {attributes} p) {{ ret; }}")
    (parameter,) = module.entries()["k"].parameters
    assert (parameter.type, parameter.pointer) == ("u64", pointer)
    assert parse(print_module(module)) == module


@pytest.mark.parametrize(
    ("prefix", "count", "covers"),
    [
        ("%clock", 65, True),
        ("%clock", 10**6, True),
        ("%clock", 64, False),
        ("%clock6", 5, True),
        ("%clock6", 4, False),
        ("%envreg", 1, True),
        ("%envreg", 0, False),
        ("%envreg3", 1, True),
        ("%envreg4", 99, False),
        ("%pm", 1, True),
        ("%reserved_smem_offset_", 1, True),
        ("%tid", 99, False),
        ("%r", 99, False),
    ],
)
def test_numbered_registers_that_cover_a_predefined_one(
    prefix: str, count: int, covers: bool
) -> None:
    assert covers_special_register(prefix, count) is covers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!0", 1),
        ("!7", 0),
        ("!!7", 1),
        ("!0 + 1", 2),
        ("!(3 - 3)", 1),
        ("1 ? 2 : 0 ? 3 : 4", 2),
        ("0 ? 2 : 1 ? 3 : 4", 3),
        ("0 ? 2 : 0 ? 3 : 4", 4),
        ("1 ? 0 ? 5 : 6 : 7", 6),
        ("1 ? 1 ? 5 : 6 : 7", 5),
        ("0 ? 1 ? 5 : 6 : 7", 7),
        ("2 > 1 ? 1 + 1 : 9", 2),
        ("(0 ? 2 : 3) * 2", 6),
    ],
)
def test_negations_and_choices_in_constants(text: str, value: int) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize("text", ["%r1|%r2|%r3", "%r1|", "|%r1", "%r1||%r2", "%r1|1.0"])
def test_operands_that_are_no_pairs_are_kept_as_they_are(text: str) -> None:
    assert parse_operand(text, {}) == RawOperand(text)
