"""Names the kernels of machine code, for the message that refuses it.

NVIDIA's machine code is an ELF file with one section for each function, ``.text.NAME``.
"""

from __future__ import annotations

import struct

__all__ = ["kernels_of"]

_FILE = struct.Struct("<4sB35xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")
_PREFIX = b".text."


def kernels_of(image: bytes) -> list[str]:
    """Return the names of the functions of an ELF file; empty if it cannot be read.

    Args:
        image: the bytes of the file, from any client.
    """
    try:
        _, bits, at, entry_bytes, count, names_index = _FILE.unpack_from(image)
        if bits != 2 or entry_bytes < _SECTION.size:
            return []
        sections = [_SECTION.unpack_from(image, at + n * entry_bytes) for n in range(count)]
        _, start, size = sections[names_index]
    except (struct.error, IndexError, OverflowError):
        return []
    names = image[start : start + size]
    found: list[str] = []
    for name, _, _ in sections:
        text = names[name : name + 4096].partition(b"\0")[0]
        if text.startswith(_PREFIX):
            found.append(text.removeprefix(_PREFIX).decode("utf-8", "replace"))
    return found
