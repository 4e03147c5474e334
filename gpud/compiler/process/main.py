"""The compile process: compiles programs for the daemon, one at a time.

``python -m gpud.compiler.process.main --fd N`` with N a connected stream socket.

Problem: NVRTC blocks for 10 to 100 ms, can run for minutes or exhaust the memory on a few lines of
templates, and can crash. None of that may affect the process that serves the clients.

Approach: a loop that reads a `CompileJob`, compiles it, and writes the answer. The front kills the
process if it takes too long, and starts another.

Properties:
    answers_once: a job that did not end the process is answered exactly once; an exception of any
        type becomes an error of gpud's tree;
    bounded: the process has at most ``memory_bytes`` of address space;
    confined: sources cannot make it read or write files but the CUDA headers (`allowlist`,
        `landlock`), nor choose where results are kept;
    ends_with_its_front: when the other end of the socket closes the process exits, even during a
        compilation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from contextlib import nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gpud.compiler.cache import Cache, default_folder
from gpud.compiler.dump_folder import DumpFolder
from gpud.compiler.pipeline import Program, compile_program
from gpud.compiler.process.allowlist import check_headers, check_includes, check_options
from gpud.compiler.process.answer import answer
from gpud.compiler.process.child_process import (
    as_gpud_error,
    exit_on_disconnect,
    limit_memory,
    write_all,
)
from gpud.compiler.process.landlock import confine
from gpud.compiler.process.messages import (
    COMPILE_PROTOCOL,
    MAX_FRAME_BYTES,
    CompileDone,
    CompileFailed,
    CompileJob,
    CompileReady,
)
from gpud.compiler.request import is_ptx
from gpud.compiler.request_key import rewriter_version
from gpud.compiler.toolchain.cuda_headers import cuda_include_paths
from gpud.compiler.toolchain.nvrtc import DEFAULT_ARCH, newest_arch, nvrtc_version
from gpud.errors import (
    GpudError,
    InternalError,
    LimitExceeded,
    ProtocolError,
)
from gpud.wire.framing import FrameDecoder  # noqa: TID251  (a process of its own, not a stage)
from gpud.wire.message_table import Sender  # noqa: TID251

__all__ = ["ProcessRules", "compile_job", "main", "serve"]

DEFAULT_MEMORY_BYTES = 4 << 30
"""The default limit: NVRTC takes about 0.3 GiB of addresses, a large program as much again."""

_READ_BYTES = 1 << 18
_MOST_KERNELS = 4096
_MOST_SYMBOLS = 16384
_MOST_FAILURES = 16
_MOST_REWRITTEN_BYTES = 1 << 26  # `gpud.device.host.messages.Load` carries as much
_MOST_SYMBOL_BYTES = 1 << 48  # the front checks against the device's memory
_MOST_ALIGNMENT = 4096
_MOST_PARAMETER_BYTES = 1 << 16  # as many as a launch can carry


def main(arguments: list[str] | None = None) -> int:
    """Serve until the other end of the socket closes; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gpud.compiler.process.main", description=__doc__
    )
    parser.add_argument("--fd", type=int, required=True, help="a connected stream socket")
    parser.add_argument(
        "--memory-bytes", type=int, default=DEFAULT_MEMORY_BYTES, help="0 for no limit"
    )
    parser.add_argument(
        "--program-bytes", type=int, default=0, help="the largest result; 0 for no limit"
    )
    parser.add_argument("--confine", action="store_true", help="open no files of the user's")
    parser.add_argument("--cache-dir", help="the folder to keep results in, when confined")
    parser.add_argument("--dump", type=Path, help="the folder to write the stages' results to")
    parser.add_argument("--dump-kernels", default="*", help="names of kernels, with commas between")
    options = parser.parse_args(arguments)
    # Ctrl-C in a terminal goes to the whole group, but the daemon needs its compiler to drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(options.memory_bytes)
    os.set_blocking(options.fd, True)
    exit_on_disconnect(options.fd)
    _warm_up()
    dumps = options.dump and DumpFolder(options.dump, options.dump_kernels.split(","))
    confined = options.confine and _confine(options.cache_dir, options.dump)
    with suppress(ConnectionError):
        write_all(options.fd, COMPILE_PROTOCOL.encode(CompileReady(confined)))
    serve(options.fd, ProcessRules(options.program_bytes, macros=confined, dumps=dumps))
    return 0


