"""Headers of the C library that programs include: what kernels need of them, for NVRTC.

NVRTC has none, and declares ``printf``, ``malloc``, ``memcpy`` and the mathematical functions by
itself. Types have the sizes of 64-bit Linux, and the definitions of CUDA's own ``cuda/std``.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["C_HEADERS"]


def _macros(values: Mapping[str, str]) -> str:
    return "".join(f"#ifndef {n}\n#define {n} {value}\n#endif\n" for n, value in values.items())


_NULL = _macros({"NULL": "0"})
_LIMITS = _macros(
    {
        "CHAR_BIT": "8", "SCHAR_MIN": "(-128)", "SCHAR_MAX": "127", "UCHAR_MAX": "255",
        "CHAR_MIN": "(-128)", "CHAR_MAX": "127", "SHRT_MIN": "(-32768)", "SHRT_MAX": "32767",
        "USHRT_MAX": "65535", "INT_MIN": "(-2147483647 - 1)", "INT_MAX": "2147483647",
        "UINT_MAX": "4294967295U", "LONG_MIN": "(-9223372036854775807L - 1)",
        "LONG_MAX": "9223372036854775807L", "ULONG_MAX": "18446744073709551615UL",
        "LLONG_MIN": "(-9223372036854775807LL - 1)", "LLONG_MAX": "9223372036854775807LL",
        "ULLONG_MAX": "18446744073709551615ULL",
    }
)  # fmt: skip
_FLOAT = _macros(
    {
        "FLT_RADIX": "2", "FLT_MANT_DIG": "24", "FLT_DIG": "6", "FLT_MIN_EXP": "(-125)",
        "FLT_MAX_EXP": "128", "FLT_EPSILON": "1.1920929e-7f", "FLT_MIN": "1.17549435e-38f",
        "FLT_MAX": "3.40282347e+38f", "DBL_MANT_DIG": "53", "DBL_DIG": "15",
        "DBL_MIN_EXP": "(-1021)", "DBL_MAX_EXP": "1024", "DBL_EPSILON": "2.2204460492503131e-16",
        "DBL_MIN": "2.2250738585072014e-308", "DBL_MAX": "1.7976931348623157e+308",
    }
)  # fmt: skip
_MATH = _macros(
    {
        "M_E": "2.7182818284590452354", "M_LOG2E": "1.4426950408889634074",
        "M_LOG10E": "0.43429448190325182765", "M_LN2": "0.69314718055994530942",
        "M_LN10": "2.30258509299404568402", "M_PI": "3.14159265358979323846",
        "M_PI_2": "1.57079632679489661923", "M_PI_4": "0.78539816339744830962",
        "M_1_PI": "0.31830988618379067154", "M_2_PI": "0.63661977236758134308",
        "M_2_SQRTPI": "1.12837916709551257390", "M_SQRT2": "1.41421356237309504880",
        "M_SQRT1_2": "0.70710678118654752440", "INFINITY": "__int_as_float(0x7f800000)",
        "NAN": "__int_as_float(0x7fffffff)",
    }
)  # fmt: skip
_INTEGERS = {
    f"{sign}int{kind}{bits}_t": f"{'unsigned' if sign else 'signed'} {name}"
    for sign in ("", "u")
    for kind in ("", "_least", "_fast")
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
} | {
    f"{sign}int{kind}_t": f"{'unsigned' if sign else 'signed'} long long"
    for sign in ("", "u")
    for kind in ("ptr", "max")
}
_STDINT = (
    "".join(f"typedef {type_} {name};\n" for name, type_ in _INTEGERS.items())
    + _macros({f"INT{b}_MAX": f"{2 ** (b - 1) - 1}" for b in (8, 16, 32)})
    + _macros({f"INT{b}_MIN": f"(-{2 ** (b - 1) - 1} - 1)" for b in (8, 16, 32)})
    + _macros({"UINT8_MAX": "255", "UINT16_MAX": "65535", "UINT32_MAX": "4294967295U"})
    + _macros({"INT64_MAX": "9223372036854775807LL", "UINT64_MAX": "18446744073709551615ULL"})
    + _macros({"INT64_MIN": "(-9223372036854775807LL - 1)", "SIZE_MAX": "18446744073709551615UL"})
)
_IN_STD = "".join(f"using ::{name};\n" for name in _INTEGERS)
_OFFSETOF = """#ifndef offsetof
#define offsetof(type, member) ((size_t)&(((type*)0)->member))
#endif
"""
_TEXTS = {
    "assert": "",
    "ctype": "",
    "float": _FLOAT,
    "limits": _LIMITS,
    "math": _MATH,
    "stddef": _NULL + _OFFSETOF,
    "stdint": _STDINT,
    "stdio": _NULL,
    "stdlib": _NULL,
    "string": _NULL,
    "time": "",
}  # fmt: skip

C_HEADERS: dict[str, str] = {
    "stdbool.h": "#pragma once\n",
    **{f"{name}.h": f"#pragma once\n{text}" for name, text in _TEXTS.items()},
    **{f"c{name}": f"#pragma once\n#include <{name}.h>\n" for name in _TEXTS},
    "cstdint": f"#pragma once\n#include <stdint.h>\nnamespace std {{\n{_IN_STD}}}\n",
}
"""The texts by the names in ``#include``."""
