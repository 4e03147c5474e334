"""Kernels and modules: the requests that they send, and the values taken from the answers."""

from __future__ import annotations

import concurrent.futures
import gc as garbage
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud.errors import KernelNotFound, KernelRejected
from gpud.wire import messages as wm
from tests.support.fake_daemon import SAXPY, TIMEOUT_S, FakeDaemon, kernel


def test_what_a_kernel_is(gpu: gc.Session, daemon: FakeDaemon) -> None:
    daemon.kernels = [kernel("axpy<float>", SAXPY, entry="_Z4axpyIfE", form="sliced")]
    options: Any = iter(["-DN=4"])  # more than is promised
    k = gpu.kernel("source", "axpy<float>", options=options, form="sliced", progress="blocks")
    message = daemon.of(wm.Compile)[0]
    assert message[1:] == (0, "source", ("axpy<float>",), ("-DN=4",), "sliced", "blocks", False, (),
                           True, ())  # fmt: skip
    assert (k.name, k.form, k.why) == ("axpy<float>", "sliced", ("no departures",))
    assert k.params[0] == gc.Parameter("p0", "float", 4, 4, 0)
    assert len(k.params) == 4
    assert k.module.log == "a log"
    assert k.module.names == ("axpy<float>",)
    assert k.module.kernel("_Z4axpyIfE").form == "sliced"
    assert "axpy<float>" in repr(k)
    assert "axpy<float>" in repr(k.module)


def test_errors_of_the_compiler(gpu: gc.Session, daemon: FakeDaemon) -> None:
    error = gc.CompileError("line 1: no", log="the whole log")
    daemon.answer[wm.Compile] = lambda message: daemon.fail(message, error)
    with pytest.raises(gc.CompileError, match="line 1") as caught:
        gpu.kernel("source", "k")
    assert caught.value.log == "the whole log"
    assert len(caught.traceback) < 6  # this test, the session, the channel: no step in between


