"""The one-way dependencies between gpud's parts and files, read from every import statement.

Imports in functions and for types only count like all others: what they hide is a circle, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A part may import itself, the standard library, and what stands here. The longest name counts.
ABOVE = "gpud"  # anything of gpud's
RAY_PACKAGE = "contrib/ray/gpud_ray"
BELOW_DEVICES = ("gpud.units", "gpud.errors", "gpud.compiler", "gpud.device.interface")
SAME = (  # for all devices
    "gpud.device.claim_size", "gpud.device.faults", "gpud.device.launch_checks",
    "gpud.device.futex", "gpud.device.jit", "gpud.device.lane_reports", "gpud.device.lane_sites",
    "gpud.device.printf",
    "gpud.device.readable", "gpud.device.record_wait",
)  # fmt: skip
BELOW_STATE = (
    "gpud.units", "gpud.errors", "gpud.config", "gpud.wire", "gpud.core", "gpud.compiler",
    "gpud.device.host.messages", "gpud.telemetry",
)  # fmt: skip
LAYERS = (
    "gpud.server.ipc",
    "gpud.server.state",
    "gpud.server.workloads",
    "gpud.server.shared",
    "gpud.server.hosts",
)  # of the server
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "gpud.units": (),
    # What clients and the CPU device share in the checking mode; offsets only.
    "gpud.checked_memory": (),
    "gpud.errors": ("gpud.units",),
    "gpud.processes": ("gpud.errors",),
    "gpud.wire": ("gpud.units", "gpud.errors", "msgpack"),
    "gpud.core": ("gpud.units", "gpud.errors", "gpud.wire.field_types"),
    "gpud.compiler": ("gpud.units", "gpud.errors"),
    "gpud.compiler.toolchain.nvrtc": ("gpud.compiler", "gpud.errors", "cuda"),
    "gpud.compiler.toolchain.cuda_headers": ("cuda",),
    # The process that compiles for the daemon talks to it as the device hosts do.
    "gpud.compiler.process.main": ("gpud.compiler", "gpud.errors", "gpud.wire"),
    "gpud.compiler.process.messages": ("gpud.wire",),
    "gpud.compiler.process.answer": ("gpud.compiler", "gpud.errors", "gpud.wire"),
    # NumPy's array type in signatures only: test_imports.py holds that nothing heavy is loaded.
    "gpud.device.interface": ("gpud.units", "gpud.errors", "gpud.compiler", "numpy"),
    "gpud.device": ("gpud.units", "gpud.errors", "gpud.compiler", "numpy"),
    "gpud.device.jit": ("llvmlite",),
    "gpud.device.lane_reports": ("gpud.errors", "gpud.wire.lane_ring"),
    "gpud.device.lane_sites": ("gpud.errors", "gpud.device.interface", "gpud.wire.lane_ring"),
    "gpud.device.host": (
        *BELOW_DEVICES,
        "gpud.device",
        "gpud.processes",
        "gpud.wire",
        "gpud.core.commands",
        "numpy",
    ),
    "gpud.device.cpu": (
        *BELOW_DEVICES,
        *SAME,
        "gpud.checked_memory",
        "gpud.wire.lane_ring",
        "numpy",
    ),
    "gpud.device.cuda": (
        *BELOW_DEVICES,
        *SAME,
        "gpud.wire.lane_ring",
        "cuda",
        "numpy",
    ),
    "gpud.telemetry": ("gpud.units", "gpud.errors", "pynvml"),
    "gpud.tasks": ("gpud.errors",),
    "gpud.tasks.core": ("gpud.errors", "gpud.core.lifecycles"),
    "gpud.tasks.store": ("gpud.errors", "gpud.tasks.core"),
    "gpud.tasks.runner": (
        "gpud.units",
        "gpud.errors",
        "gpud.wire",
        "gpud.tasks",
        "gpud.telemetry",
        "gpud.server.ipc",
        "gpud.server.logs",
        "gpud.__version__",
    ),
    "gpud.server.ipc.event_loop": ("uvloop",),
    "gpud.server.ipc": ("gpud.units", "gpud.errors", "gpud.wire"),
    "gpud.server.state": (*BELOW_STATE, "gpud.server.ipc"),
    "gpud.server.workloads": (*BELOW_STATE, *LAYERS[:2]),
    "gpud.server.shared": (*BELOW_STATE, *LAYERS[:3]),
    "gpud.server.hosts": (*BELOW_STATE, "gpud.processes", *LAYERS[:4]),
    "gpud.server.handlers": (*BELOW_STATE, *LAYERS, "gpud.__version__", "msgpack"),
    "gpud.server": (ABOVE, "uvloop"),
    # Its commands end as those of gpuctl do, and the client takes nothing from here.
    "gpud.cli": (ABOVE, "gpud_client.cli", "typer", "rich"),
    # It looks whether these can be loaded, when asked to.
    "gpud.cli.checks": (ABOVE, "llvmlite", "pynvml"),
    "gpud.config": ("gpud.units", "gpud.errors", "gpud.wire"),
    # The demo is a program of a user's that happens to live here: it may use the client.
    "gpud.demo": (ABOVE, "gpud_client", "numpy", "matplotlib"),
    "gpud.demo_kernels": (),
    "gpud.__main__": ("gpud.cli",),
    "gpud": (),
    # They use the driver in the program's own process, through the one checked door to it.
    "gpud_client.adapters": (
        "gpud.wire",
        "gpud.units",
        "gpud.errors",
        "gpud.device.cuda.driver.allocations",
        "gpud.device.cuda.driver.calls",
        "gpud_client",
        "cuda",
        "cupy",
        "numba",
        "numpy",
        "torch",
    ),
    "gpud_client": (
        "gpud.wire",
        "gpud.units",
        "gpud.errors",
        "gpud.checked_memory",
        "gpud.__version__",
        "msgpack",
        "numpy",
        "typer",
        "rich",
    ),
}
RAY = (
    "gpud_client",
    "gpud.errors",
    "gpud.units",
    "gpud_ray.errors",
    "gpud_ray.items",
    "numpy",
    "ray",
)
MAY_IMPORT |= {  # of contrib/ray
    "gpud_ray.placement": ("gpud.errors", "gpud.units", "numpy"),
    "gpud_ray.sets": (
        "gpud.errors", "gpud.units", "gpud_client.cli.kernel_arguments", "typer", "numpy",
        "ortools",
    ),
    "gpud_ray.sets.policies": ("gpud_ray.sets.model", "gpud_ray.sets.simulation", "numpy"),
    "gpud_ray.sets.run": (
        *RAY, "gpud_ray.sets", "gpud_ray.actors", "gpud_ray.client", "gpud_client.cli", "msgpack",
    ),
    "gpud_ray.node": (*RAY, "gpud_ray.placement", "gpud_ray.actors", "gpud_ray.head", "pynvml"),
    "gpud_ray.making": (
        *RAY, "gpud_ray.actors", "gpud_ray.head", "gpud_ray.node", "gpud_ray.placement",
    ),
    "gpud_ray.cli": (*RAY, "gpud_ray", "typer", "rich"),
    "gpud_ray.__main__": ("gpud_ray.cli",),
    "gpud_ray": (*RAY, "gpud_ray.placement", "gpud_ray.node"),
}  # fmt: skip
STANDARD_LIBRARY_BANS = {
    "gpud_ray.placement": ("asyncio", "time", "datetime", "random", "os", "socket", "threading"),
    "gpud.core": ("asyncio", "time", "datetime", "random", "os", "socket", "threading"),
    "gpud.tasks.core": ("asyncio", "time", "datetime", "random", "os", "socket", "threading"),
    "gpud.compiler": ("asyncio", "time", "random", "socket"),
}


def source_files() -> Iterator[tuple[str, Path]]:
    for package in (ROOT / "gpud", ROOT / "client" / "gpud_client", ROOT / RAY_PACKAGE):
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


@cache
def imports(module: str, path: Path, text: str) -> list[tuple[str, int]]:
    """Every imported name with its line; ``from a import b`` gives ``a.b``, module or not."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def part_of(module: str) -> str:
    return max((part for part in MAY_IMPORT if within(module, part)), key=len)


