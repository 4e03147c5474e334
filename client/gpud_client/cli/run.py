"""``gpuctl run``: one kernel from a file, with a progress bar of its task blocks."""

from __future__ import annotations

import errno
import itertools
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import ConnectionLost, GpudError
from gpud_client.cli.exit_status import FAILED, INTERRUPTED
from gpud_client.cli.included_headers import included_headers
from gpud_client.cli.job_control import share_of
from gpud_client.cli.kernel_arguments import ArraySpec, parse_argument, parse_dim, parse_output
from gpud_client.cli.output import JsonOption, SocketOption, emit, say
from gpud_client.cli.run_progress import show_steps, watch
from gpud_client.cli.run_report import HeldArray, make_report, print_report

if TYPE_CHECKING:
    from gpud_client import Device, Module, Session

__all__ = ["run"]

_PTX = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*\.", re.DOTALL)
"""As the daemon tells PTX: its first word begins with a dot, which that of C++ cannot."""
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f"\\]')  # they would end the name, or begin another character


def _file_that_is_there(file: Path) -> Path:
    """Say that a file is missing before options that are missing, too."""
    if str(file) != "-" and not file.exists():
        raise typer.BadParameter(f"{file}: {os.strerror(errno.ENOENT)}")
    return file


def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CUDA C++ or PTX; - reads the standard input.",
            callback=_file_that_is_there,
        ),
    ],
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="KERNEL",
            help='The kernel to run; "axpy<float>" of a template. May be left out if the file has '
            "only one.",
        ),
    ] = None,
    *,
    grid: Annotated[
        str, typer.Option("--grid", "-g", help="How many blocks to run, such as 256 or 16,16,1.")
    ],
    block: Annotated[
        str,
        typer.Option("--block", "-b", help="How many threads a block has, such as 256 or 16,8,1."),
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            metavar="VALUE",
            help="The value of the next parameter; give one for each. A number (7, f32:2.0), null, "
            "or an array (zeros:f32:1024, ones:f64:8x8, arange:i32:100, random:f32:1024, "
            "file:x.npy).",
        ),
    ] = None,
    out: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="N=FILE",
            help="Save the array that is argument N, counted from 0, as .npy.",
        ),
    ] = None,
    show: Annotated[
        int, typer.Option("--show", min=0, help="Print so many values of each array.")
    ] = 8,
    shared: Annotated[
        int, typer.Option("--shared", min=0, help="Dynamic shared memory of a block, in bytes.")
    ] = 0,
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
    exclusive: Annotated[
        bool,
        typer.Option("--exclusive", help="With --reservation: whole SMs that no other job uses."),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="End the job when it has run this many seconds."),
    ] = None,
    device: Annotated[
        int, typer.Option("--device", "-d", min=0, help="Run on this device, counted from 0.")
    ] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="OPTION",
            help="Pass this to the CUDA compiler, such as --option=-DN=4.",
        ),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option(
            "--include",
            "-I",
            metavar="FOLDER",
            help="Look for included headers here, too, and send those that are found; may be "
            "given several times.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--form", help="Insist on a form: persistent, sliced or whole.")
    ] = None,
    progress: Annotated[
        str | None,
        typer.Option(
            "--progress",
            help="Say of the task blocks: independent (none waits for one that has not begun) "
            "or blocks (they wait for one another).",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check it while it runs, on a CPU device: accesses outside of arrays, reads of "
            "what was never written, races. Many times slower.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Make random arrays from this seed.")
    ] = 0,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a kernel, run it once, and print what it printed, its arrays and its figures.

    Ctrl-C cancels the job, and prints what it had printed.
    """
    shape = parse_dim(grid, "grid"), parse_dim(block, "block")
    values = [parse_argument(written) for written in arg or ()]
    files = dict(parse_output(written, len(values)) for written in out or ())
    for number in files:
        if not isinstance(values[number], ArraySpec):
            raise typer.BadParameter(f"--output {number}=...: argument {number} is not an array")
    if reservation is not None and quota is not None:
        raise typer.BadParameter("give --reservation or --quota, not both")
    if exclusive and reservation is None:
        raise typer.BadParameter("--exclusive goes with --reservation")
    for share in (reservation, quota):
        share_of(share, 1)  # finds a syntax error before anything is compiled
    if timeout is not None and timeout <= 0:
        raise typer.BadParameter("--timeout must be more than 0 seconds")
    if form not in (None, "persistent", "sliced", "whole"):
        raise typer.BadParameter(f"--form is persistent, sliced or whole, not {form!r}")
    if progress not in (None, "independent", "blocks"):
        raise typer.BadParameter(f"--progress is independent or blocks, not {progress!r}")
    source = _source(file)
    headers: dict[str, str] = {}
    if not _PTX.match(source):
        headers = included_headers(source, file.parent, include or (), _forced(option or ()))

    import numpy as np

    import gpud_client as gc

    rng = np.random.default_rng(seed)
    # Before the daemon is contacted, so that an unreadable file fails first.
    made = [value.make(rng) if isinstance(value, ArraySpec) else value for value in values]
    with gc.connect(socket, name=f"gpuctl run {file.name}", check=check) as gpu:
        on = _device(gpu, device)
        quiet = as_json or not sys.stderr.isatty()
        with show_steps(quiet=quiet) as show_step:
            show_step(f"copying arrays to {on.name}")
            held = [
                HeldArray(number, value.written, gpu.array(made[number], device=on))
                for number, value in enumerate(values)
                if isinstance(value, ArraySpec)
            ]
            given: list[Any] = list(made)
            for one in held:
                given[one.number] = one.array
            show_step(f"compiling {kernel or 'the kernel'} in {file.name}")
            options = tuple(option or ())
            if kernel is None:
                module = gpu.module(
                    source, (), options, form, progress=progress, headers=headers, device=on
                )
                kernel = _only_kernel(module, file)
                function = module.kernel(kernel)
            else:
                function = gpu.kernel(
                    source, kernel, options, form, progress=progress, headers=headers, device=on
                )
            show_step(f"translating {kernel} for {on.name}")
            with _usage_errors(), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always", RuntimeWarning)
                job = function.submit(
                    grid=shape[0],
                    block=shape[1],
                    args=tuple(given),
                    shared=shared,
                    reservation=reservation,
                    quota=quota,
                    timeout=timeout,
                    device=on,
                    exclusive=exclusive,
                )
        for warning in warned:
            typer.echo(f"gpuctl: warning: {warning.message}", err=True)
        problem, interrupted = watch(job, kernel, socket, quiet=quiet)
        report = make_report(job, function, held, show if problem is None else 0, problem)
        if problem is None:
            for number, path in files.items():
                with path.open("wb") as target:  # np.save would append .npy to a name
                    np.save(target, given[number].get())
    if as_json:
        emit(report)
    elif not isinstance(problem, ConnectionLost):  # after which nothing is known of the job
        print_report(report, files)
        if check and problem is None:
            say("checked: nothing was found")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if isinstance(problem, ConnectionLost):
        lost = str(problem).partition("; ")[0]
        typer.echo(f"gpuctl: {lost}; job {report['job']} and what it printed are lost", err=True)
        raise typer.Exit(FAILED)
    if problem is not None:
        typer.echo(f"gpuctl: job {report['job']} {report['state']}: {problem}", err=True)
        raise typer.Exit(FAILED)


# -- helpers -----------------------------------------------------------------------------------


def _forced(options: Sequence[str]) -> list[str]:
    """Return the headers that options have the compiler include: ``-include name``."""
    words = [word for option in options for word in option.split("=", 1)]
    return [
        name
        for word, name in itertools.pairwise(words)
        if word in ("-include", "--include", "-pre-include", "--pre-include")
    ]


def _source(file: Path) -> str:
    """Read a program; CUDA C++ is told its name, which messages about it then have."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8-sig")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not text; give CUDA C++ or PTX, not a cubin") from None
    if not text.strip() or _PTX.match(text):
        return text
    name = "standard input" if str(file) == "-" else _NOT_IN_NAMES.sub("?", file.name)
    return f'#line 1 "{name}"\n{text}'


def _device(gpu: Session, index: int) -> Device:
    if index >= len(gpu.devices):
        raise typer.BadParameter(
            f"--device {index}: the daemon has {len(gpu.devices)}, counted from 0"
        )
    return gpu.devices[index]


def _only_kernel(module: Module, file: Path) -> str:
    """Return the name of a file's kernel, as short as it may be written.

    Raises:
        BadParameter: it has none, or several.
    """
    names: list[str] = []
    for index, name in enumerate(module.names):
        short = [one for one, which in module._home.names.items() if which == index]
        names.append(min(short, key=len, default=name))
    if len(names) == 1:
        return names[0]
    if not names:
        raise typer.BadParameter(
            f'{file.name} has no kernel; one of a template is named like "axpy<float>"'
        )
    raise typer.BadParameter(
        f"{file.name} has {len(names)} kernels; write the one to run behind it: {', '.join(names)}"
    )


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Report arguments that do not fit the kernel as wrong usage, unlike the daemon's errors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, GpudError):
            raise
        raise typer.BadParameter(str(error)) from None
