"""Random task sets: of the classes that the source measures, and of any kind for searches.

Durations and shares are those that the simulated GPU needs; how they are made is in each function.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from gpud_ray.sets.kernels import KERNELS
from gpud_ray.sets.model import GPU, MAX_MEMORY_MB, MAX_THREADS, Task
from gpud_ray.sets.setfile import Program, SetTask, TaskSet

__all__ = ["cluster", "detections", "matrix_products", "random_gpus", "random_set", "random_tasks"]


def cluster(servers: int = 8, gpus: int = 2, memory_mb: int = 11_264) -> list[GPU]:
    """Make the source's machines: eight servers with two 11 GB GPUs each."""
    return [
        GPU(number, memory_mb, node=f"server {number // gpus}") for number in range(servers * gpus)
    ]


def matrix_products(
    count: int,
    seed: int = 0,
    *,
    lasting: Literal["alike", "by memory", "by work"] = "alike",
    sides: tuple[int, int] = (3000, 8000),
) -> list[Task]:
    """Make products of square matrices, in single precision; half of a GPU is all that one uses.

    Args:
        count: how many.
        seed: equal seeds give equal sets.
        lasting: a second in the mean. ``alike``: products are repeated until each task lasts 0.5 to
            1.5 s; ``by memory``: in proportion to its three matrices, which are moved in and out;
            ``by work``: to its arithmetic.
        sides: the least and the most of a matrix.
    """
    chance = random.Random(seed)  # noqa: S311  (no secret)
    drawn = [chance.randrange(sides[0], sides[1] + 1, 8) for _ in range(count)]
    power = {"alike": 0, "by memory": 2, "by work": 3}[lasting]
    mean_power = sum(side**power for side in drawn) / count
    return [
        Task(
            number,
            memory_mb=-(-3 * 4 * side * side >> 20),
            threads=256,
            capsm_milli=34_000,
            duration_s=side**power / mean_power if power else chance.uniform(0.5, 1.5),
        )
        for number, side in enumerate(drawn)
    ]


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