def violations(module: str, path: Path, text: str) -> list[str]:
    part = part_of(module)
    bans = {ban for above, bans in STANDARD_LIBRARY_BANS.items() if within(module, above)
            for ban in bans}  # fmt: skip
    found = []
    for name, line in imports(module, path, text):
        top = name.partition(".")[0]
        ours = top in ("gpud", "gpud_client", "gpud_ray")
        third_party = top in THIRD_PARTY
        allowed = within(name, part) or any(within(name, other) for other in MAY_IMPORT[part])
        if ((ours or third_party) and not allowed) or top in bans:
            found.append(f"{path.name}:{line}: {module} imports {name}")
    return found


THIRD_PARTY = {"numpy", "llvmlite", "cuda", "cupy", "pynvml", "msgpack", "typer", "rich", "uvloop"}
THIRD_PARTY |= {
    "ray",
    "ortools",
    "torch",
    "numba",
    "triton",
    "pytest",
    "hypothesis",
    "tests",
    "campaigns",
    "bench",
}


def test_dependencies_point_one_way() -> None:
    found = [line for module, path in source_files()
             for line in violations(module, path, path.read_text())]  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("gpud.units", "import gpud.errors"),
        ("gpud.core.scheduler", "from gpud.compiler import pipeline"),
        ("gpud.core.scheduler", "import asyncio"),
        ("gpud.tasks.core.scheduler", "import time"),
        ("gpud.tasks.core.scheduler", "from gpud.tasks import store"),
        ("gpud.tasks.runner.server", "from gpud_client.tasks import runner_client"),
        ("gpud.core.scheduler", "def f():\n    from time import monotonic_ns"),
        ("gpud.compiler.passes.forms.claim", "from gpud.device.cpu import lower"),
        ("gpud.compiler.passes.forms.claim", "import numpy as np"),
        ("gpud.compiler.passes.forms.claim", "from cuda.bindings import nvrtc"),
        ("gpud.compiler.cache", "import time"),
        ("gpud.device.interface", "from .cpu import driver"),
        ("gpud.device.cpu.driver", "import cupy"),
        ("gpud.device.cuda.driver.calls", "from gpud.device import cpu"),
        ("gpud_client.session", "from gpud.core import scheduler"),
        ("gpud.server.ipc.listener", "import gpud_client"),
        ("gpud.server.ipc.stream", "from gpud.server.state import session"),
        ("gpud.server.state.session", "from gpud.server.hosts.runner import Runner"),
        ("gpud.server.hosts.runner", "from gpud.server.handlers import answers"),
        ("gpud.server.handlers.answers", "from gpud.server.daemon import Daemon"),
        ("gpud.server.ipc.listener", "import tests.conformance"),
        ("gpud_client.session", "import gpud_ray"),
        ("gpud_ray.placement.head_state", "import time"),
        ("gpud_ray.placement.head_state", "from gpud_ray.node import agent"),
        ("gpud_ray.sets.model", "import ray"),
        ("gpud_ray.node.agent", "from gpud.core import scheduler"),
        ("gpud_ray.node.agent", "from gpud_ray.cli import app"),
    ],
)
def test_the_checker_sees_a_planted_import(module: str, statement: str) -> None:
    assert violations(module, Path(module.rpartition(".")[2] + ".py"), statement) != []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("gpud.core.scheduler", "from gpud.units import CapSM"),
        ("gpud.compiler.passes.forms.claim", "from ...ptx import model"),
        ("gpud.device.cpu.driver", "from gpud.device import interface"),
        ("gpud_client.session", "import gpud.wire.framing"),
        ("gpud.server.daemon", "import asyncio, uvloop"),
    ],
)
def test_the_checker_allows_what_flows_down(module: str, statement: str) -> None:
    assert violations(module, Path(module.rpartition(".")[2] + ".py"), statement) == []


