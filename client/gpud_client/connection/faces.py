"""Gives each operation two faces: a method that blocks, and one that is awaited.

Problem: people block or await, and both should find the same methods, with the same arguments, that
do the same. Written twice, they come apart.

Approach: a method of several steps is written once, in a base class, as a generator of steps, and
marked as an `operation`; a property that asks the daemon is `queried`. The classes that people use
derive from the base class and from `Blocking` or `Awaited`, which make methods of what is marked:
these have the channel run the generator. To type checkers the marks are descriptors, whose result
depends on the face.

Terms:
    face: a class that people use, such as `Session` or `AsyncSession`.

Properties:
    one_declaration: the faces of an operation have its name, arguments and description;
    no_detour: calling a face's method is one call more than running its operation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    get_args,
    overload,
)

from gpud_client.connection.pending import Operation

__all__ = [
    "Awaited",
    "Blocking",
    "operation",
    "queried",
    "with_shortcut",
]

P = ParamSpec("P")
T = TypeVar("T")
_Shortcut = Callable[[Callable[..., Any]], Callable[..., Any]]


class Blocking:
    """Makes methods that block of a class's operations."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        _show(cls, _blocking, lambda name, steps: inspect.getdoc(steps))


class Awaited:
    """Makes coroutines of a class's operations; their description is at the blocking face."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        kind = cls.__name__.removeprefix("Async")
        _show(cls, _awaited, lambda name, steps: f"{_title(steps)} See `{kind}.{name}`.")


class operation(Generic[P, T]):  # noqa: N801  (used as a decorator)
    """Marks a generator as a method of a class's faces.

    Args:
        steps: The generator.
        shortcut: Given what takes the steps, makes the method, which takes them if it must.
    """

    def __init__(
        self,
        steps: Callable[Concatenate[Any, P], Operation[T]],
        shortcut: _Shortcut | None = None,
    ) -> None:
        self.steps = steps
        self.shortcut = shortcut
        self.__doc__ = steps.__doc__

    if TYPE_CHECKING:

        @overload
        def __get__(self, face: None, owner: type) -> Callable[..., Any]: ...
        @overload
        def __get__(self, face: Blocking, owner: type) -> Callable[P, T]: ...
        @overload
        def __get__(self, face: Awaited, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
        def __get__(self, face: Any, owner: type) -> Any: ...


def with_shortcut(
    shortcut: _Shortcut,
) -> Callable[[Callable[Concatenate[Any, P], Operation[T]]], operation[P, T]]:
    """Mark a generator as an `operation` that has a shortcut."""
    return lambda steps: operation(steps, shortcut)


class queried(Generic[T]):  # noqa: N801  (used as a decorator)
    """Marks a generator as a property of a class's faces."""

    def __init__(self, steps: Callable[[Any], Operation[T]]) -> None:
        self.steps = steps
        self.__doc__ = steps.__doc__

    if TYPE_CHECKING:

        @overload
        def __get__(self, face: None, owner: type) -> property: ...
        @overload
        def __get__(self, face: Blocking, owner: type) -> T: ...
        @overload
        def __get__(self, face: Awaited, owner: type) -> Coroutine[Any, Any, T]: ...
        def __get__(self, face: Any, owner: type) -> Any: ...


# -- helpers -----------------------------------------------------------------------------------


def _show(
    cls: type[Any],
    make: Callable[[Callable[..., Operation[Any]], _Shortcut | None], Callable[..., Any]],
    describe: Callable[[str, Callable[..., Any]], str | None],
) -> None:
    """Add a method or property to ``cls`` for each operation that it inherits as such."""
    seen: set[str] = set()
    types = _types(cls)
    for base in cls.__mro__:
        for name, marked in list(vars(base).items()):
            if name in seen:
                continue
            seen.add(name)
            if not isinstance(marked, operation | queried):
                continue
            method: Any = make(marked.steps, getattr(marked, "shortcut", None))
            method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
            method.__module__ = cls.__module__
            method.__doc__ = describe(name, marked.steps)
            method.__signature__ = _signature(marked.steps, types)
            setattr(cls, name, property(method) if isinstance(marked, queried) else method)


def _blocking(
    steps: Callable[..., Operation[Any]], shortcut: _Shortcut | None
) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return self._channel.run(steps(self, *args, **options))

    return shortcut(method) if shortcut else method


def _awaited(
    steps: Callable[..., Operation[Any]], shortcut: _Shortcut | None
) -> Callable[..., Any]:
    async def method(self: Any, *args: Any, **options: Any) -> Any:
        return await self._channel.run(steps(self, *args, **options))

    if shortcut is None:
        return method
    shortened = shortcut(method)

    async def quick(self: Any, *args: Any, **options: Any) -> Any:
        made = shortened(self, *args, **options)
        return await made if isinstance(made, CoroutineType) else made

    return quick


def _title(steps: Callable[..., Any]) -> str:
    """Return the first sentence of a description."""
    return (
        " ".join((inspect.getdoc(steps) or "").split("\n\n", 1)[0].split())
        .partition(". ")[0]
        .rstrip(".")
        + "."
    )


def _types(cls: type[Any]) -> dict[str, str]:
    """Return the names of the face's types, by those of the type variables they stand for."""
    names: dict[str, str] = {}
    for base in getattr(cls, "__orig_bases__", ()):
        variables = getattr(getattr(base, "__origin__", None), "__parameters__", ())
        for variable, given in zip(variables, get_args(base), strict=False):
            names[variable.__name__] = getattr(given, "__forward_arg__", None) or given.__name__
    return names


def _signature(steps: Callable[..., Any], types: dict[str, str]) -> inspect.Signature:
    """Return the signature of a face's method: it returns what the operation does."""
    own = inspect.signature(steps)
    result = str(own.return_annotation).removeprefix("Operation[").removesuffix("]")
    return own.replace(return_annotation=types.get(result, result))
