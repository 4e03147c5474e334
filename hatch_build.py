"""Builds gpud's CUDA driver library with the package, and puts it into the wheel."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROOT = Path(__file__).parent
_MACHINE = "x86_64"  # lanes need that stores are seen in order


class LibraryHook(BuildHookInterface[Any]):
    """Builds ``client/gpud_cuda/lib`` for wheels, and for editable installs, which use it there."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs beyond ``build-system.requires``: a compiler, if none is."""
        there = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
        return [] if there or platform.machine() != _MACHINE else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, unless this is a machine on which it cannot run."""
        if platform.machine() != _MACHINE or sys.platform != "linux":
            return
        sys.path[:0] = [str(_ROOT), str(_ROOT / "client")]
        from gpud_cuda.build import build

        build(_ROOT / "client" / "gpud_cuda" / "lib")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"
        build_data["artifacts"] += ["client/gpud_cuda/lib/lib*.so*", "client/gpud_cuda/lib/ptxas"]
