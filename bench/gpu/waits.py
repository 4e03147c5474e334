"""Which calls of the driver wait for kernels that run, and what holds up launches on other streams.

    python bench/gpu/waits.py [--ms 400]

Problem: a persistent kernel may run for hours, and the driver's manual says of few calls whether
they wait for it ("may perform implicit synchronization"). One that waits under the device's lock
stops everything.

And what a look at a word in host memory costs, which blocks take before every claim where launch
records are there (release path ``mapped``), beside one at a word in device memory: from one block,
and from as many as fit. And what it costs that all of these count themselves out of such a word, as
blocks do that leave.

Approach: a kernel holds the GPU until the host says so or `--ms` are over. Meanwhile one thing is
done: a call, or a launch elsewhere that is waited for. If the kernel is over when that has
returned, it waited. Where the kernel is to be everywhere, it has as many blocks as fit, or twice as
many.

Writes bench/results/gpu_waits.json. Has not run on a GPU yet.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.busy_kernel import Act, BusyKernel
from bench.gpu.instrumentation.driver import DriverError, Gpu, check
from bench.gpu.record import keep, need_gpu
from gpud.device.cuda.driver.semaphore import Semaphore
from gpud.device.interface import pack_parameters

SIZE = 2 << 20
WIDE_BYTES = 96 << 10
"""Of shared memory, or what a block may have; no SM is divided so for a kernel without any."""

WIDE = "much shared memory"
STREAMS = 40
LOOKS = 1000
SOME = 64


def main() -> int:
    """Tries, prints, keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ms", type=float, default=400.0, help="how long the kernel may hold")
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    holder = BusyKernel(gpu, options.ms / 1e3)
    found: dict[str, Any] = {"calls": calls(holder)}
    found["launches"] = {name: holder.tried(**case) for name, case in launches(holder).items()}
    found["launches"][f"{WIDE}, all SMs divided for that"] = divided_alike(holder)
    for kind, results in found.items():
        for name, one in results.items():
            verdict = one.get("error") or ("WAITS" if one["waits"] else "does not wait")
            print(f"{kind:<10}{name:<44}{verdict:<16}{one['us']:>12.0f} us")
    found["streams_at_once"] = streams_at_once(holder)
    print(f"of {STREAMS} streams with a kernel each, {found['streams_at_once']} ran at once")
    found["look_us"], found["leave_us"] = looks(holder), leaves(holder)
    for what in ("look", "leave"):
        for name, took in found[f"{what}_us"].items():
            print(f"{what:<10}{name:<44}{'':<16}{took:>12.3f} us")
    print(f"wrote {keep('waits', gpu, {'ms': options.ms, **found}).name}")
    return 0


def calls(holder: BusyKernel) -> dict[str, Any]:
    """Every call that gpud makes while kernels run, or would have to."""
    cu, gpu = holder.gpu.cu, holder.gpu
    tried: dict[str, Any] = {}
    made: list[Any] = []

    def pair(make: str, act: Act, unmake: str, undo: Callable[[Any], Any]) -> None:
        """Both in their turn, beside a kernel each."""
        made.clear()
        tried[make] = holder.tried(lambda: made.append(act()))
        if made:
            tried[unmake] = holder.tried(lambda: undo(made[0]))

    pair(
        "cuMemHostAlloc",
        lambda: check(cu.cuMemHostAlloc(SIZE, 2)),
        "cuMemFreeHost",
        lambda it: check(cu.cuMemFreeHost(it)),
    )
    pair(
        "cuMemAlloc",
        lambda: check(cu.cuMemAlloc(SIZE)),
        "cuMemFree",
        lambda it: check(cu.cuMemFree(it)),
    )
    pair(
        "cuModuleLoadData",
        lambda: check(cu.cuModuleLoadData(holder.text.encode() + b"\0")),
        "cuModuleUnload",
        lambda it: check(cu.cuModuleUnload(it)),
    )
    with suppress(DriverError):  # a program that the linker does not take is loaded as text
        tried |= _linked(holder)
    pair(
        "cuStreamCreateWithPriority",
        gpu.stream,
        "cuStreamDestroy",
        lambda it: check(cu.cuStreamDestroy(it)),
    )
    locked = mmap.mmap(-1, SIZE)
    at = np.frombuffer(locked, np.uint8).ctypes.data
    pair(
        "cuMemHostRegister",
        lambda: check(cu.cuMemHostRegister(at, SIZE, 0)),
        "cuMemHostUnregister",
        lambda _: check(cu.cuMemHostUnregister(at)),
    )
    _mapping(holder, pair)
    with suppress(DriverError):  # older drivers have no green contexts
        _green(holder, pair)
    memory = gpu.buffer(np.zeros(1024, np.uint8))
    given = np.zeros(1024, np.uint8)
    tried["cuMemcpyHtoD"] = holder.tried(lambda: memory.set(given))
    tried["cuMemcpyDtoH"] = holder.tried(memory.get)
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    wide = holder.function("wide").handle
    tried["cuFuncSetAttribute"] = holder.tried(
        lambda: check(cu.cuFuncSetAttribute(wide, which, _wide_bytes(gpu)))
    )
    return tried


