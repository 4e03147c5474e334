"""Which instruction of the caller's program a number in a fault record means.

Problem: a rewritten kernel that notices its own mistake can only write down numbers; people want
the instruction, its line in the PTX they gave (not in what gpud made of it), and the line of the
source that it was compiled from.

Approach: passes that plant a check give the instruction to the module's `SiteTable` and plant the
number that they get. The table goes along with the program (`Program.sites`). Lines of the source
come from ``.loc`` and ``.file`` where the compiler wrote them (``-lineinfo``).

Terms: a *site* is one instruction of the program as it was given; copies of a function or kernel
(variants, exit-aware copies) share the sites of the original.

Properties:
    same_site: the same instruction of the same function gets the same number, however often;
    original: ``line`` counts lines of the program as it was given, whatever the passes added;
    source: ``file_line`` is that of the last ``.loc`` before the instruction in its function,
        None if there is none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from gpud.compiler.abi.reserved_names import kernel_of
from gpud.compiler.ptx.model import Directive, Function, Instruction, Location, Module
from gpud.compiler.ptx.printer import print_instruction

__all__ = ["SOURCE_NAME", "Site", "SiteTable"]

SOURCE_NAME = "kernel.cu"
"""What a source is called in messages and line information."""

_FILE = re.compile(r'\.file\s+(\d+)\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Site:
    """One instruction of a program.

    Attributes:
        function: Its function's name in the PTX.
        instruction: Its text.
        line: Its line in the PTX as it was given, 0 for an instruction that gpud made.
        file: The source file it was compiled from, None if the PTX does not say.
        file_line: Its line there, None likewise.
    """

    function: str
    instruction: str
    line: int
    file: str | None = None
    file_line: int | None = None

    def __str__(self) -> str:
        where = f"PTX line {self.line}" if self.line else "made by gpud"
        if self.file_line is not None:
            where = f"{self.file or 'source'}:{self.file_line}, {where}"
        return f"{self.instruction} in {self.function} ({where})"


class SiteTable:
    """The sites of a module, numbered as they are added.

    Args:
        module: As it was parsed, for ``.loc`` and ``.file``; None: no source lines.
    """

    def __init__(self, module: Module | None = None) -> None:
        self._module = module
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._sites: list[Site] = []

    @property
    def sites(self) -> tuple[Site, ...]:
        """All sites so far by number."""
        return tuple(self._sites)

    def add(self, function: str, instruction: Instruction) -> int:
        """The number of ``instruction`` of the function ``function``, a variant's name included."""
        name = kernel_of(function)
        text = print_instruction(instruction)
        key = (name, instruction.line, text)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._sites)
            file, line = self._source(instruction.line)
            self._sites.append(Site(name, text, instruction.line, file, line))
        return found

    # -- helpers -------------------------------------------------------------------------------

    def _source(self, line: int) -> tuple[str | None, int | None]:
        """(file, line) of what the program's line ``line`` was compiled from."""
        lines, places = self._locations
        at = bisect_right(lines, line) - 1
        if not line or at < 0:
            return None, None
        file, file_line = places[at]
        return (None if file is None else self._files.get(file)), file_line

    @cached_property
    def _locations(self) -> tuple[list[int], list[tuple[int | None, int | None]]]:
        """Where each ``.loc`` stands, and what it says; each function begins with nothing."""
        found: list[tuple[int, tuple[int | None, int | None]]] = []
        for item in () if self._module is None else self._module.items:
            if isinstance(item, Function) and item.body is not None:
                found.append((item.line, (None, None)))
                for statement in item.body:
                    if isinstance(statement, Location):
                        file, line = statement.text.split()[:2]
                        found.append((statement.line, (int(file), int(line))))
        found.sort(key=lambda one: one[0])
        return [line for line, _ in found], [place for _, place in found]

    @cached_property
    def _files(self) -> dict[int, str]:
        files: dict[int, str] = {}
        for item in () if self._module is None else self._module.items:
            if isinstance(item, Directive) and (match := _FILE.match(item.text)):
                # NVRTC puts its working folder, the daemon's, in front of the name it was given.
                name = match[2]
                files[int(match[1])] = SOURCE_NAME if name.endswith(f"/{SOURCE_NAME}") else name
        return files
