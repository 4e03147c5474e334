"""What a task is submitted with: the terms that were asked for, and this process's surroundings."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpud.units import byte_size
from gpud.wire.socket_path import socket_path

__all__ = ["surroundings", "terms"]

_LIMITS = [
    value for name, value in sorted(vars(resource).items()) if name.startswith("RLIMIT_")
]  # fmt: skip


def surroundings(
    environment: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    socket: str | None = None,
) -> dict[str, Any]:
    """Return directory, environment, umask and limits of this process, as `SubmitTask` has them."""
    variables: Mapping[bytes, bytes] = (
        os.environb
        if environment is None
        else {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    )
    umask = os.umask(0o077)
    os.umask(umask)
    limits = []
    for number in dict.fromkeys(_LIMITS):
        soft, hard = resource.getrlimit(number)
        limits.append((number, soft, hard))
    return {
        "directory": os.fsencode(os.path.abspath(directory or os.getcwd())),  # noqa: PTH100, PTH109
        "environment": b"".join(b"%b=%b\0" % entry for entry in variables.items()),
        "umask": umask,
        "limits": tuple(limits),
        "socket": str(socket_path(socket)),
    }


def terms(
    command: Sequence[str | os.PathLike[str]],
    *,
    cores: int | None = None,
    gpus: float | Fraction | str | None = None,
    memory: int | str | None = None,
    weights: int | str | None = None,
    after: Iterable[int] = (),
    time_limit: float | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Return the other fields of `SubmitTask`, each checked and converted.

    Raises:
        TypeError, ValueError: a value is of the wrong kind, or out of range.
    """
    if isinstance(command, str | bytes):
        raise TypeError(
            f'a command is a list of words, such as ["python", "x.py"], not {command!r}'
        )
    words = tuple(os.fsencode(word) for word in command)
    if not words or not words[0]:
        raise ValueError("a task needs a command")
    try:
        amount = None if gpus is None else Fraction(str(gpus))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"gpus is a number such as 2 or 0.5, not {gpus!r}") from None
    if amount is not None and amount < 0:
        raise ValueError(f"gpus must be 0 or more, not {gpus}")
    return {
        "command": words,
        "cores": cores,
        "gpus": (amount.numerator, amount.denominator) if amount else None,
        "memory_bytes": None if memory is None else byte_size(memory),
        "weights_bytes": None if weights is None else byte_size(weights),
        "after": tuple(after),
        "time_limit_ns": None if time_limit is None else round(time_limit * 1e9),
        **others,
    }
