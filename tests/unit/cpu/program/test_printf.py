"""``printf`` of kernels: every conversion against Python's own formatting, or C's rules."""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.printf import PackedArguments
from gpud.device.interface import OUTPUT_LIMIT_BYTES, LaunchSpec
from gpud.device.printf import (
    CALL_BYTES,
    MOST_ARGUMENTS,
    MOST_BYTES,
    MOST_WIDTH,
    PrintfOutput,
    conversions,
    format_printf,
)
from gpud.device.readable import EVERYTHING, TEXT_LIMIT_BYTES, ReadableRanges
from gpud.errors import IllegalAddress
from tests.support.resizable_run import ResizableRun
from tests.unit.cpu.device_helpers import TIMEOUT_S, cuda, words
from tests.unit.printing import ALL_LINES, ARENA, HOSTILE, SAID, SOURCE, load, run


def formatted(text: str, *values: tuple[str, Any]) -> str:
    """The output for values packed as CUDA's ``vprintf`` receives them.

    Args:
        text: the format.
        values: ("i", 5), ("q", 5), ("d", 0.5): a code of `struct`; ("s", b"x"): a string.
    """
    data, strings = b"", []
    for code, passed in values:
        kind, value = code, passed
        if code == "s":
            strings.append(ctypes.create_string_buffer(passed))
            kind, value = "Q", ctypes.addressof(strings[-1])
        size = struct.calcsize(kind)
        data += bytes(-len(data) % size) + struct.pack("<" + kind, value)
    buffer = (ctypes.c_uint64 * (len(data) // 8 + 1))()
    ctypes.memmove(buffer, data, len(data))
    arguments = PackedArguments(ctypes.addressof(buffer), ReadableRanges((EVERYTHING,)))
    return format_printf(text.encode(), arguments).decode()


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


# -- hostile kernels ---------------------------------------------------------------------------


class Memory:
    """Memory at `BASE` that detects every read outside of it."""

    BASE = 0x1000

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reach = ReadableRanges([(self.BASE, len(data))], self.read)

    def read(self, address: int, size: int) -> bytes:
        start = address - self.BASE
        assert 0 <= start <= start + size <= len(self.data)
        return self.data[start : start + size]


def printed(text: bytes, packed: bytes = b"", strings: bytes = b"") -> bytes:
    """The output for packed values, with the strings behind them in memory."""
    memory = Memory(packed + strings)
    return format_printf(text, PackedArguments(Memory.BASE, memory.reach))


def at(offset: int) -> bytes:
    return struct.pack("<Q", Memory.BASE + offset)


def test_pointers_outside_of_its_memory_are_not_followed() -> None:
    for pointer in (1, Memory.BASE - 1, Memory.BASE + 100, 2**47, 2**64 - 1):
        assert printed(b"<%s>", struct.pack("<Q", pointer)) == b"<(unreadable)>"
    assert printed(b"<%s>", at(8), b"no end") == b"<(unreadable)>"
    assert printed(b"<%.4s>", at(8), b"no end") == b"<no e>"
    assert printed(b"<%.9s>", at(8), b"no end") == b"<(unreadable)>"
    assert printed(b"<%10s>", at(8), b"end\0") == b"<       end>"
    assert printed(b"<%s>", bytes(8)) == b"<(null)>"


def test_values_that_are_not_there_are_not_read() -> None:
    assert printed(b"%d %d", struct.pack("<i", 5)) == b"5 (unreadable)"
    assert printed(b"%lld") == b"(unreadable)"
    assert printed(b"%*d", struct.pack("<i", 5)) == b"(unreadable)"
    assert format_printf(b"%f", PackedArguments(2**64 - 4, ReadableRanges([]))) == b"(unreadable)"


def test_fields_are_no_wider_than_the_limit() -> None:
    four = struct.pack("<i", 4)
    for text in (b"%999999999d", b"%0999999999999999999999d"):
        assert len(printed(text, four)) == MOST_WIDTH
    assert len(printed(b"%*d", struct.pack("<ii", 2**31 - 1, 4))) == MOST_WIDTH
    assert printed(b"%*d|", struct.pack("<ii", -(2**31), 4)) == b"4".ljust(MOST_WIDTH) + b"|"
    assert len(printed(b"%.999999999d", four)) == MOST_WIDTH
    assert len(printed(b"%.99999999f", struct.pack("<d", 1))) == MOST_WIDTH + 2
    assert printed(b"%.*d", struct.pack("<ii", -1, 4)) == b"4"


def test_no_conversion_makes_the_c_library_follow_a_pointer_or_read_what_is_not_there() -> None:
    wide = "wide".encode("utf-32-le") + bytes(4)
    assert printed(b"%ls", at(8), wide) == b"w"
    assert printed(b"%lc%hhc", struct.pack("<qi", 0x41, 0x42)) == b"AB"
    assert printed(b"%Lf", struct.pack("<d", 1.5)) == b"1.500000"
    assert printed(b"%n%hn", struct.pack("<Q", 16)) == b"%n%hn"


def test_a_call_prints_no_more_than_the_limit() -> None:
    packed = b"".join(at(8 * MOST_ARGUMENTS) for _ in range(MOST_ARGUMENTS))
    assert len(printed(b"%s" * MOST_ARGUMENTS, packed, b"x" * 60_000 + b"\0")) == MOST_BYTES


def test_as_many_arguments_as_on_a_gpu() -> None:
    four = struct.pack("<i", 4) * (MOST_ARGUMENTS + 3)
    assert printed(b"%d" * (MOST_ARGUMENTS + 3), four) == b"4" * MOST_ARGUMENTS + b"%d%d%d"
    assert printed(b"%*d" * MOST_ARGUMENTS + b"%%", four).endswith(b"%*d%%"), "widths count, too"


@pytest.mark.parametrize(
    "part",
    [b"0", b"9", b"-", b" ", b".", b"*", b"%", b"%.0d", b"%0", b"%-", b"%9", b"%*", b"%.*s", b"%l",
     b"%h", b"%1024d", b"%.1024f", b"%q", b"%0.", b"%s"],
)  # fmt: skip
def test_no_format_takes_long(part: bytes) -> None:
    """Everybody's threads wait meanwhile: what is as long as it may be takes milliseconds."""
    text = (b"%" + part * (TEXT_LIMIT_BYTES // len(part)))[:TEXT_LIMIT_BYTES]
    packed = at(0) * (MOST_ARGUMENTS + 2)

    def spent_s() -> float:
        began = time.thread_time()
        printed(text, packed, b"x" * 1000 + b"\0")
        conversions(text)
        return time.thread_time() - began

    assert min(spent_s() for _ in range(3)) < 0.02


@given(
    st.lists(
        st.one_of(
            st.sampled_from([b"%", b"s", b"*", b".", b"0", b"-", b"l", b"ll", b"d", b"f", b"c"]),
            st.binary(max_size=3),
        ),
        max_size=20,
    ).map(b"".join),
    st.binary(max_size=64),
)
def test_any_format_with_any_values(text: bytes, packed: bytes) -> None:
    assert len(printed(text, packed)) <= MOST_BYTES


# -- from kernels ------------------------------------------------------------------------------


def test_printf_in_a_kernel(device: CPUDevice) -> None:
    memory, returned = words(device, 3, 99)
    kernel = device.load(cuda(SOURCE)).kernel("all")
    launch = device.launch(kernel, (1, 1, 1), (1, 1, 1), memory.address.to_bytes(8, "little"))
    launch.result(TIMEOUT_S)
    assert launch.output.decode() == ALL_LINES
    # CUDA C++ Programming Guide, "Formatted Output": the number of arguments, 0 without any.
    assert returned[1] == 0
    assert returned[2] == 1


def test_lines_of_different_threads_stay_whole(device: CPUDevice) -> None:
    kernel = device.load(cuda(SOURCE)).kernel("many")
    launch = device.launch(kernel, (20, 1, 1), (33, 1, 1), b"")
    launch.result(TIMEOUT_S)
    lines = launch.output.decode().splitlines()
    assert sorted(lines) == sorted(f"{b}.{t}" for b in range(20) for t in range(33))


@pytest.mark.parametrize("kernel", SAID)
def test_a_kernel_reads_nothing_outside_its_arena(device: CPUDevice, kernel: str) -> None:
    memory = device.allocate(ARENA)
    loaded = load(device, HOSTILE, memory).kernel(kernel)
    unmapped = device.allocate(64).address
    for pointer in (8, unmapped, 2**47 - 1, 2**64 - 8, memory.address + ARENA):
        launch = run(device, loaded, pointer.to_bytes(8, "little"))
        assert launch.output == SAID[kernel]


def test_a_kernel_prints_what_is_its_own(device: CPUDevice) -> None:
    memory = device.allocate(ARENA)
    module = load(device, HOSTILE, memory)
    launch = run(device, module.kernel("legal"))
    assert launch.output == b"its own local s\n"
    assert run(device, module.kernel("nested")).output == b"deep\n"
    memory.view[8:16] = bytearray(b"arena\0\0\0")
    pointer = (memory.address + 8).to_bytes(8, "little")
    launch = run(device, module.kernel("string"), pointer)
    assert launch.output == b"<arena>\n"


def test_what_was_printed_before_a_fault_is_kept(device: CPUDevice) -> None:
    text = r"""
    extern "C" __global__ void stores(int* p, int* out) { printf("%p\n", p); *p = 1; }
    extern "C" __global__ void loads(const int* __restrict__ p, int* __restrict__ out) {
        printf("%p\n", p);
        out[threadIdx.x] = *p;
    }"""
    memory = device.allocate(ARENA)
    module = load(device, text, memory)
    parameters = [bytes(8), memory.address.to_bytes(8, "little")]
    for name in ("stores", "loads"):
        job = ResizableRun(
            device, [LaunchSpec.of(module.kernel(name), "persistent", 1, 8, parameters)]
        )
        job.resize(1)
        with pytest.raises(IllegalAddress):
            job.result(TIMEOUT_S)
        assert job.output == b"(nil)\n"


def test_calls_that_print_nothing_are_bounded_too() -> None:
    output = PrintfOutput()
    calls = 0
    while output.accepting:
        output.add(b"")
        calls += 1
    assert calls <= OUTPUT_LIMIT_BYTES // CALL_BYTES
    assert output.text == b"\n... output truncated\n"


def test_what_a_job_prints_is_bounded_and_says_so(device: CPUDevice) -> None:
    kernel = device.load(cuda(HOSTILE)).kernel("much")
    lines = (1000).to_bytes(4, "little")
    launch = device.launch(kernel, (1, 1, 1), (10, 1, 1), lines)
    launch.result(TIMEOUT_S)
    output = launch.output
    assert len(output) == OUTPUT_LIMIT_BYTES
    assert output.endswith(b"\n... output truncated\n")
    assert output.count(b"truncated") == 1
