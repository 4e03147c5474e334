"""The checks of ``gpud doctor``: one function for each thing that gpud needs of a machine.

Problem: when a daemon does not start, or lacks a feature, the user cannot tell what is missing.

Approach: a table of checks. Each returns one line: what was found, and what to do if that is not
sufficient. A check has no side effects, and an exception in it becomes its result.

Terms: *ok*: sufficient; *missing*: gpud runs without it, and the line says what does not work then;
*problem*: gpud cannot run.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.metadata
import os
import resource
import shutil
import socket
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpud import __version__
from gpud.errors import GpudError, pip_command
from gpud.wire.socket_path import draining_path

__all__ = ["CHECKS", "Check", "can_run", "run_checks"]

_FEW_DESCRIPTORS = 1024
_LITTLE_MEMORY_BYTES = 1 << 30
_REQUIRED = (("msgpack", ""), ("numpy", ""), ("llvmlite", "daemon"))


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: What was checked.
        state: ``"ok"``, ``"missing"`` or ``"problem"``.
        detail: What was found.
        hint: What to do; empty if there is nothing to do.
    """

    name: str
    state: str
    detail: str
    hint: str = ""


def run_checks() -> list[Check]:
    """Run all checks, in the order of `CHECKS`. Blocks for up to a second."""
    checks = []
    for name, look in CHECKS.items():
        try:
            checks.append(look()._replace(name=name))
        except Exception as error:  # noqa: BLE001  (one check must not hide the others)
            what = f"the check itself failed: {type(error).__name__}: {error}"
            checks.append(Check(name, "missing", what))
    return checks


def can_run(checks: list[Check]) -> bool:
    """Whether a daemon can run here."""
    return all(check.state != "problem" for check in checks)


# -- the machine -------------------------------------------------------------------------------


def _ok(detail: str, hint: str = "") -> Check:
    return Check("", "ok", detail, hint)


def _missing(detail: str, hint: str = "") -> Check:
    return Check("", "missing", detail, hint)


def _problem(detail: str, hint: str) -> Check:
    return Check("", "problem", detail, hint)


def _gpud() -> Check:
    return _ok(f"{__version__} in {Path(__file__).parents[1]}")


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.platform != "linux":
        return _problem(f"{version} on {sys.platform}", "gpud runs on Linux")
    return _ok(f"{version}, {sys.executable}")


def _cores() -> Check:
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    detail = f"{usable} cores" + ("" if usable == there else f" of {there} may be used")
    limit = _cgroup("cpu.max").split()
    if len(limit) == 2 and limit[0] != "max":
        quota = int(limit[0]) / int(limit[1])
        detail += f", held to {quota:.3g} by the control group"
        if quota < usable:
            return _ok(detail, f"choose --device cpu:{max(int(quota), 1)}")
    return _ok(f"{detail}: --device cpu has {usable} SMs")


def _memory() -> Check:
    sizes: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        key, _, rest = line.partition(":")
        sizes[key] = int(rest.split()[0]) << 10
    free, whole = sizes["MemAvailable"], sizes["MemTotal"]
    limit = _cgroup("memory.max")
    if limit.isdigit() and int(limit) < whole:
        whole = int(limit)
        free = min(free, whole - int(_cgroup("memory.current") or 0))
    detail = f"{_gib(free)} free of {_gib(whole)}"
    if free < _LITTLE_MEMORY_BYTES:
        return _missing(detail, "little is left for arrays; end something, or set --memory")
    return _ok(detail)


def _memfd() -> Check:
    try:
        fd = os.memfd_create("gpud-doctor", os.MFD_ALLOW_SEALING)
    except OSError as error:
        return _problem(f"memfd_create: {error.strerror}", "allow it: arrays are such files")
    try:
        os.ftruncate(fd, 1 << 40)  # sparse: takes nothing
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        return _problem(
            f"a sparse file of 1 TiB cannot be made and sealed: {error.strerror}",
            "raise the file size limit (ulimit -f unlimited)",
        )
    finally:
        os.close(fd)
    return _ok("sparse and sealed files work")


def _descriptors() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{_limit(soft)} files may be open, at most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS:
        return _missing(detail, f"raise it for many clients: ulimit -n {_FEW_DESCRIPTORS} or more")
    return _ok(detail)


# -- libraries ---------------------------------------------------------------------------------


def _libraries() -> Check:
    packages = []
    for name, extra in _REQUIRED:
        version = _version(name)
        if version is None:
            return _problem(f"{name} is not installed", pip_command(extra))
        packages.append(f"{name} {version}")
    return _ok(", ".join(packages))


def _llvm() -> Check:
    try:
        import llvmlite.binding as llvm

        version = ".".join(map(str, llvm.llvm_version_info))
        return _ok(f"LLVM {version} for {llvm.get_host_cpu_name()}")
    except (ImportError, OSError) as error:
        return _problem(f"llvmlite cannot be loaded: {error}", pip_command("daemon"))


def _nvrtc() -> Check:
    from gpud.compiler.toolchain.cuda_headers import cuda_include_paths
    from gpud.compiler.toolchain.nvrtc import nvrtc_version

    try:
        major, minor = nvrtc_version()
    except GpudError as error:
        return _missing(f"no CUDA C++, only PTX: {error}", pip_command("daemon"))
    if not cuda_include_paths(major):
        return _missing(
            f"{major}.{minor}, without CUDA headers: #include <cuda_fp16.h> fails",
            pip_command("daemon"),
        )
    return _ok(f"{major}.{minor}, with headers")


