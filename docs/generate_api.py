"""Reference pages of functions and classes, made of their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpud.compiler.cache import Cache
from gpud.compiler.forms.form import Reason
from gpud.compiler.passes import pass_manager
from gpud.compiler.pipeline import compile_program
from gpud.compiler.program import KernelInfo, ParameterInfo, Program, SymbolInfo
from gpud.compiler.toolchain.nvrtc import compile_cuda
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.occupancy import SM_LIMITS
from gpud.device.cpu.program.module import CPUKernel, CPUModule
from gpud.device.cpu.scheduling.native_launch import NativeLaunch
from gpud.device.interface import LaunchSequence, LaunchSpec, PlacedParameter, Run, pack_parameters

__all__ = ["compiler_page", "device_page"]

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Properties|Terms):")
_ITEM = re.compile(r"(\*?\*?\w+(?:, \w+)*): (.*)")

_COMPILER_HEAD = """\
# The compiler

<!-- Written by docs/generate.py from the docstrings in gpud/compiler/: change those. -->

From CUDA C++ or PTX to rewritten PTX. Internal: names may change without notice, and programs use
the [client library](client.md). How to read what it decides is in [Forms](../explanation/forms.md).

"""

_PASSES_HEAD = """\
## Passes

Those of `gpud.compiler.passes.pass_manager.PASSES`, in the order in which they run.

| pass | given kernels in form | problem it solves |
| --- | --- | --- |
"""

_DEVICE_HEAD = """\
# Devices and runs

<!-- Written by docs/generate.py from the docstrings in gpud/device/: change those. -->

Loading, launching and resizing on the CPU device, as its host process does it; the CUDA device has
the same interface, `gpud.device.interface`. Internal: names may change without notice, and programs
use the [client library](client.md).

"""

_LIMITS_HEAD = """\
## Limits of a virtual SM

The compute capability is chosen with the device: `CPUDevice(sms, capability=90)`. Sizes are bytes;
a block takes its shared memory plus what is reserved, in whole granules.

| capability | threads | blocks | shared memory | of one block | reserved a block | granule |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def compiler_page() -> str:
    """Return the reference page of the compiler."""
    things = (
        *(compile_program, compile_cuda, Program, KernelInfo, Reason, ParameterInfo, SymbolInfo),
        Cache,
    )
    rows = []
    for one in pass_manager.PASSES:
        forms = ", ".join(sorted(one.forms))
        rows.append(f"| `{one.name}` | {forms} | {_problem(inspect.getmodule(one.run))} |\n")
    return _COMPILER_HEAD + _entries(things) + _PASSES_HEAD + "".join(rows)


def device_page() -> str:
    """Return the reference page of devices and runs."""
    things = (
        CPUDevice,
        CPUModule,
        CPUKernel,
        LaunchSpec,
        LaunchSequence,
        Run,
        NativeLaunch,
        PlacedParameter,
        pack_parameters,
    )
    rows = [
        f"| {capability / 10} | {one.threads} | {one.blocks} | {one.shared} | "
        f"{one.shared_per_block} | {one.shared_reserved} | {one.shared_granule} |\n"
        for capability, one in SM_LIMITS.items()
    ]
    return _DEVICE_HEAD + _entries(things) + _LIMITS_HEAD + "".join(rows)


def _entries(things: Iterable[Any]) -> str:
    return "".join(line + "\n" for thing in things for line in _entry(thing))


def _entry(thing: Any) -> Iterator[str]:
    yield f"## `{thing.__name__}`"
    yield ""
    yield f"In `{thing.__module__}`."
    yield ""
    if inspect.isfunction(thing) or (
        "__init__" in vars(thing) and not getattr(thing, "_is_protocol", False)
    ):
        yield from _signature(thing.__name__, thing)
    yield from _prose(inspect.getdoc(thing) or "")
    if not inspect.isclass(thing):
        return
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, property):
            yield f"### `{thing.__name__}.{name}`"
            yield ""
            yield from _prose(inspect.getdoc(member.fget) or "")
        elif inspect.isfunction(function):
            yield f"### `{thing.__name__}.{name}()`"
            yield ""
            yield from _signature(name, function)
            yield from _prose(inspect.getdoc(function) or "")


def _signature(name: str, thing: Any) -> Iterator[str]:
    parts: list[str] = []
    starred = False
    for one in inspect.signature(thing).parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parts.append(f"{one.name}: {one.annotation}{default}")
    line = f"{name}({', '.join(parts)})"
    if len(line) <= 96:
        yield from (f"`{line}`", "")
        return
    yield from ("```text", f"{name}(\n    " + ",\n    ".join(parts) + ",\n)", "```", "")


def _prose(text: str) -> Iterator[str]:
    """Return a docstring as Markdown: its sections become bold words with lists below them."""
    listing = False
    for line in text.replace("``", "`").splitlines():
        if _SECTION.fullmatch(line):
            listing = True
            yield f"**{line[:-1]}**"
            yield ""
            continue
        if listing and line.startswith("    "):
            item = _ITEM.fullmatch(line[4:])
            if item and line[4] != " ":
                yield f"- `{item[1]}`: {item[2]}"
            elif line[4] == " ":
                yield f"  {line.strip()}"
            else:
                yield line.strip()
            continue
        listing = listing and not line
        yield line
    yield ""


def _problem(module: Any) -> str:
    """Return the paragraph of a module's docstring that begins with "Problem:"."""
    for paragraph in (inspect.getdoc(module) or "").split("\n\n"):
        if paragraph.startswith("Problem: "):
            return " ".join(paragraph.removeprefix("Problem: ").replace("``", "`").split())
    return ""