# -- circles ---------------------------------------------------------------------------------------

# Files that import each other, by what lies below the CPU device's code generator: what writes the
# code of a thread, and of a stage with its hoisted checks. Nothing else may, nor may files of both.
CODEGEN = "gpud.device.cpu.codegen"
MAY_BE_CIRCULAR = (
    (
        CODEGEN,
        "emit.call_checks", "emit.check_code", "emit.kernel_context", "emit.strip_mining",
        "emit.thread_code", "runtime.collectives", "runtime.matrix_exchange",
        "runtime.warp_exchange",
    ),
    (
        CODEGEN,
        "analysis.active_threads", "analysis.stage_plan", "emit.lockstep", "emit.stage_end",
        "emit.stage_writer", "hoisting.affine", "hoisting.hoisted_checks",
        "hoisting.interval_analysis", "hoisting.intervals", "hoisting.loop_indices",
        "hoisting.path_conditions", "hoisting.remainders", "hoisting.slices",
        "hoisting.transfer_functions",
    ),
)  # fmt: skip


def import_graph(
    sources: Iterable[tuple[str, Path, str]],
    may_be_circular: tuple[tuple[str, ...], ...] = MAY_BE_CIRCULAR,
) -> dict[str, set[str]]:
    """For each module the modules that it imports; those of a circle that may be are as one."""

    def merged(module: str) -> str:
        for package, first, *others in may_be_circular:
            if module.removeprefix(f"{package}.") in others:
                return f"{package}.{first}"
        return module

    texts = list(sources)
    modules = {module for module, _, _ in texts}
    graph: dict[str, set[str]] = {}
    for module, path, text in texts:
        imported = {
            target if target in modules else target.rpartition(".")[0]
            for target, _ in imports(module, path, text)
        }
        node = merged(module)
        graph.setdefault(node, set()).update(map(merged, imported & modules))
        graph[node].discard(node)
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of modules, from a module back to it; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert circle(import_graph((*file, file[1].read_text()) for file in source_files())) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from gpud.b import g",
        "import gpud.b",
        "def f():\n    import gpud.b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpud import b",
    ],
)
def test_the_checker_sees_a_planted_circle(statement: str) -> None:
    files = ("gpud.a", statement), ("gpud.b", "from gpud.c import h"), ("gpud.c", "import gpud.a")
    graph = import_graph((module, Path(f"{module[-1]}.py"), text) for module, text in files)
    assert sorted(set(circle(graph))) == ["gpud.a", "gpud.b", "gpud.c"]
