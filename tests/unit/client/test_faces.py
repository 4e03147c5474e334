"""Operations and their two faces."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Generic, TypeVar

import pytest

import gpud_client as gc
from gpud_client.connection.contexts import AwaitedContext, BlockingContext
from gpud_client.connection.faces import Awaited, Blocking, operation, queried, with_shortcut
from gpud_client.connection.pending import Operation

T = TypeVar("T")
FACES = [
    (gc.Session, gc.AsyncSession),
    (gc.Kernel, gc.AsyncKernel),
    (gc.Module, gc.AsyncModule),
    (gc.Symbol, gc.AsyncSymbol),
    (gc.Array, gc.AsyncArray),
    (gc.Job, gc.AsyncJob),
]


class Channel:
    """Runs operations without steps."""

    def run(self, operation: Operation[Any]) -> Any:
        with pytest.raises(StopIteration) as stopped:
            next(operation)
        return stopped.value.value


class AsyncChannel(Channel):
    async def run(self, operation: Operation[Any]) -> Any:
        return super().run(operation)


class Base(Generic[T]):
    _channel: Any

    @operation
    def scaled(self, factor: int, *, offset: int = 0) -> Operation[T]:
        """Scale. Then add.

        More of it.
        """
        yield from ()
        result: Any = 10 * factor + offset
        return result  # type: ignore[no-any-return]

    @queried
    def size(self) -> Operation[int]:
        """The size."""
        yield from ()
        return 7

    def plain(self) -> int:
        return 1


class Face(Base[int], Blocking):
    _channel = Channel()


class AsyncFace(Base["Face"], Awaited):
    _channel = AsyncChannel()


class Special(Face):
    def scaled(self, factor: int, *, offset: int = 0) -> int:
        return -super().scaled(factor, offset=offset)


def test_one_declaration_serves_both_faces() -> None:
    blocking, awaited = Face(), AsyncFace()
    assert blocking.scaled(2, offset=1) == 21
    assert blocking.size == 7
    assert inspect.iscoroutinefunction(AsyncFace.scaled)

    async def both() -> tuple[Any, int]:
        return await awaited.scaled(3), await awaited.size

    assert asyncio.run(both()) == (30, 7)
    with pytest.raises(TypeError):
        blocking.scaled()  # type: ignore[call-arg]


def test_a_face_overrides_what_it_defines_itself() -> None:
    assert Special().scaled(2) == -20
    assert Special().size == 7


def test_signatures_and_descriptions_are_those_of_the_face() -> None:
    assert (
        str(inspect.signature(Face.scaled))
        == "(self, factor: 'int', *, offset: 'int' = 0) -> 'int'"
    )
    assert inspect.signature(AsyncFace.scaled).return_annotation == "Face"
    assert (Face.scaled.__doc__ or "").endswith("More of it.")
    assert AsyncFace.scaled.__doc__ == "Scale. See `Face.scaled`."
    assert inspect.getdoc(Face.size) == "The size."


@pytest.mark.parametrize("faces", FACES, ids=lambda faces: faces[0].__name__)
def test_the_library_has_the_same_methods_in_both_faces(faces: tuple[type, type]) -> None:
    def members(cls: type) -> dict[str, Any]:
        return {
            name: member
            for base in reversed(cls.__mro__)
            if base.__module__.startswith("gpud_client.")
            for name, member in vars(base).items()
            if not name.startswith("_")
        }

    blocking, awaited = map(members, faces)
    assert blocking.keys() == awaited.keys()
    for name, member in blocking.items():
        if not inspect.isfunction(member):
            continue
        here, there = inspect.signature(member), inspect.signature(awaited[name])
        assert list(here.parameters) == list(there.parameters), name


@pytest.mark.parametrize("given", [{"grid": 1, "block": 2}, {"grid": 3, "block": 2}])
def test_a_shortcut_spares_the_steps_at_both_faces(given: dict[str, int]) -> None:
    asked: list[tuple[int, int]] = []

    def shortcut(take_steps: Any) -> Any:
        def submit(face: Any, grid: int, block: int) -> Any:
            asked.append((grid, block))
            return "short" if grid == 1 else take_steps(face, grid, block=block)

        return submit

    class Submitting:
        @with_shortcut(shortcut)
        def submit(self, grid: int, block: int) -> Operation[str]:
            yield from ()
            return "steps"

    class Sync(Submitting, Blocking):
        _channel = Channel()

    class Async(Submitting, Awaited):
        _channel = AsyncChannel()

    expected = "short" if given["grid"] == 1 else "steps"
    assert Sync().submit(**given) == expected
    assert asyncio.run(Async().submit(**given)) == expected
    assert asked == [(given["grid"], given["block"])] * 2
    assert str(inspect.signature(Sync.submit)) == "(self, grid: 'int', block: 'int') -> 'str'"


def test_a_with_block_enters_and_leaves_at_both_faces() -> None:
    class Base:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def _enter(self) -> Operation[None]:
            self.seen.append("in")
            yield from ()

        def _leave(self, error: BaseException | None) -> Operation[None]:
            self.seen.append(type(error))
            yield from ()

    class Sync(Base, BlockingContext):
        _channel = Channel()

    class Async(Base, AwaitedContext):
        _channel = AsyncChannel()

    def enter(block: Sync) -> None:
        with block as entered:
            assert entered is block
            raise KeyError

    async def await_entering(block: Async) -> None:
        async with block as entered:
            assert entered is block
            raise KeyError

    sync, awaited = Sync(), Async()
    with pytest.raises(KeyError):
        enter(sync)
    with pytest.raises(KeyError):
        asyncio.run(await_entering(awaited))
    assert sync.seen == awaited.seen == ["in", KeyError]