def _uvloop() -> Check:
    version = _version("uvloop")
    if version is None:
        return _missing("not installed: the daemon answers more slowly", pip_command("daemon"))
    return _ok(version)


def _gpu() -> Check:
    nothing = "no NVIDIA GPU: kernels run on the CPU device"
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
        return _missing(nothing)
    if _version("nvidia-ml-py") is None:
        return _ok("the NVIDIA driver is loaded", _AUTO)
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _missing(f"the driver does not answer ({error})", "try nvidia-smi; see dmesg")
    try:
        names = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
            names.append(name.decode() if isinstance(name, bytes) else name)
        driver = pynvml.nvmlSystemGetDriverVersion()
        driver = driver.decode() if isinstance(driver, bytes) else driver
    finally:
        pynvml.nvmlShutdown()
    if not names:
        return _missing(nothing)
    return _ok(f"driver {driver}, {', '.join(names)}", _AUTO)


_AUTO = "--device auto serves the first GPU, if the CUDA extra is installed"


def _cuda() -> Check:
    version = _version("cuda-bindings")
    if version is None:
        return _missing("no cuda-bindings: needed for GPUs only", pip_command("cuda13"))
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return _missing(
            f"cuda-bindings {version}, but no libcuda.so.1: needed for GPUs only",
            "it comes with NVIDIA's driver; a container must be given the GPU",
        )
    return _ok(f"cuda-bindings {version}")


def _ptxas() -> Check:
    path = shutil.which("ptxas")
    if path is None:
        return _missing("not on PATH: needed by some tests and benchmarks only")
    return _ok(path)


def _matplotlib() -> Check:
    version = _version("matplotlib")
    if version is None:
        return _missing("not installed: gpud demo draws no picture", pip_command("demo"))
    return _ok(version)


# -- files, the daemon -------------------------------------------------------------------------


def _cache() -> Check:
    from gpud.compiler.cache import default_folder, machine_code_folder

    programs = default_folder()
    for folder in (programs, machine_code_folder(None) or programs):
        place = _existing(folder)
        if not os.access(place, os.W_OK | os.X_OK):
            return _missing(
                f"{folder} cannot be written: every program is compiled anew",
                f"make {place} writable, or set XDG_CACHE_HOME",
            )
        if folder.exists():
            about = folder.stat()
            if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
                return _missing(
                    f"{folder} is not ours alone, so it is not used",
                    f"chmod 700 {folder}, or remove it",
                )
    return _ok(str(programs))


def _configuration() -> Check:
    from gpud import config

    try:
        settings = config.load({})
    except (GpudError, OSError) as error:
        return _problem(str(error), "change that setting")
    return _ok(f"socket {settings.socket}")


def _socket_folder() -> Check:
    path = _socket_path()
    folder = path.parent
    place = _existing(folder)
    if not os.access(place, os.W_OK | os.X_OK):
        return _problem(f"{place} cannot be written", "choose another place: --socket PATH")
    return _ok(str(folder) if folder.exists() else f"{folder} will be made")


def _daemon() -> Check:
    path = _socket_path()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return _draining_daemon(path) or _missing(f"none runs at {path}", "gpud serve")
        except OSError as error:
            return _missing(f"{path}: {error.strerror}", "ask whoever runs it for access")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", peer)
    return _ok(f"runs at {path}, pid {pid}, user {uid}", "gpuctl status")


def _draining_daemon(path: Path) -> Check | None:
    """Look whether a daemon is there that drains; None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        try:
            connection.connect(str(draining_path(path)))
        except OSError:
            return None
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, _, _ = struct.unpack("3i", peer)
    return _ok(
        f"the one at {path}, pid {pid}, is draining: it waits for its jobs and takes no others",
        "gpuctl ps shows the jobs; wait for them, cancel them, or send it SIGTERM once more",
    )


def _systemd() -> Check:
    if not Path("/run/systemd/system").exists():
        return _missing("does not run this machine: start gpud serve by other means")
    for folder in ("/etc/systemd/system", "/usr/lib/systemd/system", "~/.config/systemd/user"):
        unit = Path(folder).expanduser() / "gpud.service"
        if unit.exists():
            return _ok(f"unit {unit}")
    return _ok("runs; no unit for gpud", "docs/howto/run-as-a-service.md")


CHECKS: dict[str, Callable[[], Check]] = {
    "gpud": _gpud,
    "Python": _python,
    "cores": _cores,
    "memory": _memory,
    "shared memory": _memfd,
    "descriptors": _descriptors,
    "libraries": _libraries,
    "LLVM": _llvm,
    "NVRTC": _nvrtc,
    "uvloop": _uvloop,
    "GPU": _gpu,
    "CUDA": _cuda,
    "ptxas": _ptxas,
    "matplotlib": _matplotlib,
    "program cache": _cache,
    "configuration": _configuration,
    "socket folder": _socket_folder,
    "daemon": _daemon,
    "systemd": _systemd,
}
"""All checks by name, in the order in which they are shown."""


# -- helpers -----------------------------------------------------------------------------------


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _limit(value: int) -> str:
    return "any number of" if value == resource.RLIM_INFINITY else str(value)


def _cgroup(name: str) -> str:
    """Return the text of a file of this process's control group (v2), empty if there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
            if line.startswith("0::"):
                folder = Path("/sys/fs/cgroup") / line[3:].strip().lstrip("/")
                return (folder / name).read_text("ascii").strip()
    return ""


def _existing(folder: Path) -> Path:
    """Return ``folder`` or its nearest ancestor that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _socket_path() -> Path:
    from gpud import config

    return Path(config.load({}).socket)
