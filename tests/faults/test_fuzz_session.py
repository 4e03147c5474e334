"""A session with a live daemon against a model of it: what works and what fails, in any order.

Where `test_fuzz` asks whether each message is answered, this asks whether the answer is right: the
model knows which modules, shapes, arrays, jobs and variables the session has, and so whether a
request must succeed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from campaigns.fuzz.live import KERNEL, Talk
from gpud.wire import messages as wm
from gpud.wire.messages import CLIENT_PROTOCOL
from tests.support.daemon_process import DaemonProcess, serving

pytestmark = pytest.mark.ci

UNKNOWN = 999_999
SHAPE = (32, 1, 1)
TABLE_BYTES = 64  # of KERNEL's variable


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with serving("cpu:2", session_memory="16 MiB") as one:
        yield one


class SessionMachine(RuleBasedStateMachine):
    """One connection."""

    def __init__(self, daemon: DaemonProcess) -> None:
        super().__init__()
        self.daemon = daemon
        self.talk: Talk
        self.request = 0
        self.modules: dict[int, bytearray] = {}  # by number, the bytes of its variable
        self.measured: set[int] = set()
        self.arrays: dict[int, int] = {}
        self.last = 0

    def ask(self, make: Any) -> Any:
        self.request += 1
        return self.talk.ask(make(self.request))

    def refused(self, make: Any) -> None:
        answer = self.ask(make)
        assert type(answer) is wm.Failed, answer

    @initialize()
    def connect(self) -> None:
        self.talk = Talk(self.daemon.connect(timeout_s=60))
        self.modules, self.measured, self.arrays, self.last = {}, set(), {}, 0
        assert type(self.ask(lambda r: wm.Hello(r, 1, "model"))) is wm.Welcome

    def teardown(self) -> None:
        if hasattr(self, "talk"):
            self.talk.settle()
            self.talk.close()

    # -- modules

    @rule(variant=st.integers(0, 1))
    def compile(self, variant: int) -> None:
        source = KERNEL.replace("touch", "touch" * (1 + variant))
        compiled = self.ask(lambda r: wm.Compile(r, 0, source, ()))
        assert type(compiled) is wm.Compiled, compiled
        assert compiled.module not in self.modules
        self.modules[compiled.module] = bytearray(TABLE_BYTES)

    @rule()
    def compile_what_is_no_ptx(self) -> None:
        self.refused(lambda r: wm.Compile(r, 0, KERNEL.replace(".entry", ".entry ("), ()))
        self.refused(lambda r: wm.Compile(r, 7, KERNEL, ()))

    @precondition(lambda self: self.modules)
    @rule(data=st.data())
    def measure(self, data: st.DataObject) -> None:
        module = data.draw(st.sampled_from(sorted(self.modules)))
        measured = self.ask(lambda r: wm.Measure(r, module, 0, SHAPE, 0))
        assert type(measured) is wm.Measured, measured
        assert measured.occupancy >= 1
        self.measured.add(module)

    @rule(block=st.sampled_from([(1025, 1, 1), (32, 33, 1), (1, 1, 65)]))
    def measure_what_cannot_be(self, block: tuple[int, int, int]) -> None:
        self.refused(lambda r: wm.Measure(r, UNKNOWN, 0, SHAPE, 0))
        if self.modules:
            module = min(self.modules)
            self.refused(lambda r: wm.Measure(r, module, 1, SHAPE, 0))
            self.refused(lambda r: wm.Measure(r, module, 0, block, 0))

    @precondition(lambda self: self.modules)
    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        module = data.draw(st.sampled_from(sorted(self.modules)))
        self.talk.message(wm.Unload(module))
        del self.modules[module]
        self.measured.discard(module)
        self.refused(lambda r: wm.Measure(r, module, 0, SHAPE, 0))

    @precondition(lambda self: self.measured)
    @rule(data=st.data(), offset=st.integers(0, TABLE_BYTES + 2), value=st.binary(max_size=20))
    def write_a_variable_and_read_it(self, data: st.DataObject, offset: int, value: bytes) -> None:
        module = data.draw(st.sampled_from(sorted(self.measured)))
        held = self.modules[module]
        answer = self.ask(lambda r: wm.WriteSymbol(r, module, "table", offset, value))
        if offset + len(value) > TABLE_BYTES:
            assert type(answer) is wm.Failed
        else:
            assert type(answer) is wm.Answer, answer
            held[offset : offset + len(value)] = value
        whole = self.ask(lambda r: wm.ReadSymbol(r, module, "table", 0, TABLE_BYTES))
        assert whole.value == bytes(held)
        self.refused(lambda r: wm.ReadSymbol(r, module, "tables", 0, 1))

    # -- memory

    @rule(size=st.sampled_from([1, 100, 4096, 100_000]))
    def allocate(self, size: int) -> None:
        found = self.ask(lambda r: wm.Allocate(r, 0, size))
        if type(found) is wm.Failed:
            # Arrays take whole pages; what was freed may be in use for a moment.
            assert sum(self.arrays.values()) > 8 << 20, found
            return
        for address, taken in self.arrays.items():
            assert found.address + size <= address or address + taken <= found.address
        self.arrays[found.address] = size

    @rule(size=st.sampled_from([1 << 30, 1 << 40, (1 << 64) - 1]))
    def allocate_too_much(self, size: int) -> None:
        answer = self.ask(lambda r: wm.Allocate(r, 0, size))
        assert type(answer) is wm.Failed
        assert answer.error["code"] in ("out-of-memory", "limit-exceeded"), answer.error

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.arrays)))
        del self.arrays[address]
        self.talk.latest.pop(wm.Failed, None)
        self.talk.message(wm.Free(0, address))
        self.ask(lambda r: wm.Follow(r, False))
        assert wm.Failed not in self.talk.latest, self.talk.latest[wm.Failed]

    # -- jobs

    def submit(self, module: int, *, parameters: bytes = bytes(8), **more: Any) -> Any:
        self.last += 1
        launch = wm.LaunchRecord(module, 0, (5, 1, 1), SHAPE, 0, parameters)
        data = CLIENT_PROTOCOL.encode_records([launch])
        self.talk.message(wm.Submit(self.last, 0, data, **more))
        self.talk.until(lambda: not self.talk.account.open, "a job")
        return self.talk.finished[self.last]

    @precondition(lambda self: self.measured)
    @rule(data=st.data(), share=st.sampled_from([None, (1, 1), (1, 2), (7, 1)]))
    def run(self, data: st.DataObject, share: tuple[int, int] | None) -> None:
        module = data.draw(st.sampled_from(sorted(self.measured)))
        end = self.submit(module, quota=share)
        assert (end.state, end.progress) == ("done", (5, 5)), end
        end = self.submit(module, reservation=share)
        assert end.state == ("failed" if share == (7, 1) else "done"), end

    @rule(data=st.data())
    def run_what_cannot_be(self, data: st.DataObject) -> None:
        assert self.submit(UNKNOWN).state == "failed"
        for module in sorted(self.measured)[:1]:
            assert self.submit(module, parameters=bytes(9)).state == "failed"
            assert self.submit(module, quota=(1, 1), reservation=(1, 1)).state == "failed"
        for module in sorted(set(self.modules) - self.measured)[:1]:
            assert self.submit(module).state == "failed"

    @rule(ahead=st.integers(2, 5))
    def number_a_job_wrongly(self, ahead: int) -> None:
        self.talk.message(wm.Submit(self.last + ahead, 0, b"\x90"))
        self.talk.until(lambda: not self.talk.account.open, "a job")
        assert self.talk.finished.pop(self.last + ahead).state == "failed"

    @rule(other=st.booleans())
    def cancel_what_has_ended(self, other: bool) -> None:
        session = self.talk.account.session
        job = (session + 1000 if other else session, self.last)
        answer = self.ask(lambda r: wm.Cancel(r, job))
        assert type(answer) is wm.Failed or answer.value is False, answer
        rows = self.ask(lambda r: wm.Describe(r, ((session, UNKNOWN), job))).value
        assert len(rows) == 2
        assert rows[0] is None

    # -- the connection

    @rule()
    def say_hello_again(self) -> None:
        self.refused(lambda r: wm.Hello(r, 1, "again"))

    @rule(body=st.sampled_from([b"\x90", b"\x91\x7f", b"\xc0", b"\x92\x05\xa1x", b"\x81\xa1x\x02"]))
    def send_no_message(self, body: bytes) -> None:
        self.talk.send(len(body).to_bytes(4, "little") + body)
        self.ask(lambda r: wm.Follow(r, False))

    @rule(data=st.sampled_from([bytes(4), b"\xff" * 4, b"\x01\0\0\0\xc1", b"\x03\0\0\0\x81\1\2"]))
    def break_the_stream(self, data: bytes) -> None:
        self.talk.send(data)
        self.talk.settle()
        assert self.talk.account.goodbye is not None
        self.talk.close()
        self.connect()


def test_a_session_is_as_its_model(daemon: DaemonProcess) -> None:
    run_state_machine_as_test(
        lambda: SessionMachine(daemon),  # type: ignore[arg-type]
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert daemon.bugs() == [], daemon.log_tail()
