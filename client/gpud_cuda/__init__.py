"""gpud's own CUDA driver library, for programs that exist: `gpud_cuda.build` makes it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_folder"]


def library_folder() -> Path:
    """Return the folder that has ``libcuda.so.1``, if that was built."""
    return Path(__file__).parent / "lib"
