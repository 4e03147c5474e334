"""The reference page of the client library, made of its public names and their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import gpud_client as gc
from docs.generate_api import _prose, _signature
from gpud_client.launch import argument_packer

__all__ = ["client_page"]

_HEAD = """\
# The client library

<!-- Written by docs/generate.py from the docstrings in client/gpud_client/: change those. -->

`import gpud_client as gc`. To begin with, see the [tutorial](../tutorial/client.md). What is raised
is listed in [Errors](errors.md); `gpud_client` has the names of those that a client meets.

What blocks says so. A session and all that was made with it may be used by any number of threads;
what was made with `aconnect` or `alocal` belongs to its event loop.

"""

_ARGUMENTS_HEAD = """\
## Arguments of kernels

"""

_ASYNC_HEAD = """\
## With await

`aconnect` and `alocal` give `AsyncSession`, and that gives `AsyncKernel`, `AsyncModule`,
`AsyncSymbol`, `AsyncArray` and `AsyncJob`. They have the methods of their blocking counterparts;
those that may wait are coroutines. Properties of a job that ask the daemon are awaited, too:
`await job.progress`.

"""

_BLOCKING = (
    gc.connect,
    gc.local,
    gc.Session,
    gc.Device,
    gc.Array,
    gc.Kernel,
    gc.Parameter,
    gc.Module,
    gc.Symbol,
    gc.Launch,
    gc.SubmitOptions,
    gc.Job,
    gc.Stream,
    gc.Lane,
)
_AWAITED = (
    gc.aconnect,
    gc.alocal,
    gc.AsyncSession,
    gc.AsyncKernel,
    gc.AsyncModule,
    gc.AsyncSymbol,
    gc.AsyncArray,
    gc.AsyncJob,
    gc.AsyncStream,
    gc.AsyncLane,
)


def client_page() -> str:
    """Return the reference page of the client library."""
    parts = [_HEAD]
    parts += [line + "\n" for thing in _BLOCKING for line in _entry(thing, "##")]
    parts.append(_ARGUMENTS_HEAD)
    parts.append(_arguments())
    parts.append(_ASYNC_HEAD)
    parts += [line + "\n" for thing in _AWAITED for line in _entry(thing, "###")]
    return "".join(parts).replace(", options: Any)", ", **options: Any)").rstrip() + "\n"


def _arguments() -> str:
    """Return the part of the packer's description that is the user's business."""
    return (
        inspect.cleandoc(argument_packer.__doc__ or "")
        .partition("What is accepted:\n\n")[2]
        .replace("``", "`")
        + "\n\n"
    )


def _entry(thing: Any, level: str) -> Iterator[str]:
    yield f"{level} `{thing.__name__}`"
    yield ""
    if inspect.isfunction(thing):
        yield from _signature(thing.__name__, thing)
    yield from _prose(inspect.getdoc(thing) or "")
    if not inspect.isclass(thing):
        return
    alike = _like_the_blocking(thing)
    if alike:
        names = ", ".join(f"`{name}`" for name in alike)
        yield from (f"As in `{thing.__name__.removeprefix('Async')}`: {names}.", "")
    for name, member in sorted(_members(thing), key=lambda one: one[0]):
        if name in alike:
            continue
        yield f"{level}# `{thing.__name__}.{name}`"
        yield ""
        if isinstance(member, property):
            yield from _prose(inspect.getdoc(member.fget) or "")
        else:
            yield from _signature(name, member)
            yield from _prose(inspect.getdoc(member) or "")


def _like_the_blocking(cls: type[Any]) -> list[str]:
    """Return the members of a class for asyncio that are those of its blocking counterpart."""
    other = getattr(gc, cls.__name__.removeprefix("Async"))
    if other is cls:
        return []
    known = dict(_members(other))
    return sorted(name for name, member in _members(cls) if _same(member, known.get(name)))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, property) or isinstance(other, property):
        return type(one) is type(other) and inspect.getdoc(one) == inspect.getdoc(other)
    return (
        other is not None
        and inspect.signature(one) == inspect.signature(other)
        and inspect.getdoc(one) == inspect.getdoc(other)
    )


def _members(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, those of the library's own bases included."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("gpud_client."):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            if inspect.isfunction(member) or isinstance(member, property):
                seen.add(name)
                yield name, member
