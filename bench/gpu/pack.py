"""Packs what a GPU machine without network lacks into ``.gpu/site.tar.xz``, which git ignores.

    python bench/gpu/pack.py [--python 3.12]

Such a machine is expected to have Python with NumPy, cuda-bindings, NVRTC, msgpack, uvloop,
matplotlib, Hypothesis and nvidia-ml-py, as images for CUDA with PyTorch, CuPy and JAX have; what
they lack, or do not have in the version that gpud needs, is packed here for its Python and its
processor (x86-64), at the versions of constraints.txt. There, ``bench/gpu/on_machine.sh COMMAND``
unpacks it and runs a command with it.

The CUDA headers are included: PyTorch brings those of the runtime only, which include others
(``cooperative_groups.h``, ``mma.h``), and only the first folder with ``cuda_fp16.h`` is searched
(`gpud.compiler.toolchain.cuda_headers`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTO = ROOT / ".gpu"
HEADERS = ("nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-runtime")
CARRIED = ("llvmlite", "pluggy", "pytest", "pytest-asyncio", "pytest-timeout", *HEADERS)
PLATFORMS = ("2_28", "2_27", "2_17", "2014", "1")


def pins(names: Sequence[str]) -> list[str]:
    """``name==version`` of each, from constraints.txt.

    Raises:
        KeyError: one is not there.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    known = {line.partition("==")[0]: line for line in lines if "==" in line}
    return [known[name] for name in names]


def command(python: str, target: Path) -> list[str]:
    """Return the command that fetches the packages and unpacks them into ``target``."""
    platforms = [
        word
        for number in PLATFORMS
        for word in (
            "--platform",
            f"manylinux{number if '_' not in number else '_' + number}_x86_64",
        )
    ]
    return [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-compile", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", python, *platforms, "--target", str(target), *pins(CARRIED)),
    ]


def main() -> int:
    """Fetch and pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", default="3.12", help="the other machine's Python")
    options = parser.parse_args()
    INTO.mkdir(exist_ok=True)
    path = INTO / "site.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command(options.python, Path(folder)), check=True)
        with tarfile.open(path, "w:xz", preset=4) as archive:
            archive.add(folder, arcname=".")
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
