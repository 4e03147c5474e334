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
    only: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def is_ptx(self) -> bool:
        """Whether the source is PTX, or the images hold it."""
        return bool(self.images) or is_ptx(self.source)

    @property
    def places_variables(self) -> bool:
        """Whether the program's variables lie in its session's arena: see `Block`.

        Those of images do, as programs that exist ask for their addresses. Those of sources have
        the constant memory of a GPU, which is quicker.
        """
        return bool(self.images) and not self.check


def is_ptx(source: str) -> bool:
    """Return whether ``source`` is PTX: its first word starts with a dot, which C++'s cannot."""
    blank = BLANK.match(source)
    return source.startswith(".", blank.end() if blank else 0)
