"""The comparison code of the tests on a GPU, tested without one."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from tests.conformance.runner import source_of
from tests.conformance.suite import CASES, Case, Results, find, mismatches
from tests.gpu.comparison import approximate, differences
from tests.gpu.device_arrays import CopiedBytes, OnDevice, captured
from tests.gpu.native_device import with_visible_variables
from tests.gpu.test_conformance import part_of, results


class OnCopies(OnDevice):
    """`OnDevice` without a driver that buffers what kernels print."""

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize("name", ["saxpy", "module_symbol_state", "printf_lines"])
def test_cases_run_on_copied_memory(name: str) -> None:
    case = _case(name)
    with CPUDevice(2) as cpu:
        run, found = results(OnCopies(cpu, size=1 << 20), case, "persistent")
        _, again = results(OnCopies(cpu, size=1 << 20), case, "sliced")
    assert mismatches(case, run.arguments, found, run.expected) == []
    assert differences(case, run.expected, found, again) == []


def _case(name: str) -> Case:
    by_kind = {
        "module_symbol_state": lambda c: c.symbols and "persistent" in c.forms,
        "printf_lines": lambda c: c.output is not None and "persistent" in c.forms,
    }
    return find(name) if name not in by_kind else next(filter(by_kind[name], CASES))


def test_a_changed_bit_is_seen_and_a_nan_is_a_nan() -> None:
    case = find("saxpy")
    arguments = case.arguments()
    expected = case.expect(arguments)
    right = np.array(expected[2])
    runs = np.ones(case.blocks, np.uint32)
    changed = right.copy()
    changed.view(np.uint32)[5] ^= 1
    found = differences(case, expected, Results({2: right}, runs), Results({2: changed}, runs))
    assert len(found) == 1
    assert "1 of 9999 elements differ, at 5" in found[0]
    nans = [right.copy(), right.copy()]
    for one, payload in zip(nans, (0x7FC00000, 0x7FFFFFFF), strict=True):
        one.view(np.uint32)[7] = payload
    first, second = (Results({2: one}, runs) for one in nans)
    assert differences(case, expected, first, second) == []


def test_only_stated_tolerances_excuse() -> None:
    exact, loose = find("saxpy"), find("approximate_positive")
    assert not approximate(exact, 2, exact.expect(exact.arguments()))
    expected = loose.expect(loose.arguments())
    assert any(approximate(loose, key, expected) for key in expected)


def test_copied_bytes_read_and_write_slices() -> None:
    kept = bytearray(range(8))

    def write(at: int, data: bytes) -> None:
        kept[at : at + len(data)] = data

    view = CopiedBytes(8, lambda at, size: bytes(kept[at : at + size]), write)
    view[2:4] = [9, 9]
    view[6:] = 0
    assert view[1:5].tolist() == [1, 9, 9, 4]
    assert view.tobytes() == bytes([0, 1, 9, 9, 4, 5, 0, 0])
    view[8:] = np.zeros(0, np.uint8)
    assert len(view) == 8


def test_parts_are_all_of_the_cases() -> None:
    some = CASES[:7]
    first, second = part_of(some, "1/2"), part_of(some, "2/2")
    assert [*first, *second] != list(some)
    assert {case.name for case in (*first, *second)} == {case.name for case in some}
    assert part_of(some, "1/1") == list(some)


def test_gaps_of_the_arena_are_used_again() -> None:
    with CPUDevice(1) as cpu:
        device = OnDevice(cpu, size=1024)
        first, second, third = (device.allocate(200) for _ in range(3))
        at = second.address
        second.view[:] = 1
        del second
        again = device.allocate(256)
        assert again.address == at
        assert not any(again.view.tobytes())
        assert {first.address, third.address} == {at - 256, at + 256}
        device.allocate(250)  # and forgotten at once
        with pytest.raises(MemoryError, match="1024 bytes is full"):
            device.allocate(257)


def test_output_of_other_code_is_captured() -> None:
    with captured(lambda: os.write(1, b"late\n")) as found:
        os.write(1, b"early\n")
    assert found == ["early\nlate\n"]


def test_output_that_the_c_library_holds_back_is_captured() -> None:
    code = (
        "import ctypes, sys\n"
        "from tests.gpu.device_arrays import captured\n"
        "with captured(lambda: None) as found:\n"
        "    ctypes.CDLL(None).printf(b'from C')\n"
        "sys.exit(found != ['from C'])\n"
    )
    given = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    path = os.pathsep.join(one for one in sys.path if one)
    subprocess.run([sys.executable, "-c", code], env={**given, "PYTHONPATH": path}, check=True)


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not on PATH")
def test_variables_are_made_visible_and_nothing_else() -> None:
    source = source_of("convolution").ptx
    made = with_visible_variables(source)
    assert ".visible .const" in made
    assert assemble(made, "sm_90") == assemble(source, "sm_90")