def test_kernels_that_are_not_there_or_cannot_run(gpu: gc.Session, daemon: FakeDaemon) -> None:
    rejected = KernelRejected("texture", "uses textures", "tex.2d", 7).to_wire()
    daemon.kernels = [kernel("good", []), kernel("bad", [], form="rejected", rejected=rejected)]
    module = gpu.module("source")
    assert module.kernel("good").params == ()
    with pytest.raises(KernelRejected, match="texture") as caught:
        module.kernel("bad")
    assert caught.value.line == 7
    with pytest.raises(KernelNotFound, match="good, bad"):
        module.kernel("other")
    with pytest.raises(KernelNotFound, match=r'module\(source, \["axpy<float>"\]\)'):
        module.kernel("axpy<float>")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda gpu: gpu.kernel([b"image", 5], "k"), TypeError),
        (lambda gpu: gpu.kernel("kernels/step.cu", "k"), ValueError),
        (lambda gpu: gpu.kernel(Path("step.cu"), "k"), TypeError),
        (lambda gpu: gpu.kernel("source", 5), TypeError),
        (lambda gpu: gpu.kernel("source", "k", options="-DN"), TypeError),
        (lambda gpu: gpu.kernel("source", "k", options=[1]), TypeError),
        (lambda gpu: gpu.kernel("source", "k", options=None), TypeError),
        (lambda gpu: gpu.kernel("source", "k", form="round"), ValueError),
        (lambda gpu: gpu.kernel("source", "k", progress="none"), ValueError),
        (lambda gpu: gpu.module("source", progress="none"), ValueError),
        (lambda gpu: gpu.kernel("source", "k", device=9), ValueError),
        (lambda gpu: gpu.module("source", "k"), TypeError),
        (lambda gpu: gpu.query("gossip"), ValueError),
    ],
)
def test_refused(gpu: gc.Session, daemon: FakeDaemon, make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make(gpu)
    assert daemon.of(wm.Compile) == []


def test_how_a_kernel_is_launched(saxpy: Any) -> None:
    uses: tuple[Callable[[], Any], ...] = (lambda: saxpy(1, 32), lambda: saxpy[1, 32])
    for use in uses:
        with pytest.raises(TypeError, match=r"launch it with saxpy\.submit\(grid, block, args="):
            use()


def test_a_module_is_unloaded_when_nobody_holds_it(gpu: gc.Session, daemon: FakeDaemon) -> None:
    k = gpu.kernel("source", "saxpy")
    k.submit(1, 32, (1.0, None, None, 1))
    launch = k.call(1, 32, (1.0, None, None, 1))
    del k
    garbage.collect()
    gpu.query("status")
    assert daemon.of(wm.Unload) == []
    del launch
    garbage.collect()
    gpu.query("status")
    assert daemon.of(wm.Unload) == [wm.Unload(1)]


def test_symbols_are_bytes(gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    coef = saxpy.module.symbol("coef")
    assert (coef.name, coef.nbytes, coef.dtype, coef.shape) == ("coef", 16, None, None)
    assert saxpy.module.symbols == {"coef": 16}
    coef.set(bytes(range(16)))
    assert coef.get() == bytes(range(16))
    coef.set(np.arange(4, dtype=np.float32))
    assert coef.get() == np.arange(4, dtype=np.float32).tobytes()
    with pytest.raises(ValueError, match="16 bytes"):
        coef.set(b"short")
    with pytest.raises(TypeError, match="dtype"):
        coef.set([1.0, 2.0, 3.0, 4.0])
    assert "coef" in repr(coef)


def test_symbols_are_arrays(saxpy: gc.Kernel) -> None:
    coef = saxpy.module.symbol("coef", np.float32)
    assert coef.shape == (4,)
    coef.set([1, 2, 3, 4])
    got = coef.get()
    assert got.tolist() == [1.0, 2.0, 3.0, 4.0]
    got[0] = 9  # a copy of its own
    square = saxpy.module.symbol("coef", "f4", (2, 2))
    assert square.get().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    square.set(np.ones((2, 2), np.float32))
    with pytest.raises(TypeError, match="float64"):
        square.set(np.ones((2, 2)))
    with pytest.raises(ValueError, match="shape"):
        square.set([1.0] * 4)
    saxpy.module.symbol("coef", np.uint8).set(bytes(16))
    assert not square.get().any()


def test_symbols_that_cannot_be(saxpy: gc.Kernel) -> None:
    with pytest.raises(gc.UnknownName, match="it has coef"):
        saxpy.module.symbol("other")
    with pytest.raises(LookupError):
        saxpy.module.symbol("other")
    for more in ({"dtype": "f8", "shape": 3}, {"dtype": "V5"}, {"shape": 4}):
        with pytest.raises(ValueError, match="bytes"):
            saxpy.module.symbol("coef", **more)


def test_large_symbols_travel_in_pieces(gpu: gc.Session, daemon: FakeDaemon) -> None:
    size = 20 << 20
    daemon.symbols = {"table": size}
    daemon.memory["table"] = bytearray(size)
    table = gpu.module("source").symbol("table", np.uint32)
    values = np.arange(size // 4, dtype=np.uint32)
    table.set(values)
    assert np.array_equal(table.get(), values)
    assert len(daemon.of(wm.WriteSymbol)) == 3


def test_symbols_wait_for_the_jobs_of_their_module(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel
) -> None:
    other = gpu.kernel("source 2", "saxpy")
    saxpy.submit(1, 32, (1.0, None, None, 1))
    other.module.symbol("coef").get()
    daemon.answer[wm.ReadSymbol] = lambda message: (
        daemon.send(wm.Answer(message.request, b"?" * 16))
        if daemon.ended == [1]
        else daemon.fail(message, gc.InvalidArgument("too early"))
    )
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        reading = threads.submit(saxpy.module.symbol("coef").get)
        with pytest.raises(TimeoutError):
            reading.result(0.05)
        daemon.finish(1)
        assert reading.result(TIMEOUT_S) == b"?" * 16
