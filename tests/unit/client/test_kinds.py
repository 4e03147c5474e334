"""Which of a framework's allocations persist: learned from recordings and while they are made."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpud_client.adapters.parts import ProfileParts
from gpud_client.adapters.recording import MARK, read_recording
from gpud_client.workloads.kinds import (
    Allocated,
    Allocation,
    Event,
    Freed,
    IterationEnded,
    Kind,
    KindLearner,
    needed_sizes,
)
from gpud_client.workloads.memory import MemoryRange
from tests.support.allocation_trace import trace

RECORDING = Path(__file__).parent / "recordings" / "pytorch_adam.json.gz"
RECORDER = Path(__file__).parents[2] / "support" / "record_pytorch.py"


def aligned(size: int) -> int:
    return -(-size // 256) * 256


def alive_at_most(events: list[Event]) -> tuple[int, int]:
    """The most bytes alive of what outlives an iteration and of the rest, seen from the end."""
    lives: list[list[int]] = []  # size, first event, iterations' ends that it sees
    open_ones: dict[int, list[int]] = {}
    for number, event in enumerate(events):
        if isinstance(event, Allocated):
            open_ones[event.address] = [aligned(event.size), number, len(events), 0]
            lives.append(open_ones[event.address])
        elif isinstance(event, Freed):
            open_ones.pop(event.address)[2] = number
        else:
            for life in open_ones.values():
                life[3] += 1
    most = [0, 0]
    for number in range(len(events)):
        for kept in (0, 1):
            now = sum(s for s, a, b, ends in lives if a <= number < b and bool(ends) == bool(kept))
            most[kept] = max(most[kept], now)
    return most[1], most[0]


def check_sizes(events: list[Event]) -> None:
    sizes = needed_sizes(events)
    persistent, temporary = alive_at_most(events)
    assert (sizes.persistent_alive, sizes.temporary_alive) == (persistent, temporary)
    assert persistent <= sizes.persistent <= 1.05 * persistent + 4096
    assert temporary <= sizes.temporary <= 1.05 * temporary + 4096


def expectations(events: list[Event], learner: KindLearner) -> list[tuple[int, bool, Allocation]]:
    """The iteration of each allocation, whether it outlived that, and what was expected."""
    open_ones: dict[int, Allocation] = {}
    made: list[Allocation] = []
    survived: set[Allocation] = set()
    learner.begin_iteration()
    for event in events:
        if isinstance(event, Allocated):
            made.append(learner.allocated(event.size))
            open_ones[event.address] = made[-1]
        elif isinstance(event, Freed):
            learner.freed(open_ones.pop(event.address))
        else:
            survived.update(learner.end_iteration())
            learner.begin_iteration()
    return [(one.iteration or 0, one in survived, one) for one in made]


def test_a_recording_of_pytorch_tells_what_its_loop_needs() -> None:
    events = read_recording(RECORDING)
    assert sum(isinstance(event, IterationEnded) for event in events) == 6
    # The weights of a linear layer, its gradient and two states of Adam, of 2 MiB each.
    assert needed_sizes(events).persistent > 4 * (4096 * 128 * 4)
    check_sizes(events)


def test_of_twenty_loops_the_needs_are_never_too_small_nor_much_too_large() -> None:
    for seed in range(20):
        keeps, lives = trace(seed)
        events: list[Event] = [Allocated(at, size) for at, size in enumerate(keeps[:-1])]
        for iteration in range(3):
            alive: dict[int, int] = {}
            for number, (size, life) in enumerate(lives):
                for old in [one for one, until in alive.items() if until < number]:
                    events.append(Freed(old))
                    del alive[old]
                address = 1000 * (1 + iteration) + number
                events.append(Allocated(address, size))
                alive[address] = number + life
            if not iteration:  # as optimisers do
                events.append(Allocated(999, keeps[-1]))
            events += [*map(Freed, alive), IterationEnded()]
        check_sizes(events)
        kept = {one for iteration, one, _ in expectations(events, KindLearner()) if iteration}
        assert kept == {False}


def test_a_loop_of_pytorch_repeats_itself_so_that_kinds_are_right_after_the_profile() -> None:
    events = read_recording(RECORDING)
    found = expectations(events, KindLearner(profiled_iterations=2))
    assert {one.kind for iteration, _, one in found if iteration < 2} == {Kind.UNKNOWN}
    later = [(survives, one.kind) for iteration, survives, one in found if iteration >= 2]
    wrong = [one for one in later if one[0] != (one[1] is Kind.PERSISTENT)]
    kept = sum(survives for survives, _ in later)
    assert wrong == []
    assert 20 < kept < len(later) - 20, "gradients persist until they are freed, activations do not"


def test_pytorch_itself_records_the_same(tmp_path: Path) -> None:
    python = os.environ.get("GPUD_PYTORCH_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import torch"], check=False, capture_output=True)
    if found.returncode:
        pytest.skip("PyTorch is not installed; GPUD_PYTORCH_PYTHON names a Python that has it")
    path = tmp_path / "now.json.gz"
    subprocess.run([python, str(RECORDER), str(path)], check=True, capture_output=True, timeout=90)
    now, before = needed_sizes(read_recording(path)), needed_sizes(read_recording(RECORDING))
    assert now.iterations == before.iterations
    assert now.persistent_alive >= 4 * (4096 * 128 * 4)
    check_sizes(read_recording(path))


def test_a_snapshot_of_the_gpus_allocator_is_read(tmp_path: Path) -> None:
    def row(action: str, at: int, size: int, when: int) -> dict[str, Any]:
        return {"action": action, "addr": at, "size": size, "stream": 0, "time_us": when}

    rows = [
        row("free_completed", 1, 512, 0),  # allocated before it was recorded
        row("segment_alloc", 0, 1 << 21, 1),
        row("alloc", 1 << 20, 1024, 2),
        row("alloc", 2 << 20, 2048, 3),
        row("free_requested", 2 << 20, 2048, 4),
        row("free_completed", 2 << 20, 2048, 5),
    ]
    notes = [
        {"stage": "START", "name": MARK, "device": 0, "time_us": 2},
        {"stage": "END", "name": MARK, "device": 0, "time_us": 6},
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(
        pickle.dumps({"device_traces": [[], rows], "segments": [], "external_annotations": notes})
    )
    assert needed_sizes(read_recording(path, device=1))[:2] == (1024, 2048)
    with pytest.raises(ValueError, match="no allocations of the host's"):
        read_recording(path)


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "no recording": (lambda: b"GIF89a", "neither a profiler's trace nor a snapshot"),
    "another JSON": (lambda: b'{"a": 1}', "neither a profiler's trace nor a snapshot"),
    "no memory": (lambda: b'{"traceEvents": []}', "profile_memory=True"),
    "nothing": (lambda: b"", "neither a profiler's trace"),
}


@pytest.mark.parametrize(("raw", "said"), BAD.values(), ids=BAD)
def test_what_is_no_recording_is_said(tmp_path: Path, raw: Callable[[], bytes], said: str) -> None:
    path = tmp_path / "recording"
    path.write_bytes(raw())
    with pytest.raises(ValueError, match=said):
        read_recording(path)


def test_a_recording_without_steps_or_that_lacks_events_is_said(tmp_path: Path) -> None:
    plain = json.loads(gzip.decompress(RECORDING.read_bytes()))
    rows = [row for row in plain["traceEvents"] if row["name"] == "[memory]"]
    path = tmp_path / "recording.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    with pytest.raises(ValueError, match="no end of an iteration"):
        needed_sizes(read_recording(path))
    with pytest.raises(ValueError, match="event 1 allocates at 0x100, where event 0"):
        needed_sizes([Allocated(256, 8), Allocated(256, 8), IterationEnded()])
    with pytest.raises(ValueError, match="event 0 frees 0x100, which the recording never"):
        needed_sizes([Freed(256)])


def test_what_is_allocated_outside_of_iterations_persists_and_kinds_follow_the_last_time() -> None:
    learner = KindLearner()
    assert learner.allocated(8).kind is Kind.PERSISTENT
    kinds = []
    for survives in (True, False, True, True):
        learner.begin_iteration()
        one = learner.allocated(8)
        kinds.append(one.kind)
        if not survives:
            learner.freed(one)
        assert learner.end_iteration() == ([one] if survives else [])
    assert kinds == [Kind.UNKNOWN, Kind.PERSISTENT, Kind.TEMPORARY, Kind.PERSISTENT]


def test_parts_of_a_granule_or_more_share_theirs_with_nobody() -> None:
    parts = ProfileParts(64 << 10, 4 << 10)
    small = [parts.take(100) for _ in range(3)]
    large = [parts.take(5 << 10), parts.take(4 << 10)]
    assert small == [0, 256, 512]
    assert large == [8 << 10, 16 << 10]
    assert parts.take(8100) == 20 << 10  # small ones have an eighth
    parts.give_back(8 << 10, 5 << 10)
    assert parts.take(6 << 10) == 8 << 10
    parts.restrict([(0, 4 << 10), (8 << 10, 20 << 10)])
    assert parts.take(3000) == 768
    assert parts.take(3000) is None, "what is restricted has no room elsewhere"


def test_a_part_may_be_given_back_by_a_finalizer_within_another_call() -> None:
    memory = MemoryRange(0, 1024, ())
    first = memory.take(512)
    assert first == 0
    with memory._lock:  # as in `take`, where the collector may begin
        memory.give_back(first, 512)
    assert memory.take(512) == 0
