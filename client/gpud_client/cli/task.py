"""``gpuctl task``: whole programs in queues, submitted, looked at and changed."""

from __future__ import annotations

import os
import re
import signal as signals
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import GpudError, InvalidArgument
from gpud_client.cli import formatting
from gpud_client.cli.exit_status import FAILED
from gpud_client.cli.output import Column, JsonOption, SocketOption, emit, print_table, say

if TYPE_CHECKING:
    from gpud_client.tasks.runner_client import RunnerClient

__all__ = ["COMMANDS", "task"]

_LOOK_S = 0.1
_DEFAULT_LIMIT = 200

task = typer.Typer(
    help="Queue whole programs with the cores and GPUs that they need.", no_args_is_help=True
)

_TaskArgument = Annotated[int, typer.Argument(metavar="TASK", help="Its id.", min=1)]
_TasksArgument = Annotated[list[int], typer.Argument(metavar="TASK...", help="Their ids.", min=1)]


def _command_line(text: list[str]) -> str:
    return formatting.text(" ".join(text))


_TASKS = (
    Column("id", "task", right=True),
    Column("name", "name", least=8),
    Column("state", "state"),
    Column("exit_status", "status", right=True),
    Column("cores", "cores", right=True, spare=2),
    Column("gpus", "GPUs", lambda value: formatting.text(value or None), right=True, spare=1),
    Column("started", "started", least=8, spare=4),
    Column("took", "took", formatting.seconds, right=True, spare=3),
    Column("command", "command", _command_line, least=12, spare=5),
    Column("reason", "reason", least=12, wraps=True, spare=6),
)
_ATTEMPTS = (
    Column("attempt", "attempt", right=True),
    Column("cores", "cores", right=True),
    Column("ran_s", "ran", formatting.seconds, right=True),
    Column("cpu_s", "CPU", formatting.seconds, right=True),
    Column("memory_bytes", "memory", formatting.size, right=True),
    Column("exit_status", "status", right=True),
    Column("reason", "reason", wraps=True, least=12),
)
_NODES = (
    Column("node", "node", right=True),
    Column("cores", "cores", right=True),
    Column("free_cores", "free", right=True),
    Column("cpu_cores", "CPU tasks have", right=True),
    Column("cpu_part", "of", right=True),
    Column("gpu_cores", "GPU tasks have", right=True),
    Column("gpu_part", "of", right=True),
    Column("borrowed_cores", "lent to CPU tasks", right=True),
    Column("blocked_cores", "kept free", right=True),
)


@task.command(
    "submit", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
def submit(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")
    ],
    cores: Annotated[
        int | None,
        typer.Option(
            "--cores",
            "-c",
            min=1,
            metavar="N",
            help="Cores. By default one; with --gpus as many as it is found to need.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            "-g",
            metavar="N",
            help="GPUs; a part of one, such as 0.5, is a quota.",
            show_default=False,
        ),
    ] = None,
    reserve: Annotated[
        bool,
        typer.Option("--reserve", help="Reserve the part of a GPU, instead.", show_default=False),
    ] = False,
    name: Annotated[
        str, typer.Option("--name", "-n", metavar="NAME", help="A name for lists.")
    ] = "",
    after: Annotated[
        list[int] | None,
        typer.Option(
            "--after",
            metavar="TASK",
            min=1,
            help="Start when this task is done; may be repeated.",
            show_default=False,
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time-limit",
            metavar="TIME",
            help="End it after so long: 90s, 30m, 4h, 1:30:00.",
            show_default=False,
        ),
    ] = None,
    retries: Annotated[
        int, typer.Option("--retries", min=0, metavar="N", help="Run it again if it fails.")
    ] = 0,
    no_requeue: Annotated[
        bool,
        typer.Option(
            "--no-requeue",
            help="Fail, rather than run again, if it is lost with its machine.",
            show_default=False,
        ),
    ] = False,
    requeue_signal: Annotated[
        str | None,
        typer.Option(
            "--requeue-signal",
            metavar="SIGNAL",
            help="It checkpoints and ends on this signal, such as USR1, and can be run again.",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", help="The most that it takes: 8GiB.", show_default=False
        ),
    ] = None,
    category: Annotated[
        str,
        typer.Option("--category", metavar="WORD", help="What it is: image, speech, language ..."),
    ] = "",
    pipelined: Annotated[
        bool,
        typer.Option(
            "--pipelined", help="Its input is prepared while it computes.", show_default=False
        ),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="SIZE", help="Size of its model's weights.", show_default=False
        ),
    ] = None,
    complexity: Annotated[
        int | None,
        typer.Option(
            "--cpu-complexity",
            min=0,
            max=100,
            metavar="PERCENT",
            help="How much of its work is on the CPU.",
            show_default=False,
        ),
    ] = None,
    hold: Annotated[
        bool, typer.Option("--hold", help="Wait for gpuctl task release.", show_default=False)
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Return when it has ended, with its exit status.", show_default=False
        ),
    ] = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue a program; it runs here, as you, in this directory and with these variables.

    What it prints is kept: gpuctl task log. It goes on if this terminal, the runner or the daemon
    ends.
    """  # fmt: skip
    from gpud.wire.task_messages import AwaitTask, SubmitTask
    from gpud_client.tasks.submission import surroundings, terms

    try:
        fields = terms(
            command, cores=cores, gpus=gpus, memory=memory, weights=weights, after=after or (),
            time_limit=None if time_limit is None else _seconds(time_limit), name=name,
            category=category, pipelined=pipelined, complexity=complexity, retries=retries,
            reserved=reserve, requeue=not no_requeue, held=hold,
            requeue_signal=None if requeue_signal is None else _signal(requeue_signal),
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None
    with _runner() as runner:
        row = runner.ask(SubmitTask, **fields, **surroundings(socket=socket))
        if wait:
            row = runner.ask(AwaitTask, task=row["id"])
    if as_json:
        emit(row)
    elif wait:
        say(f"task {row['id']} is {row['state']}{_because(row)}")
    else:
        say(f"task {row['id']}")
    if wait and row["state"] != "done":
        raise typer.Exit(FAILED)


@task.command("list")
def list_(
    all_tasks: Annotated[
        bool, typer.Option("--all", "-A", help="Also those that have ended.", show_default=False)
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            metavar="N",
            show_default=False,
            help="The latest N; 0: all. By default 200, and all with --json.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks that wait or run."""
    from gpud.wire.task_messages import ListTasks

    most = (0 if as_json else _DEFAULT_LIMIT) if limit is None else limit
    with _runner() as runner:
        rows = runner.ask(ListTasks, all=all_tasks, limit=most)["tasks"]
    if as_json:
        emit(rows)
        return
    print_table(_TASKS, [_shown(row) for row in rows], "no tasks")


