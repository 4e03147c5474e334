"""Runs the stages of a compilation, from source to rewritten program.

``source -> nvrtc -> parse -> flatten -> analyse -> (one stage a pass) -> print``

Problem: CUDA C++ and PTX must be compiled quickly into programs whose kernels can be resized; every
step must be open to inspection and every failure reproducible.

Approach: `Compilation` runs one function per stage, in order, and records the current stage. The
passes are listed in `gpud.compiler.passes.pass_manager.PASSES`; adding one changes neither this
file nor another pass.

Terms: a *stage* is a named step; a *dump* is a folder with the result of each stage, in files
whose names sort in the order of the stages; a *reproducer* is described in
`gpud.compiler.reproducer_folder`.

Properties:
    deterministic: equal requests, versions and headers give equal programs, so results are cached
        by content hash (`gpud.compiler.cache`);
    partial: a kernel that gpud cannot run does not keep the others of its module from running; it
        is reported with the reason and left out of the rewritten program;
    honest: a forced form that is not legal is refused, never replaced by another;
    reproducible: with a dump folder every failure leaves a reproducer there; an internal error
        leaves one beside the cache if there is no dump folder.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.abi.reserved_names import killable_variant, sliced_variant
from gpud.compiler.analysis.block_shape import ShapeRule
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.analysis.launch_shared import with_launch_shared
from gpud.compiler.analysis.name_checks import check_variant_names
from gpud.compiler.cache import Cache
from gpud.compiler.dump import Dump
from gpud.compiler.forms.classifier import Decision, Form, Reason, check_target, classify
from gpud.compiler.forms.rules import PROGRESS
from gpud.compiler.images.builtins import names_builtins
from gpud.compiler.images.image import ptx_of
from gpud.compiler.images.link import link
from gpud.compiler.kernel_names import is_mangled, is_plain, plain_names, shown_names
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.pass_manager import rewrite
from gpud.compiler.passes.runtime.textures import pass_textures
from gpud.compiler.passes.safety.bounds_checks import uncheckable
from gpud.compiler.passes.safety.kill import may_run_long
from gpud.compiler.program import (
    KernelInfo,
    Program,
    has_sliced_variant,
    kernel_info,
    rejection,
    symbols_of,
)
from gpud.compiler.ptx.lexicon import NEWEST_VERSION
from gpud.compiler.ptx.model import Function, Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.ptx.verify import verify
from gpud.compiler.reproducer_folder import write_reproducer
from gpud.compiler.request import Request
from gpud.compiler.request_key import request_key, versions
from gpud.compiler.toolchain.declared_types import declared_types
from gpud.compiler.toolchain.nvrtc import DEFAULT_ARCH, compile_cuda
from gpud.compiler.toolchain.pointer_types import pointer_types
from gpud.compiler.variables import NO_BLOCK, place_variables
from gpud.errors import (
    EmptySource,
    GpudError,
    InternalError,
    KernelNotFound,
    KernelRejected,
)

__all__ = [
    "Compilation",
    "KernelInfo",
    "Program",
    "compile_program",
    "compile_request",
    "gc_paused",
]


def compile_program(
    source: str,
    *,
    options: Sequence[str] = (),
    arch: str = DEFAULT_ARCH,
    name_expressions: Sequence[str] = (),
    form: str | None = None,
    sm: int | None = None,
    bounds_checks: bool = True,
    kill: bool = True,
    progress: str | None = None,
    check: bool = False,
    images: Sequence[bytes] = (),
    only: bool = False,
    headers: Mapping[str, str] = MappingProxyType({}),
    cache: Cache | None = None,
    dump: Path | Dump | None = None,
) -> Program:
    """Compile and rewrite ``source``. Blocks: 10 to 100 ms for CUDA C++, under 1 ms if cached.

    Args:
        source: CUDA C++, or PTX: text whose first word starts with a dot; empty with ``images``.
        options: Further NVRTC options, see `gpud.compiler.toolchain.nvrtc.compile_cuda`.
        arch: The virtual architecture to compile CUDA C++ for.
        name_expressions: Kernels to instantiate and to look up, ``"axpy<float>"``.
        form: The form for every kernel: ``"persistent"``, ``"sliced"`` or ``"whole"``; None lets
            gpud choose. A kernel for which it is not legal counts as rejected.
        sm: The device's compute capability, 75 for 7.5: PTX for a newer one is refused.
        bounds_checks: Check every memory access, so that none leaves the session's arena.
        kill: Add variants with kill polls of kernels with loops, which can be ended while running.
        progress: What the program says of every kernel's blocks: ``"independent"``, none waits for
            one that has not begun; ``"blocks"``, they wait for one another; None: gpud finds out.
        check: Compile for the checking mode of the CPU device.
        images: Instead of a source, what the CUDA driver takes (`gpud.compiler.images.image`).
        only: Rewrite the kernels of ``name_expressions`` and no others.
        headers: Texts of headers by the names in ``#include``, beside those that gpud has.
        cache: Where results are kept; None: results are not cached.
        dump: A folder for the result of each stage; the cache is then not read.

    Raises:
        EmptySource, CompileError: The source is blank; NVRTC or the PTX parser refused it.
        ImageError: An image holds no PTX.
        KernelNotFound: A name expression names no kernel.
        KernelRejected: gpud can run none of the program's kernels, or ``sm`` is too old for it.
        ValueError: ``form`` is not one of the three, ``progress`` not one of the two, or
            ``options`` hold a NUL character.
        InternalError: A bug in gpud; with a reproducer if there is a folder for it.
    """
    request = Request(
        source,
        tuple(options),
        arch,
        tuple(name_expressions),
        form,
        sm,
        bounds_checks=bounds_checks,
        kill=kill,
        progress=progress,
        check=check,
        images=tuple(images),
        only=only,
        headers=tuple(headers.items()),
    )
    return compile_request(request, cache=cache, dump=dump)


def compile_request(
    request: Request, *, cache: Cache | None = None, dump: Path | Dump | None = None
) -> Program:
    """Compile and rewrite a `Request` as `compile_program` does."""
    if not request.images and (not request.source or request.source.isspace()):
        raise EmptySource
    if request.form is not None and request.form not in _FORCIBLE:
        raise ValueError(f"form is one of {', '.join(_FORCIBLE)}, not {request.form!r}")
    if request.progress is not None and request.progress not in PROGRESS:
        raise ValueError(f"progress is {' or '.join(PROGRESS)}, not {request.progress!r}")
    key = None if cache is None else request_key(request)
    if cache is not None and key is not None and dump is None:
        payload = cache.get(key)
        if payload is not None:
            try:
                return Program.decode(payload)
            except ValueError:  # intact, but not in the format that this version writes
                cache.remove(key)
    failures = None if cache is None or key is None else cache.folder / "failures" / key.hex()[:16]
    stages = Dump(dump) if isinstance(dump, Path) else dump
    with gc_paused():
        program = Compilation(request, stages, failures).program()
    if cache is not None and key is not None:
        cache.put(key, program.encode())
    return program


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection: trees have no cycles, and on large ones it is 1/3 of the work."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_FORCIBLE = (Form.PERSISTENT.value, Form.SLICED.value, Form.WHOLE.value)


class Compilation:
    """One compilation.

    Attributes:
        stage: The name of the current stage.
    """

    def __init__(self, request: Request, dump: Dump | None, failures: Path | None) -> None:
        self.request = request
        self.dump = dump
        self.failures = failures
        self.stage = "source"
        self.log = ""
        self.lowered_names: dict[str, str] = {}
        self._block = NO_BLOCK
        self._not_found: KernelNotFound | None = None
        """NVRTC's error about a name that may be a plain one."""

    def program(self) -> Program:
        """Run all stages; raises as `compile_program` does."""
        with self._reproducible():
            request = self.request
            source = self._from_images() if request.images else request.source
            self._write("source", "ptx" if request.is_ptx else "cu", source)
            text = source if request.is_ptx else self._nvrtc()
            module = self._parse(text)
            whole = self._flatten(module)
            lowered = plain_names(whole.entries()) | self.lowered_names
            flat = self._asked_for(whole, lowered)
            decisions = self._analyse(flat)
            self.stage = "rewrite"
            check_variant_names(flat)
            killable = self._killable(flat, decisions)
            sites = SiteTable(flat)
            rewritten = self._rewrite(flat, decisions, killable, sites)
            self.stage = "print"
            ptx = print_module(rewritten)
            self._write("print", "ptx", ptx)
            names = shown_names(whole.entries(), self.lowered_names)
            words = self._pointer_types(flat.entries(), names)
            sized = with_launch_shared(flat)
            kernels = {
                name: kernel_info(
                    flat,
                    entry,
                    decisions[name],
                    names,
                    killable=name in killable,
                    launch_shared=name in sized,
                    points_to=words.get(name, ()),
                )
                for name, entry in flat.entries().items()
            }
            if kernels and all(kernel.form is Form.REJECTED for kernel in kernels.values()):
                raise rejection(next(iter(kernels.values())))
            lowered = {name: entry for name, entry in lowered.items() if entry in kernels}
            symbols = symbols_of(flat, self._block)
            return Program(ptx, text, kernels, lowered, symbols, self.log, sites.sites, self._block)

    # -- stages ------------------------------------------------------------------------------

    def _from_images(self) -> str:
        self.stage = "images"
        texts = [ptx_of(image, self.request.sm) for image in self.request.images]
        if len(texts) == 1 and not names_builtins(texts[0]):
            return texts[0]
        self.stage = "link"
        return print_module(link([_verified(text) for text in texts], self.request.sm))

    def _nvrtc(self) -> str:
        self.stage = "nvrtc"
        request = self.request
        # Findings name lines of the source.
        options = (*request.options, "-lineinfo") if request.check else request.options
        compile_with = partial(
            compile_cuda,
            request.source,
            arch=request.arch,
            options=options,
            headers=dict(request.headers),
        )
        try:
            compiled = compile_with(name_expressions=request.name_expressions)
        except KernelNotFound as error:
            # It may be in a namespace, and the only one of that name.
            others = [name for name in request.name_expressions if not is_plain(name)]
            if len(others) == len(request.name_expressions):
                raise
            compiled = compile_with(name_expressions=others)
            self._not_found = error
        self.log = compiled.log
        self.lowered_names = dict(compiled.lowered_names)
        self._write("nvrtc", "ptx", compiled.ptx)
        return compiled.ptx

    def _parse(self, text: str) -> Module:
        self.stage = "parse"
        module = _verified(text)  # NVRTC's output, too: it may hold the caller's inline assembly
        if module.version > NEWEST_VERSION:
            # Instructions of the older ISA mean the same in the newer one. Under the older version
            # number the driver refuses newer instructions, so gpud need not know them.
            written, read = (".".join(map(str, v)) for v in (module.version, NEWEST_VERSION))
            self.log += f"the PTX is of ISA version {written}; it is compiled as {read}\n"
            module = replace(module, version=NEWEST_VERSION)
        if self.request.is_ptx and self.request.sm is not None:
            check_target(module, self.request.sm)
        module = pass_textures(module)
        self._dump_module("parse", module)
        return module

    def _flatten(self, module: Module) -> Module:
        self.stage = "flatten"
        flat = flatten_module(module)
        self._dump_module("flatten", flat)
        return flat

    def _asked_for(self, flat: Module, lowered: Mapping[str, str]) -> Module:
        """Return the module without the kernels that nobody asked for."""
        if not self.request.name_expressions:
            return flat
        entries = flat.entries()
        wanted = dict.fromkeys(lowered.get(name, name) for name in self.request.name_expressions)
        for name in self.request.name_expressions:
            if lowered.get(name, name) not in entries:
                shown = shown_names(entries, self.lowered_names)
                known = [shown.get(entry, entry) for entry in entries]
                raise self._not_found or KernelNotFound(name, known, log=self.log)
        return _only(flat, list(wanted)) if self.request.only else flat

    def _analyse(self, flat: Module) -> dict[str, Decision]:
        self.stage = "analyse"
        decisions = {name: self._decide(flat, name) for name in flat.entries()}
        if self.dump is not None:
            plain = {name: asdict(decision) for name, decision in decisions.items()}
            self._write("analyse", "json", json.dumps(plain, indent=1) + "\n")
        return decisions

    def _decide(self, flat: Module, entry: str) -> Decision:
        form = None if self.request.form is None else Form(self.request.form)
        progress = self.request.progress
        natural = classify(flat, entry, progress=progress)
        unchecked = uncheckable(flat, entry) if self.request.bounds_checks else None
        if unchecked is not None and natural.form is not Form.REJECTED:
            reasons = (unchecked, *natural.why)
            return replace(natural, form=Form.REJECTED, why=reasons, legal=())
        if natural.form is Form.REJECTED or form is None:
            return natural
        try:
            return classify(flat, entry, force=form, progress=progress)
        except KernelRejected as error:
            text = f"cannot have the form that was asked for: it {natural.why[0].text}"
            why = Reason(error.reason, text, error.instruction, error.line)
            return replace(natural, form=Form.REJECTED, why=(why, *natural.why), legal=())

    def _killable(self, flat: Module, decisions: dict[str, Decision]) -> frozenset[str]:
        """Return the names of the kernels that get variants with kill polls."""
        if not self.request.kill:
            return frozenset()
        accepted = [name for name, one in decisions.items() if one.form is not Form.REJECTED]
        return may_run_long(call_graph(flat), accepted)

    def _rewrite(
        self,
        flat: Module,
        decisions: dict[str, Decision],
        killable: frozenset[str],
        sites: SiteTable,
    ) -> Module:
        accepted = {n: d for n, d in decisions.items() if d.form is not Form.REJECTED}
        if len(accepted) < len(decisions):
            flat = _only(flat, list(accepted))
        if self.request.places_variables:
            self._block = place_variables(flat)
        return rewrite(
            flat,
            _with_variants(accepted, killable),
            sites=sites,
            bounds_checks=self.request.bounds_checks,
            kill=self.request.kill,
            check=self.request.check,
            arena_variables=self.request.places_variables,
            after=self._dump_module if self.dump else None,
        )

    def _pointer_types(
        self, entries: Mapping[str, Function], names: Mapping[str, str]
    ) -> dict[str, tuple[str, ...]]:
        """Return what the kernels' parameters point to: in the checking mode, of every kernel."""
        request = self.request
        self.stage = "types"
        if not request.check or request.is_ptx:
            source = None if request.is_ptx else request.source
            found = declared_types(entries, source, request.options)
            return {
                entry: words
                for entry, words in found.items()
                if len(words) == len(entries[entry].parameters)
            }
        expressions = {
            entry: names.get(entry, entry)
            for entry in entries
            if entry in names or not is_mangled(entry)
        }
        return pointer_types(
            request.source,
            expressions,
            lambda text: (
                compile_cuda(
                    text, arch=request.arch, options=request.options, headers=dict(request.headers)
                ).ptx
            ),
        )

    # -- inspection --------------------------------------------------------------------------

    def _dump_module(self, stage: str, module: Module) -> None:
        if self.dump is not None:
            self._write(stage, "ptx", print_module(module))

    def _write(self, stage: str, ending: str, text: str) -> None:
        if self.dump is not None:
            self.dump.write(stage, ending, text)

    @contextmanager
    def _reproducible(self) -> Iterator[None]:
        """Turn unexpected exceptions into `InternalError`, and writes a reproducer."""
        try:
            yield
        except GpudError as error:
            path = self._reproducer(error, isinstance(error, InternalError))
            if path is not None:
                error.message += f" (reproducer: {path})"
            raise
        except (OSError, ValueError) as error:
            # A folder that cannot be written, a NUL in the source: the caller's mistake.
            if self.stage in ("source", "nvrtc"):
                raise
            raise self._internal(error) from error
        except Exception as error:
            raise self._internal(error) from error

    def _internal(self, error: Exception) -> InternalError:
        path = self._reproducer(error, always=True)
        return InternalError(
            f"the compiler failed in stage {self.stage!r}: {type(error).__name__}: {error}"
            + ("" if path is None else f" (reproducer: {path})"),
            stage=self.stage,
            reproducer=None if path is None else str(path),
        )

    def _reproducer(self, error: BaseException, always: bool) -> Path | None:
        folder = None if self.dump is None else self.dump.reproducer_folder
        if folder is None and always:
            folder = self.failures
        if folder is None:
            return None
        with suppress(OSError):
            return write_reproducer(folder, self.request, self.stage, error, versions(self.request))
        return None


