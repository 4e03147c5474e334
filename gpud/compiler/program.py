"""The result of a compilation: rewritten PTX, and everything that launches need of its kernels.

A `Program` is plain data. `Program.encode` and `Program.decode` write and read it without executing
anything from the bytes, so a cached program is as safe as its checksum.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

from gpud.compiler.abi.fault_sites import Site
from gpud.compiler.abi.reserved_names import (
    OWN_VARIABLES,
    kernel_of,
    killable_variant,
    sliced_variant,
)
from gpud.compiler.analysis.block_shape import ShapeRule, holds
from gpud.compiler.analysis.bodies import declarations
from gpud.compiler.analysis.data_layout import layout_bytes, size_and_align
from gpud.compiler.forms.form import Form, Reason
from gpud.compiler.ptx.model import Function, Module, Parameter, Variable
from gpud.compiler.variables import NO_BLOCK, Relocation, VariableBlock
from gpud.errors import KernelNotFound, KernelRejected, LaunchConfigError

if TYPE_CHECKING:  # processes that only read programs do not load the analyses
    from gpud.compiler.forms.classifier import Decision

__all__ = [
    "KernelInfo",
    "ParameterInfo",
    "Program",
    "Site",
    "SymbolInfo",
    "has_sliced_variant",
    "kernel_from",
    "kernel_info",
    "kernel_of",
    "killable_variant",
    "rejection",
    "sliced_variant",
    "symbols_of",
]

_LENGTHS = struct.Struct("<4I")


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter of a kernel as its caller passes it.

    Attributes:
        name: Its name in the PTX.
        kind: ``"int"``, ``"uint"``, ``"float"``, ``"bits"`` (untyped in the PTX: b8 to b128),
            ``"pointer"`` (declared as one), or ``"struct"`` (bytes of exactly ``size``).
        size: In bytes.
        align: In bytes.
        offset: In the parameter buffer, in bytes.
        points_to: The type word of what a pointer in CUDA C++ points to
            (`gpud.compiler.toolchain.pointer_types`); empty if it is not known.
    """

    name: str
    kind: str
    size: int
    align: int
    offset: int
    points_to: str = ""


