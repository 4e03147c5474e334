"""The online client: an inference service that measures the latencies of its requests.

Problem: correct latencies under load. A client that waits for an answer before it sends the next
request stops sending exactly when the system is slow, and so hides the delay.

Approach: open loop. One thread submits each request at its arrival time, whether or not earlier
ones are answered; another receives the answers, in order. A latency is from the planned arrival
until the client has the answer, so delays of the submitting thread count.

Source: G. Tene, "How NOT to measure latency" (coordinated omission).
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

import numpy as np

import gpud_client as gc
from gpud.demo.offline_kernels import Array
from gpud.demo.online_network import BATCH, BLOCK, INPUTS, ONLINE_SOURCE, SLOTS, WIDTH, network

__all__ = ["OnlineAnswers", "OnlineClient", "layers_for"]

_RESULT_S = 60.0
_TRIAL_LAYERS = 6


@dataclass
class OnlineAnswers:
    """The measurements of answered requests, in order of arrival.

    Attributes:
        latencies_s: from the planned arrival to the answer.
        run_s: running time on the device.
        arrived_s: planned arrival times of all requests, on the clock of `time.monotonic`.
    """

    latencies_s: list[float] = field(default_factory=list)
    run_s: list[float] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)


def layers_for(gpu: gc.Session, request_s: float) -> int:
    """Return how many layers make a request run about ``request_s`` seconds on an idle device."""
    trial = OnlineClient(gpu, _TRIAL_LAYERS)
    trial.answer(0)
    ran = min(trial.answer(number) for number in range(1, 6))
    trial.check()
    return max(2, round(request_s / ran * _TRIAL_LAYERS))


class OnlineClient:
    """Submits requests, each with a reservation of the whole device, and checks the answers.

    Under the policy ``equal``, which keeps no reservations, requests have none.

    Args:
        gpu: a connection that only this client uses.
        layers: number of dense layers; a request has one kernel more.
        lane: all requests run in one lane, which has the reservation.
    """

    def __init__(self, gpu: gc.Session, layers: int, *, lane: bool = False) -> None:
        reservation = None if gpu.daemon["policy"] == "equal" else "100%"
        self._lane = gpu.lane(reservation=reservation) if lane else None
        self._reservation = None if lane else reservation
        self.problems: list[str] = []
        self._gpu = gpu
        self._network = net = network(layers)
        self._first: list[bytes | None] = [None] * INPUTS
        weights = [gpu.array(matrix) for matrix in net.weights]
        biases = [gpu.array(bias) for bias in net.biases]
        inputs = [gpu.array(one) for one in net.inputs]
        dense = gpu.kernel(ONLINE_SOURCE, "dense")
        softmax = gpu.kernel(ONLINE_SOURCE, "softmax")
        grid, width, shape = (WIDTH // 16, BATCH // 16), np.int32(WIDTH), (BATCH, WIDTH)
        self._slots: list[_Slot] = []
        for number in range(SLOTS):
            hidden = [gpu.zeros(shape, np.float32) for _ in range(2)]
            output, served = gpu.zeros(shape, np.float32), gpu.zeros(BATCH, np.uint32)
            signal, launches = inputs[number % INPUTS], []
            for layer in range(layers):
                into = hidden[layer % 2]
                values = (signal, weights[layer], biases[layer], into, width)
                launches.append(dense.call(grid, BLOCK, values))
                signal = into
            launches.append(softmax.call(BATCH, 256, (signal, output, served, width)))
            self._slots.append(_Slot(launches, gpu.stream(), output.numpy(), served.numpy()))

    def submit(self, number: int) -> gc.Job:
        """Submit request ``number``; it uses input ``number`` modulo `INPUTS`."""
        slot = self._slots[number % SLOTS]
        stream = slot.stream if self._lane is None else self._lane
        return self._gpu.sequence(slot.calls, reservation=self._reservation, stream=stream)

    def answer(self, number: int) -> float:
        """Submit a request and wait for its answer; return its running time in seconds."""
        return self._take(number, self.submit(number))

    def serve(self, arrivals_s: list[float], began_s: float) -> OnlineAnswers:
        """Submit requests as they arrive; return when all are answered.

        Args:
            arrivals_s: arrival times in seconds after ``began_s``, ascending.
            began_s: start time on the clock of `time.monotonic`, not in the past.
        """
        answers = OnlineAnswers(arrived_s=[began_s + at for at in arrivals_s])
        waiting: queue.SimpleQueue[tuple[int, gc.Job] | None] = queue.SimpleQueue()

        def take() -> None:
            while (item := waiting.get()) is not None:
                number, job = item
                try:
                    ran = self._take(number, job, answers)
                except (gc.GpudError, TimeoutError) as error:
                    self.problems.append(f"request {number}: {type(error).__name__}: {error}")
                    continue
                answers.run_s.append(ran)

        taker = threading.Thread(target=take, name="answers")
        taker.start()
        try:
            for number, at in enumerate(answers.arrived_s):
                if (pause := at - time.monotonic()) > 0:
                    time.sleep(pause)
                waiting.put((number, self.submit(number)))
        finally:
            waiting.put(None)
            taker.join()
        return answers

    def check(self) -> None:
        """Compare how often each row was computed with how often it was requested."""
        for number, slot in enumerate(self._slots):
            wrong = int((slot.served != slot.answered).sum())
            if wrong:
                self.problems.append(
                    f"slot {number}: {wrong} rows were not answered {slot.answered} times"
                )

    def _take(self, number: int, job: gc.Job, answers: OnlineAnswers | None = None) -> float:
        job.result(_RESULT_S)
        if answers is not None:
            answers.latencies_s.append(time.monotonic() - answers.arrived_s[number])
        slot, which = self._slots[number % SLOTS], number % INPUTS
        slot.answered += 1
        first = self._first[which]
        if first is None:
            problem = self._network.wrong(which, slot.output)
            self._first[which] = slot.output.tobytes()
        else:
            same = slot.output.tobytes() == first
            problem = "" if same else "the bytes are not those of the first answer"
        if problem:
            self.problems.append(f"request {number}: {problem}")
        return float(job.stats["run_s"])


@dataclass
class _Slot:
    """The arrays and the stream of one request at a time.

    ``output`` and ``served`` are live views of device memory, read without synchronisation.
    ``answered`` counts the requests whose answers were received.
    """

    calls: list[gc.Launch]
    stream: gc.Stream
    output: Array
    served: Array
    answered: int = 0
