"""Runs ptxas, NVIDIA's assembler, if it is installed, to check rewritten PTX.

gpud does not need it to run kernels. Tests assemble the rewriter's output, and the benchmark
``bench/bench_ptxas_table.py`` compares registers and shared memory before and after a rewrite.

Source: CUDA Binary Utilities and NVCC guides 13.0, ``ptxas --verbose``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from gpud.errors import CompileError

__all__ = ["Usage", "assemble", "find_ptxas", "parse_report", "ptxas_version"]

_TIMEOUT_S = 300
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_RELEASE = re.compile(r"release (\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that one kernel uses on a device, as ptxas reports them.

    Attributes:
        registers: Registers per thread.
        shared_bytes: Static shared memory per block.
        stack_bytes: Local memory of the call stack per thread.
        spill_bytes: Bytes of register spills, stores and loads, per thread.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@cache
def find_ptxas() -> str | None:
    """Return the path of the command, None if it is not installed."""
    return shutil.which("ptxas")


@cache
def ptxas_version() -> tuple[int, int]:
    """Return the release, ``(13, 0)``.

    Raises:
        FileNotFoundError: ptxas is not installed.
    """
    done = subprocess.run(
        [_command(), "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    match = _RELEASE.search(done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def assemble(ptx: str, arch: str) -> dict[str, Usage]:
    """Assemble ``ptx`` for ``arch`` (``sm_90``), discards the code. Blocks for up to a second.

    Returns:
        The usage of each kernel by its name in the PTX.

    Raises:
        CompileError: ptxas refused the program; ``log`` is its whole output.
        FileNotFoundError: ptxas is not installed.
    """
    done = subprocess.run(
        [_command(), "--verbose", f"--gpu-name={arch}", "--output-file=/dev/null", "/dev/stdin"],
        input=ptx,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    log = done.stdout + done.stderr
    if done.returncode != 0:
        first = next((line for line in log.splitlines() if line.strip()), f"rc {done.returncode}")
        raise CompileError(f"ptxas refused the PTX for {arch}: {first}", log=log)
    return parse_report(log)


def parse_report(log: str) -> dict[str, Usage]:
    """Parse the output of ``ptxas --verbose``: the usage of each kernel by its PTX name."""
    parts = _ENTRY.split(log)
    usages: dict[str, Usage] = {}
    for name, text in zip(parts[1::3], parts[3::3], strict=True):
        stack = _STACK.search(text)
        usages[name] = Usage(
            registers=_number(_REGISTERS, text),
            shared_bytes=_number(_SHARED, text),
            stack_bytes=int(stack[1]) if stack else 0,
            spill_bytes=int(stack[2]) + int(stack[3]) if stack else 0,
        )
    return usages


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0


def _command() -> str:
    command = find_ptxas()
    if command is None:
        raise FileNotFoundError("ptxas is not on PATH; it comes with the CUDA toolkit")
    return command