def _linked(holder: BusyKernel) -> dict[str, Any]:
    """A program made into machine code, and that loaded, as gpud does it."""
    cu = holder.gpu.cu
    kind = cu.CUjitInputType.CU_JIT_INPUT_PTX
    image = holder.text.encode() + b"\0"
    made: list[bytes] = []

    def link() -> None:
        state = check(cu.cuLinkCreate(0, [], []))
        check(cu.cuLinkAddData(state, kind, image, len(image), b"program", 0, [], []))
        address, size = check(cu.cuLinkComplete(state))
        made.append(ctypes.string_at(int(address), int(size)))
        check(cu.cuLinkDestroy(state))

    link()
    return {
        "cuLinkCreate to cuLinkDestroy": holder.tried(link),
        "cuModuleLoadData, machine code": holder.tried(lambda: check(cu.cuModuleLoadData(made[0]))),
    }


def _mapping(
    holder: BusyKernel, pair: Callable[[str, Act, str, Callable[[Any], Any]], None]
) -> None:
    """Memory put behind a reserved address, and taken away."""
    cu = holder.gpu.cu
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    location = cu.CUmemLocation()
    location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location = location
    access = cu.CUmemAccessDesc()
    access.location = location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address = int(check(cu.cuMemAddressReserve(SIZE, 0, 0, 0)))

    def commit() -> Any:
        handle = check(cu.cuMemCreate(SIZE, wanted, 0))
        check(cu.cuMemMap(address, SIZE, 0, handle, 0))
        check(cu.cuMemSetAccess(address, SIZE, [access], 1))
        return handle

    def release(handle: Any) -> None:
        check(cu.cuMemUnmap(address, SIZE))
        check(cu.cuMemRelease(handle))

    pair("cuMemCreate, cuMemMap, cuMemSetAccess", commit, "cuMemUnmap, cuMemRelease", release)
    check(cu.cuMemAddressFree(address, SIZE))


