"""Programs that try to get out of their session's memory, or into gpud's own: what comes of each.

Every attack has one right outcome: a clear refusal before anything runs, a contained failure, or a
run in which nothing happens. None may end the device host, change a neighbour's memory, or show a
byte of it. The attacker sits between two neighbours, as in `tests.faults.test_out_of_bounds`.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import gpud_client as gc
from campaigns.out_of_bounds.check import reset
from campaigns.out_of_bounds.kernels import HEADER
from campaigns.out_of_bounds.world import TIMEOUT_S, World

pytestmark = pytest.mark.ci

REFUSED, ILLEGAL, TRAPPED, RUNS = "refused", "illegal", "trapped", "runs"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as one:
        yield one


@dataclass(frozen=True)
class Attack:
    """A program, its second argument (the first is where it may write) and its right outcome.

    ``value``: a number, or what lies at the address: "neighbour", "host", "own" or "end".
    ``said``: what the error must say.
    """

    name: str
    source: str
    value: int | str
    outcome: str
    said: str = ""
    threads: int = 32

    def __str__(self) -> str:
        return self.name


def program(body: str, top: str = "", name: str = "k", parameters: str = "") -> str:
    return f"""{HEADER}{top}
.visible .entry {name}(.param .u64 p0, .param .u64 p1{parameters})
{{
  .reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .pred %p<9>;
  ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x;
  {body}
  st.global.u32 [%rd1], 77;
  ret;
}}
"""


def text(name: str, value: str) -> str:
    """A constant string as a module variable."""
    data = ", ".join(map(str, [*value.encode(), 0]))
    return f".global .align 1 .b8 {name}[{len(value.encode()) + 1}] = {{{data}}};\n"


# -- printf and assert -------------------------------------------------------------------------

VPRINTF = ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);\n"
ASSERTFAIL = (
    ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, "
    ".param .b64 e) .noreturn;\n"
)


def call(function: str, *arguments: str, result: str = "") -> str:
    """A call with 64-bit arguments; ``result``: .b32 or .b64."""
    names = ", ".join(f"a{n}" for n in range(len(arguments)))
    lines = [f".param .b64 a{n}; st.param.b64 [a{n}], {a};" for n, a in enumerate(arguments)]
    if result:
        lines.append(f".param {result} out;")
    out = "(out), " if result else ""
    return f"{{ {' '.join(lines)} call {out}{function}, ({names}); }}"


def _printing() -> Iterator[Attack]:
    string = VPRINTF + text("fmt", "%s\n")
    get = "mov.u64 %rd3, fmt; cvta.global.u64 %rd3, %rd3;"
    box = ".local .align 8 .b64 box[4]; mov.u64 %rd4, box; cvta.local.u64 %rd4, %rd4;"
    everywhere: tuple[int | str, ...] = ("neighbour", "host", 0, 1 << 62, "end")
    for value in everywhere:
        body = call("vprintf", "%rd2", "%rd1", result=".b32")
        yield Attack(f"printf: format at {value}", program(body, VPRINTF), value, RUNS)
        body = get + call("vprintf", "%rd3", "%rd2", result=".b32")
        yield Attack(f"printf: arguments at {value}", program(body, string), value, RUNS)
        body = f"{get} {box} st.local.u64 [box], %rd2;"
        body += call("vprintf", "%rd3", "%rd4", result=".b32")
        yield Attack(f"printf: %s at {value}", program(body, string), value, RUNS)
        body = (
            "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;"
            "st.param.b64 [a], %rd2; st.param.b64 [b], %rd2; st.param.b32 [c], 5;"
            "st.param.b64 [d], %rd2; st.param.b64 [e], 1; call __assertfail, (a, b, c, d, e); }"
        )
        yield Attack(f"assert: texts at {value}", program(body, ASSERTFAIL), value, TRAPPED)
    for format_ in ("%999999999d", "%.999999999d", "%n%n%n%n", "%*d%*d", "%s%s%s%s" * 40):
        body = f"{get} {box} st.local.u64 [box], 2000000000;"
        body += call("vprintf", "%rd3", "%rd4", result=".b32")
        top = VPRINTF + text("fmt", format_)
        yield Attack(f"printf: {format_[:16]}", program(body, top), 0, RUNS)


# -- gpud's own names, and other people's ------------------------------------------------------


def _names() -> Iterator[Attack]:
    hit = "st.global.u32 [%rd2], 1;"
    for name in ("system", "memcpy", "abort", "gpud_print", "gpud_heap_malloc", "printf"):
        top = f".extern .func {name} (.param .b64 a);\n"
        source = program(call(name, "%rd1"), top)
        yield Attack(f"extern {name}", source, 0, REFUSED, "not defined")
    for name in ("gpud_fault", "gpud_assert", "gpud_leave", "gpud_print"):
        top = f".func {name} (.param .b64 a) {{ ret; }}\n"
        source = program(call(name, "%rd1") + hit, top)
        yield Attack(f"function {name}", source, "neighbour", REFUSED, "a name that gpud uses")
        source = program(call(name, "%rd1"))
        yield Attack(f"call of {name}", source, 0, REFUSED, "not declared")
    for name in ("memcpy", "system", "step", "gpud_heap_malloc"):
        top = f".func {name} (.param .b64 a) {{ ret; }}\n"
        yield Attack(f"function {name}", program(call(name, "%rd1"), top), 0, RUNS)
    for space in ("const", "global"):
        for name in ("gpud_arena", "gpud_heap"):
            top = f".{space} .align 16 .b64 {name}[2] = {{0, 18446744073709551615}};\n"
            source = program(hit, top)
            yield Attack(f".{space} {name}", source, "neighbour", REFUSED, "a name that gpud uses")
    yield Attack(
        "the arena by name", program("mov.u64 %rd5, gpud_arena;"), 0, REFUSED, "not declared"
    )
    yield Attack(
        "an extern variable",
        program("ld.global.u32 %r2, [environ];", ".extern .global .b32 environ;\n"),
        0, REFUSED, "not defined",
    )  # fmt: skip
    for register in (
        "%gpud_bounds_base_<3>",
        "%gpud_report_address",
        "%gpud_kill_0",
        "%gpud_target_bad",
    ):
        source = program(f".reg .b64 {register}; {hit}")
        yield Attack(f"register {register}", source, "neighbour", REFUSED, "a name that gpud uses")
    for label in (
        "$gpud_bounds_warm_0",
        "$gpud_report_fault",
        "$gpud_kill_leave",
        "$gpud_target_miss_1",
    ):
        source = program(f"{label}: {hit}")
        yield Attack(f"label {label}", source, "neighbour", REFUSED, "a name that gpud uses")
    source = program(f".reg .b32 %gpud_loop_slot; mov.u32 %gpud_loop_slot, 0; {hit}")
    yield Attack("a register of the loop", source, 0, REFUSED, "a name that gpud uses")
    source = program(f"$gpud_loop_head: {hit}")
    yield Attack("a label of the loop", source, 0, REFUSED, "a name that gpud uses")
    slots = ".shared .align 16 .b8 gpud_loop_slots[16]; st.shared.u32 [gpud_loop_slots], 1;"
    yield Attack("the slots of the loop", program(slots), 0, REFUSED, "a name that gpud uses")
    for name in ("k__gpud_killable", "k__gpud_sliced"):
        source = program("", name=name)
        yield Attack(f"entry {name}", source, 0, REFUSED, "names that end so are gpud's")
    for pseudo in (
        "gpud.bounds.global [%rd2], 4, 1, 0, 0, 4, 1, 0;", "gpud.poll;",
        "gpud.move.b64 %rd3, %rd2;", "gpud.callee %p1, %rd2, k;",
    ):  # fmt: skip
        source = program(f"{pseudo} {hit}")
        yield Attack(pseudo.split()[0], source, "neighbour", REFUSED)
    yield Attack("a quoted name", program("", name='k"x'), 0, REFUSED)


# -- the other state spaces --------------------------------------------------------------------


def _spaces() -> Iterator[Attack]:
    read = "st.global.u32 [%rd1+4], %r2;"
    for space in ("shared", "local"):
        box = f".{space} .align 16 .b8 box[64]; mov.u64 %rd5, box;"
        for offset in (1 << 20, 1 << 40, 4096 * 16, -16, -(1 << 31)):
            add = "add.s64 %rd5, %rd5, %rd2;"
            what = f"{space} {offset:+#x}"
            at = offset % (1 << 64)
            # Of a shared address only the low 32 bits count, as on a GPU.
            own = RUNS if space == "shared" and not at % (1 << 32) else ILLEGAL
            for name, access, outcome in (
                (f"st.{what}", f"{add} st.{space}.u32 [%rd5], 9;", own),
                (f"ld.{what}", f"{add} ld.{space}.u32 %r2, [%rd5]; {read}", own),
                (
                    f"generic {what}",
                    f"cvta.{space}.u64 %rd5, %rd5; {add} st.u32 [%rd5], 9;",
                    ILLEGAL,
                ),
            ):
                yield Attack(name, program(box + access), at, outcome)
    for space in ("const", "global"):
        top = f".{space} .align 16 .b8 box[64];\n"
        for offset in (1 << 20, -(1 << 40), 1 << 62):
            body = f"mov.u64 %rd5, box; add.s64 %rd5, %rd5, %rd2; ld.{space}.u32 %r2, [%rd5];"
            name, at = f"ld.{space} {offset:+#x}", offset % (1 << 64)
            yield Attack(name, program(body + read, top), at, ILLEGAL)
    # The first and the last thread are inside, and all between them outside.
    for space, declared in (("shared", ""), ("local", ""), ("const", "top"), ("global", "top")):
        top = f".{space} .align 16 .b8 box[64];"
        for bits, threads in ((64, 9), (64, 3), (64, 33), (32, 9), (32, 33)):
            turn = (1 << bits) // (threads - 1)
            how = f"mov.u64 %rd5, box; cvt.u64.u32 %rd6, %r1; mad.lo.u64 %rd5, %rd6, {turn}, %rd5;"
            address = "%rd5"
            if bits == 32:
                if space != "shared":
                    continue
                how = f"mov.u32 %r5, box; mad.lo.u32 %r5, %r1, {turn}, %r5;"
                address = "%r5"
            how += f"ld.{space}.u32 %r2, [{address}]; add.s32 %r3, %r2, 1;"
            if space != "const":
                how += f"st.{space}.u32 [{address}], %r3;"
            source = program(how, top + "\n") if declared else program(top + how)
            name = f"{space} around {bits} bits, {threads} threads"
            outcome = RUNS if space == "shared" and bits == 64 else ILLEGAL
            yield Attack(name, source, 0, outcome, threads=threads)
    shared = ".shared .align 16 .b8 box[64]; mov.u32 %r4, box; cvt.u32.u64 %r5, %rd2;"
    shared += "add.u32 %r4, %r4, %r5;"
    for access in (
        "atom.shared.add.u32 %r6, [%r4], 1;", "red.shared.add.u32 [%r4], 1;",
        "atom.shared.cas.b32 %r6, [%r4], 0, 1;", "mbarrier.init.shared.b64 [%r4], 1;",
        "cp.async.ca.shared.global [%r4], [%rd1], 16;",
        "st.shared.v4.u32 [%r4], {%r1, %r1, %r1, %r1};",
    ):  # fmt: skip
        yield Attack(f"{access.split()[0]} far", program(shared + access), 1 << 24, ILLEGAL)
    fill = "mov.u32 %r4, 0; L: st.shared.u32 [%r4], 0; add.u32 %r4, %r4, 4;"
    fill += "setp.lt.u32 %p1, %r4, 49152; @%p1 bra L;"
    yield Attack("all of shared memory", program(fill), 0, ILLEGAL)
    yield Attack("an absolute address", program("ld.global.u32 %r2, [4096];" + read), 0, ILLEGAL)
    yield Attack("a 32-bit address", program("st.global.u32 [%r1], 1;"), 0, ILLEGAL)
    for access in (
        "mbarrier.init.b64 [%rd2], 1;", "mbarrier.arrive.b64 %rd3, [%rd2];",
        "mbarrier.inval.b64 [%rd2];", "mbarrier.test_wait.b64 %p1, [%rd2], %rd3;",
        "cp.async.mbarrier.arrive.noinc.b64 [%rd2];", "discard.global.L2 [%rd2], 128;",
    ):  # fmt: skip
        for value in ("neighbour", "host", 0):
            yield Attack(f"{access.split()[0]} at {value}", program(access), value, ILLEGAL)


def _matrices() -> Iterator[Attack]:
    """Matrices that begin elsewhere, or inside with a stride that leads elsewhere."""
    registers = ", ".join(f"%r{n}" for n in range(8, 16))
    fill = "".join(f"mov.b32 %r{n}, 9;" for n in range(8, 16))
    registers = f"{{{{{registers}}}}}"
    for layout in ("row", "col"):
        shape = f"sync.aligned.{layout}.m16n16k16{{}}"
        load = f"wmma.load.a.{shape}.f16 {registers}, [{{}}], {{}};"
        store = f"wmma.store.d.{shape}.f32 [{{}}], {registers}, {{}};"
        for name, access in (("load", load), ("store", fill + store)):
            for space in (".global", ""):
                what = f"wmma.{name} {layout}{space}"
                for value in ("neighbour", "host", 0, "end"):
                    body = access.format(space, "%rd2", 16)
                    yield Attack(f"{what} at {value}", program(body), value, ILLEGAL)
                far = "cvt.u32.u64 %r4, %rd2;" + access.format(space, "%rd1", "%r4")
                yield Attack(f"{what} of a stride", program(far), 1 << 28, ILLEGAL)
            shared = ".shared .align 32 .b8 box[1024]; mov.u32 %r5, box; cvt.u32.u64 %r4, %rd2;"
            body = shared + access.format(".shared", "%r5", "%r4")
            yield Attack(f"wmma.{name} {layout}.shared", program(body), 1 << 14, ILLEGAL)


def _bulk_copies() -> Iterator[Attack]:
    """Copies that begin, end or report elsewhere; the arena and shared memory are far apart."""
    start = ".shared .align 16 .b8 box[64]; .shared .align 8 .b64 done; mov.u32 %r4, box;"
    start += "mov.u32 %r5, done; cvt.u32.u64 %r6, %rd2; mov.u32 %r7, 64;"
    start += "mbarrier.init.shared.b64 [%r5], 1;"
    load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];"
    store = "cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};"
    add = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [{}], [{}], {};"
    within = load.replace("global", "shared::cta")
    for value in ("neighbour", "host", 0, "end"):
        for size in ("64", "%r7"):
            body = load.format("%r4", "%rd2", size, "%r5")
            yield Attack(f"bulk load of {size} at {value}", program(start + body), value, ILLEGAL)
            for name, access in (("store", store), ("add", add)):
                body = access.format("%rd2", "%r4", size)
                what = f"bulk {name} of {size} at {value}"
                yield Attack(what, program(start + body), value, ILLEGAL)
    for value in (1 << 24, (1 << 32) - 16, (1 << 32) - (1 << 20)):
        for name, body in (
            ("load of too much", load.format("%r4", "%rd1", "%r6", "%r5")),
            ("load to elsewhere", load.format("%r6", "%rd1", 64, "%r5")),
            ("load that tells elsewhere", load.format("%r4", "%rd1", 16, "%r6")),
            ("store of too much", store.format("%rd1", "%r4", "%r6")),
            ("store from elsewhere", store.format("%rd1", "%r6", 64)),
            ("add of too much", add.format("%rd1", "%r4", "%r6")),
            ("move of too much", within.format("%r4", "%r4", "%r6", "%r5")),
            ("move to elsewhere", within.format("%r6", "%r4", 64, "%r5")),
        ):
            yield Attack(f"bulk {name} {value:#x}", program(start + body), value, ILLEGAL)
    # The length is a constant only on a path that the program does not take.
    jump = "setp.eq.u32 %p1, %r1, %r1; cvt.u32.u64 %r8, %rd2; @%p1 bra L; mov.u32 %r8, 16; L:"
    body = start + jump + store.format("%rd1", "%r4", "%r8")
    yield Attack("bulk store of a length set elsewhere", program(body), 1 << 24, ILLEGAL)


def _textures() -> Iterator[Attack]:
    """Handles that are none, and descriptions that a program wrote itself."""
    fetch = "tex.2d.v4.u32.f32 {{%r8, %r9, %r10, %r11}}, [{0}, {{%f1, %f1}}];"
    fetch += "st.global.u32 [%rd1+8], %r8;"
    read = "suld.b.2d.b32.trap {{%r8}}, [{0}, {{%r4, %r4}}];"
    write = "sust.b.2d.b32.zero [{0}, {{%r4, %r4}}], {{%r4}};"
    query = "txq.width.b32 %r8, [{0}]; st.global.u32 [%rd1+8], %r8;"
    start = ".reg .f32 %f1; mov.f32 %f1, 0f3F800000; mov.b32 %r4, 4;"
    for name, access in (("tex", fetch), ("suld", read), ("sust", write), ("txq", query)):
        for value in ("neighbour", "host", 0, "end"):
            body = start + access.format("%rd2")
            yield Attack(f"{name} by a handle at {value}", program(body), value, ILLEGAL)
        if name == "txq":
            continue
        body = start + access.format("%rd1")
        yield Attack(f"{name} by an array", program(body), 0, ILLEGAL)
        # 64 bytes that look like the real ones: width, height, depth, data, row, slice.
        forged = "mov.u32 %r5, 1953853543; mov.u32 %r6, 4096; mov.u32 %r7, 64;"
        forged += "st.global.v4.u32 [%rd1+64], {%r5, %r6, %r7, %r7};"
        forged += "st.global.u32 [%rd1+80], 1; st.global.u64 [%rd1+88], %rd2;"
        forged += "st.global.u64 [%rd1+96], 64; st.global.u64 [%rd1+104], 4096;"
        forged += "add.s64 %rd3, %rd1, 64;"
        for value in ("neighbour", "host", 0, "end"):
            body = forged + start + access.format("%rd3")
            what = f"{name} by a description of {value}"
            yield Attack(what, program(body), value, ILLEGAL)
    top = ".func gpud_texture_element (.param .b64 a) { ret; }\n"
    source = program(start + fetch.format("%rd2"), top)
    yield Attack("a function of textures", source, 0, REFUSED, "a name that gpud uses")


def _parameters() -> Iterator[Attack]:
    """The last, hidden parameter points to what the loop around the kernel follows."""
    for offset in (8, 16, 4096, -4096, 1 << 20):
        load = f"ld.param.u64 %rd5, [p1{offset:+d}]; st.global.u64 [%rd1+8], %rd5;"
        yield Attack(f"ld.param {offset:+d}", program(load), 0, ILLEGAL)
        by_register = f"mov.u64 %rd4, p1; ld.param.u64 %rd5, [%rd4{offset:+d}];"
        by_register += "st.global.u64 [%rd1+8], %rd5;"
        yield Attack(f"ld.param by register {offset:+d}", program(by_register), 0, ILLEGAL)
    for offset in (0, 8, 16):
        for how in ("st.param", "st.param::entry", "st.param::func"):
            body = f"{how}.u64 [p1+{offset}], %rd2; bar.sync 0;"
            yield Attack(f"{how} +{offset}", program(body), "neighbour", ILLEGAL)
        body = f"mov.u64 %rd5, p1; st.param.u64 [%rd5+{offset}], %rd2; bar.sync 0;"
        yield Attack(f"st.param by register +{offset}", program(body), "neighbour", ILLEGAL)
        top = ".func f(.param .b64 a) { .reg .b64 %q; ld.param.b64 %q, [a];"
        top += f"st.param.u64 [%q+{offset}], %q; ret; }}\n"
        body = f"mov.u64 %rd5, p1; {call('f', '%rd5')}"
        yield Attack(f"st.param in a function +{offset}", program(body, top), 0, ILLEGAL)
        for access in ("st.u64 [{}], %rd2;", "red.add.u64 [{}], 8;", "mbarrier.init.b64 [{}], 3;"):
            body = "mov.u64 %rd5, p1; cvta.param.u64 %rd5, %rd5;"
            body += access.format(f"%rd5+{offset}") + "bar.sync 0;"
            name = f"generic {access.split()[0]} on a parameter +{offset}"
            yield Attack(name, program(body), "neighbour", ILLEGAL)


def _functions() -> Iterator[Attack]:
    store = "st.local.u64 [%q], 9;"
    generic = "cvta.local.u64 %q, %q; st.u64 [%q], 9;"
    for name, access in (("st.local", store), ("generic", generic)):
        for offset in (4096, 1 << 20, 1 << 26, -8, -4096, -(1 << 20)):
            top = ".func f(.param .b64 a) { .reg .b64 %q, %z; .local .align 8 .b8 box[16];"
            top += f"ld.param.b64 %z, [a]; mov.u64 %q, box; add.s64 %q, %q, %z; {access} ret; }}\n"
            source = program(call("f", "%rd2"), top)
            yield Attack(f"{name} in a frame {offset:+#x}", source, offset % (1 << 64), ILLEGAL)
    for offset in (4096, 1 << 20, -4096):
        top = ".func (.param .align 8 .b8 r[64]) f(.param .align 8 .b8 a[64]) { .reg .b64 %q;"
        body = "{ .param .align 8 .b8 x[64]; .param .align 8 .b8 y[64]; st.param.b64 [x], %rd2;"
        body += "call (y), f, (x); ld.param.b64 %rd3, [y]; st.global.u64 [%rd1+8], %rd3; }"
        for name, access in (
            ("reads its argument", f"ld.param.b64 %q, [a{offset:+d}]; st.param.b64 [r], %q;"),
            ("writes its result", f"st.param.b64 [r{offset:+d}], 5;"),
        ):
            source = program(body, f"{top} {access} ret; }}\n")
            yield Attack(f"a function {name} {offset:+d}", source, 0, ILLEGAL)
    recursive = (
        ".func (.param .b64 r) f(.param .b64 n) {{ .reg .b64 %a<4>; .reg .pred %p; {0}"
        "ld.param.b64 %a0, [n]; setp.eq.s64 %p, %a0, 0; @%p bra E; add.s64 %a1, %a0, -1;"
        "{{ .param .b64 x; .param .b64 y; st.param.b64 [x], %a1; call (y), f, (x);"
        "ld.param.b64 %a2, [y]; }} add.s64 %a0, %a2, %a0; E: st.param.b64 [r], %a0; ret; }}\n"
    )
    body = call("f", "%rd2", result=".b64")
    for depth, outcome in ((1000, RUNS), (10**6, TRAPPED), ((1 << 63) - 1, TRAPPED)):
        source = program(body, recursive.format(""))
        yield Attack(f"recursion {depth}", source, depth, outcome)
    fat = ".local .align 8 .b8 fat[65536]; .reg .b64 %q; mov.u64 %q, fat; st.local.u64 [%q], 1;"
    yield Attack("fat recursion", program(body, recursive.format(fat)), 500, TRAPPED)
    # Values that live across the call are on the stack of the SM's thread, many in each frame.
    source = program(body, ".global .align 8 .b64 from[16];\n" + _wide_recursion(1500))
    yield Attack("wide recursion", source, 10**6, TRAPPED)
    proto = "P: .callprototype _ (); {} call %rd2, (), P;"
    for value in ("host", 0, 7):
        source = program(proto.format(""), ".func f { ret; }\n")
        yield Attack(f"a call of {value}", source, value, TRAPPED)
    table = "T: .branchtargets L0, L1; cvt.u32.u64 %r2, %rd2; brx.idx %r2, T; L0: mov.u32 %r3, 1;"
    yield Attack("brx beyond its table", program(table + "L1:"), 0xFFFFFFF0, TRAPPED)


def _wide_recursion(count: int) -> str:
    loads = (f"ld.volatile.global.u64 %a{n}, [from+{8 * (n % 16)}];" for n in range(count))
    sums = (f"add.s64 %s, %s, %a{n}; mul.lo.u64 %s, %s, 31;" for n in range(count))
    return f"""
