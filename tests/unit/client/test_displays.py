"""What notebooks and Rich show of kernels, arrays and jobs; the name of a notebook's session."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

import gpud_client as gc
from gpud.wire import messages as wm
from gpud_client.displays import Displayed
from tests.support.fake_daemon import TIMEOUT_S, FakeDaemon

ARGS = (2.0, None, None, 7)


def printed(shown: Displayed) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_kernel(saxpy: gc.Kernel) -> None:
    for text in (printed(saxpy), saxpy._repr_html_()):
        assert "Kernel saxpy" in text
        assert "persistent: no departures" in text
        assert "uint, 8 bytes" in text


def test_an_array(gpu: gc.Session) -> None:
    x = gpu.zeros((2, 3), "int32")
    for text in (printed(x), x._repr_html_()):
        for words in ("2 x 3", "int32", "24 bytes", "0: device 0"):
            assert words in text
    x.free()
    assert "freed" in printed(x)


def test_a_job_and_its_progress(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    job = saxpy.submit(64, 32, ARGS)
    daemon.wait_for(wm.Submit)
    assert '<progress value="3" max="64">' in job._repr_html_()
    text = printed(job)
    for words in ("Job 1.1: saxpy", "running", "7/2 CapSM", "3 of 64 task blocks"):
        assert words in text
    daemon.finish(1, "failed", gc.IllegalAddress(0xAA), b"<b>said</b>")
    job.exception(TIMEOUT_S)
    assert "illegal address 0xaa" in printed(job)
    assert "&lt;b&gt;said&lt;/b&gt;" in job._repr_html_()


def test_a_job_of_a_lost_session(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    job = saxpy.submit(64, 32, ARGS)
    daemon.wait_for(wm.Submit)
    daemon.drop()
    assert "failed" in job._repr_html_() or "not ended" in job._repr_html_()
    job.exception(TIMEOUT_S)
    assert "is lost" in printed(job)


def test_a_notebooks_session_has_its_name(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    shell = SimpleNamespace(user_ns={})
    monkeypatch.setitem(
        sys.modules,
        "IPython",
        SimpleNamespace(get_ipython=lambda: shell),
    )
    gc.connect(daemon.path).close()
    shell.user_ns["__vsc_ipynb_file__"] = "/notebooks/in VS Code.ipynb"
    gc.connect(daemon.path).close()
    monkeypatch.setenv("JPY_SESSION_NAME", "/notebooks/waves.ipynb")
    gc.connect(daemon.path).close()
    names = [hello.program for hello in daemon.of(wm.Hello)]
    assert names == ["notebook", "in VS Code.ipynb", "waves.ipynb"]