class ProcessRules(NamedTuple):
    """The rules for the programs that a process compiles.

    Attributes:
        program_bytes: the most bytes of a program as PTX, before rewriting; 0: no limit.
        macros: whether names of headers may be made by macros, whoever's the source is.
        dumps: where the results of the stages go; None: nowhere.
    """

    program_bytes: int = 0
    macros: bool = True
    dumps: DumpFolder | None = None


_NO_RULES = ProcessRules()


def serve(fd: int, rules: ProcessRules = _NO_RULES) -> None:
    """Answer the jobs that arrive on the socket ``fd``. Blocks until its other end closes.

    Raises:
        ProtocolError: a message is not valid and has no ticket; the front is at fault.
    """
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    with suppress(ConnectionError):  # the front has closed the socket during an answer
        while data := os.read(fd, _READ_BYTES):
            decoder.feed(data)
            for body in decoder.frames():
                write_all(fd, COMPILE_PROTOCOL.encode(_handle_frame(body, rules)))


def compile_job(job: CompileJob, rules: ProcessRules = _NO_RULES) -> CompileDone | CompileFailed:
    """Compile the program of a job. Blocks; raises nothing."""
    try:
        headers = dict(job.headers)
        check_headers(headers)
        check_options(job.options, headers)
        for text in (job.source, *headers.values(), *job.options):  # -D makes macros, too
            check_includes(text, macros=rules.macros or job.trusted, given=headers)
        shown = job.source or b"".join(job.images).decode("latin-1")
        with rules.dumps.compiling(shown) if rules.dumps else nullcontext() as dump:
            program = compile_program(
                job.source,
                options=job.options,
                arch=_arch(job),
                name_expressions=job.names,
                form=job.form,
                sm=job.sm,
                bounds_checks=job.bounds_checks,
                progress=job.progress,
                check=job.check,
                images=job.images,
                only=job.only,
                headers=headers,
                cache=_cache(job.cache_dir),
                dump=dump,
            )
            if dump is not None:
                dump.done(program)
        _check_size(program, rules.program_bytes)
        _check_rewritten(program)
        return answer(job.ticket, program, job.names)
    except Exception as error:  # noqa: BLE001  (every error goes to the client)
        if isinstance(error, InternalError):
            _evict_failures(_cache(job.cache_dir))
        return CompileFailed(job.ticket, as_gpud_error(error).to_wire())


# -- helpers -----------------------------------------------------------------------------------


def _arch(job: CompileJob) -> str:
    """Return the architecture to compile for; PTX names its own, and needs no NVRTC."""
    if job.arch is not None:
        return job.arch
    return DEFAULT_ARCH if job.images or is_ptx(job.source) else newest_arch(job.sm)


def _handle_frame(body: bytes, rules: ProcessRules) -> CompileDone | CompileFailed:
    try:
        job = COMPILE_PROTOCOL.decode(body, Sender.CLIENT)
    except ProtocolError as error:
        if error.request is None:
            raise
        return CompileFailed(error.request, error.to_wire())
    return compile_job(job, rules)


