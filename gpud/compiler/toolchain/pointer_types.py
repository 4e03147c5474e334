"""Finds out what the pointer parameters of CUDA C++ kernels point to.

Problem: PTX says that a parameter has eight bytes, not that it is a ``float*``; a name in the PTX
tells types only if it is mangled, which that of an ``extern "C"`` kernel is not.

Approach: the source is compiled once more with variables at its end whose initial values are
computed from the kernels' types by templates; the PTX has them as numbers. What does not compile
with them, as if a kernel's name is ambiguous, has no types.

Terms: a *type word* is a letter and the bytes of an element: ``f4``, ``i2``; ``""`` if the
parameter is no pointer, or to something else than numbers. ``void`` and the types of 1 byte may
stand for anything, so they have none.

Properties:
* the text before the addition is the source as it is, so all of its lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from gpud.errors import GpudError

__all__ = ["pointer_types"]

_NAME = "gpud_types_"
_FLOAT = 64
"""A float of n bytes is this plus n, an integer n."""

_TEMPLATES = """
template <typename T> struct gpud_word { static const unsigned char value = 0; };
template <typename T> struct gpud_bare { typedef T type; };
template <typename T> struct gpud_bare<const T> { typedef T type; };
template <typename T> struct gpud_bare<volatile T> { typedef T type; };
template <typename T> struct gpud_bare<const volatile T> { typedef T type; };
template <typename T> struct gpud_code { static const unsigned char value = 0; };
template <typename T> struct gpud_code<T*> {
    static const unsigned char value = gpud_word<typename gpud_bare<T>::type>::value;
};
template <int N> struct gpud_list { unsigned char values[N]; };
template <typename... A> constexpr gpud_list<sizeof...(A) + 1> gpud_codes(void (*)(A...)) {
    return {{gpud_code<A>::value..., 0}};
}
"""
_INTEGERS = (
    "short", "unsigned short", "int", "unsigned int", "long", "unsigned long", "long long",
    "unsigned long long",
)  # fmt: skip
_FLOATS = ("float", "double")
_VALUES = re.compile(rf"\.b8 {_NAME}(\d+)\[(\d+)\]\s*=\s*\{{([^}};]*)\}};")


def pointer_types(
    source: str, expressions: Mapping[str, str], compile_source: Callable[[str], str]
) -> dict[str, tuple[str, ...]]:
    """Return the type words of kernels' parameters, by entry.

    Args:
        source: CUDA C++.
        expressions: a C++ expression that names the kernel, by its entry in the PTX.
        compile_source: compiles a source to PTX.
    """
    found: dict[str, tuple[str, ...]] = {}
    entries = sorted(expressions)
    together = _ask(source, [expressions[entry] for entry in entries], compile_source)
    for number, entry in enumerate(entries):
        words = together.get(number)
        if words is None and not together and len(entries) > 1:
            words = _ask(source, [expressions[entry]], compile_source).get(0)
        if words is not None:
            found[entry] = words
    return found


def _ask(
    source: str, expressions: Sequence[str], compile_source: Callable[[str], str]
) -> dict[int, tuple[str, ...]]:
    words = [
        f"template <> struct gpud_word<{name}> {{"
        f" static const unsigned char value = {offset}sizeof({name}); }};"
        for names, offset in ((_INTEGERS, ""), (_FLOATS, f"{_FLOAT} + "))
        for name in names
    ]
    variables = [
        f'extern "C" __device__ decltype(gpud_codes(&{name})) {_NAME}{number}'
        f" = gpud_codes(&{name});"
        for number, name in enumerate(expressions)
    ]
    try:
        ptx = compile_source("\n".join((source, _TEMPLATES, *words, *variables, "")))
    except GpudError:
        return {}
    return {int(found[1]): _words(found[3], int(found[2])) for found in _VALUES.finditer(ptx)}


def _words(text: str, count: int) -> tuple[str, ...]:
    """Return the type words of a variable's bytes: the last one is no parameter's, zeroes lack."""
    values = [int(value, 0) for value in text.split(",")]
    values += [0] * (count - len(values))
    return tuple(
        f"f{value - _FLOAT}" if value > _FLOAT else f"i{value}" if value else ""
        for value in values[:-1]
    )
