"""Finds the PTX in an image: in what a program would hand to ``cuModuleLoadData``.

Problem: the CUDA driver takes PTX, machine code and containers of both, and finds out which by
itself. gpud can run PTX only, and whoever sends something else must hear what it is, and what to
do. The bytes come from any client.

Approach: an image is recognised by its first bytes. PTX is returned as text, a fat binary is taken
apart (`gpud.compiler.images.fat_binary`), all else is refused by name.

Properties:
    total: any bytes give the text of a PTX program, or raise an `ImageError`;
    bounded: what is unpacked has at most `MOST_BYTES`, whatever the container says.
"""

from __future__ import annotations

from typing import Final

from gpud.compiler.images import fat_binary
from gpud.compiler.images.machine_code import kernels_of
from gpud.compiler.request import is_ptx
from gpud.errors import ImageError

__all__ = ["MOST_BYTES", "ptx_of"]

MOST_BYTES: Final = 1 << 26
"""The most bytes of PTX that an image may hold when it is unpacked."""

_LTO_MAGIC = b"\xed\x43\x4e\x7f"
_BITCODE_MAGICS = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_WRAPPER_MAGIC = b"\xb1\x43\x62\x46"
_ADVICE = "compile it to PTX: nvcc -gencode arch=compute_80,code=compute_80"


def ptx_of(image: bytes, sm: int | None) -> str:
    """Return the PTX of an image.

    Args:
        image: PTX, with a NUL behind it or without, or a fat binary.
        sm: the device's compute capability times ten, by which a fat binary's entry is chosen;
            None: the newest.

    Raises:
        ImageError: it holds no PTX; the message says what it is, and what to do.
    """
    if image.startswith(fat_binary.MAGIC):
        image = _from_fat_binary(image, sm)
    text, _, rest = image.partition(b"\0")
    if rest.strip(b"\0"):  # text that goes on behind a NUL is none
        text = image
    _refuse_others(text)
    try:
        source = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ImageError(
            f"the image of {len(image)} bytes is neither PTX nor a fat binary: it begins with "
            f"{image[:8].hex(' ')}; pass the text of a .ptx file, or the bytes of a .fatbin file",
            kind="unknown",
        ) from error
    if not source.strip():
        raise ImageError("the image is empty; pass PTX or a fat binary", kind="empty")
    if not is_ptx(source):
        raise ImageError(
            "the image is text, but not PTX, which begins with .version; CUDA C++ is compiled "
            "first, with NVRTC or nvcc --ptx",
            kind="unknown",
        )
    return source


def _from_fat_binary(image: bytes, sm: int | None) -> bytes:
    """Return the bytes of the PTX entry of a fat binary that suits the device best."""
    entries = fat_binary.entries(image)
    chosen = fat_binary.best_ptx(entries, sm)
    if chosen is None:
        names = {fat_binary.ELF: "machine code", fat_binary.LTO: "LTO IR"}
        held = ", ".join(
            f"{names.get(one.kind, f'data of kind {one.kind}')} for sm_{one.arch}"
            for one in entries[:8]
        )
        kernels: list[str] = []
        for one in entries:
            if one.kind == fat_binary.ELF and not kernels:
                kernels = kernels_of(fat_binary.unpacked(one, MOST_BYTES))
        named = f" of {_listed(kernels)}" if kernels else ""
        raise ImageError(
            f"the fat binary{named} holds no PTX, only {held or 'nothing'}; gpud rewrites PTX: "
            f"{_ADVICE}",
            kind="no-ptx",
        )
    return fat_binary.unpacked(chosen, MOST_BYTES)


def _refuse_others(image: bytes) -> None:
    """Refuse what is known and no PTX."""
    if image.startswith(b"\x7fELF"):
        kernels = kernels_of(image)
        named = f" of {_listed(kernels)}" if kernels else ""
        raise ImageError(
            f"the image is machine code{named} (an ELF file), which cannot be rewritten; {_ADVICE}",
            kind="machine-code",
        )
    if image.startswith(_LTO_MAGIC):
        raise ImageError(
            "the image is LTO IR, which only NVIDIA's linker reads; link it to PTX first "
            f"(nvJitLink with -lto -ptx), or {_ADVICE}",
            kind="lto-ir",
        )
    if image.startswith(_BITCODE_MAGICS):
        raise ImageError(
            "the image is NVVM IR (LLVM bitcode); compile it to PTX first, with libNVVM",
            kind="nvvm-ir",
        )
    if image.startswith(_WRAPPER_MAGIC):
        raise ImageError(
            "the image is a fat binary's wrapper, which holds a pointer; pass the container that "
            "it points to",
            kind="wrapper",
        )
    if image.startswith(b"!<arch>\n"):
        raise ImageError(
            f"the image is a library of object files; link it before, or {_ADVICE}", kind="library"
        )


def _listed(kernels: list[str]) -> str:
    more = f" and {len(kernels) - 3} more" if len(kernels) > 3 else ""
    return ", ".join(name if len(name) <= 80 else f"{name[:77]}..." for name in kernels[:3]) + more
