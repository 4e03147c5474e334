"""The demo runs, is right, and would notice if it were not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from gpud.demo import problems
from gpud.demo_kernels import examples

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_and_every_result_is_right() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "gpud.demo", "--small", "--seed", "3"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "every result is right" in done.stdout
    for example in examples(small=True):
        assert f"== {example.name}: " in done.stdout
        assert f"each of {example.total} task blocks ran once" in done.stdout
    assert done.stdout.count("form      persistent") == len(examples(small=True))


def test_the_demo_sees_what_is_wrong() -> None:
    for example in examples(small=True):
        once = np.ones(example.total, np.uint32)
        complete = (example.total,) * 3
        assert problems(example, example.expected, once, complete) == []
        lost, twice = once.copy(), once.copy()
        lost[0], twice[-1] = 0, 2
        wrong = example.expected.copy()
        wrong.flat[0] += 1
        assert "1 task blocks never ran" in problems(example, example.expected, lost, complete)[0]
        assert "1 ran more than once" in problems(example, example.expected, twice, complete)[0]
        assert "1 of" in problems(example, wrong, once, complete)[0]
        left = (example.total, example.total - 1, example.total)
        assert "progress ended" in problems(example, example.expected, once, left)[0]
