"""Write the PTX around a hand-written kernel body: header, parameters, counting, thread index."""

from __future__ import annotations

from collections.abc import Sequence

from .case import count_ptx

_BITS = {"u64": 64, "s64": 64, "f64": 64, "b64": 64, "u32": 32, "s32": 32, "f32": 32, "b32": 32}


def header(arch: str = "compute_75", version: str = "8.0") -> str:
    """``.version``, ``.target`` and ``.address_size``."""
    return f".version {version}\n.target {arch.replace('compute', 'sm')}\n.address_size 64\n"


def kernel(
    name: str,
    parameters: Sequence[str],
    body: str,
    *,
    declarations: str = "",
    arch: str = "compute_75",
    version: str = "8.0",
    dimensions: int = 1,
    attributes: str = "",
) -> str:
    """A module with one entry whose last parameter is ``runs``.

    Args:
        name: of the entry.
        parameters: ``"u64 in"``: each is loaded into a register ``%in`` (pointers as global
            addresses); others, as ``".align 8 .b8 s[24]"``, are declared and left alone.
        body: PTX after the prologue; finds ``%thread`` (x), ``%block`` (x), ``%width`` (threads in
            x) and the row ``%i`` as 32-bit registers. Ends with its own ``ret``.
        declarations: module-level PTX before the entry.
        arch: the target.
        version: the PTX ISA version.
        dimensions: of the grid, for the counting.
        attributes: directives between the parameters and the body.
    """
    declared, loads = [], []
    for parameter in parameters:
        kind, _, label = parameter.partition(" ")
        if kind not in _BITS:
            declared.append(f"    .param {parameter}")
            continue
        declared.append(f"    .param .{kind} {label}")
        loads.append(f"    .reg .b{_BITS[kind]} %{label};")
        loads.append(f"    ld.param.{kind} %{label}, [{label}];")
        if kind == "u64":
            loads.append(f"    cvta.to.global.u64 %{label}, %{label};")
    declared.append("    .param .u64 runs")
    prologue = "\n".join(loads)
    joined = ",\n".join(declared)
    return f"""{header(arch, version)}
{declarations}
.visible .entry {name}(
{joined}
)
{attributes}
{{
    .reg .b32 %thread, %block, %width, %i;
{prologue}
    {count_ptx("runs", dimensions)}
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mad.lo.u32 %i, %block, %width, %thread;
{body}
}}
"""
