"""Linking: one program of several, in which each name has one meaning."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpud.compiler.forms.form import Form
from gpud.compiler.images.link import link
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Function, Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.ptx.verify import verify
from gpud.errors import LinkError, PTXSyntaxError

HELPER = ".func (.param .b32 r) helper(.param .b32 a)"
CALL = """{
    .param .b32 a0; .param .b32 r0;
    st.param.b32 [a0], %r1;
    call.uni (r0), NAME, (a0);
    ld.param.b32 %r1, [r0];
}"""


def file(text: str, version: str = "7.0", target: str = "sm_70") -> Module:
    return parse(f".version {version}\n.target {target}\n.address_size 64\n{text}\n")


def kernel(name: str, body: str) -> str:
    registers = ".reg .b32 %r<9>; .reg .b64 %rd<9>;"
    return f".visible .entry {name}(.param .u64 p) {{ {registers} {body} ret; }}\n"


def function(linkage: str, name: str, value: int) -> str:
    head = HELPER.replace("helper", name)
    return f"{linkage} {head} {{ st.param.b32 [r], {value}; ret; }}\n"


def calling(name: str) -> str:
    return CALL.replace("NAME", name)


def linked(*files: Module) -> str:
    made = link(files)
    text = print_module(made)
    verify(parse(text))
    names = [item.name for item in made.items if isinstance(item, Function) and item.body]
    assert len(names) == len(set(names))
    return " ".join(text.split())


def test_a_function_of_another_file_is_found_and_declared_ahead() -> None:
    user = file(f".extern {HELPER};\n" + kernel("k", calling("helper")))
    text = linked(user, file(function(".visible", "helper", 5)))
    assert text.index("helper") < text.index(".entry k") < text.index("[r], 5")
    assert ".extern" not in text
    assert text == linked(user, file(function(".visible", "helper", 5)))


def test_a_variable_of_another_file_comes_before_who_uses_it() -> None:
    user = file(
        ".extern .global .align 4 .u32 n; .visible .global .u64 at = n;\n"
        + kernel("k", "ld.global.u32 %r1, [n];")
    )
    text = linked(user, file(".visible .global .align 4 .u32 n = 7;"))
    assert text.index(".u32 n = 7;") < text.index(".u64 at = n;") < text.index("[n]")


def test_local_names_are_kept_apart() -> None:
    files = [
        file(
            f".global .u32 state = {n}; .global .u64 at = state;\n"
            + function("", "step", n)
            + kernel(f"k{n}", "ld.global.u32 %r1, [state+4]; mov.u64 %rd1, step;" + calling("step"))
        )
        for n in (1, 2)
    ]
    text = linked(*files)
    for n in (1, 2):
        assert f".global .u32 state__{n} = {n};" in text
        assert f".global .u64 at__{n} = state__{n};" in text
        own = text[text.index(f".entry k{n}") :].partition("ret;")[0]
        assert f"[state__{n}+4]" in own
        assert f"mov.u64 %rd1, step__{n};" in own
        assert f"call.uni (r0), step__{n}, (a0)" in own


def test_a_local_name_gives_way_to_a_visible_one() -> None:
    text = linked(
        file(".global .u32 n = 1;\n" + kernel("a", "ld.global.u32 %r1, [n];")),
        file(".visible .global .u32 n = 2;\n" + kernel("b", "ld.global.u32 %r1, [n];")),
    )
    assert ".global .u32 n__1 = 1;" in text
    assert ".visible .global .u32 n = 2;" in text


def test_names_within_a_function_are_its_own() -> None:
    hiding = kernel("a", ".local .u32 n; st.local.u32 [n], 1; bra $L; $L:")
    text = linked(file(".global .u32 n;\n" + hiding), file(".global .u32 n;"))
    assert "st.local.u32 [n], 1;" in text


@pytest.mark.parametrize(
    ("linkages", "kept"),
    [
        ((".weak", ".weak"), 0),
        ((".weak", ".visible"), 1),
        ((".visible", ".weak"), 0),
        ((".weak", ".weak", ".visible", ".weak"), 2),
    ],
)
def test_weak_definitions(linkages: tuple[str, ...], kept: int) -> None:
    files = [file(function(one, "f", 10 + n)) for n, one in enumerate(linkages)]
    text = linked(*files)
    assert [n for n in range(len(files)) if f"[r], {10 + n};" in text] == [kept]


def test_the_largest_common_variable_stays() -> None:
    files = [file(f".common .global .align 4 .b8 pool[{size}];") for size in (16, 64, 32)]
    assert ".b8 pool[64]" in linked(*files)
    assert ".b8 pool[8]" in linked(*files, file(".visible .global .align 4 .b8 pool[8];"))


def test_dynamic_shared_memory_is_declared_once() -> None:
    text = ".extern .shared .align {} .b8 smem[];\n"
    files = [
        file(text.format(align) + kernel(name, "mov.u64 %rd1, smem;"))
        for name, align in (("a", 4), ("b", 16))
    ]
    made = linked(*files)
    assert made.count(".extern .shared") == 1
    assert ".extern .shared .align 16" in made


def test_newest() -> None:
    files = [
        file("", "7.8", "sm_70, texmode_independent"), file("", "8.1", "sm_90a"),
        file("", "6.4", "sm_90"),
    ]  # fmt: skip
    made = link(files)
    assert made.version == (8, 1)
    assert made.target == ("sm_90a", "texmode_independent")


def test_a_file_for_a_newer_device_is_left_out_unless_it_is_needed() -> None:
    user = file(f".extern {HELPER};\n" + kernel("k", calling("helper")), "8.0", "sm_80")
    helper = file(function(".visible", "helper", 5), "8.0", "sm_90")
    runtime = file(function(".visible", "cudaDeviceSynchronize", 0), "8.8", "sm_121")
    assert link([user, helper, runtime], 86).target == ("sm_90",)
    assert link([user, helper, runtime]).target == ("sm_121",)
    assert link([runtime], 86).target == ("sm_121",)


def test_lines_name_their_files_by_new_numbers() -> None:
    one = '.file 1 "a.cu"\n.file 2 "a.h"\n' + kernel("a", "\n.loc 2 5 7\n")
    two = '.file 1 "b.cu"\n' + kernel("b", "\n.loc 1 9 3, function_name $info, inlined_at 1 2 3\n")
    text = linked(file(one), file(two + ".section .debug_str { $info: .b8 0 }"))
    assert '.file 1 "a.cu" .file 2 "a.h" .file 3 "b.cu"' in text
    assert ".loc 2 5 7" in text
    assert ".loc 3 9 3" in text
    assert "debug_str" not in text
    assert "function_name" not in text


@pytest.mark.parametrize(
    ("texts", "names", "words"),
    [
        ([function(".visible", "f", 1)] * 2, ("f",), "defined more than once"),
        ([kernel("k", "")] * 2, ("k",), "defined more than once"),
        (
            [f".extern {HELPER};\n" + kernel("k", calling("helper")), ".global .u32 x;"],
            ("helper",),
            "helper is used, and no file defines it",
        ),
        (
            [
                ".extern .global .u32 n;\n" + kernel("k", "ld.global.u32 %r1, [n];"),
                ".extern .const .u32 m;\n" + kernel("j", "ld.const.u32 %r1, [m];"),
            ],
            ("n", "m"),
            "n, m are used, and no file defines",
        ),
        (
            [
                f".extern {HELPER};\n" + kernel("k", calling("helper")),
                ".visible .func helper(.param .b32 a) { ret; }",
            ],
            ("helper",),
            "other parameters",
        ),
        ([".extern .global .u64 n;", ".visible .global .u32 n;"], ("n",), "space or size"),
        ([".extern .global .u32 f;", function(".visible", "f", 1)], ("f",), "declared with other"),
    ],
)  # fmt: skip
def test_what_cannot_be_linked_is_named(
    texts: list[str], names: tuple[str, ...], words: str
) -> None:
    with pytest.raises(LinkError) as refused:
        link([file(text) for text in texts])
    assert refused.value.names == names
    assert words in str(refused.value)


def test_what_only_the_device_runtime_has_rejects_the_kernels_that_use_it() -> None:
    launch = ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b32 a);\n"
    images = [
        print_module(file(launch + kernel("nested", calling("cudaLaunchDeviceV2")))).encode(),
        print_module(file(kernel("plain", ""))).encode(),
    ]
    made = compile_program("", images=images)
    assert made.kernels["nested"].form is Form.REJECTED
    assert made.kernels["plain"].form is Form.PERSISTENT


PRINTS = """
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);
.extern .func (.param .b64 p) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 u, .param .b64 c);
.global .align 1 .b8 $str[3] = {104, 105, 0};
"""  # noqa: E501


def test_the_functions_of_devices_need_no_definition() -> None:
    body = """{
        .param .b64 f; .param .b64 v; .param .b32 r;
        mov.u64 %rd1, $str; st.param.b64 [f], %rd1; st.param.b64 [v], %rd1;
        call.uni (r), vprintf, (f, v);
        .param .b64 n; .param .b64 p;
        st.param.b64 [n], 8; call.uni (p), malloc, (n); call.uni free, (p);
    }"""
    images = [print_module(file(PRINTS + kernel(name, body))).encode() for name in "ab"]
    made = compile_program("", images=images)
    assert {one.form for one in made.kernels.values()} == {Form.PERSISTENT}
    assert made.original_ptx.count(" vprintf(") == 1


GRID = """
.extern .func (.param .b64 h) cudaCGGetIntrinsicHandle(.param .b32 s);
.extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 f);
"""
SYNC = """{
    .param .b32 s; .param .b64 h; .param .b64 g; .param .b32 f; .param .b32 r;
    st.param.b32 [s], 1;
    call.uni (h), cudaCGGetIntrinsicHandle, (s);
    ld.param.b64 %rd1, [h];
    st.param.b64 [g], %rd1; st.param.b32 [f], 0;
    call.uni (r), cudaCGSynchronize, (g, f);
}"""


def test_the_functions_that_synchronise_the_grid_are_built_in() -> None:
    made = compile_program("", images=[print_module(file(GRID + kernel("k", SYNC))).encode()])
    assert made.kernels["k"].form is Form.WHOLE
    assert made.kernels["k"].cooperative


def test_an_image_that_is_no_ptx_is_not_linked() -> None:
    with pytest.raises(PTXSyntaxError):
        compile_program("", images=[b".version 7.0\n.target sm_70\n", b".version nonsense"])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_what_nvcc_compiles_separately(tmp_path: Path) -> None:
    sources = {
        "one": "extern __device__ int n; __device__ int get(int); static __device__ int s = 1;"
        'extern "C" __global__ void a(int* x) { *x = get(n) + s++; }',
        "two": "__device__ int n; static __device__ int s = 2;"
        "__device__ int get(int x) { return x + s++; }",
    }
    images = []
    for name, source in sources.items():
        (tmp_path / f"{name}.cu").write_text(source)
        command = ["nvcc", "-rdc=true", "-lineinfo", "-fatbin", "-arch=compute_80", f"{name}.cu"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=100)
        images.append((tmp_path / f"{name}.fatbin").read_bytes())
    made = compile_program("", images=images, sm=90)
    assert made.kernels["a"].form is Form.PERSISTENT
    assert min(made.symbols).startswith("__nv_static")
