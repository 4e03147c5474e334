"""Random task sets: of the classes that the source measures, and of any kind for searches.

Durations and shares are those that the simulated GPU needs; how they are made is in each function.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from gpud_ray.sets.kernels import KERNELS
from gpud_ray.sets.model import GPU, MAX_MEMORY_MB, MAX_THREADS, Task
from gpud_ray.sets.setfile import Program, SetTask, TaskSet

__all__ = ["cluster", "detections", "matrix_products", "random_gpus", "random_set", "random_tasks"]

_GPU_FLOPS = 9e12  # of half of the arithmetic peak of a GPU with 4,352 cores at 1.5 GHz


def cluster(servers: int = 8, gpus: int = 2, memory_mb: int = 11_264) -> list[GPU]:
    """Make the source's machines: eight servers with two 11 GB GPUs each."""
    return [
        GPU(number, memory_mb, node=f"server {number // gpus}") for number in range(servers * gpus)
    ]


def matrix_products(count: int, seed: int = 0) -> list[Task]:
    """Make products of square matrices, with sides of 3,000 to 8,000, in single precision.

    Three matrices are in memory. A task multiplies as often as makes it last about a second (twice
    the median at most), and half of the GPU is all that one stream's launches and copies keep busy.
    """
    chance = random.Random(seed)  # noqa: S311  (no secret)
    tasks = []
    for number in range(count):
        side = chance.randrange(3000, 8001, 8)
        once_s = 2 * side**3 / _GPU_FLOPS
        times = max(1, round(chance.uniform(0.5, 1.5) / once_s))
        tasks.append(
            Task(
                number,
                memory_mb=-(-3 * 4 * side * side >> 20),
                threads=256,
                capsm_milli=34_000,
                duration_s=times * once_s,
            )
        )
    return tasks


def detections(count: int, seed: int = 0, memory_mb: int = 2_675) -> list[Task]:
    """Make inferences of an image detector.

    Four of them are to fill 95 % of 11 GB, as was reported, which gives their memory, with what a
    framework has besides its 2,048 MiB of arrays; one uses below 30 % of a GPU.
    """
    chance = random.Random(seed)  # noqa: S311  (no secret)
    return [
        Task(
            number,
            memory_mb=memory_mb,
            threads=512,
            capsm_milli=19_000,
            duration_s=chance.uniform(0.8, 1.2),
        )
        for number in range(count)
    ]


def random_gpus(chance: random.Random, count: int) -> list[GPU]:
    """Make GPUs of unequal memory, cores and SMs."""
    return [
        GPU(
            number,
            memory_mb=chance.choice((4096, 8192, 11_264, 16_384)),
            cores=(sms := chance.choice((34, 46, 68, 68))) * 64,
            capsm_milli=sms * 1000,
        )
        for number in range(count)
    ]


def random_tasks(
    chance: random.Random,
    count: int,
    *,
    threads: Sequence[int] = (1, MAX_THREADS),
    memory_mb: Sequence[int] = (1, MAX_MEMORY_MB),
    until_s: float = 0.0,
) -> list[Task]:
    """Make tasks of any kind within limits.

    Args:
        chance: where randomness comes from.
        count: how many.
        threads: the least and the most of a block.
        memory_mb: the least and the most.
        until_s: they arrive between 0 and then.
    """
    return [
        Task(
            number,
            memory_mb=chance.randint(*memory_mb),
            threads=chance.randint(*threads),
            capsm_milli=chance.randint(1000, 68_000),
            duration_s=round(chance.choice((0.2, 1.0, 5.0)) * chance.uniform(0.5, 1.5), 4),
            arrival_s=chance.uniform(0.0, until_s) if until_s else 0.0,
        )
        for number in range(count)
    ]


def random_set(count: int, seed: int = 0, *, most_mb: int = 16) -> TaskSet:
    """Make a set of our kernels that runs on CPU devices.

    Args:
        count: how many tasks, of all classes.
        seed: equal seeds give equal sets.
        most_mb: the most memory of a task.
    """
    chance = random.Random(seed)  # noqa: S311  (no secret)
    tasks = []
    for number in range(count):
        name = chance.choice(list(KERNELS))
        kernel = KERNELS[name]
        most = 1 << 16 if name == "graph_search" else 256
        size = chance.randrange(64, most + 1, 16)
        while kernel.memory_bytes(size) > most_mb << 20:
            size = size // 2 // 16 * 16
        needs = Task(
            number,
            memory_mb=-(-kernel.memory_bytes(size) >> 20),
            threads=kernel.threads,
        )
        program = Program("own", name, size=size, seed=chance.randrange(1 << 16))
        tasks.append(SetTask(needs, program, f"{name} {number}"))
    return TaskSet(tasks)
