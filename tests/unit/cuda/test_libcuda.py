"""The CUDA device over the real bindings: their arguments, results and locks.

Elsewhere the model of the driver replaces the bindings. Here the bindings are the real ones, and a
libcuda of our own is below them (`libcuda.c`), with threads and a lock around its calls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATIENT_S = 120


def header() -> Path | None:
    """The folder of cuda.h, which comes with the packages of CUDA."""
    nvidia = find_spec("nvidia")
    places = list(nvidia.submodule_search_locations or ()) if nvidia else []
    found = [one for place in places for one in Path(place).glob("*/include/cuda.h")]
    return found[0].parent if found else None


@pytest.mark.skipif(find_library("cuda") is not None, reason="here there is a driver")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.skipif(header() is None, reason="there is no cuda.h")
def test_a_device_over_the_real_bindings(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    options = ["-shared", "-fPIC", f"-I{header()}", "-o", str(library), str(HERE / "libcuda.c")]
    subprocess.run(["cc", *options, "-lpthread", "-ldl"], check=True, timeout=PATIENT_S)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.unit.cuda.over_libcuda"],
        cwd=HERE.parents[2],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
