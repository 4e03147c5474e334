"""Messages of finalizers, and of whoever must not wait: they are sent, whoever else is sending."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from tests.support.daemon_process import serving

LONG = r"""
extern "C" __global__ void run(volatile unsigned* go) { while (!*go) {} }
"""


@pytest.mark.parametrize("how", ["asks", "submits"])
def test_a_message_that_comes_while_a_thread_sends_goes_before_anything_is_waited_for(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as daemon, gc.connect(daemon.path) as gpu:
        kernel, go = gpu.kernel(LONG, "run"), gpu.zeros(1, np.uint32)
        word, x = go.numpy(), gpu.zeros(4, np.float32)
        kernel.occupancy(1)
        channel, core = gpu._channel, gpu._core
        push, wait = channel._push, channel.wait
        left: list[int] = []

        def push_and_add() -> None:
            push()
            monkeypatch.setattr(channel, "_push", push)
            core.garbage.append(wm.Free(0, x.ptr))
            channel.kick()  # as the thread does that reads, such as for a turn that is recalled
            assert core.garbage, "this thread is sending"

        def look_and_wait(*args: Any) -> bool:
            left.append(len(core.garbage))
            return wait(*args)

        monkeypatch.setattr(channel, "_push", push_and_add)
        if how == "asks":
            monkeypatch.setattr(channel, "wait", look_and_wait)
            gpu.query("status")
        else:
            job = kernel.submit(1, 1, (go,))
            left.append(len(core.garbage))
            word[0] = 1
            job.result(20)
        assert left[0] == 0