def _verified(text: str) -> Module:
    module = parse(text)
    verify(module)
    return module


def _only(flat: Module, kernels: list[str]) -> Module:
    """Return ``flat`` without other kernels than these, and the functions that only they reach."""

    def keeping(names: Collection[str]) -> Module:
        items = [
            item
            for item in flat.items
            if not isinstance(item, Function) or item.body is None or item.name in names
        ]
        return replace(flat, items=items)

    functions = [function.name for function in flat.functions() if function.kind == "func"]
    flat = keeping({*functions, *kernels})  # nobody counts whose address other kernels take
    graph = call_graph(flat)
    return keeping({uses.function.name for uses in graph.closure(*kernels, *graph.addressed)})


def _with_variants(decisions: dict[str, Decision], killable: frozenset[str]) -> dict[str, Decision]:
    """Return ``decisions``, and a decision for each variant.

    A kernel whose persistent form is not legal for some block shapes gets a variant in sliced form;
    a ``killable`` kernel and its sliced variant each get a variant with kill polls. All are entries
    of one module, so that they share its variables.
    """
    plan: dict[str, Decision] = {}
    for name, decision in decisions.items():
        forms = [decision]
        if has_sliced_variant(decision):
            forms.append(
                replace(
                    decision,
                    entry=sliced_variant(name),
                    form=Form.SLICED,
                    exit_aware=False,
                    shape=ShapeRule.ANY,
                    barrier=None,
                )
            )
        if name in killable:
            forms += [replace(one, entry=killable_variant(one.entry)) for one in forms]
        plan.update((one.entry, one) for one in forms)
    return plan
