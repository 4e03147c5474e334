"""Which driver calls wait for running kernels, and what delays launches on other streams.

    python bench/gpu/waits.py [--ms 400]

Problem: a persistent kernel may run for hours, and the driver's manual says of few calls whether
they wait for it ("may perform implicit synchronization"). One that waits under the device's lock
stops everything.

Approach: a kernel keeps the GPU busy until the host ends it or `--ms` are over. Meanwhile one thing
is done: a call, or a launch elsewhere that is waited for. If the kernel is over when that has
returned, it waited. Where the kernel is to be on all SMs, it has as many blocks as fit, or twice as
many.

All of that is done beside one block and, for calls, with all SMs full as well. Loads are not among
them: `bench.gpu.load_beside` has a process of its own for them, as they may wait for each other.

Also measured: how long after a store of the host a block's answer to it is seen (with the way back
over the bus in it), which is how blocks are told to release. And the cost of a read of a word in
host memory, which blocks make before every claim, beside a read of device memory: by one block, and
by as many as fit. And the cost when all of these count themselves out of such a word, which blocks
that leave did until each had a mark of its own.

Writes bench/results/gpu_waits.json part by part.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.busy_kernel import Act, BusyKernel
from bench.gpu.instrumentation.calls_beside import calls, wide_bytes
from bench.gpu.instrumentation.driver import Gpu, check
from bench.gpu.instrumentation.timestamps import quantiles_us
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import keep, need_gpu
from gpud.device.cuda.driver.semaphore import Semaphore
from gpud.device.interface import pack_parameters

WIDE = "much shared memory"
STREAMS = 40
LOOKS = 1000
SOME = 64
SIGHTS, SIGHT_S = 300, 5.0


def main() -> int:
    """Measure, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ms", type=float, default=400.0, help="how long the kernel may hold")
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    busy = BusyKernel(gpu, options.ms / 1e3)
    found: dict[str, Any] = {"ms": options.ms}

    def part(name: str, values: dict[str, Any]) -> None:
        """Print a part of the result, and save what there is so far."""
        found[name] = values
        for what, one in values.items():
            if isinstance(one, dict) and "waits" in one:
                verdict = one.get("error") or ("WAITS" if one["waits"] else "does not wait")
                print(f"{name:<12}{what:<44}{verdict:<16}{one['us']:>12.0f} us", flush=True)
            else:
                print(f"{name:<12}{what:<44}{one}", flush=True)
        keep("waits", gpu, {"complete": False, **found})

    part("sight_us", sight(busy))
    part("calls", calls(busy))
    busy.everywhere = True
    part("calls_full", calls(busy))
    busy.everywhere = False
    beside = {name: busy.run_beside(**case) for name, case in launches(busy).items()}
    part("launches", {**beside, f"{WIDE}, all SMs divided for that": divided_alike(busy)})
    part("streams", {"at_once": streams_at_once(busy), "of": STREAMS})
    part("look_us", looks(busy))
    part("leave_us", leaves(busy))
    print(f"wrote {keep('waits', gpu, {'complete': True, **found}).name}")
    return 0


def sight(busy: BusyKernel, rounds: int = SIGHTS) -> dict[str, float]:
    """Microseconds from a store to mapped host memory until the host sees a block's answer to it.

    The answer is a store to host memory, too. Empty: the block did not answer in time.
    """
    gpu = busy.gpu
    word, answer = gpu.host_words(8), gpu.host_words(8)
    word.words[:] = 0
    answer.words[:] = 0
    sees = busy.function("sees")
    limit_s = max(busy.seconds, SIGHT_S)
    values = [
        word.address.to_bytes(8, "little"),
        answer.address.to_bytes(8, "little"),
        rounds.to_bytes(4, "little"),
        int(1e9 * limit_s).to_bytes(8, "little"),
    ]
    buffer = pack_parameters(sees.parameters, values)
    sees.launch((1, 1, 1), (1, 1, 1), buffer, stream=busy.stream)
    took, ends = [], time.monotonic() + limit_s
    for number in range(1, rounds + 1):
        began = time.perf_counter_ns()
        word.words[0] = number
        while answer.words[0] < number and time.monotonic() < ends:
            pass
        took.append(time.perf_counter_ns() - began)
    gpu.synchronise(busy.stream)
    return quantiles_us(took) if answer.words[0] == rounds else {}


