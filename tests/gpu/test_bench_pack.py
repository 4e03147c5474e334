"""The archive for a machine without network, and how commands run there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.gpu import pack

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "gpu" / "on_machine.sh"


def test_packages_are_pinned_and_for_the_other_machine() -> None:
    line = pack.command("3.12", Path("there"))
    for name in ("llvmlite", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-runtime"):
        assert any(word.startswith(f"{name}==") for word in line), name
    assert "manylinux_2_28_x86_64" in line
    assert "manylinux2014_x86_64" in line
    assert line[line.index("--python-version") + 1] == "3.12"
    with pytest.raises(KeyError):
        pack.pins(["no-such-package"])


def test_commands_run_with_what_was_packed_and_leave_results(tmp_path: Path) -> None:
    """In a copy of the few files that the script uses."""
    folder = tmp_path / "repository"
    for name in ("bench/gpu", "bench/results", ".gpu"):
        (folder / name).mkdir(parents=True)
    (folder / "bench/gpu/on_machine.sh").write_text(SCRIPT.read_text())
    (tmp_path / "carried.py").write_text("there = 5\n")
    with tarfile.open(folder / ".gpu/site.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "carried.py", arcname="./carried.py")
    out = tmp_path / "out"
    out.mkdir()
    code = "import carried; open('bench/results/gpu_x.json', 'w').write('1'); exit(carried.there)"
    done = subprocess.run(
        ["bash", "bench/gpu/on_machine.sh", sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "SITE": str(tmp_path / "site"), "OUT": str(out)},
        check=False,
    )
    assert done.returncode == 5
    with tarfile.open(out / "results.tar.gz") as archive:
        assert archive.getnames() == ["bench/results/gpu_x.json"]


def test_the_script_can_be_run() -> None:
    assert os.access(SCRIPT, os.X_OK)
