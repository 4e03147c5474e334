"""Links PTX programs into one, as ``nvlink`` links machine code.

Problem: separate compilation (``nvcc -rdc=true``, ``cuLinkAddData``) leaves names to be found in
other files, and the same name for different things in two of them. gpud rewrites one program, in
which each name has one meaning.

Approach: the files' trees become one. Every name of a file that only the file sees and another uses
too gets a number behind it; of what several define, one stays; declarations are dropped for
definitions elsewhere. Some functions that NVIDIA's device library defines are gpud's own.

Terms: a *local* name is one without linkage. *Built-ins* are `builtin_functions`.

Algorithm: a name that several files define is that of the visible one, else of the first weak one,
else of the largest ``.common`` one. The result has variables before functions and declares each
function first, because PTX requires that names are declared before they are used. Line numbers of
sources are kept, with their files numbered anew; what debuggers read besides is dropped.

Properties:
    one_meaning: in the result every module-level name is defined at most once;
    same_code: a function differs from its file's in names only;
    found_or_named: what no file defines is an error that names it, apart from the functions of
        devices (`KNOWN_EXTERNALS`), and from NVIDIA's device runtime (``cuda...``, ``cnp...``):
        kernels that call that are rejected one by one;
    newest: ISA version and target are the highest of all files.

Source: PTX ISA 9.0, sections 5.4, 7.1 and 11.6 (linking directives).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.analysis.initial_values import named
from gpud.compiler.forms.rules import KNOWN_EXTERNALS
from gpud.compiler.images.builtins import builtin_functions
from gpud.compiler.images.module_names import renamed
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.model import (
    CallTargets,
    Directive,
    Function,
    Instruction,
    Location,
    Module,
    Operand,
    Register,
    Statement,
    Symbol,
    Variable,
)
from gpud.compiler.ptx.renaming import replace_names
from gpud.errors import LinkError

__all__ = ["link"]

Item = Function | Variable
_FILE = re.compile(r"\.file\s+(\d+)")
_LINE = re.compile(r"(\d+)(\s+\d+\s+\d+)")
_TARGET = re.compile(r"(sm_|compute_)(\d+)(\w*)")
_MOST_NAMES = 8
_DEVICE_RUNTIME = ("cuda", "__cuda", "cnp")


def link(files: Sequence[Module], sm: int | None = None) -> Module:
    """Return one flat program of several.

    Args:
        files: as they were parsed; not changed.
        sm: the device's compute capability times ten. A file for a newer one is left out if no
            other needs it: nvcc links NVIDIA's device runtime to everything. None: not known.

    Raises:
        LinkError: a name is defined twice, not at all, or differently from its declaration.
    """
    parts = _without_newer([_Part(flatten_module(file)) for file in files], sm)
    builtins = _needed_builtins(parts)
    if builtins is not None:
        parts.append(_Part(flatten_module(builtins)))
    _rename_local(parts)
    chosen = _definitions(parts)
    _check_declarations(parts, chosen)
    _check_found(parts, chosen)
    return Module(
        max(part.module.version for part in parts),
        _target(parts),
        files[0].address_size,
        list(_items(parts, chosen)),
    )


def _without_newer(parts: list[_Part], sm: int | None) -> list[_Part]:
    """Leave out files for newer devices that no other file needs."""
    if sm is None:
        return parts
    newer = [part for part in parts if _newness(part.module.target[0])[0] > sm]
    others = [part for part in parts if part not in newer]
    needed = {item.name for part in others for item in part.declared()}
    kept = [part for part in newer if any(item.name in needed for item in part.defined())]
    return [part for part in parts if part in others or part in kept] if others else parts


class _Part:
    """One file, of which names may be changed."""

    def __init__(self, module: Module) -> None:
        self.module = module

    @property
    def items(self) -> list[Item]:
        return [item for item in self.module.items if not isinstance(item, Directive)]

    def defined(self) -> Iterator[Item]:
        return (item for item in self.items if _is_definition(item))

    def declared(self) -> Iterator[Item]:
        return (item for item in self.items if not _is_definition(item))


def _is_definition(item: Item) -> bool:
    if isinstance(item, Function):
        return item.body is not None
    return item.linkage != "extern"


def _is_local(item: Item) -> bool:
    if isinstance(item, Function) and item.kind == "entry":
        return False  # kernels are found by the host
    return item.linkage is None


# -- names ---------------------------------------------------------------------------------------


def _rename_local(parts: Sequence[_Part]) -> None:
    """Give local names that another file has, too, a number."""
    taken = {item.name for part in parts for item in part.items}
    users: dict[str, int] = {}
    for part in parts:
        for name in dict.fromkeys(item.name for item in part.items):
            users[name] = users.get(name, 0) + 1
    for part in parts:
        new: dict[str, str] = {}
        for item in part.defined():
            if _is_local(item) and users[item.name] > 1:
                number = 1
                while (name := f"{item.name}__{number}") in taken:
                    number += 1
                taken.add(name)
                new[item.name] = name
        if new:
            part.module = replace(
                part.module,
                items=[
                    item if isinstance(item, Directive) else renamed(item, new)
                    for item in part.module.items
                ],
            )


# -- definitions -----------------------------------------------------------------------------------

_RANKS = {"visible": 3, None: 3, "weak": 2, "common": 1}


def _definitions(parts: Sequence[_Part]) -> dict[str, Item]:
    """Return the definition of each name.

    Raises:
        LinkError: two files define one, and neither is weak.
    """
    chosen: dict[str, Item] = {}
    twice: dict[str, None] = {}
    for part in parts:
        for item in part.defined():
            before = chosen.get(item.name)
            if before is None:
                chosen[item.name] = item
                continue
            old, new = _RANKS[before.linkage], _RANKS[item.linkage]
            if old == new == 3:
                twice[item.name] = None
            larger = old == new == 1 and _size(item) > _size(before)
            if new > old or larger:
                chosen[item.name] = item
    if twice:
        raise LinkError(
            f"{_listed(twice)} defined more than once; make all but one static, or link one of "
            "the files only",
            names=tuple(twice),
        )
    return chosen


def _size(item: Item) -> int:
    return size_and_align(item)[0] if isinstance(item, Variable) else 0


def _check_declarations(parts: Sequence[_Part], chosen: Mapping[str, Item]) -> None:
    """Check that declarations fit their definitions.

    Raises:
        LinkError: one does not.
    """
    for part in parts:
        for item in part.declared():
            found = chosen.get(item.name)
            if found is not None and not _fits(item, found):
                what = "parameters" if isinstance(found, Function) else "space or size"
                raise LinkError(
                    f"{item.name} is declared with other {what} than it is defined with; compile "
                    "both files with the same header",
                    names=(item.name,),
                )


def _fits(declared: Item, defined: Item) -> bool:
    if isinstance(declared, Function) and isinstance(defined, Function):
        return [
            [size_and_align(one)[0] for one in both]
            for both in (declared.parameters, declared.returns)
        ] == [
            [size_and_align(one)[0] for one in both]
            for both in (defined.parameters, defined.returns)
        ]
    if isinstance(declared, Variable) and isinstance(defined, Variable):
        sizes = _size(declared), _size(defined)
        return declared.space == defined.space and (not sizes[0] or sizes[0] == sizes[1])
    return False


def _check_found(parts: Sequence[_Part], chosen: Mapping[str, Item]) -> None:
    """Check that everything that is declared is defined, if code uses it.

    Raises:
        LinkError: something is not.
    """
    missing: dict[str, None] = {}
    for part in parts:
        open_names = {
            item.name
            for item in part.declared()
            if item.name not in chosen
            and not (isinstance(item, Variable) and item.space == "shared")
            and item.name not in KNOWN_EXTERNALS
            and not item.name.startswith(_DEVICE_RUNTIME)
        }
        if open_names:
            used = dict.fromkeys(_used(part.defined()))
            missing.update(dict.fromkeys(name for name in used if name in open_names))
    if missing:
        raise LinkError(
            f"{_listed(missing)} used, and no file defines it; add the file that does",
            names=tuple(missing),
        )


def _used(items: Iterable[Item]) -> Iterator[str]:
    """Yield the names that definitions use."""
    for item in items:
        if isinstance(item, Variable):
            yield from named(item.init)
            continue
        for statement in item.body or ():
            if isinstance(statement, Instruction):
                for operand in statement.operands:
                    names: list[str] = []

                    def note(one: Register | Symbol, into: list[str] = names) -> Operand:
                        into.append(one.name)
                        return one

                    replace_names(operand, note)
                    yield from names
            elif isinstance(statement, CallTargets):
                yield from statement.targets
            elif isinstance(statement, Variable):
                yield from named(statement.init)


def _needed_builtins(parts: Sequence[_Part]) -> Module | None:
    """Return the built-in functions that files declare and none defines; None: there are none."""
    defined = {item.name for part in parts for item in part.defined()}
    declared = {item.name for part in parts for item in part.declared()}
    return builtin_functions(declared - defined)


def _listed(names: Mapping[str, None]) -> str:
    shown = list(names)[:_MOST_NAMES]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{more} {'is' if len(names) == 1 else 'are'}"


# -- the result ------------------------------------------------------------------------------------


def _items(
    parts: Sequence[_Part], chosen: Mapping[str, Item]
) -> Iterator[Function | Variable | Directive]:
    """Yield the items of the result: files, declarations, variables, functions."""
    bodies: list[Function] = []
    variables: list[Variable] = []
    ahead: dict[str, Item] = {}
    first_file = 0
    for part in parts:
        numbers = 0
        for item in part.module.items:
            if isinstance(item, Directive):
                match = _FILE.match(item.text)
                if match is not None:
                    number = int(match[1])
                    numbers = max(numbers, number)
                    text = f".file {first_file + number}{item.text[match.end() :]}"
                    yield replace(item, text=text)
            elif not _is_definition(item):
                if item.name not in chosen:
                    ahead[item.name] = _stricter(ahead.get(item.name), item)
            elif chosen[item.name] is not item:
                continue
            elif isinstance(item, Variable):
                variables.append(item)
            else:
                bodies.append(_with_lines(item, first_file))
        first_file += numbers
    yield from ahead.values()
    for function in bodies:
        if function.kind == "func":
            yield replace(function, body=None)
    yield from _in_order(variables)
    yield from bodies


def _stricter(before: Item | None, item: Item) -> Item:
    """Return the declaration that promises more: of dynamic shared memory, the alignment."""
    if isinstance(before, Variable) and isinstance(item, Variable):
        return max(before, item, key=lambda one: size_and_align(one)[1])
    return item if before is None else before


def _in_order(variables: list[Variable]) -> list[Variable]:
    """Return variables, each behind those that its value names, as far as that goes."""
    names = {one.name for one in variables}
    placed: dict[str, Variable] = {}
    left = variables
    while left:
        waiting = [
            one
            for one in left
            if any(
                name in names and name not in placed and name != one.name
                for name in named(one.init)
            )
        ]
        if len(waiting) == len(left):
            return [*placed.values(), *left]  # they name one another
        stay = set(map(id, waiting))
        placed.update((one.name, one) for one in left if id(one) not in stay)
        left = waiting
    return list(placed.values())


def _with_lines(function: Function, first_file: int) -> Function:
    """Return a function whose source lines name the files by their new numbers."""
    body: list[Statement] = []
    for statement in function.body or ():
        if isinstance(statement, Location):
            match = _LINE.match(statement.text.strip())
            if match is None:
                continue
            text = f"{first_file + int(match[1])}{match[2]}"
            body.append(replace(statement, text=text))
        else:
            body.append(statement)
    return replace(function, body=body)


def _target(parts: Sequence[_Part]) -> tuple[str, ...]:
    """Return the newest target, with the options of all."""
    words = dict.fromkeys(word for part in parts for word in part.module.target)
    newest = max(words, key=_newness)
    return newest, *(word for word in words if _TARGET.fullmatch(word) is None)


def _newness(name: str) -> tuple[int, str]:
    """Return the number and the suffix of an architecture; other words come before all."""
    match = _TARGET.fullmatch(name)
    return (-1, "") if match is None else (int(match[2]), match[3])
