"""``gpuctl exec``: runs a program that knows nothing of gpud, with gpud's CUDA driver library.

The program finds that library by its name, as it would find NVIDIA's, and says by variables which
share it has. They are inherited, so its children run through the daemon, too.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from gpud import units
from gpud.errors import GpudError
from gpud_client.cli.job_control import share_of
from gpud_client.cli.output import SocketOption, connect

__all__ = ["exec_", "program_environment"]

_LIBRARY = "libcuda.so.1"
# Frameworks look for the linker by its path, but take one of that name that is loaded already.
_PRELOADED = (_LIBRARY, "libnvJitLink.so.13", "libnvJitLink.so.12")
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as shells have it
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_ASSEMBLERS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
# What frameworks keep there is for this device: a GPU of the same kind would take it for its own.
_CACHES = {"NUMBA_CACHE_DIR": "numba", "TRITON_CACHE_DIR": "triton", "CACHEDB": "tinygrad.db"}


def exec_(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")
    ],
    *,
    reservation: Annotated[
        str | None,
        typer.Option(
            "--reservation", metavar="SHARE", help="Run online, with this many SMs or % at least."
        ),
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            "--quota", metavar="SHARE", help="Run offline, with this many SMs or % at most."
        ),
    ] = None,
    weight: Annotated[
        int | None,
        typer.Option("--weight", min=1, max=1000, help="Offline: its weight beside others; 1."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="The most device memory, such as 2GiB."),
    ] = None,
    device: Annotated[
        int | None, typer.Option("--device", "-d", min=0, help="The device, counted from 0.")
    ] = None,
    local: Annotated[
        str | None,
        typer.Option(
            "--local", metavar="DEVICE", help="Start a private daemon for it, such as cpu:4."
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="At its end, say on stderr how its kernels were run."),
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Run a program that uses CUDA, unchanged: gpuctl exec --quota 50% -- ./program --its-options.

    It finds gpud's CUDA driver library in place of NVIDIA's. The exit status is the program's.
    """
    if reservation is not None and quota is not None:
        raise typer.BadParameter("give --reservation or --quota, not both")
    for share in (reservation, quota):
        share_of(share, 1)  # finds a syntax error before anything is started
    if weight is not None and reservation is not None:
        raise typer.BadParameter("--weight is for a program without a reservation")
    if local is not None and socket is not None:
        raise typer.BadParameter("--local starts a daemon, --socket names one: give one of them")
    settings = {
        "GPUD_EXEC_RESERVATION": reservation,
        "GPUD_EXEC_QUOTA": quota,
        "GPUD_EXEC_WEIGHT": None if weight is None else str(weight),
        "GPUD_EXEC_MEMORY": None if memory is None else str(_memory(memory)),
        "GPUD_EXEC_DEVICE": None if device is None else str(device),
        "GPUD_EXEC_REPORT": "1" if report else None,
    }
    folder = _library_folder()
    program = _find_program(command[0])
    if local is not None:
        raise typer.Exit(_run_locally(local, program, command, settings, folder))
    with connect(socket) as client:  # which says what to do if there is no daemon
        _check_device(client.welcome.devices, device or 0)
    from gpud.wire.socket_path import socket_path

    environment = program_environment(os.environ, str(socket_path(socket)), settings, folder)
    sys.stdout.flush()
    os.execve(program, command, environment)  # noqa: S606  (the program takes this one's place)


def program_environment(
    environ: Mapping[str, str], socket: str, settings: Mapping[str, str | None], folder: Path
) -> dict[str, str]:
    """Return the environment of a program that is to run through gpud.

    Args:
        environ: what it is made from.
        socket: the daemon's path.
        settings: variables for the library; one that is None is not set.
        folder: of the library.
    """
    made = {**environ, "GPUD_SOCKET": socket}
    for name, value in settings.items():
        made.pop(name, None)
        if value is not None:
            made[name] = value
    made["LD_LIBRARY_PATH"] = _in_front(str(folder), environ.get("LD_LIBRARY_PATH"))
    # Programs whose own path for libraries comes first find the one that is loaded already.
    for name in reversed(_PRELOADED):
        made["LD_PRELOAD"] = _in_front(str(folder / name), made.get("LD_PRELOAD"))
    for name in _ASSEMBLERS:
        made[name] = str(folder / "ptxas")
    home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", "/tmp"), ".cache")  # noqa: PTH118, S108
    for name, part in _CACHES.items():
        made.setdefault(name, str(Path(home, "gpud", "programs", part)))
    Path(home, "gpud", "programs").mkdir(parents=True, exist_ok=True)
    return made


def _in_front(first: str, rest: str | None) -> str:
    parts = [one for one in (rest or "").split(":") if one and one != first]
    return ":".join([first, *parts])


def _memory(written: str) -> int:
    try:
        return units.byte_size(written)
    except ValueError as error:
        raise typer.BadParameter(f"--memory: {error}") from None


def _library_folder() -> Path:
    from gpud_cuda import library_folder

    folder = library_folder()
    if not (folder / _LIBRARY).exists():
        raise GpudError(
            f"gpud's CUDA driver library was not built ({folder / _LIBRARY}): install gpud again "
            "with a C compiler there (apt install gcc, or pip install ziglang)"
        )
    return folder


def _find_program(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return found
    there = Path(name).exists()
    problem = os.strerror(errno.EACCES if there else errno.ENOENT)
    typer.echo(f"gpuctl: {name}: {problem}", err=True)
    raise typer.Exit(_NOT_EXECUTABLE if there else _NOT_FOUND)


def _check_device(devices: Sequence[object], device: int) -> None:
    if device >= len(devices):
        raise typer.BadParameter(
            f"--device {device}: the daemon has {len(devices)}, counted from 0"
        )


# -- with a private daemon -------------------------------------------------------------------------


def _run_locally(
    device: str,
    program: str,
    command: Sequence[str],
    settings: Mapping[str, str | None],
    folder: Path,
) -> int:
    """Run the program with a daemon that ends with it; returns its exit status."""
    from gpud_client.local_daemon import PrivateDaemon

    daemon = PrivateDaemon(device, {})
    try:
        daemon.start()
        environment = program_environment(os.environ, str(daemon.socket), settings, folder)
        status = _run_and_pass_signals(program, command, environment)
    finally:
        daemon.end()
    if status < 0:  # it was ended by a signal, and whoever started this sees the same
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        return 128 - status
    return status


def _run_and_pass_signals(
    program: str, command: Sequence[str], environment: Mapping[str, str]
) -> int:
    # Ctrl-C is for the program, which gets it from the terminal, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(
        command,
        executable=program,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )

    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    return process.wait()
