"""What training loops allocate: traces of our own, for sizes that are learned."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def trace(seed: int) -> tuple[list[int], list[tuple[int, int]]]:
    """What a training loop allocates, in bytes: what it keeps, and temporary sizes with lives.

    A temporary array is freed when so many others have been made after it; as frameworks cache
    what they free, an odd seed's live until the iteration ends.
    """
    chance = random.Random(seed)
    keeps = [chance.choice((1 << 10, 1 << 14, 1 << 18)) for _ in range(chance.randint(1, 12))]
    layers = [chance.randrange(1 << 10, 1 << 19) for _ in range(chance.randint(1, 10))]
    forward = [(size, 2 * (len(layers) - number)) for number, size in enumerate(layers)]
    backward = [(size, 1) for size in reversed(layers)]
    lives = [(size, 1000 if seed % 2 else life) for size, life in [*forward, *backward]]
    return keeps, lives


def run_trace(turn: Any, lives: list[tuple[int, int]]) -> int:
    """Allocate and free as a trace says; returns the most bytes that lived at once."""
    alive: dict[int, tuple[Any, int, int]] = {}
    most = 0
    for number, (size, life) in enumerate(lives):
        for old in [one for one, (_, _, until) in alive.items() if until < number]:
            alive.pop(old)[0].free()
        alive[number] = turn.empty(size, np.uint8), -(-size // 256) * 256, number + life
        most = max(most, sum(size for _, size, _ in alive.values()))
    return most
