"""Arrays of a GPU that a program maps into its own process, over the model of the driver.

The daemon's device host is a process of its own, and this process has a model of its own, as a
process has a driver of its own: they share memory by its descriptors.
"""

from __future__ import annotations

import gc as garbage
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.driver.calls import Driver
from gpud.wire import messages as wm
from gpud_client.adapters import mapped, mapped_array
from gpud_client.adapters.mapped import ProcessGpu
from tests.driver_model import CPUDriver
from tests.gpu.host_process import MEMORY_BYTES
from tests.gpu.served_daemon import Served
from tests.support.raw_client import Raw
from tests.support.waiting import until

GRANULE = 2 << 20
DOUBLE = r"""
extern "C" __global__ void twice(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    daemon = Served(memory="100%", session_memory="100%", user_memory="100%")
    yield daemon
    daemon.close()


class Here:
    """The GPU as this process has it, and what its kernels would do."""

    def __init__(self, cpu: CPUDevice) -> None:
        self.driver = CPUDriver(cpu, MEMORY_BYTES)
        self.gpu = ProcessGpu(driver=Driver(self.driver))
        self.memory = self.driver.memory

    def values(self, array: Any) -> np.ndarray[Any, Any]:
        interface = array.__cuda_array_interface__
        element = np.dtype(interface["typestr"])
        size = int(np.prod(interface["shape"])) * element.itemsize
        raw = self.memory.read(interface["data"][0], size)
        return np.frombuffer(raw, element).reshape(interface["shape"])

    def write(self, array: Any, values: np.ndarray[Any, Any]) -> None:
        self.memory.write(array.__cuda_array_interface__["data"][0], values.tobytes())

    @property
    def mapped(self) -> int:
        return int(self.driver.alive["mapping"])


@pytest.fixture
def here(cpu: CPUDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    one = Here(cpu)
    monkeypatch.setattr(mapped_array, "process_gpu", lambda uuid: one.gpu)
    yield one
    garbage.collect()  # errors refer to frames, and these to arrays
    one.gpu.close()
    assert {name: n for name, n in one.driver.alive.items() if n and name != "module"} == {}


def test_jobs_and_this_processs_kernels_use_the_same_bytes(served: Served, here: Here) -> None:
    values = np.arange(3 * GRANULE // 4, dtype=np.int32)
    with served.connect() as gpu:
        before, x = gpu.zeros(100, np.int32), gpu.array(values)
        interface = x.__cuda_array_interface__
        assert interface["version"] == 3
        assert interface["shape"] == values.shape
        assert (interface["typestr"], interface["strides"]) == ("<i4", None)
        assert interface["data"] == (interface["data"][0], False)
        assert interface["data"][0] != x.ptr
        assert np.array_equal(here.values(x), values)
        gpu.kernel(DOUBLE, "twice").submit(len(values) // 256, 256, (x,)).result(60)
        assert np.array_equal(here.values(x), 2 * values)
        here.write(x, values + 1)  # nobody tells the daemon
        assert np.array_equal(x.get(), values + 1)
        x.set(values)
        assert np.array_equal(here.values(x), values)
        here.write(x, values + 2)
        assert np.array_equal(x.get(), values + 2), "the file is up to date no more"
        # Two arrays in one granule, each with a mapping of its own.
        here.write(before, np.arange(100, dtype=np.int32))
        assert np.array_equal(before.get(), np.arange(100))
        assert np.array_equal(x.get(), values + 2)
        assert x.__cuda_array_interface__ == interface, "it is mapped once"
        del x, before


def test_shapes_types_and_empty_arrays(served: Served, here: Here) -> None:
    pair = np.dtype([("a", np.int32), ("b", np.float64)])
    with served.connect() as gpu:
        some = gpu.array(np.array([[(1, 2.5)], [(3, 4.5)]], pair))
        assert some.__cuda_array_interface__["shape"] == (2, 1)
        assert some.__cuda_array_interface__["descr"] == pair.descr
        assert here.values(gpu.array(np.array([1, 2, 3], np.float16))).tolist() == [1, 2, 3]
        assert here.values(gpu.array(7)) == 7
        assert gpu.zeros((3, 0)).__cuda_array_interface__["data"] == (0, False)
        del some


def test_an_array_of_many_pieces_comes_in_several_messages(served: Served, here: Here) -> None:
    with served.connect() as gpu:
        small = [gpu.zeros(GRANULE, np.uint8) for _ in range(20)]
        lowest = min(one.ptr for one in small)
        small.clear()
        large = gpu.array(np.arange(20 * GRANULE // 8, dtype=np.int64))
        assert large.ptr == lowest, "it was to lie in what was theirs"
        assert np.array_equal(here.values(large), np.arange(20 * GRANULE // 8))
        assert here.mapped > 16, "more than one message"
        del large


def test_a_mapping_lasts_as_long_as_its_array_and_so_does_the_memory(
    served: Served, here: Here
) -> None:
    def used(gpu: Any) -> int:
        return int(gpu.query("status")["devices"][0]["memory_used_bytes"])

    with served.connect() as gpu:
        before = used(gpu)
        x = gpu.array(np.arange(10))
        interface = x.__cuda_array_interface__
        x.free()
        gpu.zeros(1).get()
        with pytest.raises(ValueError, match="was freed"):
            _ = x.__cuda_array_interface__
        assert here.memory.read(interface["data"][0], 80) == np.arange(10).tobytes()
        assert used(gpu) > before
        del x  # who took the address has kept it
        assert not here.mapped
        gpu.zeros(1).get()
        until(lambda: used(gpu) <= before)
    kept = []
    with served.connect() as gpu:
        kept.append(gpu.array(np.arange(10)))
        interface = kept[0].__cuda_array_interface__
    assert here.memory.read(interface["data"][0], 80) == np.arange(10).tobytes(), "also afterwards"
    with pytest.raises(gc.ConnectionLost):
        _ = kept[0].__cuda_array_interface__
    kept.clear()


def test_it_waits_for_the_jobs_that_use_the_array(served: Served, here: Here) -> None:
    spin = r"""extern "C" __global__ void late(volatile int* x, int rounds) {
        for (int i = 0; i < rounds; i++) x[0] = i + 1;
    }"""
    with served.connect() as gpu:
        x = gpu.zeros(1, np.int32)
        job = gpu.kernel(spin, "late").submit(1, 1, (x, 3_000_000))
        assert here.values(x) == 3_000_000
        assert job.done()
        del x, job


def test_after_the_loss_of_a_host_the_new_memory_is_mapped(served: Served, here: Here) -> None:
    with served.connect() as gpu:
        x = gpu.array(np.arange(10))
        first = x.__cuda_array_interface__["data"][0]
        served.kill_host()
        # The values may have been changed by this process's kernels, which nobody saw.
        with pytest.raises(gc.DeviceLost, match=r"write all of it with set\(\)"):
            _ = x.__cuda_array_interface__
        with pytest.raises(gc.DeviceLost):
            x.get()
        x.set(np.arange(10, 20))
        second = x.__cuda_array_interface__["data"][0]
        assert second != first
        assert np.array_equal(here.values(x), np.arange(10, 20))
        here.write(x, np.arange(20, 30))
        assert np.array_equal(x.get(), np.arange(20, 30))
        assert here.memory.read(first, 80) == np.arange(10).tobytes(), "its memory is nobody's"
        del x


def test_a_host_that_is_lost_while_memory_comes_is_asked_again(
    served: Served, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    usual = mapped_array._asking

    def asking(allocation: Any, first: int, known: int) -> Any:
        asked.append(first)
        if len(asked) == 2:
            served.kill_host()
        return usual(allocation, first, known)

    monkeypatch.setattr(mapped_array, "_asking", asking)
    with served.connect() as gpu:
        small = [gpu.zeros(GRANULE, np.uint8) for _ in range(20)]
        small.clear()
        large = gpu.array(np.zeros(20 * GRANULE // 8, dtype=np.int64))
        with pytest.raises(gc.DeviceLost):  # exported in part, it may have been changed
            _ = large.__cuda_array_interface__
        assert asked[0] == 0 < asked[1]
        assert not here.mapped
        del large


def test_what_cannot_be_mapped_says_what_to_do(
    served: Served, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.connect() as gpu:
        work = gpu.workload("1MiB", "1MiB", 0)
        kept = work.zeros(10)
        with pytest.raises(AttributeError, match="workload's in its turns only"):
            _ = kept.__cuda_array_interface__
        work.close()
        x = gpu.array(np.arange(3))

        def unseen(uuid: str) -> ProcessGpu:
            monkeypatch.setattr(mapped, "_open_driver", lambda: Driver(here.driver))
            return mapped.gpu_of(uuid[:-1] + "x")

        monkeypatch.setattr(mapped_array, "process_gpu", unseen)
        with pytest.raises(AttributeError, match=r"CUDA_VISIBLE_DEVICES.*get\(\) and set\(\)"):
            _ = x.__cuda_array_interface__
        assert not hasattr(x, "__cuda_array_interface__"), "frameworks copy then"
        assert np.asarray(x).tolist() == [0, 1, 2]
        found = mapped.gpu_of(gpu.devices[0].uuid)
        assert found.name == gpu.devices[0].name
        found.close()


def test_a_client_that_does_not_take_memory_is_sent_no_more(served: Served) -> None:
    raw = Raw(served.path)
    raw.hello()
    address = raw.allocate(100)

    def ask(array: int = address, first: int = 0, known: int = 0) -> Any:
        return raw.ask(lambda r: wm.ExportArray(r, 0, array, first, known), wm.ArrayExported)

    for array, first, said in ((address + 4096, 0, "no array"), (address, 100, "no part of")):
        with pytest.raises(RuntimeError, match=said):
            ask(array, first)
    answer = ask()
    assert answer.attached
    with pytest.raises(RuntimeError, match="on its way"):
        ask()
    program = socket.socket(fileno=raw.descriptors.pop())
    numbers, descriptors, _, _ = socket.recv_fds(program, 1024, 64)
    assert (len(numbers), len(descriptors)) == (16, 1)
    program.close()
    assert not ask(known=answer.host).attached
    assert ask().attached
    for one in (*descriptors, *raw.descriptors):
        os.close(one)
    other = Raw(served.path)
    other.hello()
    other.allocate(100)
    with pytest.raises(RuntimeError, match="no array"):
        other.ask(lambda r: wm.ExportArray(r, 0, address, 0, 0), wm.ArrayExported)
    for client in (raw, other):
        client.sock.close()


def test_a_cpu_device_exports_nothing() -> None:
    with gc.local("cpu:1") as gpu:
        x = gpu.zeros(3)
        with pytest.raises(AttributeError, match="use numpy"):
            _ = x.__cuda_array_interface__
        raw = Raw(str(gpu.path))
        raw.hello()
        address = raw.allocate(100)
        with pytest.raises(RuntimeError, match="lie in the session's file itself"):
            raw.ask(lambda r: wm.ExportArray(r, 0, address, 0, 0), wm.ArrayExported)
        raw.sock.close()
