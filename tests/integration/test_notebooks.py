"""Jobs in a notebook, by IPython's own machinery, on a CPU device; the name of the session."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpud_client as gc
from tests.integration.daemon_world import until as eventually
from tests.support.waiting import until

pytestmark = pytest.mark.ci

IPython: Any = pytest.importorskip("IPython", reason="IPython is in the extra dev")

SPIN = r"""
extern "C" __global__ void spin(volatile int* go, int* done) {
    while (!go[0]) {}
    atomicAdd(done, 1);
}"""


class Notebook:
    """A shell as Jupyter's kernel has it, which keeps what it sends to the page."""

    def __init__(self) -> None:
        self.shell: Any = IPython.core.interactiveshell.InteractiveShell.instance()
        self.sent: Any = IPython.core.displaypub.CapturingDisplayPublisher()
        self.shell.display_pub = self.sent
        self.shell.kernel = object()  # what Jupyter's kernel sets, and a terminal does not

    def cell(self, source: str, **names: Any) -> list[dict[str, Any]]:
        """Run a cell; what was sent to the page by its end."""
        self.shell.push(names)
        ran = self.shell.run_cell(source)
        ran.raise_error()
        return list(self.sent.outputs)

    def progress(self) -> list[int]:
        """The task blocks that were done, in each output, the latest last."""
        pages = [output["data"]["text/html"] for output in self.sent.outputs]
        return [int(re.findall(r'<progress value="(\d+)"', page)[0]) for page in pages]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # its history of what was typed
    yield Notebook()
    IPython.core.interactiveshell.InteractiveShell.clear_instance()


def test_a_job_is_shown_anew_until_it_has_ended(notebook: Notebook) -> None:
    with gc.local("cpu:1") as gpu:
        kernel = gpu.kernel(SPIN, "spin")
        go, done = gpu.zeros(1, "int32"), gpu.zeros(1, "int32")
        flag = go.numpy()  # before the job, which is waited for later
        job = kernel.submit(3, 1, (go, done))
        (first,) = notebook.cell("job", job=job)
        assert not first["update"]
        assert "not ended" not in first["data"]["text/html"]
        until(lambda: len(notebook.sent.outputs) > 2)
        assert set(notebook.progress()) == {0}
        flag[0] = 1
        job.result(60)
        until(lambda: notebook.progress()[-1] == 3)
        shown = first["transient"]["display_id"]
        updates = notebook.sent.outputs[1:]
        assert all(one["update"] for one in updates)
        assert {one["transient"]["display_id"] for one in updates} == {shown}
        assert ">done<" in updates[-1]["data"]["text/html"]
        count = len(notebook.sent.outputs)
        (_, *_, again) = notebook.cell("job")
        assert not again["update"]
        time.sleep(0.7)
        assert len(notebook.sent.outputs) == count + 1, "nobody follows one that has ended"


def test_an_awaited_job_is_shown_anew(notebook: Notebook) -> None:
    async def main() -> None:
        async with gc.alocal("cpu:1") as gpu:
            kernel = await gpu.kernel(SPIN, "spin")
            go, done = await gpu.zeros(1, "int32"), await gpu.zeros(1, "int32")
            flag = await go.numpy()
            job = await kernel.submit(3, 1, (go, done))
            job._ipython_display_()
            await eventually(lambda: len(notebook.sent.outputs) > 2, 0.05)
            assert ">running<" in notebook.sent.outputs[-1]["data"]["text/html"]
            flag[0] = 1
            await job.result(60)
            await eventually(lambda: notebook.progress()[-1] == 3, 0.05)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_in_a_terminal_a_job_is_printed_once(notebook: Notebook) -> None:
    del notebook.shell.kernel
    with gc.local("cpu:1") as gpu:
        kernel = gpu.kernel(SPIN, "spin")
        go, done = gpu.zeros(1, "int32"), gpu.zeros(1, "int32")
        go.numpy()[0] = 1
        job = kernel.submit(3, 1, (go, done))
        assert notebook.cell("job", job=job) == []
        job.result(60)


def test_a_session_has_the_notebooks_name(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    notebook.shell.push({"__vsc_ipynb_file__": "/somewhere/fit.ipynb"})
    with gc.local("cpu:1") as gpu:
        kept = gpu.zeros(1, "int32")
        assert [row["program"] for row in gpu.query("memory")["sessions"]] == ["fit.ipynb"]
        assert kept.nbytes == 4
