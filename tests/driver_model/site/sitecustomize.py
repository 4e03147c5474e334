"""Replaces ``cuda.bindings.driver`` with the model of the driver in processes that import this.

    PYTHONPATH=tests/driver_model/site:. make gpu-bench-waits GPU_PYTHON=python3

Problem: the commands that run on a GPU start processes of their own (pytest, a daemon, its device
host, measuring processes), and each must find a driver. Approach: Python imports this file when it
starts, if its folder is on ``PYTHONPATH``; importing the bindings then gives the model, with
kernels on the CPU device. Results of such a run say nothing about a GPU, and are not to be kept.

``GPUD_MODEL_SMS``: how many SMs the device has.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

NAME = "cuda.bindings.driver"


class _Loader(importlib.abc.Loader):
    """Loads the real bindings, and replaces them with the model."""

    def __init__(self, real: importlib.machinery.ModuleSpec) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        assert self._real.loader is not None
        return self._real.loader.create_module(self._real)

    def exec_module(self, module: Any) -> None:
        assert self._real.loader is not None
        self._real.loader.exec_module(module)
        sys.modules["cuda.bindings"].driver = module  # type: ignore[attr-defined]
        from gpud.device.cpu.device import CPUDevice
        from tests.driver_model import CPUDriver

        sms = int(os.environ.get("GPUD_MODEL_SMS", "2"))
        sys.modules[NAME] = CPUDriver(CPUDevice(sms), initialised=False)  # type: ignore[assignment]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the bindings, once."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        real = importlib.util.find_spec(name)
        if real is None:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(real), origin=real.origin)


sys.meta_path.insert(0, _Finder())