def _green(holder: BusyKernel, pair: Callable[[str, Act, str, Callable[[Any], Any]], None]) -> None:
    """A green context of half of the SMs, and a stream in one."""
    cu, gpu = holder.gpu.cu, holder.gpu
    whole = check(
        cu.cuDeviceGetDevResource(gpu.device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    )

    def made() -> Any:
        groups, _, _ = check(cu.cuDevSmResourceSplitByCount(1, whole, 0, gpu.sms // 2))
        described = check(cu.cuDevResourceGenerateDesc([groups[0]], 1))
        return check(cu.cuGreenCtxCreate(described, gpu.device, 1))

    pair(
        "cuGreenCtxCreate",
        made,
        "cuGreenCtxDestroy",
        lambda it: check(cu.cuGreenCtxDestroy(it)),
    )
    green = made()
    pair(
        "cuGreenCtxStreamCreate",
        lambda: check(cu.cuGreenCtxStreamCreate(green, 1, gpu.highest_priority)),
        "cuStreamDestroy, of a green context",
        lambda it: check(cu.cuStreamDestroy(it)),
    )
    check(cu.cuGreenCtxDestroy(green))


def launches(holder: BusyKernel) -> dict[str, dict[str, Any]]:
    """Launches on another stream, waited for: arguments of `BusyKernel.tried` by name.

    "Behind": behind the kernel that holds, on its stream or waiting for it. Shared memory is asked
    for beside a block on each SM that has none, so that the SMs have to be divided anew.
    """
    cu = holder.gpu.cu
    other, third = holder.others
    semaphore = Semaphore()

    def elsewhere(name: str = "quick", shared: int = 0) -> Act:
        def act() -> None:
            holder.launch(name, other, shared)
            holder.finish(other)

        return act

    def host_function() -> None:
        check(cu.cuLaunchHostFunc(holder.stream, semaphore.post_function, semaphore.address))

    def wait_event() -> None:
        check(cu.cuStreamWaitEvent(third, holder.event(holder.stream), 0))
        holder.launch("quick", third)

    def more() -> None:
        for _ in range(32):
            holder.launch("quick", holder.stream)
            holder.event(holder.stream)

    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    wide_bytes = _wide_bytes(holder.gpu)
    check(cu.cuFuncSetAttribute(holder.function("wide").handle, which, wide_bytes))
    everywhere = {"blocks": 2 * holder.capacity(1024), "threads": 1024}
    one_each = {"blocks": holder.gpu.sms, "threads": 512}
    return {
        "a launch": {"act": elsewhere()},
        "a launch, a host function behind": {"act": elsewhere(), "behind": host_function},
        "a launch, 32 launches behind": {"act": elsewhere(), "behind": more},
        "a launch, a third stream behind": {"act": elsewhere(), "behind": wait_event},
        WIDE: {"act": elsewhere("wide", wide_bytes), **one_each},
        "urgent, twice as many blocks as fit": {"act": elsewhere(), **everywhere},
        # Last: the driver keeps the room that it makes.
        "16 KiB of local memory a thread": {"act": elsewhere("deep")},
    }


def divided_alike(holder: BusyKernel) -> dict[str, Any]:
    """The launch with much shared memory once more, the kernel that holds prefers as much."""
    cu = holder.gpu.cu
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    kinds = cu.CUshared_carveout
    hold = holder.function("hold").handle
    check(cu.cuFuncSetAttribute(hold, which, int(kinds.CU_SHAREDMEM_CARVEOUT_MAX_SHARED)))
    case = launches(holder)[WIDE]
    found = holder.tried(**case)
    check(cu.cuFuncSetAttribute(hold, which, int(kinds.CU_SHAREDMEM_CARVEOUT_DEFAULT)))
    return found


def _wide_bytes(gpu: Gpu) -> int:
    return min(WIDE_BYTES, gpu.most_shared)


def streams_at_once(holder: BusyKernel, count: int = STREAMS) -> int:
    """How many of so many kernels on streams of their own run at once, others behind each."""
    holder.reset()
    streams = [holder.gpu.stream() for _ in range(count)]
    for stream in streams:
        holder.begin(1, 32, stream, holder.seconds)
        holder.launch("quick", stream)
    ends = time.monotonic() + holder.seconds / 2
    while holder.begun() < count and time.monotonic() < ends:
        time.sleep(1e-3)
    begun = holder.begun()
    holder.end()
    for stream in streams:
        check(holder.gpu.cu.cuStreamDestroy(stream))
    return begun


def looks(holder: BusyKernel, count: int = LOOKS) -> dict[str, float]:
    """Microseconds from one look of a block at a word to its next."""
    found: dict[str, float] = {}
    for where, address in _words(holder):
        for blocks in (1, _most(holder, "looks")):
            took = _timed(holder, "looks", blocks, [address, count.to_bytes(4, "little")])
            found[f"{where} memory, {blocks} blocks"] = took / count
    return found


def leaves(holder: BusyKernel) -> dict[str, float]:
    """Microseconds of a launch each of whose blocks counts itself out of one word, and is over."""
    blocks = _most(holder, "leaves")
    return {
        f"{where} memory, {blocks} blocks": _timed(holder, "leaves", blocks, [address])
        for where, address in _words(holder)
    }


def _words(holder: BusyKernel) -> Iterator[tuple[str, bytes]]:
    """Where a word is, and its address as a parameter."""
    mapped, own = holder.gpu.host_words(8), holder.gpu.buffer(np.zeros(8, np.uint32))
    for where, address in (("host", mapped.address), ("device", own.address)):
        yield where, address.to_bytes(8, "little")


def _most(holder: BusyKernel, name: str) -> int:
    """As many blocks of `SOME` threads as fit."""
    return holder.gpu.sms * holder.function(name).occupancy(SOME)


def _timed(holder: BusyKernel, name: str, blocks: int, values: list[bytes]) -> float:
    """Microseconds of a launch, by the device; the first warms up."""
    function = holder.function(name)
    buffer = pack_parameters(function.parameters, values)
    first, last = holder.gpu.event(), holder.gpu.event()
    took = 0.0
    for _ in range(2):
        first.record(holder.stream)
        function.launch((blocks, 1, 1), (SOME, 1, 1), buffer, stream=holder.stream)
        last.record(holder.stream)
        took = last.since_us(first)
    return took


if __name__ == "__main__":
    raise SystemExit(main())
