"""A daemon's dumps: what is written where, the limits, and that none fails a compilation."""

from __future__ import annotations

import errno
import logging
import resource
from pathlib import Path

import pytest

from gpud.compiler import dump_folder
from gpud.compiler.dump_folder import DumpFolder
from gpud.compiler.process.main import ProcessRules, compile_job
from gpud.compiler.process.messages import CompileDone, CompileFailed, CompileJob
from gpud.compiler.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_75\n.address_size 64\n"
BOTH = HEAD + ".visible .entry first() { ret; }\n.visible .entry second() { ret; }\n"
BLOCK = (32, 1, 1)


def dumped(folder: Path, source: str, *kernels: str) -> CompileDone:
    """Compile as a compile process does that dumps ``kernels`` to ``folder``."""
    rules = ProcessRules(dumps=DumpFolder(folder, kernels or ("*",)))
    answer = compile_job(CompileJob(1, source, cache_dir=""), rules)
    assert isinstance(answer, CompileDone)
    return answer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def named(program: int) -> str:
    return f"{HEAD}.visible .entry k{program}() {{ ret; }}\n"


def write_ir(folder: Path, program: CompileDone, entry: str, ir: str = "define") -> None:
    DumpFolder(folder, ("first", "second")).kernel(
        program.ptx, parse(program.ptx).entries(), entry, BLOCK, ir
    )


def test_a_program_has_one_folder_with_its_stages_and_its_kernels(tmp_path: Path) -> None:
    program = dumped(tmp_path, BOTH, "sec*", "first")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("first-")
    files = names(folder)
    assert (folder / files[0]).read_text() == BOTH
    assert (folder / files[-1]).read_text() == program.ptx
    assert [name.split("-")[0] for name in files] == [f"{n:02}" for n in range(len(files))]
    write_ir(tmp_path, program, "second")
    write_ir(tmp_path, program, "second", "another session's")
    assert list(tmp_path.iterdir()) == [folder]
    assert (folder / "llvm-second-32x1x1.ll").read_text() == "define"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_only_what_matches_is_written(tmp_path: Path) -> None:
    program = dumped(tmp_path, BOTH, "second?", "sec")
    assert names(tmp_path) == []
    dumped(tmp_path, BOTH, "second")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("second-")
    DumpFolder(tmp_path, ("second",)).kernel(program.ptx, ["first", "second"], "first", BLOCK, "x")
    assert not list(folder.glob("llvm-*"))


def test_a_program_that_fails_is_dumped_by_its_words(tmp_path: Path) -> None:
    wrong = HEAD + ".visible .entry wrong() { nonsense %r1; }\n"
    for pattern in ("right", "wrong"):
        rules = ProcessRules(dumps=DumpFolder(tmp_path, (pattern,)))
        answer = compile_job(CompileJob(1, wrong, cache_dir=""), rules)
        assert isinstance(answer, CompileFailed)
        assert str(tmp_path) not in str(answer.error), "clients are not told where dumps are"
        assert len(names(tmp_path)) == (pattern == "wrong")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("failed-")
    assert names(folder) == ["00-source.ptx"]


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    dumped(tmp_path, BOTH)
    (folder,) = tmp_path.iterdir()
    before = names(folder)
    (folder / before[0]).write_text("kept")
    (folder / before[1]).unlink()
    dumped(tmp_path, BOTH)
    assert list(tmp_path.iterdir()) == [folder]
    assert names(folder) == before
    assert (folder / before[0]).read_text() == "kept"


def test_one_program_compiled_twice_at_once_is_dumped_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dumps = DumpFolder(tmp_path)
    with dumps.compiling(BOTH) as slow, dumps.compiling(BOTH) as quick:
        for dump in (slow, quick):
            dump.write("source", "ptx", BOTH)
    (name,) = names(tmp_path)
    assert name.startswith("failed-")
    assert caplog.records == []


def test_no_more_programs_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_folder, "MOST_PROGRAMS", 2)
    (tmp_path / "mine").mkdir()
    last = [dumped(tmp_path, named(number)) for number in range(4)][-1]
    assert len(names(tmp_path)) == 3
    assert "mine" in names(tmp_path)
    DumpFolder(tmp_path).kernel(last.ptx, ["k3"], "k3", BLOCK, "define")
    assert len(names(tmp_path)) == 3


def test_no_more_bytes_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumped(tmp_path, named(0))
    monkeypatch.setattr(dump_folder, "MOST_BYTES", 100)
    dumped(tmp_path, named(1))
    assert len(names(tmp_path)) == 1


def test_no_more_kernels_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_folder, "MOST_KERNELS", 1)
    program = dumped(tmp_path, BOTH)
    for entry in ("first", "second"):
        write_ir(tmp_path, program, entry)
    assert [path.name for path in tmp_path.glob("*/llvm-*")] == ["llvm-first-32x1x1.ll"]


@pytest.mark.parametrize("after", range(4))
def test_a_full_disk_costs_the_dump_only(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Path.write_text
    written: list[Path] = []

    def write_text(path: Path, *rest: str) -> int:
        if len(written) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        return plain(path, *rest)

    monkeypatch.setattr(Path, "write_text", write_text)
    with caplog.at_level(logging.WARNING):
        rules = ProcessRules(dumps=DumpFolder(tmp_path))
        for number in range(2):
            answer = compile_job(CompileJob(number, named(number), cache_dir=""), rules)
            assert isinstance(answer, CompileDone)
    assert len(written) == after
    assert names(tmp_path) == []
    assert [record.message.count("No space left") for record in caplog.records] == [1]


def test_a_full_disk_leaves_no_half_kernel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = dumped(tmp_path, BOTH)
    (folder,) = tmp_path.iterdir()
    before = names(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        write_ir(tmp_path, program, "first", "define" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(folder) == before
    assert len(caplog.records) == 1


@pytest.mark.parametrize("problem", ["a file", "others may write"])
def test_a_folder_that_cannot_be_used_is_named_in_the_log(
    problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "dumps"
    if problem == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    dumped(folder, BOTH)
    assert folder.is_file() or names(folder) == []
    (record,) = caplog.records
    assert str(folder) in record.message
