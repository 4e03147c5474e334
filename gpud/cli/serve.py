"""``gpud serve``: runs the daemon. It has one option for each setting of `gpud.config`."""

from __future__ import annotations

import inspect
import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gpud.config import SETTINGS, Setting, load
from gpud.errors import InvalidArgument

__all__ = ["serve"]

_POLL_S = 1.0


def serve(config: Path | None, exit_with_parent: bool, **settings: Any) -> None:
    """Serve this machine's devices to the programs of its users, until SIGTERM.

    Settings without a flag are taken from the environment (GPUD_...), then from the file.
    """
    _check_flags(settings)
    loaded = load(settings, file=config)
    parent = os.getppid()
    if exit_with_parent:
        _follow(parent)
    from gpud.server.daemon import run

    status = run(loaded)
    if exit_with_parent and os.getppid() != parent:
        with suppress(OSError):  # not empty
            loaded.socket.parent.rmdir()  # the parent created it, and has ended without removing it
    raise typer.Exit(status)


def _check_flags(settings: Mapping[str, Any]) -> None:
    """Report invalid flags as wrong usage, unlike invalid variables or an invalid file."""
    from gpud.server.settings import check

    try:
        check(load(settings, environ={}, file=os.devnull))
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None


def _signature() -> inspect.Signature:
    """Return the signature that Typer reads: an option for each setting, and two others."""
    only = inspect.Parameter.KEYWORD_ONLY
    config = Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings in TOML; by default ~/.config/gpud/gpud.toml, else "
            "/etc/gpud/gpud.toml, where there is one.",
            show_default=False,
        ),
    ]
    exit_with_parent = Annotated[
        bool,
        typer.Option(
            "--exit-with-parent",
            help="End when the process that started this one has ended.",
            show_default=False,
        ),
    ]
    return inspect.Signature(
        [
            *(_parameter(setting) for setting in SETTINGS),
            inspect.Parameter("config", only, default=None, annotation=config),
            inspect.Parameter("exit_with_parent", only, default=False, annotation=exit_with_parent),
        ]
    )


def _parameter(setting: Setting) -> inspect.Parameter:
    default = f" (default {setting.default})" if setting.default is not None else ""
    several = "; may be given several times" if setting.many else ""
    text = setting.meaning.replace("`", "")
    option = typer.Option(
        setting.flag,
        metavar=setting.type.metavar,
        help=f"{text[0].upper()}{text[1:]}{several}{default}.",
        show_default=False,
    )
    kind: Any = list[str] | None if setting.many else str | None
    return inspect.Parameter(
        setting.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )


serve.__signature__ = _signature()  # type: ignore[attr-defined]


# -- the parent --------------------------------------------------------------------------------


def _follow(parent: int) -> None:
    """Make this process drain, as on SIGTERM, when its parent has ended.

    ``PR_SET_PDEATHSIG`` is not used: it watches the thread that started this process, and the
    threads of a notebook end long before it does.
    """
    thread = threading.Thread(target=_await_end, args=(parent,), name="parent", daemon=True)
    thread.start()


def _await_end(parent: int) -> None:
    try:
        descriptor = os.pidfd_open(parent)
    except OSError:  # it has ended, or the kernel has no pidfd_open: poll the parent's id
        while os.getppid() == parent:
            time.sleep(_POLL_S)
    else:
        # The descriptor may be of another process that has got the same id in the meantime.
        while os.getppid() == parent and not select.select([descriptor], [], [], None)[0]:
            pass
        os.close(descriptor)
    os.kill(os.getpid(), signal.SIGTERM)