@task.command()
def show(number: _TaskArgument, as_json: JsonOption = False) -> None:
    """Show all that is known of a task, with its attempts."""
    row = _asked(number)
    if as_json:
        emit(row)
        return
    say(f"task {row['id']} is {row['state']}{_because(row)}")
    say(f"  command    {_command_line(row['command'])}")
    say(f"  directory  {formatting.text(row['directory'])}")
    gpus = "".join(f", {formatting.text(gpu)}" for gpu in row["gpu_names"])
    say(f"  has        {row['cores'] or '?'} cores, {row['gpus']} GPUs{gpus}")
    if row["output"]:
        say(f"  output     {row['output']}")
    for line in row["why"]:
        say(f"  waits      {line}")
    if row["attempts"]:
        print_table(_ATTEMPTS, row["attempts"], "")


@task.command()
def log(
    number: _TaskArgument,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on until the task has ended.", show_default=False),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a task has printed; both of its outputs, in order."""
    row = _asked(number)
    if as_json:
        text = b"".join(_output(row)).decode("utf-8", "replace")
        emit({"id": row["id"], "state": row["state"], "output": text})
        return
    with ExitStack() as stack:
        for part in _followed(stack, row) if follow else _output(row):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()


@task.command()
def cancel(numbers: _TasksArgument, as_json: JsonOption = False) -> None:
    """End tasks: SIGTERM, ten seconds, SIGKILL. It fails if one is unknown or has ended."""
    _change(numbers, "cancel", as_json=as_json)


@task.command()
def hold(numbers: _TasksArgument, as_json: JsonOption = False) -> None:
    """Hold tasks back that have not started."""
    _change(numbers, "hold", as_json=as_json)


@task.command()
def release(numbers: _TasksArgument, as_json: JsonOption = False) -> None:
    """Let tasks go that are held."""
    _change(numbers, "release", as_json=as_json)


@task.command()
def queue(as_json: JsonOption = False) -> None:
    """Show the queues, who has what, and which cores are lent."""
    from gpud.wire.task_messages import AskQueues

    with _runner() as runner:
        answer = runner.ask(AskQueues)
    if as_json:
        emit(answer)
        return
    print_table(_NODES, answer["nodes"], "no nodes")
    for node in answer["nodes"]:
        for gpu in node["gpus"]:
            used = "free" if not gpu["used"] else f"{gpu['used']:g} used"
            say(f"GPU {formatting.text(gpu['name'])}: {formatting.text(gpu['marked'] or used)}")
    for row in answer["queues"]:
        has = ", ".join(f"{formatting.text(user)} has {n:g}" for user, n in row["has"].items())
        say(f"queue {row['queue']}: {row['waiting']} waiting{f'; {has}' if has else ''}")
    say(f"cores by {answer['control']}")


@task.command()
def why(number: _TaskArgument, as_json: JsonOption = False) -> None:
    """Say why a task waits, or how it ended."""
    row = _asked(number)
    if as_json:
        emit({"id": row["id"], "state": row["state"], "why": row["why"], "reason": row["reason"]})
        return
    say(f"task {row['id']} is {row['state']}{_because(row)}")
    for line in row["why"]:
        say(line)


@task.command()
def report(
    by: Annotated[
        str, typer.Option("--by", metavar="WORD", help="A row for each user, program or category.")
    ] = "program",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Of the last 24h or 7d; by default of all.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add up the core-hours and GPU-hours of attempts that have ended, without time frozen."""
    from gpud.wire.task_messages import ReportTasks

    if by not in ("user", "program", "category"):
        raise typer.BadParameter(f"--by is user, program or category, not {by!r}")
    start = 0 if since is None else max(0, int(time.time() - _seconds(since)))
    with _runner() as runner:
        answer = runner.ask(ReportTasks, by=by, since_s=start)
    if as_json:
        emit(answer)
        return
    hours = [
        {**row, "core_h": f"{row['core_s'] / 3600:.2f}", "gpu_h": f"{row['gpu_s'] / 3600:.2f}"}
        for row in answer["rows"]
    ]
    columns = (
        Column(by, by),
        Column("attempts", "attempts", right=True),
        Column("core_h", "core-hours", right=True),
        Column("gpu_h", "GPU-hours", right=True),
    )
    print_table(columns, hours, "nothing has ended")


COMMANDS = (
    "submit", "list", "show", "log", "cancel", "hold", "release", "queue", "why", "report",
)  # fmt: skip
"""Names of the commands, which take ``--json`` also before them."""


# -- helpers -----------------------------------------------------------------------------------


def _runner() -> RunnerClient:
    from gpud_client.tasks.runner_client import RunnerClient

    return RunnerClient()


def _asked(number: int) -> dict[str, Any]:
    from gpud.wire.task_messages import ShowTask

    with _runner() as runner:
        row: dict[str, Any] = runner.ask(ShowTask, task=number)
    return row


def _change(numbers: list[int], action: str, *, as_json: bool) -> None:
    from gpud.wire.task_messages import ChangeTask

    rows, failed = [], False
    with _runner() as runner:
        for number in numbers:
            try:
                row = runner.ask(ChangeTask, task=number, action=action, by=_me())
            except GpudError as error:
                failed = True
                print(f"gpuctl: {error}", file=sys.stderr)  # noqa: T201
                continue
            rows.append(row)
            if not as_json:
                say(f"task {row['id']} is {row['state']}{_because(row)}")
    if as_json:
        emit(rows)
    if failed:
        raise typer.Exit(FAILED)


def _me() -> str:
    import getpass

    return f"{getpass.getuser()} (gpuctl task cancel)"


def _because(row: dict[str, Any]) -> str:
    said = [f"status {row['exit_status']}"] if row["exit_status"] is not None else []
    said += [formatting.text(row["reason"])] if row["reason"] else []
    return f": {', '.join(said)}" if said else ""


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    started, ended = row["started_at_s"], row["ended_at_s"]
    took = None if started is None else (ended or time.time()) - started
    return {
        **row,
        "started": None if started is None else formatting.moment(started),
        "took": took if row["state"] not in ("queued", "held", "blocked") else None,
    }


def _output(row: dict[str, Any]) -> Iterator[bytes]:
    """Yield what is kept of the output of the last attempt."""
    if row["output"] is None:
        return
    for path in (Path(row["output"] + ".1"), Path(row["output"])):
        if path.exists():
            yield path.read_bytes()


def _followed(stack: ExitStack, row: dict[str, Any]) -> Iterator[bytes]:
    """Yield the output as it comes, of this attempt and later ones, until the task has ended."""
    from gpud.wire.task_messages import ShowTask

    runner = stack.enter_context(_runner())
    path = ""
    file: IO[bytes] | None = None
    while True:
        over = row["state"] in ("done", "failed", "cancelled")
        if row["output"] and row["output"] != path:
            path, file = row["output"], None
        while path:
            if file is None:
                if not Path(path).exists():
                    break
                file = stack.enter_context(Path(path).open("rb"))  # noqa: SIM115
            data = file.read(1 << 16)
            if data:
                yield data
            elif Path(path).exists() and os.fstat(file.fileno()).st_ino != Path(path).stat().st_ino:
                file = None  # it was rotated: the new one follows
            else:
                break
        if over:
            return
        time.sleep(_LOOK_S)
        row = runner.ask(ShowTask, task=row["id"])


_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?", re.ASCII)
_UNITS = {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def _seconds(text: str) -> float:
    match = _TIME.fullmatch(text.strip())
    if match is not None:
        return float(match[1]) * _UNITS[match[2]]
    parts = text.split(":")
    if 2 <= len(parts) <= 3 and all(part.isdecimal() for part in parts):
        seconds = 0
        for part in parts:
            seconds = seconds * 60 + int(part)
        return float(seconds)
    raise InvalidArgument(f"a time is written as 90s, 30m, 4h or 1:30:00, not {text!r}")


def _signal(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    found = getattr(signals.Signals, f"SIG{name}", None)
    if found is None and text.isdecimal():
        found = int(text)
    if found is None:
        raise InvalidArgument(f"there is no signal {text!r}; one is USR1")
    return int(found)
