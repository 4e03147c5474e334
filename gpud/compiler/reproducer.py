"""Compiles a reproducer again: ``python -m gpud.compiler.reproducer FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from gpud.compiler.pipeline import compile_request
from gpud.compiler.reproducer_folder import load_request
from gpud.errors import GpudError

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Compile the reproducer in the folder ``arguments[0]`` again; return 1 if it fails."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m gpud.compiler.reproducer FOLDER\n")
        return 2
    try:
        program = compile_request(load_request(Path(arguments[0])))
    except GpudError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    for kernel in program.kernels.values():
        sys.stdout.write(f"{kernel.name}: {kernel.form}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