.func (.param .b64 r) f(.param .b64 m) {{
  .reg .b64 %n, %s, %t; .reg .b64 %a<{count}>; .reg .pred %p;
  ld.param.b64 %n, [m]; mov.b64 %s, 0; setp.eq.s64 %p, %n, 0; @%p bra E;
  {" ".join(loads)}
  add.s64 %t, %n, -1;
  {{ .param .b64 x; .param .b64 y; st.param.b64 [x], %t; call (y), f, (x); ld.param.b64 %s, [y]; }}
  {" ".join(sums)}
E: st.param.b64 [r], %s; ret;
}}
"""


def _changing() -> Iterator[Attack]:
    """A pointer that is good when it is looked at, and bad when it is used."""
    box = ".local .align 8 .b64 box[2]; mov.u64 %rd5, box;"
    loads = ("ld.param.u64", "ld.param::entry.u64", "ld.param::func.u64", "ld.local.u64")
    for load in loads:
        get = f"{load} %rd6, [%rd5];"
        good, bad = "st.local.u64 [box], %rd1;", "st.local.u64 [box], %rd2;"
        for meet in ("", "bar.sync 0;"):
            how = f"by {load}{', with a barrier' if meet else ''}"
            body = f"{box} {good} {meet} {bad} {get} st.global.u32 [%rd6], 1;"
            yield Attack(f"changed before {how}", program(body), "neighbour", ILLEGAL)
            body = f"{box} {good} {get} ld.global.u32 %r5, [%rd6]; {bad} {meet}"
            body += f"st.global.u32 [%rd6], %r5; {meet} st.global.u32 [%rd6+4], 1;"
            yield Attack(f"changed after {how}", program(body), "neighbour", RUNS)
            body = f"{box} {good} mov.u32 %r7, 0; L: {get} st.global.u32 [%rd6], %r7; {bad} {meet}"
            body += "add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, 3; @%p1 bra L;"
            yield Attack(f"changed in a loop {how}", program(body), "neighbour", ILLEGAL)
    step = "st.global.u32 [%rd3], %r2; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra L;"
    body = f"mov.u32 %r2, 0; L: cvt.u64.u32 %rd3, %r2; mad.lo.u64 %rd3, %rd3, {1 << 61}, %rd1;"
    yield Attack("a loop around 64 bits", program(body + step), 0, ILLEGAL)
    step = step.replace("add.u32", f"add.s64 %rd3, %rd3, {1 << 61}; add.u32", 1)
    body = "mov.u32 %r2, 0; mov.u64 %rd3, %rd1; L:"
    yield Attack("a pointer around 64 bits", program(body + step), 0, ILLEGAL)


def _heap() -> Iterator[Attack]:
    top = (
        ".extern .func (.param .b64 r) malloc(.param .b64 n);\n.extern .func free(.param .b64 p);\n"
    )
    take = "{ .param .b64 a; .param .b64 b; st.param.b64 [a], %rd4; call (b), malloc, (a);"
    take += "ld.param.b64 %rd3, [b]; }"
    give = call("free", "%rd3")
    for value in ("neighbour", "host", "own", 8, (1 << 64) - 16):
        yield Attack(f"free({value})", program(call("free", "%rd2"), top), value, RUNS)
    for name, body, value, outcome in (
        ("double free", take + give + give, 64, RUNS),
        ("malloc of 2^40", take + "st.global.u64 [%rd1+8], %rd3;", 1 << 40, RUNS),
        ("malloc and use", take + "st.u64 [%rd3+56], %rd3; ld.u64 %rd5, [%rd3];" + give, 64, RUNS),
        ("past the heap", take + "add.s64 %rd3, %rd3, 1073741824; st.u64 [%rd3], 1;", 64, ILLEGAL),
    ):
        yield Attack(name, program("mov.u64 %rd4, %rd2;" + body, top), value, outcome)


def _sizes() -> Iterator[Attack]:
    use = "mov.u64 %rd5, big;"
    for size in (1 << 40, 1 << 62):
        for space in ("global", "const"):
            source = program(use, f".{space} .align 4 .b8 big[{size}];\n")
            yield Attack(f".{space} of {size:#x} bytes", source, 0, REFUSED)
        for space in ("shared", "local"):
            source = program(f".{space} .align 4 .b8 big[{size}]; {use}")
            yield Attack(f".{space} of {size:#x} bytes", source, 0, REFUSED)
    source = program(use, ".global .align 2147483648 .b8 big[16];\n")
    yield Attack("an alignment of 2^31", source, 0, REFUSED)
    source = program(".reg .b32 %many<2000000000>;")
    yield Attack("2,000,000,000 registers", source, 0, REFUSED)


def _harmless() -> Iterator[Attack]:
    """What looks bad and is legal."""
    shared = ".shared .align 16 .b8 box[64]; mov.u32 %r4, box;"
    ignoring = "setp.eq.u32 %p1, %r4, %r4; cp.async.ca.shared.global [%r4], [%rd2], 16, %p1;"
    turn = "ld.global.u32 %r3, [%rd2]; add.u32 %r2, %r2, 1;"
    turn += "T: setp.lt.u32 %p1, %r2, 0; @%p1 bra L;"
    for name, body in (
        ("prefetch", "prefetch.global.L2 [%rd2]; prefetch.L1 [%rd2]; prefetchu.L1 [%rd2];"),
        (
            "a copy of nothing",
            f"{shared} mov.u32 %r5, 0; cp.async.cg.shared.global [%r4], [%rd2], 16, %r5;",
        ),
        ("a copy that ignores its source", f"{shared} {ignoring}"),
        ("an access that nobody makes", "setp.ne.u32 %p1, %r1, %r1; @%p1 st.u32 [%rd2], 1;"),
        ("a loop without turns", f"mov.u32 %r2, 0; bra T; L: {turn}"),
        ("fences of the other kind", "membar.gl; fence.sc.gpu; fence.acq_rel.sys;"),
    ):  # fmt: skip
        yield Attack(name, program(body), "neighbour", RUNS)
    body = "div.s32 %r2, %r1, 0; mov.u32 %r3, -2147483648; cvt.u32.u64 %r5, %rd2;"
    body += "div.s32 %r6, %r3, %r5; rem.s32 %r7, %r3, %r5; rem.u64 %rd5, %rd2, 0;"
    yield Attack("divisions by zero and -1", program(body), (1 << 64) - 1, RUNS)
    body = "mov.u32 %r5, -5; shfl.sync.idx.b32 %r6, %r1, %r5, -1, -1;"
    yield Attack("a shuffle from nowhere", program(body), 0, RUNS)


ATTACKS = (
    *_printing(), *_names(), *_spaces(), *_matrices(), *_bulk_copies(), *_textures(),
    *_parameters(), *_functions(), *_changing(), *_heap(), *_sizes(), *_harmless(),
)  # fmt: skip
GROUPS = 8


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_attack_is_refused_or_contained(world: World, group: int) -> None:
    pid = world.host_pid
    wrong = []
    for attack in ATTACKS[group::GROUPS]:
        found = _try(world, attack)
        if world.host_pid != pid:
            found, pid = f"{found}; the device host was replaced", world.host_pid
        if found:
            wrong.append(f"{attack}: {found}")
    assert not wrong, "\n".join(wrong)
    assert not world.neighbour_faults()


def _try(world: World, attack: Attack) -> str:
    """What was not right about the outcome of an attack."""
    layout = world.layout
    reset(world, layout)
    value = attack.value
    if isinstance(value, str):
        value = {
            "neighbour": layout.neighbours[0][0] + 64,
            "host": layout.host["code"],
            "own": layout.good,
            "end": layout.end - 3,
        }[value]
    entry = re.search(r"\.entry (\S+?)\(", attack.source)
    assert entry is not None
    output = ""
    error: BaseException | None
    try:
        kernel = world.gpu.kernel(attack.source, entry[1])
        job = kernel.submit(1, attack.threads, (layout.out, value))
        error = job.exception(TIMEOUT_S)
        output = job.output
    except gc.GpudError as refused:
        outcome, error = REFUSED, refused
    else:
        outcome = RUNS if error is None else type(error).__name__
        if isinstance(error, gc.IllegalAddress):
            outcome = ILLEGAL
        elif isinstance(error, gc.KernelTrap):
            outcome = TRAPPED
        elif isinstance(error, gc.LimitExceeded):
            outcome = REFUSED
    if _shows_secret(world, f"{output} {error}"):
        return "it shows the neighbour's memory"
    if outcome != attack.outcome or "InternalError" in type(error).__name__:
        return f"{outcome} instead of {attack.outcome}: {error!r}"
    if attack.said not in str(error):
        return f"the error does not say {attack.said!r}: {error}"
    if outcome == RUNS and world.read(layout.out, 4) != (77).to_bytes(4, "little"):
        return "it did not run to its end"
    return ""


def _shows_secret(world: World, said: str) -> bool:
    """Whether four bytes in a row of what lies there are in a text."""
    start = world.layout.neighbours[0][0] - world.below_base
    secret = bytes(world.files[0].read(start + 64, 256))
    data = said.encode("utf-8", "surrogateescape")
    return any(secret[at : at + 4] in data for at in range(252))


# -- by other ways than PTX --------------------------------------------------------------------

ENTRY = 'extern "C" __global__ void k'
STORE = 'asm volatile("st.global.u32 [%0], 5;" :: "l"(p));'


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        (f'#include "/etc/passwd"\n{ENTRY}(int* p) {{}}', gc.GpudError),
        (
            ENTRY + '(int* p) { asm volatile("$gpud_report_fault:"); }',
            gc.KernelRejected,
        ),
        (
            ENTRY + '(int* p) { asm volatile("gpud.poll;"); }',
            gc.KernelRejected,
        ),
        (
            f"{ENTRY} (char* p) {{ p += 1ll << 32; {STORE} }}",
            gc.IllegalAddress,
        ),
    ],
    ids=["include", "label", "pseudo-instruction", "store"],
)
def test_from_cuda(world: World, source: str, outcome: type[Exception]) -> None:
    def attempt() -> None:
        kernel = world.gpu.kernel(source, "k")
        kernel.submit(1, 32, (world.arrays["out"],)).result(TIMEOUT_S)

    with pytest.raises(outcome):
        attempt()
    assert not world.neighbour_faults()


SECRET = '__device__ int secret = 1; extern "C" __global__ void k(int* out) { out[0] = secret; }'


def test_the_same_source_in_two_sessions_has_two_sets_of_variables(world: World) -> None:
    with gc.connect(world.root.path) as one, gc.connect(world.root.path) as other:
        mine, theirs = one.kernel(SECRET, "k"), other.kernel(SECRET, "k")
        mine.module.symbol("secret", np.int32, ()).set(42)
        out, seen = one.zeros(1, np.int32), other.zeros(1, np.int32)
        mine.submit(1, 1, (out,)).result(TIMEOUT_S)
        theirs.submit(1, 1, (seen,)).result(TIMEOUT_S)
        assert (out.get()[0], seen.get()[0]) == (42, 1)
        with pytest.raises(gc.IllegalAddress):
            theirs.submit(1, 1, (out.ptr,)).result(TIMEOUT_S)
        assert out.get()[0] == 42


STRAY = 'extern "C" __global__ void k(int* p) { p[threadIdx.x] = 5; }'


def test_a_session_without_arrays_reaches_nothing(world: World) -> None:
    with gc.connect(world.root.path) as bare:
        kernel = bare.kernel(STRAY, "k")
        for address in (
            world.layout.neighbours[0][0],
            world.layout.good,
            world.layout.host["code"],
        ):
            with pytest.raises(gc.IllegalAddress):
                kernel.submit(1, 4, (address,)).result(TIMEOUT_S)
    assert not world.neighbour_faults()


def test_arrays_of_another_device_and_a_new_host() -> None:
    with gc.local(("cpu:1", "cpu:1"), memory="1 MiB") as gpu, gc.connect(gpu.path) as other:
        here, there = (gpu.zeros(4, np.int32, device=number) for number in (0, 1))
        theirs = other.array(np.arange(4, dtype=np.int32))
        kernel = gpu.kernel(STRAY, "k")

        def attack() -> None:
            for device, address in ((0, there.ptr), (1, here.ptr), (0, theirs.ptr)):
                with pytest.raises(gc.IllegalAddress):
                    kernel.submit(1, 4, (address,), device=device).result(TIMEOUT_S)

        attack()
        pid = gpu.query("status")["devices"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        for _ in range(int(TIMEOUT_S / 0.05)):
            if gpu.query("status")["devices"][0]["pid"] not in (None, pid):
                break
            time.sleep(0.05)
        attack()
        kernel.submit(1, 4, (here,)).result(TIMEOUT_S)
        assert here.get().tolist() == [5] * 4
        assert theirs.get().tolist() == [0, 1, 2, 3]
