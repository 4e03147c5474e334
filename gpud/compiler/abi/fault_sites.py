"""Fault sites: maps the site numbers in fault records to instructions of the caller's program.

Problem: a kernel that detects a fault can only record numbers; users need the instruction, its line
in the PTX that they submitted (not in the rewritten PTX), and the line of the source that it was
compiled from.

Approach: passes that insert a check add the instruction to the module's `SiteTable`, and insert the
number that they get. The table is stored with the program (`Program.sites`). Source lines come from
``.loc`` and ``.file``, where the compiler wrote them (``-lineinfo``).

Terms: a *site* is one instruction of the program before rewriting; copies of a function or kernel
(variants, exit-aware copies) share the sites of the original.

Properties:
    same_site: adding the same instruction of the same function again gives the same number;
    original: ``line`` is the line in the program before rewriting;
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

__all__ = ["Site", "SiteTable"]

_FILE = re.compile(r'\.file\s+(\d+)\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Site:
    """One instruction of a program.

    Attributes:
        function: The PTX name of the function that contains it.
        instruction: Its text.
        line: Its line in the PTX before rewriting, 0 for an instruction that gpud added.
        file: The source file that it was compiled from, None if the PTX does not say.
        file_line: Its line in that file, None if the PTX does not say.
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
    """The sites of a module, numbered in the order in which they are added.

    Args:
        module: The module before rewriting, for ``.loc`` and ``.file``; None: no source lines.
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
        """Return the number of an instruction; ``function`` may be the name of a variant."""
        name = kernel_of(function)
        text = print_instruction(instruction)
        key = (name, instruction.line, text)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._sites)
            file, line = self._source(instruction.line)
            self._sites.append(Site(name, text, instruction.line, file, line))
        return number

    # -- helpers -------------------------------------------------------------------------------

    def _source(self, line: int) -> tuple[str | None, int | None]:
        """Return the source file and line from which line ``line`` of the PTX was compiled."""
        lines, places = self._locations
        at = bisect_right(lines, line) - 1
        if not line or at < 0:
            return None, None
        file, file_line = places[at]
        return (None if file is None else self._files.get(file)), file_line

    @cached_property
    def _locations(self) -> tuple[list[int], list[tuple[int | None, int | None]]]:
        """PTX lines of ``.loc`` directives, and their (file number, line), in equal order.

        The first line of each function has (None, None).
        """
        locations: list[tuple[int, tuple[int | None, int | None]]] = []
        for item in () if self._module is None else self._module.items:
            if isinstance(item, Function) and item.body is not None:
                locations.append((item.line, (None, None)))
                for statement in item.body:
                    if isinstance(statement, Location):
                        file, line = statement.text.split()[:2]
                        locations.append((statement.line, (int(file), int(line))))
        locations.sort(key=lambda one: one[0])
        return [line for line, _ in locations], [place for _, place in locations]

    @cached_property
    def _files(self) -> dict[int, str]:
        files: dict[int, str] = {}
        for item in () if self._module is None else self._module.items:
            if isinstance(item, Directive) and (match := _FILE.match(item.text)):
                files[int(match[1])] = match[2]
        return files
