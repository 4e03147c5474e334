"""``printf`` of kernels: every conversion against Python's own formatting, or C's rules."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.output import format_printf
from tests.unit.cpu.running import TIMEOUT_S, cuda, words


def formatted(text: str, *values: tuple[str, Any]) -> str:
    """What is printed for values packed as CUDA's ``vprintf`` gets them.

    Args:
        text: the format.
        values: ("i", 5), ("q", 5), ("d", 0.5): a code of `struct`; ("s", b"x"): a string.
    """
    data, strings = b"", []
    for code, given in values:
        kind, value = code, given
        if code == "s":
            strings.append(ctypes.create_string_buffer(given))
            kind, value = "Q", ctypes.addressof(strings[-1])
        size = struct.calcsize(kind)
        data += bytes(-len(data) % size) + struct.pack("<" + kind, value)
    buffer = (ctypes.c_uint64 * (len(data) // 8 + 1))()
    ctypes.memmove(buffer, data, len(data))
    return format_printf(text.encode(), ctypes.addressof(buffer)).decode()


@pytest.mark.parametrize(
    "text", ["%d", "%i", "%5d", "%-5d|", "%05d", "%+d", "% d", "%.3d", "%+08d", "%7.4d"]
)
@pytest.mark.parametrize("value", [0, 7, -1, 2**31 - 1, -(2**31)])
def test_signed_integers(text: str, value: int) -> None:
    assert formatted(text, ("i", value)) == text % value


@pytest.mark.parametrize("text", ["%x", "%X", "%o", "%8x", "%08X", "%-8x|"])
@pytest.mark.parametrize("value", [0, 10, 2**32 - 1])
def test_unsigned_integers_in_other_bases(text: str, value: int) -> None:
    assert formatted(text, ("I", value)) == text % value


def test_flags_that_python_spells_differently() -> None:
    assert formatted("%#x %#o %#X", ("I", 255), ("I", 8), ("I", 255)) == "0xff 010 0XFF"
    assert formatted("%u", ("I", 2**32 - 1)) == "4294967295"
    assert formatted("%p", ("Q", 0xABC)) == "0xabc"
    assert formatted("%a", ("d", 1.5)) == "0x1.8p+0"


@pytest.mark.parametrize("length", ["l", "ll", "j", "z", "t"])
def test_64_bit_values(length: str) -> None:
    big = -(2**62) - 12345
    assert formatted(f"%{length}d|%{length}x", ("q", big), ("Q", 2**64 - 1)) == (
        f"{big}|{2**64 - 1:x}"
    )


def test_narrow_lengths_cut_off_what_c_cuts_off() -> None:
    assert formatted("%hhd %hd %hhu", ("i", 300), ("i", 70000), ("i", -1)) == "44 4464 255"


@pytest.mark.parametrize(
    "text", ["%f", "%.2f", "%10.3f", "%-10.1f|", "%e", "%E", "%.0e", "%g", "%G", "%+.3g", "%010.2f"]
)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 3.14159265, -2.5e-9, 1e300, float("inf")])
def test_floating_point(text: str, value: float) -> None:
    # Python pads infinity with zeros, C with spaces.
    expected = (text.replace("%0", "%") if value == float("inf") else text) % value
    assert formatted(text, ("d", value)) == expected


def test_characters_strings_and_percent() -> None:
    assert formatted("%c%c%%", ("i", ord("o")), ("i", ord("k"))) == "ok%"
    assert formatted("<%s|%5s|%-5s|%.2s>", *[("s", b"abc")] * 4) == "<abc|  abc|abc  |ab>"
    assert formatted("100%% of %d", ("i", 3)) == "100% of 3"
    assert formatted("nothing at all") == "nothing at all"


def test_width_and_precision_from_arguments() -> None:
    assert formatted("%*d|", ("i", 6), ("i", 42)) == "    42|"
    assert formatted("%*d|", ("i", -6), ("i", 42)) == "42    |"
    assert formatted("%.*f", ("i", 2), ("d", 3.14159)) == "3.14"
    assert formatted("%*.*f|", ("i", 8), ("i", 3), ("d", 3.14159)) == "   3.142|"


def test_each_argument_is_aligned_to_its_size() -> None:
    text = formatted("%d %lld %d %f %d", ("i", 1), ("q", 2**40), ("i", 3), ("d", 0.5), ("i", 5))
    assert text == f"1 {2**40} 3 0.500000 5"


# -- from kernels ------------------------------------------------------------------------------

SOURCE = r"""
extern "C" __global__ void all(int* returned) {
    short small = -3; float half = 0.5f; char letter = 'z';
    const char* name = "kernel";
    returned[0] = printf("%d %hd %c %s %5.2f %lld %llu %x %%|%*d|%p\n", 1, small, letter, name,
                         half, -5000000000LL, 18446744073709551615ULL, 255u, 4, 7, (void*)16);
    returned[1] = printf("plain\n");
    returned[2] = printf("%d%%\n", 5);
}
extern "C" __global__ void many() { printf("%d.%d\n", blockIdx.x, threadIdx.x); }
"""


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def test_printf_in_a_kernel(device: CPUDevice) -> None:
    memory, returned = words(device, 3, 99)
    kernel = device.load(cuda(SOURCE)).kernel("all")
    launch = device.launch(kernel, (1, 1, 1), (1, 1, 1), memory.address.to_bytes(8, "little"))
    launch.result(TIMEOUT_S)
    assert launch.output.decode() == (
        "1 -3 z kernel  0.50 -5000000000 18446744073709551615 ff %|   7|0x10\nplain\n5%\n"
    )
    # CUDA C++ Programming Guide, "Formatted Output": the number of arguments, 0 without any.
    assert returned[1] == 0
    assert returned[2] == 1


def test_lines_of_different_threads_stay_whole(device: CPUDevice) -> None:
    kernel = device.load(cuda(SOURCE)).kernel("many")
    launch = device.launch(kernel, (20, 1, 1), (33, 1, 1), b"")
    launch.result(TIMEOUT_S)
    lines = launch.output.decode().splitlines()
    assert sorted(lines) == sorted(f"{b}.{t}" for b in range(20) for t in range(33))
