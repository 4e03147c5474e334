"""``printf`` on the CUDA device: a GPU's code, on a model, compared with the CPU device's own.

The model runs `gpud_print` and the functions that it calls unmodified; not on a GPU.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.compiler.abi.print_buffer import BUFFER_HEAD_BYTES, calls
from gpud.compiler.abi.reserved_names import PRINT
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Function, Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.launch.output import OUTPUT_BYTES, printed_text
from gpud.device.interface import OUTPUT_LIMIT_BYTES, LaunchSpec
from tests.driver_model import CPUDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cpu.device_helpers import TIMEOUT_S, pointer, rewritten, words
from tests.unit.printing import ALL_LINES, ARENA, EACH, HOSTILE, SAID, SOURCE, load, run

TRUNCATED = b"\n... output truncated\n"


class Both(NamedTuple):
    """The CUDA device on a model, and the CPU device behind it."""

    cuda: CUDADevice
    cpu: CPUDevice


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with CPUDevice(2) as cpu, CUDADevice(driver=Driver(CPUDriver(cpu))) as cuda:
        yield Both(cuda, cpu)


def test_a_kernel_prints_for_its_job(both: Both) -> None:
    memory, returned = words(both.cpu, ARENA // 4, 99)
    kernel = load(both.cuda, SOURCE, memory).kernel("all")
    assert kernel.prints
    job = run(both.cuda, kernel, pointer(memory))
    assert job.output.decode() == ALL_LINES
    assert returned[:3].tolist() == [10, 0, 1]


def test_what_threads_print_is_whole_and_in_their_order(both: Both) -> None:
    kernel = load(both.cuda, HOSTILE, both.cpu.allocate(ARENA)).kernel("much")
    count = 3
    job = run(both.cuda, kernel, count.to_bytes(4, "little"), threads=40)
    lines = [tuple(map(int, line.split())) for line in job.output.decode().splitlines()]
    for thread in range(40):
        assert [i for t, i in lines if t == thread] == list(range(count))
    assert len(lines) == 40 * count


@pytest.mark.parametrize("kernel", SAID)
def test_a_kernel_reads_nothing_outside_its_arena(both: Both, kernel: str) -> None:
    memory = both.cpu.allocate(ARENA)
    loaded = load(both.cuda, HOSTILE, memory).kernel(kernel)
    unmapped = both.cpu.allocate(64).address
    for address in (8, unmapped, 2**47 - 1, 2**64 - 8, memory.address + ARENA):
        job = run(both.cuda, loaded, address.to_bytes(8, "little"))
        assert job.output == SAID[kernel]


def test_a_kernel_prints_what_is_its_own(both: Both) -> None:
    memory = both.cpu.allocate(ARENA)
    module = load(both.cuda, HOSTILE, memory)
    assert run(both.cuda, module.kernel("legal")).output == b"its own local s\n"
    memory.view[8:16] = np.frombuffer(b"arena\0\0\0", np.uint8)
    job = run(both.cuda, module.kernel("string"), (memory.address + 8).to_bytes(8, "little"))
    assert job.output == b"<arena>\n"


def test_a_format_gets_no_more_arguments_than_it_was_given(both: Both) -> None:
    source = 'extern "C" __global__ void k() { printf("%d %d %d %d|%s\\n", 7, 8); }'
    kernel = load(both.cuda, source, both.cpu.allocate(ARENA)).kernel("k")
    assert run(both.cuda, kernel).output == b"7 8" + b" (unreadable)" * 2 + b"|(unreadable)\n"


def test_what_does_not_fit_is_dropped_and_the_end_says_so(both: Both) -> None:
    memory = both.cpu.allocate(ARENA)
    memory.view[:40000] = np.frombuffer(b"x" * 39999 + b"\0", np.uint8)
    text = f'for (int i = 0; i < {OUTPUT_BYTES // 40000 + 9}; i++) printf("%s\\n", t);'
    source = f'extern "C" __global__ void k(const char* t) {{ {text} printf("end\\n"); }}'
    kernel = load(both.cuda, source, memory).kernel("k")
    for _ in range(2):  # and nothing is left of it for the run that gets the buffer next
        output = run(both.cuda, kernel, pointer(memory)).output
        lines = output.removesuffix(TRUNCATED).splitlines()
        assert output.endswith(TRUNCATED)
        assert set(lines) == {b"x" * 39999}
        assert OUTPUT_BYTES - 41000 < 40000 * len(lines) < OUTPUT_BYTES
    other = load(both.cuda, SOURCE, both.cpu.allocate(ARENA)).kernel("many")
    assert run(both.cuda, other).output == b"0.0\n"


def test_launches_of_a_sequence_share_a_buffer_in_their_order(both: Both) -> None:
    module = load(both.cuda, SOURCE, both.cpu.allocate(ARENA))
    hostile = load(both.cuda, HOSTILE, both.cpu.allocate(ARENA))
    sequence = [
        LaunchSpec.of(module.kernel("many"), "persistent", 1, 1, []),
        LaunchSpec.of(hostile.kernel("legal"), "persistent", 2, 1, []),
        LaunchSpec.of(module.kernel("many"), "persistent", 1, 2, []),
    ]
    job = ResizableRun(both.cuda, sequence)
    job.resize(1)
    job.result(TIMEOUT_S)
    legal = b"its own local s\n"
    assert job.output in (
        b"0.0\n" + 2 * legal + b"0.0\n0.1\n",
        b"0.0\n" + 2 * legal + b"0.1\n0.0\n",
    )


@pytest.mark.parametrize("form", ["sliced", "whole"])
def test_every_form_prints(both: Both, form: Any) -> None:
    loaded = both.cuda.load(rewritten(SOURCE, form).ptx)
    job = ResizableRun(both.cuda, [LaunchSpec.of(loaded.kernel("many"), form, 3, 1, [])])
    job.resize(1)
    job.result(TIMEOUT_S)
    assert sorted(job.output.splitlines()) == [b"0.0", b"1.0", b"2.0"]


def test_any_format_prints_as_on_the_cpu_device(both: Both) -> None:
    """Formats with every letter, length and mistake; arguments with good and bad pointers."""
    dice, count = random.Random(5), 300
    memory = both.cpu.allocate(ARENA)
    view, base = memory.view, memory.address
    texts, packed = 0, 64 * count
    strings = 2 * packed
    view[strings : strings + 6] = np.frombuffer(b"text!\0", np.uint8)
    view[ARENA - 5 :] = np.frombuffer(b"noend", np.uint8)
    pieces = [
        *"%%%%%%%sss*..05-+# hlLjztdicxXofeEgGapnq",
        "ll",
        "hh",
        "%5.3s",
        "%.*s",
        "%-*d",
        "%%",
    ]
    pointers = (0, 8, base + strings, base + ARENA - 5, base + ARENA, 2**64 - 1)
    for index in range(count):
        text = "".join(dice.choices(pieces, k=dice.randrange(16))).encode()[:63]
        view[64 * index :][: len(text)] = np.frombuffer(text, np.uint8)
        for word in range(8):
            value = dice.choice([dice.choice(pointers), dice.randrange(7), dice.getrandbits(64)])
            raw = struct.pack("<Q", value)
            view[packed + 64 * index + 8 * word :][:8] = np.frombuffer(raw, np.uint8)
    values = [(base + texts), (base + packed)]
    given_ = [*(one.to_bytes(8, "little") for one in values), count.to_bytes(4, "little")]
    outputs = [
        run(device, load(device, EACH, memory).kernel("each"), *given_).output
        for device in (both.cuda, both.cpu)
    ]
    assert outputs[0].split(b"\n=") == outputs[1].split(b"\n=")
    assert b"(unreadable)" in outputs[0]
    assert b"text!" in outputs[0]


@given(st.binary(max_size=200), st.lists(st.integers(0, 80), max_size=12))
def test_any_bytes_in_a_buffer_are_text(raw: bytes, numbers: list[int]) -> None:
    head = bytes(BUFFER_HEAD_BYTES)
    for body in (raw, struct.pack(f"<{len(numbers)}I", *numbers) + raw):
        buffer = head + body
        assert len(printed_text(buffer, buffer)) <= OUTPUT_LIMIT_BYTES
        assert sum(16 for _ in calls(buffer, buffer)) <= len(body)


def test_entries_incomplete_when_read_are_left_out() -> None:
    def entry(text: bytes, complete: int) -> bytes:
        return struct.pack("<4I", 24, complete, len(text), 0) + text.ljust(8, b"\0")

    head = bytes(BUFFER_HEAD_BYTES)
    # The copy has the second entry's mark and, as it went, not yet its text.
    before = head + entry(b"first", 1) + bytes(24)
    torn = head + entry(b"first", 1) + entry(b"", 1)
    assert printed_text(torn, before) == b"first"


def print_entry(entry: Function) -> str:
    """The text of an entry alone."""
    return print_module(Module((8, 0), ("sm_75",), 64, [entry]))


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles_and_costs_other_kernels_nothing(arch: str) -> None:
    quiet = 'extern "C" __global__ void quiet(int* p) { p[blockIdx.x] += 3; }\n'
    alone, beside = (
        compile_program(source, bounds_checks=False).ptx for source in (quiet, quiet + SOURCE)
    )
    texts = [print_entry(parse(ptx).entries()["quiet"]) for ptx in (alone, beside)]
    assert texts[0] == texts[1]
    assert PRINT not in alone
    for bounds_checks in (True, False):
        found = assemble(compile_program(HOSTILE, bounds_checks=bounds_checks).ptx, arch)
        assert found["legal"].spill_bytes == 0
