"""Generates the names of the CUDA runtime API: functions without a definition, and errors.

A program that links libcudart does not start if a name is missing. As with the driver's
(`gpud_cuda.generate.names`), each gets a weak function that says that it is not supported.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["runtime_names"]

_DECLARED = re.compile(r"\bCUDARTAPI\s+(cuda[A-Z]\w*)\s*\(")
_PER_THREAD = re.compile(r"#\s*define\s+(cuda[A-Z]\w*)\s+__CUDART_API_(PTDS|PTSZ)\(")
_ENUM = re.compile(r"enum\s+(?:__device_builtin__\s+)?cudaError\s*\{(.*?)\}", re.DOTALL)
_ERROR = re.compile(r"\b(cuda(?:Success|Error\w+))\s*=\s*(\d+)")
# What compilers call for texture references and the like, which no header declares.
_UNDECLARED = ("__cudaRegisterTexture", "__cudaRegisterSurface", "__cudaRegisterSharedVar")
_NOT_SUPPORTED = 801


def runtime_names(include: Path) -> str:
    """Return ``runtime_names.c``, from the headers in a folder."""
    api = (include / "cuda_runtime_api.h").read_text("utf-8", "replace")
    types = (include / "driver_types.h").read_text("utf-8", "replace")
    symbols = {*_DECLARED.findall(api), *_UNDECLARED}
    symbols |= {f"{name}_{suffix.lower()}" for name, suffix in _PER_THREAD.findall(api)}
    enum = _ENUM.search(types)
    codes = {int(code): name for name, code in _ERROR.findall(enum[1] if enum else "")}
    lines = [
        "/* Generated from the CUDA headers: do not edit. */",
        "#include <stddef.h>",
        "#include <stdio.h>",
        "struct error_text { int code; const char *name; };",
        "extern int runtime_done(int code);",
        "static int unsupported(const char *name, int *said) {",
        '    if (!*said) fprintf(stderr, "gpud: %s is not supported\\n", name);',
        "    *said = 1;",
        f"    return runtime_done({_NOT_SUPPORTED});",
        "}",
    ]
    for symbol in sorted(symbols):
        lines.append(
            f'__attribute__((weak, visibility("default"))) int {symbol}(void) '
            f'{{ static int said; return unsupported("{symbol}", &said); }}'
        )
    lines.append("const struct error_text runtime_errors[] = {")
    lines += [f'    {{{code}, "{name}"}},' for code, name in sorted(codes.items())]
    lines += ["};", f"const size_t runtime_error_count = {len(codes)};", ""]
    return "\n".join(lines)
