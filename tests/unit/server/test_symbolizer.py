"""The fields that the front adds to a kernel's error, whatever the host sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.compiler.program import Site
from gpud.errors import (
    DeviceLost,
    GpudError,
    IllegalAddress,
    JobCancelled,
    KernelTrap,
    from_wire,
)
from gpud.server.state.symbolizer import symbolized

STORE = Site("_Z4fillIfEvPT_", "st.global.f32 [%rd4], %f3;", 41, "fill.cu", 7)
TRAP = Site("k", "trap;", 0)
ARRAY = (0x2000_0000_0000, 4096)


class Program:
    """A program of one kernel; nobody may ask it for its text."""

    def __init__(self, *sites: Site) -> None:
        self.sites = sites
        info = SimpleNamespace(launch_shared=True)
        self.filling = SimpleNamespace(entry="_Z4fillIfEvPT_", name="fill<float>", info=info)

    def kernel(self, index: int) -> Any:
        assert index == 0
        return self.filling

    def kernel_of(self, entry: object) -> Any:
        return self.filling if entry == self.filling.entry else None

    def site(self, number: int | None) -> Site | None:
        known = number is not None and 0 <= number < len(self.sites)
        return self.sites[number or 0] if known else None


program = Program


def job(*programs: Any, shared: tuple[int, ...] = ()) -> Any:
    modules = tuple(SimpleNamespace(program=one) for one in programs)
    needs = [(modules[0], (0, (32, 1, 1), size, False)) for size in shared]
    sequence = SimpleNamespace(modules=modules, needs=needs)
    return SimpleNamespace(session=3, device=0, sequence=sequence)


def nearest(session: int, device: int, address: int) -> tuple[int, int]:
    assert (session, device) == (3, 0)
    return ARRAY


def told(error: GpudError, of: Any = None) -> Any:
    return symbolized(error, of or job(program(STORE, TRAP)), nearest)


def test_an_address_is_placed_in_the_program_and_beside_an_array() -> None:
    raw = IllegalAddress(
        ARRAY[0] + 4096 + 15, kernel="_Z4fillIfEvPT_", site=0, task_block=(3, 0, 0),
        thread=(17, 0, 0),
    )  # fmt: skip
    error = told(raw)
    assert type(error) is IllegalAddress
    assert (error.instruction, error.line) == (STORE.instruction, 41)
    assert (error.file, error.file_line) == ("fill.cu", 7)
    assert (error.array, error.distance) == (ARRAY, 16)
    assert str(error) == (
        "illegal address 0x20000000100f, 16 bytes after array 0x200000000000 of 4096 bytes, in "
        "fill<float>, task block (3, 0, 0), thread (17, 0, 0), at st.global.f32 [%rd4], %f3 (PTX "
        "line 41, fill.cu:7); check the index against the array's size"
    )


@pytest.mark.parametrize(
    ("address", "distance"),
    [(ARRAY[0], 0), (ARRAY[0] + 4095, 0), (ARRAY[0] + 4096, 1), (ARRAY[0] - 1, 1), (0, ARRAY[0])],
)
def test_the_distance_is_to_the_nearest_byte(address: int, distance: int) -> None:
    assert told(IllegalAddress(address)).distance == distance


def test_the_launch_of_a_sequence_says_which_program() -> None:
    raw = KernelTrap(kernel="k", site=0, launch=1)
    error = told(raw, job(program(STORE), program(TRAP)))
    assert (error.instruction, error.line, error.launch) == ("trap;", None, 1)


def test_an_assertion_keeps_its_own_place_in_the_source() -> None:
    raw = KernelTrap("assertion `x' failed", site=0, file="own.cu", file_line=3)
    error = told(raw)
    assert (error.file, error.file_line, error.line) == ("own.cu", 3, 41)


def test_without_a_site_the_instruction_that_the_host_quotes_stays() -> None:
    error = told(IllegalAddress(0x408, space="shared", instruction="st.shared.u32 [%rd1], %r1;"))
    assert (error.instruction, error.line) == ("st.shared.u32 [%rd1], %r1;", None)
    assert error.array is None


@pytest.mark.parametrize(
    ("shared", "words"),
    [((0,), "pass shared="), ((8,), "(shared=8)"), ((0, 8), None), ((), None)],
)
def test_memory_that_the_launch_sizes_is_named(shared: tuple[int, ...], words: str | None) -> None:
    raw = IllegalAddress(0x408, space="shared", kernel="_Z4fillIfEvPT_")
    error = told(raw, job(program(), shared=shared))
    assert (words or "extern __shared__") in str(error) or words is None
    assert ("extern __shared__" in str(error)) is (words is not None)


def test_other_errors_pass() -> None:
    for error in (JobCancelled("why"), DeviceLost("gone"), GpudError("new")):
        assert told(error) is error


def test_what_is_unknown_stays_unknown() -> None:
    raw = IllegalAddress(1, site=99, launch=7, kernel="k")
    alone = symbolized(raw, job(), lambda session, device, address: None)
    assert isinstance(alone, IllegalAddress)
    assert (alone.instruction, alone.line, alone.array, alone.distance) == (None, None, None, None)
    ended = SimpleNamespace(session=3, device=0, sequence=None)
    assert isinstance(told(raw, ended), IllegalAddress)


plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=5),
    st.lists(st.integers(), max_size=4), st.floats(),
)  # fmt: skip


@given(
    st.sampled_from([IllegalAddress, KernelTrap]),
    st.dictionaries(st.sampled_from(sorted(IllegalAddress.fields)), plain),
)
def test_nothing_that_a_host_says_makes_it_fail(
    kind: type[GpudError], fields: dict[str, Any]
) -> None:
    error = from_wire({"code": kind.code, "message": "m", "fields": fields})
    assert type(symbolized(error, job(program(STORE)), nearest)) is kind
