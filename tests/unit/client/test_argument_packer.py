"""Packing of arguments: which are accepted or refused, and their bytes."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud_client.arrays import ArrayBase
from gpud_client.launch import argument_packer
from gpud_client.launch.argument_packer import ArgumentPacker
from tests.support.fake_daemon import SAXPY, FakeDaemon


def pack(kind: str, size: int, value: Any) -> bytes:
    return ArgumentPacker("k", [("p", kind, size, size, 0)]).pack((value,))[0]


HUGE = 1 << 2000


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


STRUCT = np.dtype([("a", np.float32), ("b", np.int32), ("c", np.float64)])


@pytest.mark.parametrize(
    ("kind", "size", "value", "expected"),
    [
        ("float", 4, 2.5, struct.pack("<f", 2.5)),
        ("float", 4, 2, struct.pack("<f", 2)),
        ("float", 4, True, struct.pack("<f", 1)),
        ("float", 4, float("inf"), struct.pack("<f", float("inf"))),
        ("float", 4, np.float32(0.1), np.float32(0.1).tobytes()),
        ("float", 8, 0.1, struct.pack("<d", 0.1)),
        ("float", 8, np.float64(0.1), struct.pack("<d", 0.1)),
        ("float", 2, np.float16(1.5), np.float16(1.5).tobytes()),
        ("float", 4, np.array(2.5, np.float32), struct.pack("<f", 2.5)),
        ("uint", 4, 7, struct.pack("<I", 7)),
        ("uint", 4, -1, b"\xff" * 4),
        ("uint", 4, 2**32 - 1, b"\xff" * 4),
        ("int", 4, -(2**31), struct.pack("<i", -(2**31))),
        ("uint", 4, np.int32(-5), struct.pack("<i", -5)),
        ("uint", 4, np.uint32(5), struct.pack("<I", 5)),
        ("uint", 1, True, b"\1"),
        ("uint", 1, np.True_, b"\1"),
        ("uint", 1, np.uint8(200), b"\xc8"),
        ("uint", 2, np.int16(-2), struct.pack("<h", -2)),
        ("uint", 8, None, bytes(8)),
        ("uint", 8, 2**63, struct.pack("<Q", 2**63)),
        ("uint", 8, np.uint64(2**63), struct.pack("<Q", 2**63)),
        ("pointer", 8, None, bytes(8)),
        ("pointer", 8, 4096, struct.pack("<Q", 4096)),
        ("bits", 4, np.float32(1.5), struct.pack("<f", 1.5)),
        ("bits", 4, 1.5, struct.pack("<f", 1.5)),
        ("bits", 4, 3, struct.pack("<I", 3)),
        ("struct", 16, np.zeros((), STRUCT)[()], bytes(16)),
        ("struct", 16, np.zeros((), STRUCT), bytes(16)),
        (
            "struct",
            16,
            np.array((1, 2, 3), STRUCT.newbyteorder(">"))[()],
            struct.pack("<fid", 1, 2, 3),
        ),
        ("struct", 16, bytes(range(16)), bytes(range(16))),
        ("struct", 16, bytearray(16), bytes(16)),
        ("struct", 16, Pair(1, 2.5), struct.pack("<i4xd", 1, 2.5)),
        ("struct", 8, np.complex64(1 + 2j), struct.pack("<ff", 1, 2)),
        ("bits", 16, bytes(16), bytes(16)),
    ],
)
def test_accepted(kind: str, size: int, value: Any, expected: bytes) -> None:
    assert pack(kind, size, value) == expected


@pytest.mark.parametrize(
    ("kind", "size", "value", "error", "words"),
    [
        ("float", 4, 1e39, ValueError, "too large"),
        ("float", 4, HUGE, ValueError, "too large"),
        ("float", 8, HUGE, ValueError, "too large"),
        ("float", 2, 70000, ValueError, "too large"),
        ("float", 4, np.float64(1), TypeError, "float64"),
        ("float", 8, np.float32(1), TypeError, "float32"),
        ("float", 4, np.int32(1), TypeError, "int32"),
        ("float", 4, "1", TypeError, "number"),
        ("float", 4, None, TypeError, "number"),
        ("float", 4, 1j, TypeError, "number"),
        ("float", 4, np.zeros(2, np.float32), TypeError, "gpu.array"),
        ("uint", 4, 2**32, ValueError, "fit"),
        ("uint", 4, -(2**31) - 1, ValueError, "fit"),
        ("uint", 1, 256, ValueError, "fit"),
        ("uint", 4, 1.0, TypeError, "integer"),
        ("uint", 4, np.int64(1), TypeError, "int64"),
        ("uint", 4, np.float32(1), TypeError, "float32"),
        ("uint", 4, np.True_, TypeError, "bool"),
        ("uint", 4, None, TypeError, "integer"),
        ("uint", 8, np.float64(1), TypeError, "float64"),
        ("uint", 8, np.zeros(4), TypeError, "gpu.array"),
        ("uint", 8, [1, 2], TypeError, "integer"),
        ("pointer", 8, -1, ValueError, "fit"),
        ("pointer", 8, "x", TypeError, "Array"),
        ("bits", 4, np.float64(1), TypeError, "float64"),
        ("bits", 8, "x", TypeError, "integer"),
        ("struct", 16, bytes(15), ValueError, "16 bytes, not 15"),
        ("struct", 16, np.zeros((), [("a", "i4")])[()], ValueError, "not 4"),
        ("struct", 16, 5, TypeError, "np.void"),
        ("struct", 16, np.zeros(4, np.float32), TypeError, "gpu.array"),
        ("struct", 8, np.array(None, [("a", object)])[()], TypeError, "objects"),
    ],
)
def test_refused(kind: str, size: int, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        pack(kind, size, value)
    assert "argument 0 of k" in str(caught.value)


def test_the_layout_is_the_kernels() -> None:
    packer = ArgumentPacker("saxpy", SAXPY)
    data, _ = packer.pack((2.0, 0x1000, None, 5))
    assert data == struct.pack("<f4xQQI", 2.0, 0x1000, 0, 5)
    assert ArgumentPacker("none", []).pack(()) == (b"", [])


@pytest.mark.parametrize("args", [(), (1.0,), (1.0, None, None, 1, 2)])
def test_a_wrong_count_is_refused(args: tuple[Any, ...]) -> None:
    packer = ArgumentPacker("saxpy", SAXPY)
    with pytest.raises(TypeError, match=f"takes 4 arguments, not {len(args)}"):
        packer.pack(args)


def test_arguments_that_are_no_sequence_are_refused() -> None:
    with pytest.raises(TypeError, match="args is a tuple"):
        ArgumentPacker("k", [("p", "uint", 4, 4, 0)]).pack(5)  # type: ignore[arg-type]


def test_arrays_are_addresses(saxpy: gc.Kernel, gpu: gc.Session, daemon: FakeDaemon) -> None:
    x = gpu.zeros(4, np.float32)
    data, arrays = saxpy._packer.pack((1.0, x, None, 4))
    assert struct.unpack("<f4xQQI", data)[1] == x.ptr
    assert arrays == [x]
    with pytest.raises(TypeError, match="8 bytes"):
        saxpy._packer.pack((1.0, x, x, x))
    x.free()
    with pytest.raises(ValueError, match="freed"):
        saxpy._packer.pack((1.0, x, None, 4))


def test_an_array_for_a_float_is_refused(saxpy: gc.Kernel, gpu: gc.Session) -> None:
    with pytest.raises(TypeError, match="argument 0 of saxpy"):
        saxpy.submit(1, 32, (gpu.zeros(4), None, None, 4))


POINTERS = [("x", "uint", 8, 8, 0), ("y", "uint", 8, 8, 8)]


def _array(session: gc.Session, dtype: str) -> ArrayBase:
    return session.empty(4, dtype)


def test_an_array_of_another_type_is_warned_of_once(daemon: FakeDaemon) -> None:
    with gc.connect(str(daemon.path)) as session:
        warned: set[int] = set()
        packer = ArgumentPacker("k", POINTERS, ["f4", "i4"], warned=warned)
        double, single = _array(session, "f8"), _array(session, "f4")
        said = (
            r"argument 0 of k: the array is float64, the kernel's pointer is to float32; make it "
            r"with gpu\.array\(values, np\.float32\), or pass array\.ptr"
        )
        with pytest.warns(RuntimeWarning, match=said) as first:
            packer.pack((double, None))
        assert first[0].filename == __file__
        packer.pack((double, None))
        packer.pack((single, _array(session, "u4")))
        packer.pack((_array(session, "i8"), None))  # the same parameter
        with pytest.warns(RuntimeWarning, match="argument 1 of k: .* float64, .* to int32"):
            packer.pack((single, double))
        assert warned == {0, 1}
        # Another object of the same kernel.
        ArgumentPacker("k", POINTERS, ["f4", "i4"], warned=warned).pack((double, double))


def test_a_warning_that_is_an_error_comes_each_time(daemon: FakeDaemon) -> None:
    with gc.connect(str(daemon.path)) as session:
        packer = ArgumentPacker("k", POINTERS, ["f4", "i4"])
        for _ in range(2):  # pytest makes warnings errors
            with pytest.raises(RuntimeWarning):
                packer.pack((_array(session, "f8"), None))


def test_what_pointers_take_without_a_warning(daemon: FakeDaemon) -> None:
    with gc.connect(str(daemon.path)) as session:
        unknown = ArgumentPacker("k", POINTERS)  # a daemon that does not tell
        any_type = ArgumentPacker("k", POINTERS, ["", ""])
        for dtype in ("f8", "i1", "c16", "f4"):
            unknown.pack((_array(session, dtype), _array(session, dtype)))
            any_type.pack((_array(session, dtype), _array(session, dtype)))
        typed = ArgumentPacker("k", POINTERS, ["f8", "i8"])
        typed.pack((_array(session, "c16"), _array(session, "u8")))
        typed.pack((_array(session, "f4").ptr, None))


def test_a_known_array_is_not_looked_at_again(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    matches = argument_packer._matches

    def counted(dtype: Any, points_to: str) -> bool:
        looked.append(dtype)
        return matches(dtype, points_to)

    monkeypatch.setattr(argument_packer, "_matches", counted)
    with gc.connect(str(daemon.path)) as session:
        packer = ArgumentPacker("k", POINTERS, ["f4", "i4"])
        for _ in range(10):
            packer.pack((_array(session, "f4"), _array(session, "i4")))
    assert len(looked) == 2
