"""The dump folder of a daemon: what it made of the programs that clients loaded.

Problem: a kernel is compiled in several processes of a running daemon, from sources that others
send; to see what was made of one kernel must not put any client's work at risk.

Approach: the compile process, a CPU device's native compile process and a CUDA device's host all
have a `DumpFolder` of the same folder, with the settings ``dump`` and ``dump_kernels``. A program
has a folder there: the results of the compiler's stages, and the LLVM IR of its kernels, or its PTX
as a GPU's driver is given it. Its name is that of its first
matching kernel, and a hash of the rewritten PTX, from which each process derives it.

Terms: a *label* is a program's first kernel with a name that matches; there is none in a program
that fails to compile: such a program matches if a word of its source does.

Properties:
    harmless: whatever cannot be written (the disk is full, the folder is not ours) changes no
        result and is no error; a line in the log says why, once for each process;
    bounded: there are at most `MOST_PROGRAMS` programs, each with at most `MOST_KERNELS` files of
        LLVM IR, and no further ones after `MOST_BYTES`. What is there is never removed: the folder
        belongs to whoever looks at it;
    private: the folder is created for its user alone, and one that others may write is not used;
    whole: a program's folder gets its name when all stages are in it. One that is named
        ``unfinished-...`` is being compiled, or its process was killed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from gpud.compiler.abi.reserved_names import kernel_of
from gpud.compiler.dump import Dump
from gpud.compiler.forms.form import Form
from gpud.compiler.program import Program

__all__ = ["MOST_BYTES", "MOST_KERNELS", "MOST_PROGRAMS", "DumpFolder", "ProgramDump"]

MOST_PROGRAMS = 256
MOST_KERNELS = 64
MOST_BYTES = 1 << 30

_LOG = logging.getLogger(__name__)
_OWN_NAME = re.compile(r".*-[0-9a-f]{16}", re.ASCII)
_WORD = re.compile(r"[\w$]+")
_LABEL_CHARACTERS = 80


class DumpFolder:
    """Writes the dumps of one process.

    Args:
        path: the folder; it is created, and shared with other processes.
        kernels: which kernels: their names in PTX, with ``*`` for any characters and ``?`` for one.
    """

    def __init__(self, path: Path, kernels: Iterable[str] = ("*",)) -> None:
        self.path = path
        self._kernels = tuple(kernels)
        self._silent = False
        with self._harmless():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def compiling(self, source: str) -> Iterator[ProgramDump]:
        """Dump the program that is compiled within this context.

        Call `ProgramDump.done` with the result; otherwise the compilation has failed.
        """
        dump = ProgramDump(self, self.path / f"unfinished-{_hash(source)}", self.has_room())
        try:
            yield dump
        finally:
            with self._harmless():
                self._finish(dump, source)

    def _finish(self, dump: ProgramDump, source: str) -> None:
        """Name a complete dump after a kernel, or drop it if no kernel matches."""
        if not dump.is_open or not dump.folder.exists():
            return
        if dump.ptx is not None:
            name = self._label(dump.names)
        else:
            matches = any(self.wants(word) for word in set(_WORD.findall(source)))
            name = "failed" if matches else None
        if name is None:
            shutil.rmtree(dump.folder)
        else:
            _give_name(dump.folder, self.path / f"{name}-{_hash(dump.ptx or source)}")

    def kernel(
        self,
        ptx: str,
        entries: Iterable[str],
        entry: str,
        block: tuple[int, int, int],
        llvm_ir: str,
    ) -> None:
        """Write the LLVM IR of a kernel, unless there is one for such blocks already.

        Args:
            ptx: the rewritten program.
            entries: all of its entries, in order.
            entry: the one that was compiled: the kernel, or a variant of it.
            block: for blocks of x, y, z threads.
            llvm_ir: as text, before LLVM has optimised it.
        """
        if self.wants(kernel_of(entry)):
            name = f"llvm-{_shortened(entry)}-{'x'.join(map(str, block))}.ll"
            self._add(ptx, entries, name, llvm_ir)

    def loaded(self, ptx: str, entries: Iterable[str], text: str) -> None:
        """Write what a GPU's driver is given of a program, unless that is there already.

        Args:
            ptx: the rewritten program.
            entries: all of its entries, in order.
            text: the same with what is added as it is loaded.
        """
        self._add(ptx, entries, "loaded.ptx", text)

    def _add(self, ptx: str, entries: Iterable[str], name: str, text: str) -> None:
        """Write a file of a program; ``llvm-...``: one of at most `MOST_KERNELS`."""
        label = self._label(map(kernel_of, entries))
        if label is None:
            return
        folder = self.path / f"{label}-{_hash(ptx)}"
        path = folder / name
        with self._harmless():
            if path.exists():
                return
            others = len(list(folder.glob("llvm-*"))) if folder.exists() else 0
            if others < MOST_KERNELS and self.has_room(new=not folder.exists()):
                folder.mkdir(mode=0o700, exist_ok=True)
                _write(path, text)

    def wants(self, kernel: str) -> bool:
        """Return whether the kernel of that name is to be dumped."""
        return any(fnmatchcase(kernel, pattern) for pattern in self._kernels)

    def has_room(self, *, new: bool = True) -> bool:
        """Return whether something can be written; ``new``: as the folder of one more program."""
        try:
            self._check_room(int(new))
        except OSError as error:
            self._log(error)
            return False
        return True

    def _check_room(self, more: int) -> None:
        about = self.path.stat()
        if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("it belongs to another user, or others may write to it")
        programs = [
            one for one in self.path.iterdir() if _OWN_NAME.fullmatch(one.name) and one.is_dir()
        ]
        if len(programs) + more > MOST_PROGRAMS:
            raise OSError(f"it has {MOST_PROGRAMS} programs, the most allowed")
        if sum(map(_size, programs)) >= MOST_BYTES:
            raise OSError(f"it has {MOST_BYTES >> 20} MiB already, the most allowed")

    def _label(self, kernels: Iterable[str]) -> str | None:
        return next((_shortened(one) for one in kernels if self.wants(one)), None)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Ignore errors; log the first one of the process."""
        try:
            yield
        except OSError as error:
            self._log(error)

    def _log(self, error: OSError) -> None:
        if not self._silent:
            _LOG.warning(
                "a dump was not written to %s: %s; more of this is not logged", self.path, error
            )
        self._silent = True


