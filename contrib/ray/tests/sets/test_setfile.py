"""Set files: what is read, and that every error names line, task and field."""

import re
from pathlib import Path

import pytest

from gpud.errors import InvalidArgument
from gpud_ray.sets.generate import random_set
from gpud_ray.sets.setfile import read, write

GOOD = '''\
[set]
parallel = 3
mode = "in turn"

[[task]]
kernel = "matrix_product"
size = 512
repeat = 3
seed = 5

[[task]]
kernel = "saxpy"
source = "saxpy.cu"
grid = 64
block = [16, 16]
arguments = [2.0, "arange:f32:16384", "zeros:f32:1048576", true]
capsm = 0.5

[[task]]
name = """
memory = "a name"
"""
executable = "/bin/true"
arguments = ["-n", 3]
memory = "1.5 GiB"
duration = 2.5
arrival = 1
timeout = 30
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "saxpy.cu").write_text('extern "C" __global__ void saxpy() {}')
    return tmp_path


def test_everything_is_read(folder: Path) -> None:
    (folder / "set.toml").write_text(GOOD)
    found = read(folder / "set.toml")
    assert (found.parallel, found.mode, len(found.tasks)) == (3, "in turn", 5)
    assert [one.program.seed for one in found.tasks[:3]] == [5, 6, 7]
    assert [one.needs.memory_mb for one in found.tasks] == [3, 3, 3, 5, 1536]
    saxpy, executable = found.tasks[3], found.tasks[4]
    assert saxpy.program.arguments == ("2.0", "arange:f32:16384", "zeros:f32:1048576", "true")
    assert (saxpy.needs.threads, saxpy.needs.capsm_milli) == (256, 500)
    assert executable.program.arguments == ("-n", "3")
    assert (executable.needs.duration_s, executable.needs.arrival_s) == (2.5, 1.0)
    assert executable.program.timeout_s == 30


TASK = '[[task]]\nkernel = "stencil"\nsize = 64\n'
BAD = [
    ("x = ]\n", "no valid TOML: Invalid value.*line 1"),
    ("", "task is missing; it must be one or more tables"),
    ("tasks = 3", "set.toml:1: tasks is unknown; did you mean task"),
    ('[set]\nmode = "both"\n' + TASK, "set.toml:2: mode must be split or in turn; not 'both'"),
    (TASK + "[[task]]\nsize = 5\n", "set.toml:4: task 2: kernel is missing"),
    (TASK + TASK.replace("64", "65"), "set.toml:6: task 2: size must be a multiple of 16; not 65"),
    (TASK + "memory = '3 GiB'", "set.toml:4: task 1: memory must be .* 2048 MiB at most"),
    (TASK.replace("64", "32000"), "set.toml:3: task 1: size must be .* 2048 MiB at most"),
    (TASK + "memory = 'much'", "set.toml:4: task 1: memory must be an amount of memory"),
    (TASK + "threads = 1024", "set.toml:4: task 1: threads must be fewer than 1024 threads"),
    (TASK + "capsm = '50%'", "set.toml:4: task 1: capsm must be a number of SMs, as GPUs differ"),
    (TASK + "capsm = -1", "set.toml:4: task 1: capsm must be a number of SMs"),
    (TASK + "repeat = 0", "set.toml:4: task 1: repeat must be a whole number from 1"),
    (TASK + "duration = nan", "set.toml:4: task 1: duration must be a number of seconds"),
    (TASK + "memroy = 1", "set.toml:4: task 1: memroy is unknown; did you mean memory"),
    (TASK + "grid = 1", "set.toml:4: task 1: grid must be left out for a task of this kind"),
    (
        "[[task]]\nname='''\n[[task]]\n'''\nkernel='warp'\n",
        "set.toml:5: task 1: kernel must be one of matrix_product",
    ),
    ('[[task]]\nexecutable = "/bin/true"\n', "set.toml:1: task 1: memory must be given"),
    (
        '[[task]]\nkernel = "f"\nsource = "none.cu"\ngrid = 1\nblock = 1\n',
        "set.toml:3: task 1: source must be a file that can be read",
    ),
    (
        '[[task]]\nkernel = "f"\nsource = "saxpy.cu"\ngrid = 0\nblock = 1\n',
        "set.toml:4: task 1: grid must be a number from 1 on",
    ),
    (
        '[[task]]\nkernel = "f"\nsource = "saxpy.cu"\ngrid = 1\nblock = 1\narguments = ["f8:1"]',
        r"set.toml:6: task 1: arguments must be as for gpuctl run \(f8:1: 'f8' is neither",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_errors_name_line_and_field(folder: Path, text: str, message: str) -> None:
    (folder / "set.toml").write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        read(folder / "set.toml")
    assert re.search(message, str(caught.value)), str(caught.value)


def test_limits_can_be_left_out(folder: Path) -> None:
    (folder / "set.toml").write_text(TASK + "threads = 1024\nmemory = '9 GiB'")
    assert read(folder / "set.toml", limits=False).tasks[0].needs.memory_mb == 9216


def test_a_random_set_is_written_and_read_again(folder: Path) -> None:
    made = random_set(40, seed=3)
    assert {one.program.name for one in made.tasks} == {
        "matrix_product", "stencil", "graph_search", "detector",
    }  # fmt: skip
    write(folder / "random.toml", made)
    again = read(folder / "random.toml")
    assert [(one.needs, one.program) for one in again.tasks] == [
        (one.needs, one.program) for one in made.tasks
    ]
