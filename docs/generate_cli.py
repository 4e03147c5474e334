"""Reference pages of the two programs, made of their commands, options and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command

from gpud.cli.app import app as gpud_app
from gpud.cli.checks import CHECKS
from gpud_client.cli.app import app as gpuctl_app

__all__ = ["gpuctl_page", "gpud_page"]

_GPUCTL_HEAD = """\
# gpuctl

<!-- Written by docs/generate.py from the commands in client/gpud_client/cli/: change those. -->

Looks at the daemon of this machine, runs kernels on it and manages its jobs. It finds the daemon
through `--socket`, else `$GPUD_SOCKET`, else at `$XDG_RUNTIME_DIR/gpud/gpud.sock`.

With `--json` a command prints one JSON document on standard output and nothing else there; the
keys are those of the daemon's answers, and keys are only ever added. `top` and `events --follow`
print one document a line.

| exit status | meaning |
| ---: | --- |
| 0 | done |
| 1 | the job or the request failed |
| 2 | wrong usage |
| 3 | there is no daemon, or it has gone |
| 130 | ended by Ctrl-C |
| 141 | whoever read the output has gone |

An error is one line on standard error that says what to do; after a compiler's error its log
follows. With `GPUD_DEBUG=1` there is a traceback as well.

"""

_ARGUMENTS = """\
### Arguments of a kernel

One `--arg` for each parameter, in order.

| written | is |
| --- | --- |
| `7`, `-2.5`, `0x10`, `true` | a scalar, checked against the parameter |
| `f32:2.0`, `i32:7`, `u64:1`, `bool:true` | a scalar that must match the parameter |
| `null` | the null pointer |
| `zeros:f32:1024`, `ones:f64:8x8` | an array of that type and shape |
| `arange:i32:100` | 0, 1, 2, ... |
| `random:f32:1024` | between 0 and 1; whole numbers below 100 for integer types; see `--seed` |
| `file:x.npy` | the array that NumPy saved there |

Types are i8 to i64, u8 to u64, f16, f32, f64 and bool. Arrays are uploaded before the kernel runs;
afterwards their first values are printed, and `--output 1=y.npy` saves argument 1, counted from 0.

"""

_GPUD_HEAD = """\
# gpud

<!-- Written by docs/generate.py from the commands in gpud/cli/: change those. -->

The daemon and what goes with it. `python -m gpud` is the same program.

| exit status | meaning |
| ---: | --- |
| 0 | done; for `serve`: drained |
| 1 | failed; for `serve`: it could not start, or was forced to end; for `doctor`: gpud cannot run |
| 2 | wrong usage |
| 130 | ended by Ctrl-C |

"""

_CHECKS_HEAD = """\
### What is looked at

`ok`: as it should be. `missing`: gpud runs without it, and the line says what is lost. `problem`:
gpud cannot run.

"""


def gpuctl_page() -> str:
    """Return the reference page of gpuctl."""
    return _GPUCTL_HEAD + _commands(gpuctl_app, "gpuctl", {"run": _ARGUMENTS})


def gpud_page() -> str:
    """Return the reference page of gpud."""
    checks = _CHECKS_HEAD + ", ".join(CHECKS) + ".\n\n"
    return _GPUD_HEAD + _commands(gpud_app, "gpud", {"doctor": checks})


def _commands(app: typer.Typer, program: str, more: dict[str, str]) -> str:
    group: Any = get_command(app)
    sections = []
    for name, command in _flat(group.commands):
        section = "\n".join(_command(f"{program} {name}", command)) + "\n"
        sections.append(section + more.get(name, ""))
    return "\n".join(part.rstrip("\n") + "\n" for part in sections)


def _flat(commands: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield commands, and those of groups by their full names."""
    for name, command in commands.items():
        if hasattr(command, "commands"):
            yield from _flat(command.commands, f"{before}{name} ")
        else:
            yield before + name, command


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = [name, *(_place(one) for one in arguments), *(_place(one) for one in options
                                                          if one.required)]  # fmt: skip
    if any(not one.required for one in options) or not command.params:
        usage.append("[OPTIONS]")
    yield from (f"## `{name}`", "", "```text", " ".join(usage), "```", "")
    yield inspect.cleandoc(command.help or "").replace("\f", "")
    yield ""
    rows = [*arguments, *options]
    if rows:
        yield from ("| | |", "| --- | --- |")
        for one in rows:
            yield f"| {_written(one)} | {_meaning(one)} |"
        yield ""


def _place(parameter: Any) -> str:
    metavar = _metavar(parameter)
    if parameter.param_type_name == "argument":
        return metavar
    return f"{max(parameter.opts, key=len)} {metavar}"


def _metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    name: str = parameter.name.upper()
    if parameter.param_type_name == "option":
        name = max(parameter.opts, key=len).lstrip("-").upper().replace("-", "_")
    return f"{name}..." if parameter.nargs == -1 else f"{name}"


def _written(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_metavar(parameter)}`"
    names = sorted(parameter.opts, key=len, reverse=True)
    value = "" if parameter.is_flag else f" {_metavar(parameter)}"
    return ", ".join(f"`{name}{value}`" for name in names)


def _meaning(parameter: Any) -> str:
    text: str = " ".join((parameter.help or "").split())
    default: Any = parameter.default
    if parameter.required and parameter.param_type_name == "option":
        text += " Required."
    elif isinstance(default, int | float) and not parameter.is_flag:
        text += f" By default {default}."
    return text.replace("|", "\\|").replace("<", "&lt;")