def launches(busy: BusyKernel) -> dict[str, dict[str, Any]]:
    """Return a launch on another stream, waited for: arguments of `BusyKernel.run_beside` by name.

    "Behind": queued behind the busy kernel, on its stream or waiting for it. Shared memory is
    requested beside a block without any on each SM, so that the SMs need another split.
    """
    cu = busy.gpu.cu
    other, third = busy.others
    semaphore = Semaphore()

    def elsewhere(name: str = "quick", shared: int = 0) -> Act:
        def act() -> None:
            busy.launch(name, other, shared)
            busy.finish(other)

        return act

    def host_function() -> None:
        check(cu.cuLaunchHostFunc(busy.stream, semaphore.post_function, semaphore.address))

    def wait_event() -> None:
        check(cu.cuStreamWaitEvent(third, busy.event(busy.stream), 0))
        busy.launch("quick", third)

    def more() -> None:
        for _ in range(32):
            busy.launch("quick", busy.stream)
            busy.event(busy.stream)

    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    wide = wide_bytes(busy.gpu)
    check(cu.cuFuncSetAttribute(busy.function("wide").handle, which, wide))
    everywhere = {"blocks": 2 * busy.capacity(1024), "threads": 1024}
    one_each = {"blocks": busy.gpu.sms, "threads": 512}
    return {
        "a launch": {"act": elsewhere()},
        "a launch, a host function behind": {"act": elsewhere(), "behind": host_function},
        "a launch, 32 launches behind": {"act": elsewhere(), "behind": more},
        "a launch, a third stream behind": {"act": elsewhere(), "behind": wait_event},
        WIDE: {"act": elsewhere("wide", wide), **one_each},
        "urgent, twice as many blocks as fit": {"act": elsewhere(), **everywhere},
        # Last: the driver keeps the local memory that it allocates.
        "16 KiB of local memory a thread": {"act": elsewhere("deep")},
    }


def divided_alike(busy: BusyKernel) -> dict[str, Any]:
    """Return the launch with much shared memory again, with a busy kernel that prefers as much."""
    cu = busy.gpu.cu
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    kinds = cu.CUshared_carveout
    hold = busy.function("hold").handle
    check(cu.cuFuncSetAttribute(hold, which, int(kinds.CU_SHAREDMEM_CARVEOUT_MAX_SHARED)))
    case = launches(busy)[WIDE]
    found = busy.run_beside(**case)
    check(cu.cuFuncSetAttribute(hold, which, int(kinds.CU_SHAREDMEM_CARVEOUT_DEFAULT)))
    return found


def streams_at_once(busy: BusyKernel, count: int = STREAMS) -> int:
    """How many of ``count`` kernels on streams of their own run at once; each has one behind it."""
    busy.reset()
    streams = [busy.gpu.stream() for _ in range(count)]
    for stream in streams:
        busy.begin(1, 32, stream, busy.seconds)
        busy.launch("quick", stream)
    ends = time.monotonic() + busy.seconds / 2
    while busy.begun() < count and time.monotonic() < ends:
        time.sleep(1e-3)
    begun = busy.begun()
    busy.end()
    for stream in streams:
        check(busy.gpu.cu.cuStreamDestroy(stream))
    return begun


def looks(busy: BusyKernel, count: int = LOOKS) -> dict[str, float]:
    """Microseconds between two reads of a word by a block."""
    found: dict[str, float] = {}
    for where, address in _words(busy):
        for blocks in (1, _most(busy, "looks")):
            took = _timed(busy, "looks", blocks, [address, count.to_bytes(4, "little")])
            found[f"{where} memory, {blocks} blocks"] = took / count
    return found


def leaves(busy: BusyKernel) -> dict[str, float]:
    """Microseconds of a launch whose blocks each count themselves out of one word."""
    blocks = _most(busy, "leaves")
    return {
        f"{where} memory, {blocks} blocks": _timed(busy, "leaves", blocks, [address])
        for where, address in _words(busy)
    }


def _words(busy: BusyKernel) -> Iterator[tuple[str, bytes]]:
    """Return a word in host and in device memory: its address as a parameter."""
    mapped, own = busy.gpu.host_words(8), busy.gpu.buffer(np.zeros(8, np.uint32))
    for where, address in (("host", mapped.address), ("device", own.address)):
        yield where, address.to_bytes(8, "little")


def _most(busy: BusyKernel, name: str) -> int:
    """As many blocks of `SOME` threads as fit."""
    return busy.gpu.sms * busy.function(name).occupancy(SOME)


def _timed(busy: BusyKernel, name: str, blocks: int, values: list[bytes]) -> float:
    """Microseconds of a launch, by the device, after one that warms up."""
    function = busy.function(name)
    buffer = pack_parameters(function.parameters, values)
    first, last = busy.gpu.event(), busy.gpu.event()
    took = 0.0
    for _ in range(2):
        first.record(busy.stream)
        function.launch((blocks, 1, 1), (SOME, 1, 1), buffer, stream=busy.stream)
        last.record(busy.stream)
        took = last.since_us(first)
    return took


if __name__ == "__main__":
    raise SystemExit(main())
