"""What stands in for NVIDIA's linker and assembler: it hands out PTX, in the driver's one piece."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from gpud.compiler.pipeline import compile_program
from gpud_cuda.build import build_stand_ins, find_compiler
from tests.compiler.images.fat_binaries import ELF, LTO, PTX, container, entry, ptx

CUBIN_KIND, PTX_KIND, LTO_KIND, FAT_KIND, OBJECT_KIND, LIBRARY_KIND, ANY_KIND = 1, 2, 3, 4, 5, 6, 10
LTO_IR = b"\xed\x43\x4e\x7f" + bytes(60)
SUCCESS, INVALID_INPUT, INTERNAL = 0, 3, 6

# A library that makes PTX of LTO IR, as NVIDIA's does, with what it was asked for in a comment.
REAL = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct link { char text[4096]; int inputs; };
int __nvJitLinkCreate_12_0(void **made, unsigned count, const char **options) {
    struct link *link = *made = calloc(1, sizeof *link);
    strcpy(link->text, ".version 8.0\n.target sm_80\n.address_size 64\n//");
    for (unsigned i = 0; i < count; i++) strcat(strcat(link->text, " "), options[i]);
    strcat(link->text, "\n.visible .entry linked() { ret; }\n");
    return 0;
}
int __nvJitLinkAddData_12_0(struct link *link, int kind, const void *data, size_t n, char *name) {
    (void)kind, (void)name;
    link->inputs++;
    return ((const char *)data)[n - 1] == 'x' ? 5 : 0;
}
int __nvJitLinkComplete_12_0(struct link *link) { return link->inputs ? 0 : 3; }
int __nvJitLinkGetLinkedPtxSize_12_0(struct link *link, size_t *n) {
    *n = strlen(link->text) + 1; return 0;
}
int __nvJitLinkGetLinkedPtx_12_0(struct link *link, char *to) { strcpy(to, link->text); return 0; }
int __nvJitLinkGetErrorLogSize_12_0(struct link *link, size_t *n) { (void)link; *n = 8; return 0; }
int __nvJitLinkGetErrorLog_12_0(void *l, char *to) { (void)l; strcpy(to, "not IR!"); return 0; }
int __nvJitLinkDestroy_12_0(void **link) { free(*link); return 0; }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("standins")
    build_stand_ins(made)
    (made / "real.c").write_text(REAL)
    command = [*find_compiler(), "-shared", "-fPIC", "real.c", "-o", "real.so"]
    subprocess.run(command, cwd=made, check=True, timeout=100)
    return made


class Link:
    """A link with the stand-in of one major version."""

    def __init__(self, folder: Path, major: int, *options: str) -> None:
        self.library = ctypes.CDLL(str(folder / f"libnvJitLink.so.{major}"))
        self.handle = ctypes.c_void_p()
        given = (ctypes.c_char_p * len(options))(*(one.encode() for one in options))
        assert self.call("Create", ctypes.byref(self.handle), len(options), given) == SUCCESS

    def call(self, name: str, *arguments: Any) -> int:
        status: int = getattr(self.library, f"nvJitLink{name}")(*arguments)
        return status

    def add(self, kind: int, data: bytes) -> int:
        return self.call(
            "AddData", self.handle, kind, data, ctypes.c_size_t(len(data)), b"an input"
        )

    def read(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        assert self.call(f"Get{what}Size", self.handle, ctypes.byref(size)) == SUCCESS
        to = ctypes.create_string_buffer(size.value)
        assert self.call(f"Get{what}", self.handle, to) == SUCCESS
        return to.raw

    def images(self) -> list[bytes]:
        """The inputs, as `gpud_cuda/source/images.c` reads them."""
        assert self.call("Complete", self.handle) == SUCCESS
        linked = self.read("LinkedCubin")
        magic, size, count = struct.unpack_from("<8sQQ", linked)
        assert (magic, size) == (b"GPUDLINK", len(linked) - 24)
        unpacker = msgpack.Unpacker()
        unpacker.feed(linked[24:])
        found = list(unpacker)
        assert len(found) == count
        return found

    def close(self) -> None:
        assert self.call("Destroy", ctypes.byref(self.handle)) == SUCCESS
        assert self.handle.value is None


@pytest.fixture(params=[12, 13])
def link(folder: Path, request: pytest.FixtureRequest) -> Iterator[Link]:
    made = Link(folder, request.param, "-arch=sm_80")
    yield made
    made.close()


def test_inputs_come_out_as_they_went_in(link: Link, tmp_path: Path) -> None:
    fat = container(entry(ELF, 80, b"\x7fELF"), entry(PTX, 80, ptx("b")))
    assert link.add(PTX_KIND, ptx("a") + b"\0") == SUCCESS
    assert link.add(FAT_KIND, fat) == SUCCESS
    (tmp_path / "c.ptx").write_bytes(ptx("c"))
    path = str(tmp_path / "c.ptx").encode()
    assert link.call("AddFile", link.handle, PTX_KIND, path) == SUCCESS
    assert link.add(LIBRARY_KIND, b"!<arch>\nlibcudadevrt") == SUCCESS
    images = link.images()
    assert images == [ptx("a") + b"\0", fat, ptx("c")]
    assert sorted(compile_program("", images=images, sm=80).kernels) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (LTO_KIND, LTO_IR),
        (ANY_KIND, LTO_IR),
        (FAT_KIND, container(entry(ELF, 80, b"\x7fELF"), entry(LTO, 80, LTO_IR))),
    ],
)
def test_lto_ir_becomes_ptx_by_the_real_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: int, data: bytes
) -> None:
    monkeypatch.setenv("GPUD_NVJITLINK", str(folder / "real.so"))
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from tests.unit.programs.test_stand_ins import Link, ptx
link = Link(Path({str(folder)!r}), 13, "-arch=sm_80", "-lto")
assert link.add({kind}, {data!r}) == 0
assert link.add({PTX_KIND}, ptx("other")) == 0
other, made = link.images()
assert other == ptx("other")
assert b"// -arch=sm_80 -lto -ptx" in made and b"linked" in made
assert link.read("LinkedPtx").rstrip(b"\\0") == made
assert link.add({LTO_KIND}, b"\\xed\\x43\\x4e\\x7f..x") == 5
assert link.read("ErrorLog") == b"not IR!\\0"
link.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_the_real_library_the_log_says_what_to_do(
    link: Link, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUD_NVJITLINK", str(folder / "nothere.so"))
    assert link.add(LTO_KIND, LTO_IR) == INTERNAL
    assert b"install nvidia-nvjitlink" in link.read("ErrorLog")
    assert link.add(PTX_KIND, ptx("a")) == SUCCESS
    assert link.images() == [ptx("a")]


def test_wrong_uses_are_refused(link: Link, tmp_path: Path) -> None:
    size = ctypes.c_size_t()
    assert link.call("Complete", link.handle) == INVALID_INPUT
    assert b"nothing was added" in link.read("ErrorLog")
    assert link.call("GetLinkedCubinSize", link.handle, ctypes.byref(size)) == INVALID_INPUT
    assert link.call("GetLinkedPtxSize", link.handle, ctypes.byref(size)) == INVALID_INPUT
    assert link.add(PTX_KIND, b"") == INVALID_INPUT
    assert link.call("AddFile", link.handle, PTX_KIND, str(tmp_path / "no").encode()) == 3
    assert b"cannot be opened" in link.read("ErrorLog")
    for name, more in (("Complete", 0), ("Destroy", 0), ("GetErrorLogSize", 1), ("AddData", 4)):
        assert link.call(name, *[None] * (1 + more)) == INVALID_INPUT
    assert link.call("Create", None, 0, None) == INVALID_INPUT


def test_a_cut_off_fat_binary_is_read_to_its_end_only(link: Link) -> None:
    whole = container(entry(ELF, 80, b"\x7fELF"), entry(ELF, 90, b"\x7fELF"))
    for size in range(1, len(whole)):
        assert link.add(FAT_KIND, whole[:size]) == SUCCESS


def test_every_name_of_the_header_is_there(folder: Path) -> None:
    for major in (12, 13):
        library = ctypes.CDLL(str(folder / f"libnvJitLink.so.{major}"))
        for name in ("nvJitLinkCreate", "__nvJitLinkAddData_12_4", "__nvJitLinkVersion_13_0"):
            assert getattr(library, name)
        numbers = (ctypes.c_uint(), ctypes.c_uint())
        assert library.nvJitLinkVersion(*map(ctypes.byref, numbers)) == SUCCESS
        assert numbers[0].value == major


def test_the_assembler_keeps_the_ptx(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_bytes(ptx("k"))
    command = [str(folder / "ptxas"), "-lineinfo", "-v", "--gpu-name=sm_80", "k.ptx", "-o", "k.o"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=20)
    assert list(compile_program("", images=[(tmp_path / "k.o").read_bytes()]).kernels) == ["k"]
    said = subprocess.run(
        [command[0], "--version"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    assert "release 13.0" in said
    done = subprocess.run(
        [command[0], "-v"], capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == 1
    assert "no file of PTX was named" in done.stderr
