"""Builds `libcuda.so.1` and its stand-ins from C sources, with what is generated for them.

Needs the CUDA headers of the runtime's wheel, and a compiler: ``$CC``, ``cc``, or the one that
comes as the wheel ``ziglang``.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpud_cuda.generate.messages import messages_header, messages_source
from gpud_cuda.generate.names import driver_names, error_names
from gpud_cuda.generate.ring import ring_header
from gpud_cuda.generate.runtime_names import runtime_names

__all__ = [
    "BuildError",
    "build",
    "build_runtime",
    "build_stand_ins",
    "find_compiler",
    "find_headers",
]

_HERE = Path(__file__).parent
_SOURCES = _HERE / "source"
_STAND_INS = _HERE / "standins"
_RUNTIME = _HERE / "runtime"
_RUNTIME_MAJOR = "13"  # of the headers: the runtime's structures differ between releases
_FLAGS = (
    "-std=c11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-pthread", "-D_GNU_SOURCE",
    "-Wall", "-Wextra", "-Werror",
)  # fmt: skip
_PER_THREAD = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"


class BuildError(Exception):
    """The library cannot be built here; the message says what is missing."""


def build(folder: Path, *, flags: Sequence[str] = ()) -> Path:
    """Build the library, and return its path.

    Args:
        folder: where it goes, with ``libcuda.so``, which only names it, and ``build/`` with what is
            generated and compiled.
        flags: further ones of the compiler, such as ``-fsanitize=thread``.

    Raises:
        BuildError: there is no compiler, there are no CUDA headers, or the compiler refuses.
    """
    include, compiler = find_headers(), find_compiler()
    made = folder / "build"
    made.mkdir(parents=True, exist_ok=True)
    texts = {
        "messages.h": messages_header(),
        "messages.c": messages_source(),
        "ring_layout.h": ring_header(),
        "driver_names.c": driver_names(include),
        "error_names.c": error_names(include),
    }
    for name, text in texts.items():
        (made / name).write_text(text)
    paths = [f"-I{_SOURCES}", f"-I{made}", f"-isystem{include}"]
    command = [*compiler, *_FLAGS, *flags, *paths]
    sources = [*_SOURCES.glob("*.c"), *(made / name for name in texts if name.endswith(".c"))]
    jobs: list[tuple[Path, Path, list[str]]] = [
        (path, made / f"{path.stem}.o", []) for path in sources
    ]
    # Calls that depend on the default stream have a name for each of the two.
    jobs += [
        (path, made / f"{path.stem}.per_thread.o", [_PER_THREAD])
        for path in _SOURCES.glob("*_calls.c")
    ]

    def compile_one(job: tuple[Path, Path, list[str]]) -> None:
        source, target, more = job
        _run([*command, *more, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, jobs))
    library = folder / "libcuda.so.1"
    objects = sorted(str(target) for _, target, _ in jobs)
    link = [*compiler, *flags, "-shared", "-pthread"]
    _replace(library, [*link, "-Wl,-soname,libcuda.so.1", *objects])
    # Programs that open the name for developers get the same library, not a second copy.
    empty = made / "empty.c"
    empty.write_text("")
    others = ["-Wl,-soname,libcuda.so", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
    _replace(folder / "libcuda.so", [*link, str(empty), *others, str(library)])
    build_stand_ins(folder, flags=flags)
    build_runtime(folder, flags=flags)
    return library


def build_runtime(folder: Path, *, flags: Sequence[str] = ()) -> None:
    """Build ``libcudart.so.13``, for programs that link the runtime: ``nvcc -cudart shared``.

    Args:
        folder: where it goes, and ``libcuda.so.1`` is.
        flags: as of `build`.

    Raises:
        BuildError: there is no compiler, there are no CUDA headers, or the compiler refuses.
    """
    include, compiler = find_headers(), find_compiler()
    made = folder / "build"
    names = made / "runtime_names.c"
    names.write_text(runtime_names(include))
    name = f"libcudart.so.{_RUNTIME_MAJOR}"
    script = made / "runtime.map"
    script.write_text((_RUNTIME / "runtime.map").read_text().replace("MAJOR", _RUNTIME_MAJOR))
    sources = [*sorted(map(str, _RUNTIME.glob("*.c"))), str(names)]
    options = [f"-I{_RUNTIME}", f"-isystem{include}", "-shared", f"-Wl,-soname,{name}"]
    # The driver library of this folder, whatever the program that runs says of where to look.
    options += [f"-Wl,--version-script={script}", "-Wl,-rpath,$ORIGIN"]
    driver = str(folder / "libcuda.so.1")
    _replace(folder / name, [*compiler, *_FLAGS, *flags, *options, *sources, driver])


def build_stand_ins(folder: Path, *, flags: Sequence[str] = ()) -> None:
    """Build what stands in for NVIDIA's linker and assembler, which would make machine code.

    Args:
        folder: where ``libnvJitLink.so.12``, ``libnvJitLink.so.13`` and ``ptxas`` go.
        flags: as of `build`.

    Raises:
        BuildError: there is no compiler, or it refuses.
    """
    compiler = find_compiler()
    made = folder / "build"
    made.mkdir(parents=True, exist_ok=True)
    for major in (12, 13):
        name = f"libnvJitLink.so.{major}"
        script = made / f"nvjitlink-{major}.map"
        script.write_text((_STAND_INS / "nvjitlink.map").read_text().replace("MAJOR", str(major)))
        named = [f"-DNVJITLINK_MAJOR={major}", "-shared", f"-Wl,-soname,{name}"]
        sources = sorted(map(str, _STAND_INS.glob("*.c")))
        scripts = [f"-Wl,--version-script={script}", "-ldl"]
        _replace(folder / name, [*compiler, *_FLAGS, *flags, *named, *sources, *scripts])
    shutil.copy(_STAND_INS / "ptxas", folder / "ptxas")  # with its mode


def find_compiler() -> list[str]:
    """Return the command of a C compiler.

    Raises:
        BuildError: there is none.
    """
    if named := os.environ.get("CC"):
        return shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError(
            "there is no C compiler: install one (apt install gcc), or `pip install ziglang`"
        )
    return [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17"]


def find_headers(folders: Iterable[str] | None = None) -> Path:
    """Return the folder of ``cuda.h`` in the wheel ``nvidia-cuda-runtime``.

    Args:
        folders: of packages; None: those of this interpreter.

    Raises:
        BuildError: it is not installed.
    """
    for folder in folders or (sysconfig.get_path("purelib"), *sys.path):
        for release in ("cu13", "cuda_runtime"):
            include = Path(folder, "nvidia", release, "include")
            if (include / "cuda.h").exists():
                return include
    raise BuildError("the CUDA headers are missing: `pip install nvidia-cuda-runtime`")


def _replace(target: Path, command: Sequence[str]) -> None:
    """Link a library, and put it in its place whole: programs may have the former one open."""
    made = target.with_name(f"{target.name}.{os.getpid()}.new")
    _run([*command, "-o", str(made)])
    made.replace(target)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr}")


if __name__ == "__main__":
    print(build(_HERE / "lib"))  # noqa: T201