@dataclass(frozen=True, slots=True)
class SymbolInfo:
    """A module variable that the host can read and write.

    Attributes:
        name: In the PTX.
        space: ``"global"`` or ``"const"``.
        size: In bytes.
        align: In bytes.
        offset: In the program's block (`gpud.compiler.variables`); None: it is not there.
    """

    name: str
    space: str
    size: int
    align: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel of a program.

    Attributes:
        name: The name expression that it was requested by, else `entry`.
        entry: Its name in the PTX.
        sliced_entry: The name of its variant in sliced form, for the block shapes for which the
            persistent form is not legal; None if it is legal for all, or the form is another.
        killable: Whether `entry` and `sliced_entry` have variants with kill polls
            (`gpud.compiler.passes.safety.kill`): they have if there is a loop to poll in.
        form: Its form, for blocks of the shape that the form needs (`form_for`).
        exit_aware: Whether the persistent form has exit-aware barriers.
        why: The reasons for the form, the decisive ones first.
        capabilities: Device features beyond the usual that it needs.
        waits_on_blocks: Whether its blocks wait for others: they claim one task block at a time,
            none in advance.
        shape: VariableBlock shapes for which the persistent form is legal.
        legal: Forms that may be forced, least restricted first.
        parameters: As the caller passes them, without the hidden control parameter.
        max_block: ``.maxntid``, None if it is not given.
        required_block: ``.reqntid``, None if it is not given.
        shared_bytes: Static shared memory of the kernel before rewriting, in bytes.
        launch_shared: Whether it uses shared memory of which the launch gives the size.
        line: Its line in the PTX before rewriting.
    """

    name: str
    entry: str
    sliced_entry: str | None
    killable: bool
    form: Form
    exit_aware: bool
    why: tuple[Reason, ...]
    capabilities: tuple[Reason, ...]
    waits_on_blocks: bool
    shape: ShapeRule
    legal: tuple[Form, ...]
    parameters: tuple[ParameterInfo, ...]
    max_block: tuple[int, int, int] | None
    required_block: tuple[int, int, int] | None
    shared_bytes: int
    launch_shared: bool
    line: int

    @property
    def cooperative(self) -> bool:
        """Whether its blocks synchronise as a grid, so that all of them must be resident."""
        return any(reason.code == "grid-sync" for reason in self.why)

    @property
    def max_threads(self) -> int | None:
        """The most threads per block that the kernel declares, None if it declares no limit."""
        block = self.required_block or self.max_block
        return None if block is None else prod(block)

    def check_block(self, block: tuple[int, int, int]) -> None:
        """Check that the kernel's declared limits allow blocks of x, y, z threads.

        Raises:
            LaunchConfigError: They do not; a GPU would refuse the launch.
        """
        if self.required_block not in (None, block):
            problem = f"the kernel is compiled for blocks of {self.required_block} only"
            raise LaunchConfigError("block", block, f"{problem} (.reqntid); launch such blocks")
        most = self.max_threads
        if most is not None and prod(block) > most:
            problem = f"{prod(block)} threads are more than the {most} that the kernel is"
            hint = "compiled for (__launch_bounds__); launch more, smaller blocks"
            raise LaunchConfigError("block", block, f"{problem} {hint}", limit=most)

    def form_for(self, block: tuple[int, int, int]) -> Form:
        """Return the form for a launch with blocks of x, y, z threads."""
        if self.form is Form.PERSISTENT and not holds(self.shape, block):
            return Form.SLICED
        return self.form

    def entry_for(self, block: tuple[int, int, int], *, killable: bool = False) -> str:
        """Return the entry of the rewritten PTX for a launch with blocks of x, y, z threads.

        Args:
            block: Threads of a block in x, y, z.
            killable: Prefer the variant with kill polls, for launches that may have to be ended. A
                kernel without loops has no such variant.
        """
        entry = self.entry
        if self.sliced_entry is not None and not holds(self.shape, block):
            entry = self.sliced_entry
        return killable_variant(entry) if killable and self.killable else entry


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled and rewritten program.

    Attributes:
        ptx: The rewritten program, without rejected kernels.
        original_ptx: The PTX before rewriting, from NVRTC or from the caller.
        kernels: Every kernel by its name in the PTX, rejected ones included.
        lowered_names: PTX name by name expression, and by unique name in the source.
        symbols: Module variables in ``.global`` and ``.const`` by name.
        log: NVRTC's log, empty for PTX.
        sites: The instructions that fault records name, by number.
        block: The memory of its variables, if they lie in the session's arena.
    """

    ptx: str
    original_ptx: str
    kernels: dict[str, KernelInfo]
    lowered_names: dict[str, str]
    symbols: dict[str, SymbolInfo]
    log: str = ""
    sites: tuple[Site, ...] = ()
    block: VariableBlock = NO_BLOCK

    def kernel(self, name: str) -> KernelInfo:
        """Return the kernel of a name: see `gpud.compiler.kernel_names`.

        Raises:
            KernelNotFound: There is none.
            KernelRejected: gpud cannot run it; with the reason, the instruction and its line.
        """
        kernel = self.kernels.get(self.lowered_names.get(name, name))
        if kernel is None:
            raise KernelNotFound(name, tuple(k.name for k in self.kernels.values()))
        if kernel.form is Form.REJECTED:
            raise rejection(kernel)
        return kernel

    def encode(self) -> bytes:
        """Return the program as bytes, for `decode`."""
        meta = {
            "kernels": [asdict(kernel) for kernel in self.kernels.values()],
            "lowered_names": self.lowered_names,
            "symbols": [asdict(symbol) for symbol in self.symbols.values()],
            "log": self.log,
            "sites": [astuple(site) for site in self.sites],
            "block": [
                self.block.size,
                [[at, len(data)] for at, data in self.block.pieces],
                self.block.relocations,
            ],
        }
        parts = [
            part.encode("utf-8", "surrogatepass")
            for part in (json.dumps(meta), self.ptx, self.original_ptx)
        ]
        parts.append(b"".join(data for _, data in self.block.pieces))
        return b"".join((_LENGTHS.pack(*map(len, parts)), *parts))

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Program:
        """Return the program that `encode` wrote.

        Raises:
            ValueError: ``data`` is not an encoded program.
        """
        try:
            lengths = _LENGTHS.unpack_from(data)
            if len(data) != _LENGTHS.size + sum(lengths):
                raise ValueError("the lengths do not fit")
            texts = []
            rest = memoryview(data)[_LENGTHS.size :]
            for length in lengths[:3]:
                texts.append(str(rest[:length], "utf-8", "surrogatepass"))
                rest = rest[length:]
            meta = json.loads(texts[0])
            kernels = [kernel_from(plain) for plain in meta["kernels"]]
            symbols = [SymbolInfo(**plain) for plain in meta["symbols"]]
            return cls(
                texts[1],
                texts[2],
                {kernel.entry: kernel for kernel in kernels},
                dict(meta["lowered_names"]),
                {symbol.name: symbol for symbol in symbols},
                meta["log"],
                tuple(Site(*fields) for fields in meta["sites"]),
                _block(meta["block"], symbols, bytes(rest)),
            )
        except (struct.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an encoded program: {error}") from error


def _block(plain: list[Any], symbols: Iterable[SymbolInfo], data: bytes) -> VariableBlock:
    """Build the block of variables from JSON; ``data`` are the bytes of its pieces."""
    size, pieces, relocations = plain
    made = []
    for at, length in pieces:
        made.append((at, data[:length]))
        data = data[length:]
    offsets = {one.name: one.offset for one in symbols if one.offset is not None}
    block = VariableBlock(size, offsets, tuple(made), tuple(map(_relocation, relocations)))
    block.check()
    return block


def _relocation(fields: list[Any]) -> Relocation:
    at, size, target, mask = fields
    return at, size, target, mask


def rejection(kernel: KernelInfo) -> KernelRejected:
    """Return the error to raise for a rejected kernel."""
    first = kernel.why[0]
    message = f"kernel {kernel.name!r} {first.text}"
    return KernelRejected(first.code, message, first.instruction, first.line)


def kernel_info(
    module: Module,
    entry: Function,
    decision: Decision,
    names: Mapping[str, str],
    *,
    killable: bool = False,
    launch_shared: bool = False,
    points_to: Sequence[str] = (),
) -> KernelInfo:
    """Describe a kernel of a flat module, before rewriting.

    Args:
        module: The flat module.
        entry: The kernel, a function of ``module``.
        decision: The decision on its form.
        names: Those that people are shown, by PTX name.
        killable: Whether it gets variants with kill polls.
        launch_shared: Whether it uses shared memory of which the launch gives the size.
        points_to: The type words of its parameters, if they are known.
    """
    return KernelInfo(
        name=names.get(entry.name, entry.name),
        entry=entry.name,
        sliced_entry=sliced_variant(entry.name) if has_sliced_variant(decision) else None,
        killable=killable,
        form=decision.form,
        exit_aware=decision.exit_aware,
        why=decision.why,
        capabilities=decision.capabilities,
        waits_on_blocks=decision.waits_on_blocks,
        shape=decision.shape,
        legal=decision.legal,
        parameters=_parameters(entry.parameters, points_to),
        max_block=_extents(entry, ".maxntid"),
        required_block=_extents(entry, ".reqntid"),
        shared_bytes=layout_bytes(_shared(module, entry)),
        launch_shared=launch_shared,
        line=entry.line,
    )


def has_sliced_variant(decision: Decision) -> bool:
    """Return whether the kernel also gets a variant in sliced form, for some block shapes."""
    return decision.form is Form.PERSISTENT and decision.shape is not ShapeRule.ANY


def symbols_of(module: Module, block: VariableBlock = NO_BLOCK) -> dict[str, SymbolInfo]:
    """Return the variables of ``module`` that the host can access, by name, without gpud's own."""
    offsets = block.offsets
    symbols: dict[str, SymbolInfo] = {}
    for item in module.items:
        if type(item) is Variable and item.space in ("global", "const"):
            if item.name in OWN_VARIABLES:
                continue
            size, align = size_and_align(item)
            at = offsets.get(item.name)
            symbols[item.name] = SymbolInfo(item.name, item.space, size, align, at)
    return symbols


def _shared(module: Module, entry: Function) -> Iterable[Variable]:
    """Return the static shared variables: the module's, and those that the entry declares."""
    for items in (module.items, declarations(entry.body or ())):
        for item in items:
            if type(item) is Variable and item.space == "shared" and item.linkage != "extern":
                yield item


_KINDS = {"u": "uint", "s": "int", "f": "float", "b": "bits"}


def _parameters(
    parameters: Iterable[Parameter], points_to: Sequence[str]
) -> tuple[ParameterInfo, ...]:
    infos: list[ParameterInfo] = []
    end = 0
    for one, word in zip_longest(parameters, points_to, fillvalue=""):
        assert not isinstance(one, str), "a type word for each parameter"
        size, align = size_and_align(one)
        offset = -(-end // align) * align
        if one.dims:
            kind = "struct"
        elif one.pointer is not None:
            kind = "pointer"
        else:
            kind = _KINDS.get(one.type[0], "bits")
        infos.append(ParameterInfo(one.name, kind, size, align, offset, word))
        end = offset + size
    return tuple(infos)


def _extents(entry: Function, directive: str) -> tuple[int, int, int] | None:
    """Return the three extents of ``.maxntid`` or ``.reqntid``; absent ones are 1."""
    for text in entry.attributes:
        word, _, rest = text.partition(" ")
        if word == directive:
            x, y, z = (*(int(part, 0) for part in rest.split(",")), 1, 1)[:3]
            return x, y, z
    return None


def kernel_from(plain: dict[str, Any]) -> KernelInfo:
    """Build a kernel from ``asdict`` of one.

    Raises:
        ValueError, KeyError, TypeError: it is malformed.
    """
    extents = {
        key: None if plain[key] is None else tuple(plain[key])
        for key in ("max_block", "required_block")
    }
    return KernelInfo(
        **{
            **plain,
            **extents,
            "form": Form(plain["form"]),
            "shape": ShapeRule(plain["shape"]),
            "legal": tuple(map(Form, plain["legal"])),
            "why": tuple(Reason(**one) for one in plain["why"]),
            "capabilities": tuple(Reason(**one) for one in plain["capabilities"]),
            "parameters": tuple(ParameterInfo(**one) for one in plain["parameters"]),
        }
    )
