"""Which devices a daemon serves, and its errors where there is no GPU."""

from __future__ import annotations

import json
import subprocess
from ctypes.util import find_library
from types import SimpleNamespace
from typing import Any

import pytest

from gpud.config import Config, load
from gpud.errors import InvalidArgument, MissingDependency
from gpud.server import settings as parts
from gpud.server.hosts import gpu_detection


def config(*devices: str) -> Config:
    return load({"devices": list(devices)}, environ={"HOME": "/nonexistent"})


@pytest.mark.parametrize(("there", "kind"), [(True, "cuda:0"), (False, "cpu:")])
def test_auto_is_a_gpu_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, there: bool, kind: str
) -> None:
    checked: list[int] = []
    monkeypatch.setattr(parts, "has_gpu", lambda: there)
    monkeypatch.setattr(parts, "check_gpu", checked.append)
    (found,) = parts.device_specs(config("auto"))
    assert found.startswith(kind)
    assert parts.device_specs(config("cpu:3", "cuda:1")) == ["cpu:3", "cuda:1"]
    assert checked == [*([0] if there else []), 1]
    assert parts.device_specs(config("auto"), look=False)[0].startswith("cpu:")


def test_without_llvm_no_host_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "find_spec", {"json": 1}.get)
    with pytest.raises(MissingDependency, match=r"llvmlite .*\[daemon\]"):
        parts.device_specs(config("cpu:2"))


def test_without_the_drivers_files_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_detection, "_DRIVER_FILES", ("/nonexistent/nvidiactl",))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    assert not gpu_detection.has_gpu()


@pytest.mark.skipif(find_library("cuda") is not None, reason="here there is a driver")
def test_without_a_driver_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match=r"no NVIDIA driver .* not with pip"):
        gpu_detection.check_gpu(0)
    monkeypatch.setattr(gpu_detection, "_DRIVER_FILES", ("/",))
    assert not gpu_detection.has_gpu()


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ("null", None, ""),
        ("", InvalidArgument, "asking the driver failed"),
        ("a warning\n{", InvalidArgument, "asking the driver failed"),
        (
            json.dumps(MissingDependency("cuda-bindings", extra="cuda13").to_wire()),
            MissingDependency,
            r"\[cuda13\]",
        ),
    ],
)
def test_what_the_other_process_says(
    monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception] | None, words: str
) -> None:
    done: Any = SimpleNamespace(stdout=said, stderr="killed\n", returncode=-9)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    if error is None:
        gpu_detection.check_gpu(0)
    else:
        with pytest.raises(error, match=words):
            gpu_detection.check_gpu(0)


def test_a_driver_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(InvalidArgument, match="does not answer"):
        gpu_detection.check_gpu(0)
