"""The public attributes of the library's objects are on its reference page."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gpud_client as gc
from tests.support.fake_daemon import FakeDaemon

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "client.md"


def documented(kind: str) -> set[str]:
    """The members that the page gives a heading, or an item under the class's own heading."""
    text = PAGE.read_text()
    section = re.search(rf"^#+ `{kind}`\n(.*?)(?=^#)", text, re.MULTILINE | re.DOTALL)
    items = re.findall(r"^- `(\w+)`:", section[1], re.MULTILINE) if section else []
    return {*items, *re.findall(rf"^#+ `{kind}\.(\w+)`", text, re.MULTILINE)}


def undocumented(things: Iterable[Any]) -> list[str]:
    of_futures = set(dir(concurrent.futures.Future))
    return [
        f"{type(thing).__name__}.{name}"
        for thing in things
        for name in dir(thing)
        if not name.startswith("_")
        and name not in documented(type(thing).__name__.removeprefix("Async"))
        and name not in documented(type(thing).__name__)
        and not (isinstance(thing, gc.Job) and name in of_futures)
    ]


def test_every_public_name_of_what_blocks(daemon: FakeDaemon, gpu: gc.Session) -> None:
    kernel, array = gpu.kernel("", "saxpy"), gpu.zeros(4, "float32")
    launch, symbol = kernel.call(1, 32, (2.0, array, array, 4)), kernel.module.symbol("coef")
    things = (gpu, gpu.device, gpu.stream(), array, kernel, kernel.module, symbol, launch)
    assert undocumented((*things, gpu.sequence([launch]))) == []


def test_every_public_name_of_what_is_awaited(daemon: FakeDaemon) -> None:
    async def held() -> list[str]:
        async with gc.aconnect(daemon.path) as gpu:
            kernel, array = await gpu.kernel("", "saxpy"), await gpu.zeros(4, "float32")
            job = await kernel.submit(1, 32, (2.0, array, array, 4))
            symbol = kernel.module.symbol("coef")
            return undocumented((gpu, array, kernel, kernel.module, symbol, job, gpu.stream()))

    assert asyncio.run(held()) == []
