"""The cache key of a compilation: a hash of everything that its result depends on.

Properties:
    complete: whatever changes the result changes the key, or there is no key. A source whose
        headers gpud cannot determine (the user's include path, a file in the current folder, a
        name made by a macro) is not cached at all;
    cheap: about 20 us for an ordinary source, after the first call of a process.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gpud.compiler.cache import cache_key, source_digest
from gpud.compiler.request import Request
from gpud.compiler.toolchain.cuda_headers import cuda_include_paths
from gpud.compiler.toolchain.nvrtc import nvrtc_version
from gpud.errors import MissingDependency

__all__ = ["request_key", "rewriter_version", "versions"]

_INCLUDE_OPTION = re.compile(r"-I|--include-path|-include|--pre-include|--pch|--use-pch|--create-p")
# "%:" is the other spelling of "#"; a line may be continued anywhere.
_DIRECTIVE = re.compile(r"(?:#|%:|\?\?=)(?:\s|\\\n)*include(?:_next)?\b([^\n]*)|__has_include")
_HEADER = re.compile(r"\s*(?:<([^<>\n]+)>|\"([^\"\n]+)\")")


def request_key(request: Request) -> bytes | None:
    """Return the key under which the result of ``request`` is cached; None if it must not be."""
    toolkit: tuple[str | int | None, ...] = ()
    if not request.is_ptx:
        if not _headers_are_known(request):
            return None
        try:
            release = nvrtc_version()
        except MissingDependency:
            return None
        toolkit = (*release, *_header_folders(release[0]))
    return cache_key(
        (
            rewriter_version(),
            request.source,
            len(request.options),
            *request.options,
            request.arch,
            *request.name_expressions,
            request.form,
            request.sm,
            int(request.bounds_checks),
            int(request.kill),
            request.progress,
            int(request.check),
            len(request.images),
            *request.images,
            int(request.only),
            *(part for header in request.headers for part in header),
            *toolkit,
        )
    )


def versions(request: Request) -> dict[str, str]:
    """Return the versions that a result depends on, for reproducers."""
    used = {"rewriter": rewriter_version()[:16]}
    if not request.is_ptx:
        try:
            used["nvrtc"] = ".".join(map(str, nvrtc_version()))
        except MissingDependency:
            used["nvrtc"] = "not installed"
    return used


def rewriter_version() -> str:
    """Return a hash of the compiler's own source, so that changed passes use no old results."""
    return source_digest(Path(__file__).parent)


@cache
def _header_folders(major: int) -> tuple[str | int, ...]:
    """Return the folders of the CUDA headers, each with its modification time."""
    folders: list[str | int] = []
    for folder in cuda_include_paths(major):
        folders += [folder, Path(folder).stat().st_mtime_ns]
    return tuple(folders)


def _headers_are_known(request: Request) -> bool:
    """Return whether ``request`` can include headers of the CUDA toolkit only."""
    if any(_INCLUDE_OPTION.match(option) for option in request.options):
        return False
    given = dict(request.headers)
    for text in (request.source, *given.values()):
        for directive in _DIRECTIVE.finditer(text):
            header = _HEADER.match(directive[1] or "")
            if header is None:
                return False
            name = header[1] or header[2]
            if name not in given and Path(name).exists():  # NVRTC looks in the current folder too
                return False
    return True