def _check_size(program: Program, most: int) -> None:
    size = len(program.original_ptx)
    if most and size > most:
        raise LimitExceeded(
            f"the program has {size} bytes of PTX, and max_program_bytes allows {most}; split it, "
            "instantiate fewer templates, or raise the limit in the daemon's configuration",
            limit="max_program_bytes",
            value=most,
        )
    for symbol in program.symbols.values():
        _check_bytes(f"the variable {symbol.name[:80]}", "bytes", symbol.size, _MOST_SYMBOL_BYTES)
        _check_bytes(
            f"the variable {symbol.name[:80]}", "bytes of alignment", symbol.align, _MOST_ALIGNMENT
        )
    for kernel in program.kernels.values():
        name = f"the kernel {kernel.name[:80]}"
        _check_bytes(name, "bytes of shared memory", kernel.shared_bytes, _MOST_SYMBOL_BYTES)
        _check_bytes(name, "threads of a block", kernel.max_threads or 0, _MOST_SYMBOL_BYTES)
        for parameter in kernel.parameters:
            end = parameter.offset + parameter.size
            _check_bytes(name, "bytes of parameters", end, _MOST_PARAMETER_BYTES)
    if len(program.kernels) > _MOST_KERNELS or len(program.symbols) > _MOST_SYMBOLS:
        raise LimitExceeded(
            f"the program has {len(program.kernels)} kernels and {len(program.symbols)} variables, "
            f"and may have {_MOST_KERNELS} and {_MOST_SYMBOLS}; split it",
            limit="kernels" if len(program.kernels) > _MOST_KERNELS else "variables",
            value=_MOST_KERNELS if len(program.kernels) > _MOST_KERNELS else _MOST_SYMBOLS,
        )


def _check_rewritten(program: Program) -> None:
    """Check that what was made of the kernels can be sent to a device's process."""
    size = len(program.ptx)
    if size > _MOST_REWRITTEN_BYTES:
        raise LimitExceeded(
            f"the {len(program.kernels)} kernels become {size} bytes of PTX, and "
            f"{_MOST_REWRITTEN_BYTES} can be loaded; ask for those that you use with "
            "gpu.kernel(source, name), or split the program",
            limit="bytes of rewritten PTX",
            value=_MOST_REWRITTEN_BYTES,
        )


@lru_cache(maxsize=4)
def _cache(folder: str | None) -> Cache | None:
    """Return the cache in ``folder``: one object each, which logs once that it is unusable."""
    if folder == "":
        return None
    return Cache(None if folder is None else Path(folder))


def _evict_failures(cache: Cache | None) -> None:
    """Keep the latest reproducers only: a client could fill the disk with a bug of gpud's."""
    if cache is None:
        return
    with suppress(OSError):
        folders = sorted(
            (cache.folder / "failures").iterdir(), key=lambda path: path.stat().st_mtime
        )
        for folder in folders[:-_MOST_FAILURES]:
            shutil.rmtree(folder, ignore_errors=True)


def _count(value: int) -> str:
    """Return a number for a message, abbreviated if it is very large."""
    return str(value) if value < 1 << 64 else f"over 2^{value.bit_length() - 1}"


def _check_bytes(whose: str, what: str, value: int, limit: int) -> None:
    if value > limit:
        raise LimitExceeded(
            f"{whose} has {_count(value)} {what}, and may have {limit}", limit=what, value=limit
        )


def _confine(cache_dir: str | None, dump: Path | None) -> bool:
    """Give up access to all files but those that compiling needs; return False if not supported."""
    folder = default_folder() if cache_dir is None else Path(cache_dir)
    if cache_dir != "":
        with suppress(OSError):  # the cache logs the problem when it is used
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    read = [*_library_folders(), str(Path(__file__).resolve().parents[2]), "/etc/ld.so.cache"]
    read += [f"{prefix}/lib" for prefix in (sys.prefix, sys.base_prefix)]
    read += [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    with suppress(GpudError):
        read += cuda_include_paths(nvrtc_version()[0])
    write = [] if cache_dir == "" else [str(folder)]
    return confine(read, write if dump is None else [*write, str(dump)])


def _library_folders() -> list[str]:
    """Return the folders of the libraries that this process has loaded: more come from there."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        paths = (line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line)
        folders = [str(Path(path).parent) for path in paths if path.startswith("/")]
    return list(dict.fromkeys(folders))


def _warm_up() -> None:
    """Load what the first compilation needs, before a client waits for it."""
    rewriter_version()
    with suppress(GpudError):  # without NVRTC, PTX can be compiled; CUDA C++ gives a clear error
        nvrtc_version()


if __name__ == "__main__":
    raise SystemExit(main())
