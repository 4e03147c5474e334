"""Images: PTX is found in what the CUDA driver takes, and all else is refused by name."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.compiler.images.image import MOST_BYTES, ptx_of
from gpud.compiler.pipeline import compile_program
from gpud.errors import GpudError, ImageError
from tests.compiler.images.fat_binaries import (
    ELF,
    LTO,
    LZ4,
    ONLY_THIS_ARCH,
    PACKERS,
    PTX,
    ZSTD,
    container,
    entry,
    ptx,
)

ELF_FILE = b"\x7fELF\x02\x01\x01" + bytes(60)


def machine_code(*kernels: str) -> bytes:
    """Return an ELF file with a section for each kernel, and that of the names."""
    names = b"\0" + b"".join(f".text.{one}\0".encode() for one in kernels)
    starts, at = [], 1
    for one in kernels:
        starts.append(at)
        at += len(one) + 7
    table = 64 + len(names)
    head = struct.pack("<4sB35xQ10xHHH", b"\x7fELF", 2, table, 64, len(kernels) + 1, len(kernels))
    sections = [struct.pack("<I20xQQ24x", start, 0, 0) for start in starts]
    return head + names + b"".join([*sections, struct.pack("<I20xQQ24x", 0, 64, len(names))])


@pytest.mark.parametrize("end", [b"", b"\0", b"\0\0\0\0"])
def test_ptx_may_end_in_nul(end: bytes) -> None:
    assert ptx_of(ptx("k") + end, 80) == ptx("k").decode()


@pytest.mark.parametrize("packing", PACKERS)
def test_ptx_is_found_in_a_container(packing: int) -> None:
    image = container(
        entry(ELF, 80, ELF_FILE), entry(PTX, 80, ptx("k"), packing), entry(LTO, 90, b"\xed")
    )
    assert ptx_of(image, 86) == ptx("k").decode()


@pytest.mark.parametrize(
    ("sm", "chosen"),
    [(70, "b75"), (75, "b75"), (86, "b80"), (90, "b90"), (100, "b90"), (None, "b90")],
)
def test_the_newest_that_the_device_runs_is_chosen(sm: int | None, chosen: str) -> None:
    only = entry(PTX, 90, ptx("b90a"), flags=ONLY_THIS_ARCH)
    held = [entry(PTX, arch, ptx(f"b{arch}")) for arch in (80, 75, 90)]
    assert f".entry {chosen}(" in ptx_of(container(only, *held), sm)


def test_ptx_for_one_architecture_only_is_chosen_there_alone() -> None:
    image = container(entry(PTX, 90, ptx("a"), flags=ONLY_THIS_ARCH), entry(PTX, 100, ptx("newer")))
    assert ".entry a(" in ptx_of(image, 90)
    assert ".entry newer(" in ptx_of(image, 103)


@pytest.mark.parametrize(
    ("image", "kind", "words"),
    [
        (machine_code("saxpy", "scale"), "machine-code", "machine code of saxpy, scale"),
        (ELF_FILE, "machine-code", "code=compute_80"),
        (container(entry(ELF, 90, machine_code("saxpy"))), "no-ptx", "of saxpy holds no PTX"),
        (container(entry(LTO, 100, b"\xed\x43\x4e\x7f")), "no-ptx", "LTO IR for sm_100"),
        (container(), "no-ptx", "only nothing"),
        (b"\xed\x43\x4e\x7f\0\0", "lto-ir", "nvJitLink with -lto -ptx"),
        (b"BC\xc0\xde\0\0", "nvvm-ir", "libNVVM"),
        (b"\xb1\x43\x62\x46" + bytes(20), "wrapper", "pass the container"),
        (b"!<arch>\n", "library", "link it"),
        (b"", "empty", "empty"),
        (b"\0", "empty", "empty"),
        (b"__global__ void k() {}", "unknown", "nvcc --ptx"),
        (b"\xff\xfe\x01", "unknown", "begins with ff fe 01"),
        (container(entry(PTX, 80, ptx("k")))[:-8], "damaged", "its header says"),
        (b"\x50\xed\x55\xba", "damaged", "4 bytes"),
    ],
)  # fmt: skip
def test_what_holds_no_ptx_is_named(image: bytes, kind: str, words: str) -> None:
    with pytest.raises(ImageError) as refused:
        ptx_of(image, 90)
    assert refused.value.kind == kind
    assert words in str(refused.value)


@pytest.mark.parametrize("packing", [LZ4, ZSTD])
def test_what_is_unpacked_is_bounded_by_its_header(packing: int) -> None:
    good = entry(PTX, 80, ptx("k") * 100, packing)
    for size in (10, 1 << 40, 0, MOST_BYTES):
        with pytest.raises(ImageError, match="damaged") as refused:
            ptx_of(container(good[:56] + struct.pack("<Q", size) + good[64:]), 80)
        assert refused.value.kind == "damaged"


ENTRIES = st.builds(
    entry,
    st.sampled_from([PTX, ELF, LTO, 77]),
    st.sampled_from([75, 80, 90]),
    st.one_of(st.binary(max_size=40), st.just(ptx("k"))),
    st.sampled_from(list(PACKERS)),
)


@given(
    st.lists(ENTRIES, max_size=3).map(lambda made: container(*made)),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    st.integers(0, 400),
)
def test_total(image: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    changed = bytearray(image)
    for at, value in changes:
        if at < len(changed):
            changed[at] = value
    _any_bytes(bytes(changed))
    _any_bytes(bytes(changed[:cut]))


@given(st.binary(max_size=300))
def test_total_for_bytes_of_any_kind(data: bytes) -> None:
    _any_bytes(data)
    _any_bytes(b"\x7fELF\x02" + data)
    _any_bytes(b"\x50\xed\x55\xba\x01\0\x10\0" + data)


def _any_bytes(image: bytes) -> None:
    with suppress(ImageError):
        assert len(ptx_of(image, 80)) <= MOST_BYTES


def test_an_image_compiles_to_the_program_of_its_text() -> None:
    text = ptx("k")
    image = container(entry(PTX, 80, text, ZSTD))
    made = compile_program("", images=[image], sm=80)
    assert made.original_ptx == text.decode()
    assert list(made.kernels) == ["k"]


def test_a_damaged_image_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(GpudError, match="damaged"):
        compile_program("", images=[container(entry(PTX, 80, b"x" * 99, LZ4))[:-1]], sm=80)
