"""The request of a compilation: the input of the pipeline, the cache's key and reproducers."""

from __future__ import annotations

from dataclasses import dataclass

from gpud.compiler.ptx.lexicon import BLANK

__all__ = ["Request", "is_ptx"]


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a compilation; see `gpud.compiler.pipeline.compile_program`."""

    source: str
    options: tuple[str, ...]
    arch: str
    name_expressions: tuple[str, ...]
    form: str | None
    sm: int | None
    bounds_checks: bool = True
    kill: bool = True
    progress: str | None = None
    check: bool = False
    images: tuple[bytes, ...] = ()

    @property
    def is_ptx(self) -> bool:
        """Whether the source is PTX, or the images hold it."""
        return bool(self.images) or is_ptx(self.source)


def is_ptx(source: str) -> bool:
    """Return whether ``source`` is PTX: its first word starts with a dot, which C++'s cannot."""
    blank = BLANK.match(source)
    return source.startswith(".", blank.end() if blank else 0)
