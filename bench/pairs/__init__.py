"""Kernels written in CUDA C++ and in OpenCL C: what the CPU device and PoCL are compared on."""

from __future__ import annotations

from bench.pairs.launch import LAUNCH
from bench.pairs.pair import Pair, Problem, wrong
from bench.pairs.simulation import SIMULATION
from bench.pairs.streaming import STREAMING
from bench.pairs.tiles import TILES

__all__ = ["PAIRS", "Pair", "Problem", "wrong"]

PAIRS: tuple[Pair, ...] = (*STREAMING, *TILES, *SIMULATION, LAUNCH)
