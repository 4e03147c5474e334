"""The code that lowerings emit needs no library on any CPU that gpud runs on.

The JIT resolves symbols in its own process: what a compiler's run-time library would supply
(``__truncsfhf2``, ``__extendhfsf2``, ``__multi3`` ...) does not exist there.
"""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import pytest

from gpud.compiler.ptx import model as ptx
from tests.unit.cpu.lower.instruction_runner import Instructions, address, register

CODE = Instructions()
for _text, _output, _inputs in (
    ("cvt.f32.f16", "f4", "u2"),
    ("cvt.rn.f16.f32", "u2", "f4"),
    ("cvt.rn.f16.f64", "u2", "f8"),
    ("cvt.rz.bf16.f64", "u2", "f8"),
    ("cvt.rn.bf16x2.f32", "u4", "f4 f4"),
    ("cvt.rm.f32.u64", "f4", "u8"),
    ("cvt.rp.f64.s64", "f8", "i8"),
    ("cvt.rn.f16.u64", "u2", "u8"),
    ("cvt.rni.u64.f16", "u8", "u2"),
    ("cvt.rmi.s64.f64", "i8", "f8"),
    ("cvt.rn.satfinite.e4m3x2.f32", "u2", "f4 f4"),
    ("cvt.rn.f16x2.e5m2x2", "u4", "u2"),
    ("fma.rn.f16x2", "u4", "u4 u4 u4"),
    ("fma.rn.bf16", "u2", "u2 u2 u2"),
    ("add.bf16x2", "u4", "u4 u4"),
    ("max.NaN.f16", "u2", "u2 u2"),
    ("tanh.approx.bf16", "u2", "u2"),
    ("fma.rm.f32", "f4", "f4 f4 f4"),
    ("fma.rz.f64", "f8", "f8 f8 f8"),
    ("min.f64", "f8", "f8 f8"),
    ("sin.approx.f32", "f4", "f4"),
    ("ex2.approx.f32", "f4", "f4"),
    ("lg2.approx.f32", "f4", "f4"),
    ("sqrt.rn.f64", "f8", "f8"),
    ("mul.hi.s64", "i8", "i8 i8"),
    ("mad.hi.u64", "u8", "u8 u8 u8"),
    ("div.s64", "i8", "i8 i8"),
    ("rem.u32", "u4", "u4 u4"),
    ("popc.b64", "u4", "u8"),
    ("fns.b32", "u4", "u4 u4 i4"),
    ("vmad.s32.s32.s32", "i4", "i4 i4 i4"),
    ("vshl.s32.s32.u32.sat.clamp", "i4", "i4 u4"),
):
    CODE.define(_text, _output, _inputs)
for _text, _type in (
    ("atom.global.add.f64", "f8"),
    ("atom.global.add.noftz.f16x2", "u4"),
    ("atom.global.inc.u32", "u4"),
    ("atom.global.max.s64", "i8"),
    ("atom.shared.add.noftz.bf16", "u2"),
):
    CODE.define(_text, _type, ["u8", _type], ["%d0", address("%a0"), "%a1"])
CODE.define(
    [
        ptx.Instruction(ptx.opcode("ld.acquire.gpu.b128"), (register("%q"), address("%a0"))),
        ptx.Instruction(
            ptx.opcode("atom.global.cas.b128"),
            (register("%q"), address("%a0"), register("%q"), register("%q")),
        ),
    ],
    [],
    "u8",
    extra={"%q": "i128"},
)

LIBC = {"memcpy", "memset", "memmove"}
TARGETS = {
    "AVX2 and FMA": ("x86_64-unknown-linux-gnu", "x86-64-v3", "+cx16"),
    "without F16C": ("x86_64-unknown-linux-gnu", "x86-64-v3", "+cx16,-f16c"),
    "AVX-512": ("x86_64-unknown-linux-gnu", "x86-64-v4", "+cx16"),
    "AArch64": ("aarch64-unknown-linux-gnu", "generic", "+lse"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_no_library_is_called(name: str) -> None:
    triple, cpu, features = TARGETS[name]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM has no code generator for {triple}")
    machine = target.create_target_machine(
        cpu=cpu, features=features, opt=2, codemodel="small", reloc="pic"
    )
    module = llvm.parse_assembly(CODE.module.text())
    module.triple, module.data_layout = triple, str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    assembly = machine.emit_assembly(module)
    called = set(re.findall(r"^\s+(?:callq|bl|b|jmp)\s+([A-Za-z_][\w.]*)", assembly, re.MULTILINE))
    local = set(re.findall(r"^([A-Za-z_][\w.]*):", assembly, re.MULTILINE))
    assert "fma" in assembly or "fmadd" in assembly
    assert called - local <= LIBC
