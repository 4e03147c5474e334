"""A scratch copy of a tree: what is mutated and tested instead of the tree itself.

The copy has an environment of its own, since what a test starts runs `sys.executable`: the tree's
environment finds the tree's modules, this one finds the copy's, and third-party packages in the
tree's. Bytecode is compiled once and never written again; a mutated file gets a modification time
that no file had before, so that no process takes bytecode of another version.
"""

from __future__ import annotations

import os
import stat
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Scratch"]

_CONSOLE_SCRIPT = """#!{python}
import sys
from {module} import main
sys.exit(main())
"""
_SCRIPTS = {"gpud": "gpud.cli", "gpuctl": "gpud_client.cli"}


class Scratch:
    """A copy of a revision of a repository, with an environment.

    Args:
        repository: its folder.
        revision: which of its commits.
        folder: the copy's; kept if it is there.
        site_packages: where third-party packages lie.
    """

    def __init__(self, repository: Path, revision: str, folder: Path, site_packages: Path) -> None:
        self.folder = folder
        self.python = folder / ".venv" / "bin" / "python"
        self._mutations = 0
        if self.python.exists():  # a run that was killed leaves its mutant
            subprocess.run(["git", "checkout", "-q", "--", "."], cwd=folder, check=True)
        else:
            _extract(repository, revision, folder)
            self._make_environment(site_packages)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the processes that run tests here."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PYTHON", "PYTEST", "GPUD_", "COV"))
        }
        return {
            **kept,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "VIRTUAL_ENV": str(self.python.parents[1]),
            "XDG_CACHE_HOME": str(self.folder / ".mutation-cache"),
        }

    def install(self, name: str, text: str) -> Path:
        """Put a file beside the environment's packages, and return its path."""
        path = next(self.python.parents[1].glob("lib/python*/site-packages")) / name
        path.write_text(text)
        return path

    def compile(self) -> None:
        """Write the bytecode of all modules."""
        command = [str(self.python), "-m", "compileall", "-q", "gpud", "client", "bench", "tests"]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=False)

    @contextmanager
    def mutated(self, module: str, source: bytes) -> Iterator[None]:
        """Within this context the file ``module`` holds ``source``."""
        path = self.folder / module
        original, times = path.read_bytes(), path.stat()
        self._mutations += 1
        try:
            path.write_bytes(source)
            later_ns = times.st_mtime_ns + self._mutations * 1_000_000_000
            os.utime(path, ns=(later_ns, later_ns))
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _make_environment(self, site_packages: Path) -> None:
        venv.create(self.python.parents[1], symlinks=True, with_pip=False)
        # A path file's lines go to the end of sys.path as they are: the path files of the tree's
        # environment, which would add the tree, are not read.
        lines = [self.folder, self.folder / "client", site_packages]
        path_file = self.install("scratch.pth", "".join(f"{line}\n" for line in lines))
        # Libraries that are not Python's are looked for beside the environment's own packages.
        if (site_packages / "nvidia").exists():
            path_file.with_name("nvidia").symlink_to(site_packages / "nvidia")
        for name, module in _SCRIPTS.items():
            script = self.python.parent / name
            script.write_text(_CONSOLE_SCRIPT.format(python=self.python, module=module))
            script.chmod(script.stat().st_mode | stat.S_IXUSR)


def _extract(repository: Path, revision: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    archive = ["git", "archive", revision]
    with subprocess.Popen(archive, cwd=repository, stdout=subprocess.PIPE) as git:
        subprocess.run(["tar", "-x"], cwd=folder, stdin=git.stdout, check=True)
    if git.returncode != 0:
        raise OSError(f"git cannot give the files of {revision}")
    # Tests that ask git for the tree's files find the copy's.
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=False, capture_output=True)
