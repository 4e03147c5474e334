"""Finds the CUDA headers of this machine, for ``#include <cuda_fp16.h>``.

NVRTC knows the built-in functions but comes without header files such as ``cuda_fp16.h``,
``cuda_bf16.h``, ``cooperative_groups.h``, ``cuda/std/*``, ``cub/*``. These places are searched in
order, and the first that has ``cuda_fp16.h`` is used:

1. the pip wheels that fit NVRTC's major version (the extras ``daemon`` and ``cuda12``);
2. ``$CUDA_HOME``, ``$CUDA_PATH``;
3. what ``cuda.pathfinder`` finds: conda, system folders;
4. the toolkit whose ``nvcc`` is on PATH.

The wheels come first because they have the same release as NVRTC; a toolkit may have any. Since
CUDA 13, ``cuda/std`` and ``cub`` lie in a subfolder ``cccl``, which is searched as well.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["cuda_include_paths"]

_WHEEL_FOLDERS = {
    12: ("cuda_runtime/include", "cuda_cccl/include", "cuda_nvcc/include", "curand/include"),
    13: ("cu13/include",),
}
_MARKER = "cuda_fp16.h"


@cache
def cuda_include_paths(major: int) -> tuple[str, ...]:
    """Return the folders to search for CUDA headers, empty if none are installed.

    The result is cached for the life of the process.

    Args:
        major: NVRTC's major version; wheels of another one are not used.
    """
    for folders in _candidates(major):
        if any((folder / _MARKER).is_file() for folder in folders):
            nested = [folder / "cccl" for folder in folders]
            return tuple(str(folder) for folder in [*folders, *nested] if folder.is_dir())
    return ()


def _candidates(major: int) -> Iterator[list[Path]]:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield [Path(root) / folder for folder in _WHEEL_FOLDERS.get(major, (f"cu{major}/include",))]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield [Path(home) / "include"]
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:  # an old release, or not installed: skip it
        pass
    else:
        if bundled := find_nvidia_header_directory("cudart"):
            yield [Path(bundled)]
    if nvcc := shutil.which("nvcc"):
        yield [Path(nvcc).resolve().parent.parent / "include"]