class ProgramDump(Dump):
    """The dump of one program; after a failed write it is closed, and the rest is not written.

    Attributes:
        is_open: whether all stages so far are written.
        names: of its kernels, as in PTX; those that the device can run come first.
        ptx: the rewritten program; None: it is not there yet.
    """

    def __init__(self, owner: DumpFolder, folder: Path, is_open: bool) -> None:
        super().__init__(folder)
        self.is_open = is_open
        self.names: tuple[str, ...] = ()
        self.ptx: str | None = None
        self._owner = owner

    @property
    def reproducer_folder(self) -> None:
        """Nowhere: clients are told where it is, and this folder is not for them."""

    def write(self, stage: str, ending: str, text: str) -> None:
        """Write a stage's result if that is possible."""
        if not self.is_open:
            return
        self.is_open = False
        with self._owner._harmless():
            try:
                self.folder.mkdir(mode=0o700, exist_ok=True)
                super().write(stage, ending, text)
                self.is_open = True
            finally:
                if not self.is_open:
                    shutil.rmtree(self.folder, ignore_errors=True)

    def done(self, program: Program) -> None:
        """Set what the program became."""
        self.ptx = program.ptx
        rejected = {n for n, one in program.kernels.items() if one.form is Form.REJECTED}
        self.names = (*(n for n in program.kernels if n not in rejected), *sorted(rejected))


def _give_name(folder: Path, name: Path) -> None:
    """Rename a complete dump; files of an equal program, if there are any, stay."""
    try:
        folder.rename(name)
    except OSError:
        for path in sorted(folder.iterdir()):
            if not (name / path.name).exists():
                path.rename(name / path.name)
        shutil.rmtree(folder)


def _write(path: Path, text: str) -> None:
    """Write all of a new file, or none of it."""
    try:
        with path.open("x", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    except FileExistsError:
        return  # another process was faster
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def _size(folder: Path) -> int:
    with suppress(FileNotFoundError):  # another process has renamed or dropped it
        return sum(path.lstat().st_size for path in folder.iterdir())
    return 0


def _shortened(name: str) -> str:
    return re.sub(r"[^\w$.]", "_", name)[:_LABEL_CHARACTERS]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
