"""Exit statuses and error messages of the commands of gpud and gpuctl.

Exit statuses: 0 done, 1 the job or the request failed, 2 wrong usage, 3 there is no daemon (gpuctl
only), 130 interrupted by Ctrl-C, 141 the reader of the output has closed it (as for a program
killed by SIGPIPE). A traceback is shown only if ``GPUD_DEBUG`` is set.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from gpud.errors import CompileError, ConnectionLost, GpudError

__all__ = ["BROKEN_PIPE", "DONE", "FAILED", "INTERRUPTED", "NO_DAEMON", "USAGE", "run"]

DONE, FAILED, USAGE, NO_DAEMON = 0, 1, 2, 3
INTERRUPTED, BROKEN_PIPE = 130, 141
_COUNTED = re.compile(r" \(the first of \d+ errors; the log has all\)")

# Typer's own base classes: BadParameter is a UsageError is a ClickException, whichever parser
# library this release of Typer uses.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ParserError: Any = typer.BadParameter.__mro__[2]


def run(app: typer.Typer, arguments: Sequence[str] | None, name: str, *, lost: int = FAILED) -> int:
    """Run a command of ``app`` and return its exit status; raises only SystemExit.

    Args:
        app: The commands.
        arguments: The command line without the program's name; None: that of this process.
        name: The program's name.
        lost: The exit status if there is no daemon.
    """
    _open_standard_streams()
    try:
        line = list(sys.argv[1:] if arguments is None else arguments)
        status = app(line, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else DONE
    except SystemExit as error:  # raised by Typer when the output is closed
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _unread()
    except _UsageError as error:
        return _usage(error, name)
    except _ParserError as error:
        return _failed(f"{name}: {error.format_message()}", FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except ConnectionLost as error:
        return _failed(f"{name}: {error}", lost)
    except GpudError as error:
        said = _with_log(error) if type(error) is CompileError else str(error)
        return _failed(f"{name}: {said}", FAILED)
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        if error.errno == errno.EBADF:  # as for any program whose output is closed
            _unread()
            return _failed(f"{name}: standard output: {error.strerror}", FAILED)
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{name}: {place}{error.strerror or error}", FAILED)
    except MemoryError as error:  # for array values made in this process
        return _failed(f"{name}: not enough memory: {error}", FAILED)
    except Exception as error:  # noqa: BLE001  (a bug of gpud: one line, and how to see more)
        what = f"{type(error).__name__}: {error}"
        return _failed(f"{name}: {what} (this is a bug; GPUD_DEBUG=1 shows where)", FAILED)


def _open_standard_streams() -> None:
    """Open those that are closed, lest another file gets their number: a library writes there.

    Nothing can be written to a standard output that was closed; messages are dropped.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _with_log(error: CompileError) -> str:
    """Return the compiler's log, and what the error's message says besides."""
    log, said = error.log.strip(), str(error)
    if not log:
        return said
    first, _, rest = said.partition("\n")
    known = next((line for line in log.splitlines() if line and first.startswith(line)), "")
    if not known:
        return f"{said}\n{log}"
    hint = _COUNTED.sub("", first.removeprefix(known)).removeprefix("; ")
    logged = set(log.splitlines())
    return "\n".join(
        [log, *filter(None, [hint]), *(x for x in rest.split("\n") if x not in logged)]
    )


def _usage(error: Any, name: str) -> int:
    where = name if error.ctx is None else error.ctx.command_path
    message = error.format_message()
    if not message:  # a subcommand is missing: help has been shown
        return USAGE
    # The parser of options with choices puts the kind of its own error first.
    message = " ".join(message.split()).rstrip(".").replace(": Value error, ", ": ")
    return _failed(f"{where}: {message}; see {where} --help", USAGE)


def _unread() -> int:
    """Keep the interpreter from flushing the output, which is closed, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return BROKEN_PIPE


def _failed(line: str, status: int) -> int:
    if os.environ.get("GPUD_DEBUG"):
        traceback.print_exc()
    print(line, file=sys.stderr)  # noqa: T201
    return status
