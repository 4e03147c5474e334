"""Importing the client loads neither the daemon nor large libraries."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import gpud_client as gc

ALLOWED = {"gpud", "gpud.units", "gpud.errors", "gpud.wire", "gpud.checked_memory", "gpud_client"}


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


EVERYTHING = "import gpud_client\nfor name in gpud_client.__all__: getattr(gpud_client, name)"


def test_nothing_of_the_daemon_is_loaded() -> None:
    loaded = loaded_by(EVERYTHING)
    assert "gpud_client.session" in loaded
    ours = {name for name in loaded if name.partition(".")[0] in ("gpud", "gpud_client")}
    parts = {".".join(name.split(".")[:2]) if name.startswith("gpud.") else "gpud_client"
             for name in ours - {"gpud"}}  # fmt: skip
    assert parts <= ALLOWED
    heavy = {"llvmlite", "cuda", "cupy", "uvloop", "pynvml", "typer", "rich", "torch"}
    assert {name for name in loaded if name.partition(".")[0] in heavy} == set()


def test_importing_it_loads_nothing() -> None:
    loaded = loaded_by("import gpud_client")
    assert not {"numpy", "msgpack", "asyncio", "socket"} & loaded
    assert {name for name in loaded if name.startswith("gpud_client.")} == set()


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(gc.__all__) == gc.__all__
    assert set(gc.__all__) <= set(dir(gc))
    for name in gc.__all__:
        thing = getattr(gc, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        assert thing.__doc__, name
        if not inspect.isclass(thing):
            continue
        for member, value in vars(thing).items():
            public = not member.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, property)
            )
            assert not public or value.__doc__, f"{name}.{member}"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        gc.nonsense  # noqa: B018
