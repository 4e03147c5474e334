"""An executor: the process that runs tasks on one GPU.

Its controller is the thread that reads messages; it puts tasks into a first-in, first-out queue.
Its thread manager has n threads, each with a stream of its own, which take tasks from the queue and
run them through the node's gpud.

Streams only order, so the threads' shares are quotas: the n-th part of the device (mode ``split``),
n being the number of parallel tasks, or what its start message says. In mode ``in turn`` a kernel
has the whole device, and kernels run one after another.

    python -m gpud_ray.sets.run.executor FD '{"socket": ..., "device": 0, "parallel": 2, ...}'
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from fractions import Fraction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import gpud_client as gc
from gpud.errors import ConnectionLost, GpudError
from gpud_ray.sets.kernels import KERNELS, SOURCE
from gpud_ray.sets.run.messages import Message, needs_of, program_of, receive, send
from gpud_ray.sets.setfile import Program

__all__ = ["main"]

_OUTPUT_BYTES = 2_000  # of an executable's output, from its end


class _Failed(Exception):
    """A task has failed; the message is the reason."""


class _Executor:
    def __init__(self, connection: Connection[Any, Any], config: dict[str, Any]) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._session = gc.connect(config["socket"], name="gpud-ray executor")
        self._socket = str(config["socket"])
        self._device = self._session.devices[config["device"]]
        self._parallel = int(config["parallel"])
        self._threads = int(config["threads"])
        self._in_turn = threading.Lock() if config["mode"] == "in turn" else None
        self._queue: queue.Queue[Message | None] = queue.Queue()
        self._kernels: dict[tuple[str, str], gc.Kernel] = {}
        self._compiling = threading.Lock()

    def run(self) -> None:
        """Run tasks until the framework says stop or is gone."""
        threads = [
            threading.Thread(target=self._work, name=f"tasks {number}", daemon=True)
            for number in range(self._threads)
        ]
        for thread in threads:
            thread.start()
        self._send(
            {
                "is": "ready",
                "memory_mb": self._device.memory >> 20,
                "capsm_milli": 1000 * self._device.sms,
                "cores": sorted(os.sched_getaffinity(0)),
            }
        )
        with suppress(EOFError, OSError):
            while (message := receive(self._connection))["is"] != "stop":
                self._queue.put(message)
        self._session.close()
        with suppress(ProcessLookupError):
            os.killpg(0, signal.SIGKILL)  # with all that tasks have started

    def _send(self, message: Message) -> None:
        with self._sending, suppress(OSError):  # then the framework is gone, and so are we
            send(self._connection, message)

    def _work(self) -> None:
        stream = self._session.stream()
        while True:
            message = self._queue.get()
            assert message is not None
            head = {"task": message["task"], "attempt": message["attempt"]}
            self._send({"is": "began", **head})
            begin, reason, output, kernels_s = time.monotonic(), "", "", [0.0]
            no_room = False
            try:
                output = self._run(message, stream, kernels_s)
            except (_Failed, GpudError, ValueError, TypeError, OSError, MemoryError) as error:
                reason = str(error) or type(error).__name__
                no_room = isinstance(error, gc.OutOfMemory)
                if isinstance(error, ConnectionLost):
                    # Tasks cannot run here any more; the framework starts an executor anew.
                    os._exit(1)
            self._send(
                {
                    "is": "ended", **head, "reason": reason, "may_have_run": True,
                    "took_s": time.monotonic() - begin, "kernels_s": sum(kernels_s),
                    "output": output, "no_room": no_room,
                }
            )  # fmt: skip

    def _run(self, message: Message, stream: Any, kernels_s: list[float]) -> str:
        program, needs = program_of(message), needs_of(message)
        if program.kind == "executable":
            return self._run_executable(program, needs.memory_mb)
        share = Fraction(self._device.sms, self._parallel)
        if self._in_turn is not None:
            share = Fraction(self._device.sms)
        elif message["quota_milli"] is not None:
            share = min(Fraction(message["quota_milli"], 1000), Fraction(self._device.sms))
        deadline = None if program.timeout_s is None else time.monotonic() + program.timeout_s

        def submit(kernel: gc.Kernel, grid: Any, block: Any, arguments: tuple[Any, ...]) -> None:
            left_s = None if deadline is None else max(0.001, deadline - time.monotonic())
            with self._in_turn or nullcontext():
                job = kernel.submit(
                    grid, block, arguments, quota=share, stream=stream, device=self._device,
                    timeout=left_s,
                )  # fmt: skip
                job.result()
            kernels_s.append(job.stats.get("run_s") or 0.0)

        if program.kind == "own":
            wrong = KERNELS[program.name].run(
                lambda values: self._session.array(values, device=self._device),
                lambda name, *rest: submit(self._kernel(SOURCE, name), *rest),
                program.size,
                np.random.default_rng(program.seed),
            )
            if wrong:
                raise _Failed(wrong)
            return ""
        arguments = tuple(self._argument(text) for text in program.arguments)
        submit(self._kernel(program.source, program.name), program.grid, program.block, arguments)
        return ""

    def _kernel(self, source: str, name: str) -> gc.Kernel:
        with self._compiling:
            kernel = self._kernels.get((source, name))
            if kernel is None:
                kernel = self._session.kernel(source, name, device=self._device)
                self._kernels[source, name] = kernel
            return kernel

    def _argument(self, text: str) -> Any:
        from gpud_client.cli.kernel_arguments import ArraySpec, parse_argument

        argument = parse_argument(text)
        if isinstance(argument, ArraySpec):
            values = argument.make(np.random.default_rng(0))
            return self._session.array(values, device=self._device)
        return argument

    def _run_executable(self, program: Program, memory_mb: int) -> str:
        environment = {
            **os.environ,
            "GPUD_SOCKET": self._socket,
            "GPUD_TASK_DEVICE": str(self._device.index),
            "GPUD_TASK_MEMORY_MB": str(memory_mb),
        }
        child = subprocess.Popen(
            [program.name, *program.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            output, _ = child.communicate(timeout=program.timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise _Failed(f"it did not end within {program.timeout_s:g} s") from None
        said = output[-_OUTPUT_BYTES:].decode("utf-8", "replace")
        if child.returncode:
            status = f"exit status {child.returncode}"
            if child.returncode < 0:
                status = f"signal {-child.returncode}"
            raise _Failed(f"{status}: {said.strip()}" if said.strip() else status)
        return said


def main() -> None:
    """Run an executor on the connection that was inherited."""
    config = json.loads(sys.argv[2])
    os.sched_setaffinity(0, config["cores"])
    _Executor(Connection(int(sys.argv[1])), config).run()


if __name__ == "__main__":
    main()
