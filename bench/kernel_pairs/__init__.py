"""Kernels written in CUDA C++ and in OpenCL C, to compare the CPU device with PoCL."""

from __future__ import annotations

from bench.kernel_pairs.launch import LAUNCH
from bench.kernel_pairs.pair import Pair, Problem, wrong
from bench.kernel_pairs.simulation import SIMULATION
from bench.kernel_pairs.streaming import STREAMING
from bench.kernel_pairs.tiles import TILES

__all__ = ["PAIRS", "Pair", "Problem", "wrong"]

PAIRS: tuple[Pair, ...] = (*STREAMING, *TILES, *SIMULATION, LAUNCH)
