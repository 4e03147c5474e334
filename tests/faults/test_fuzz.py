"""Spoilt messages: at the parser, at a live daemon, by chance, by Hypothesis and by coverage.

A few ten thousand messages with fixed seeds; campaigns/fuzz/run.py sends the millions.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaigns.fuzz import coverage, live
from campaigns.fuzz import run as fuzz
from campaigns.fuzz.choices import Dice, Drawn, Steered
from campaigns.fuzz.messages import Fuzzer
from campaigns.fuzz.neighbour import Neighbour
from campaigns.fuzz.parser import Outcomes, all_fuzzers, check_batch, check_body
from gpud.errors import FrameError, ProtocolError
from gpud.wire import messages as wm
from gpud.wire.message_table import Sender
from gpud.wire.messages import CLIENT_PROTOCOL
from tests.support.daemon_process import DaemonProcess, serving

ROOT = Path(__file__).resolve().parents[2]
FUZZERS = list(dict.fromkeys(all_fuzzers()))
IDS = [f"{fuzzer.table.name}-{fuzzer.sender.value}" for fuzzer in FUZZERS]
CLIENT = FUZZERS[0]


# -- the messages --------------------------------------------------------------------------------


@pytest.mark.parametrize("fuzzer", FUZZERS, ids=IDS)
def test_every_message_has_valid_examples(fuzzer: Fuzzer) -> None:
    dice = Dice(1)
    for cls in fuzzer.classes:
        for _ in range(30):
            sent = fuzzer.valid(dice, cls)
            found = fuzzer.table.decode(fuzzer.table.encode(sent)[4:], fuzzer.sender)
            assert type(found) is cls
            # Arrays come out as tuples, and NaN is not NaN.
            assert repr(as_tuples(found)) == repr(as_tuples(sent))
            assert repr(fuzzer.table.check(found)) == repr(found)


def as_tuples(value: Any) -> Any:
    """With tuples for lists."""
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("fuzzer", FUZZERS, ids=IDS)
def test_a_wrong_field_is_named(fuzzer: Fuzzer) -> None:
    """A message with any value in any place is read, or refused with the name of that field."""
    dice, refused = Dice(2), 0
    odds: list[Any] = [None, True, -1, 1.5, 1 << 63, b"\xff", [], [[1]], {"a": []}]
    for cls in fuzzer.classes:
        schema = fuzzer.table.schema(cls)
        for place, field in enumerate(schema.fields):
            for odd in odds:
                values = list(as_tuples(fuzzer.valid(dice, cls)))
                values[place] = odd
                error = refusal(fuzzer, msgpack.packb([schema.code, *values]))
                if error is None:
                    continue
                refused += 1
                assert f"field {field.name} of {cls.__name__}" in str(error)
                if place and schema.numbered in ("request", "job"):
                    assert getattr(error, schema.numbered) == values[0]
    assert refused > 30


def refusal(fuzzer: Fuzzer, body: bytes) -> ProtocolError | None:
    try:
        fuzzer.table.decode(body, fuzzer.sender)
    except ProtocolError as error:
        return error
    return None


def test_equal_decisions_make_equal_messages() -> None:
    for make in (lambda: Dice("7"), lambda: Steered(bytes(range(256)) * 8)):
        one, two = make(), make()
        assert [CLIENT.piece(one) for _ in range(50)] == [CLIENT.piece(two) for _ in range(50)]


def test_messages_are_spoilt_in_every_way_and_seldom_too_much() -> None:
    dice = Dice(3)
    pieces = [CLIENT.piece(dice) for _ in range(5000)]
    assert {piece.kind for piece in pieces} == {cls.__name__ for cls in CLIENT.classes}
    assert len({piece.how for piece in pieces}) >= 15
    outcomes = Counter(check_body(CLIENT_PROTOCOL, Sender.CLIENT, piece.data) for piece in pieces)
    assert min(outcomes["accepted"], outcomes["refused"], outcomes["broken"]) > 500


# -- the parser ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fuzzer", FUZZERS, ids=IDS)
def test_the_parser_stands_what_is_spoilt(fuzzer: Fuzzer) -> None:
    outcomes: Outcomes = Counter()
    for batch in range(60):
        check_batch(fuzzer, f"test:{batch}", outcomes)
    assert sum(outcomes.values()) >= 3000


@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_the_parser_stands_what_hypothesis_finds(data: st.DataObject) -> None:
    choices = Drawn(data.draw)
    fuzzer = choices.pick(FUZZERS)
    for _ in range(3):
        check_body(fuzzer.table, fuzzer.sender, fuzzer.piece(choices).data)


@pytest.mark.ci
def test_a_planted_bug_of_the_parser_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = CLIENT_PROTOCOL.schema(wm.Resize)
    checked_build = shape.checked_build

    def planted(values: Any) -> Any:
        if type(values[1]) is not list:
            raise KeyError("planted")
        return checked_build(values)

    monkeypatch.setattr(shape, "checked_build", planted)

    def search() -> None:
        for batch in range(200):
            check_batch(CLIENT, f"test:{batch}", Counter())

    with pytest.raises(KeyError, match="planted"):
        search()


@pytest.mark.ci
def test_the_benchmark_counts_and_names_the_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fuzz.fuzz_parser("1", 5, 640, end=float("inf"))
    assert found["messages"] >= 640
    assert found["batches"] == [5, 15]
    assert sum(found["outcomes"].values()) == found["messages"]
    assert found["problems"] == []

    def planted(fuzzer: Fuzzer, seed: str, outcomes: Outcomes) -> None:
        if seed == "1:7":
            raise KeyError("planted")

    monkeypatch.setattr(fuzz, "check_batch", planted)
    found = fuzz.fuzz_parser("1", 5, 640, end=float("inf"))
    assert found["problems"] == ["batch 7: KeyError: 'planted'"]


@pytest.mark.ci
def test_the_parser_guided_by_coverage(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "campaigns.fuzz.coverage", str(result), "1", "1500", "60"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if importlib.util.find_spec("atheris") is None:
        assert done.returncode == coverage.NOT_INSTALLED
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(result.read_text())["messages"] >= 1500


# -- a live daemon -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with serving("cpu:2") as one:
        yield one


@pytest.mark.ci
def test_a_live_daemon_answers_for_every_message(daemon: DaemonProcess) -> None:
    outcomes: Outcomes = Counter()
    with Neighbour(str(daemon.path)) as neighbour:
        foreign = neighbour.names() if os.geteuid() == 0 else {}
        host = [one.pid for one in daemon.samples() if one.role == "host"]
        for number in range(25):
            live.fuzz_connection(daemon.connect(), f"test:{number}", 100, outcomes, foreign)
        found = neighbour.end()
    assert found["wrong"] == []
    assert found["jobs"] > 0
    assert [one.pid for one in daemon.samples() if one.role == "host"] == host
    assert daemon.bugs() == [], daemon.log_tail()
    assert sum(outcomes.values()) > 1000


def account_of(*messages: Any) -> live.Account:
    account = live.Account()
    for message in (wm.Hello(1, 1, "test"), *messages):
        account.send(CLIENT_PROTOCOL.encode(message))
    account.receive(wm.Welcome(1, 1, 1, [], {}, {}))
    return account


def test_an_account_is_settled_by_what_is_owed() -> None:
    account = account_of(
        wm.Query(2, "status"), wm.Query(2, "status"), wm.Submit(1, 0, b""), wm.Free(0, 1)
    )
    account.receive(wm.Failed(2, {"code": "x"}))
    assert account.open == 2
    account.receive(wm.Answer(2))
    account.receive(wm.Finished(1, "done", None, b"", {}, (0, 0)))
    assert account.open == 0
    account.receive(wm.Failed(0, {"code": "x"}))  # of the Free
    account.check_end()


@pytest.mark.parametrize(
    ("sent", "came"),
    [
        (wm.Query(2, "status"), wm.Allocated(2, 1)),  # of another class
        (wm.Query(2, "status"), wm.Answer(3)),  # nobody asked
        (wm.Submit(1, 0, b""), wm.Finished(2, "done", None, b"", {}, (0, 0))),
        (wm.Query(2, "status"), wm.Failed(2, {"code": "internal"})),
    ],
)
def test_an_account_notices_what_is_not_owed(sent: Any, came: Any) -> None:
    with pytest.raises(live.Unanswered):
        account_of(sent).receive(came)


def test_an_account_notices_what_comes_twice() -> None:
    account = account_of(wm.Query(2, "status"))
    account.receive(wm.Answer(2))
    with pytest.raises(live.Unanswered):
        account.receive(wm.Answer(2))
    account = account_of()
    account.receive(wm.Failed(0, {"code": "x"}))
    with pytest.raises(live.Unanswered):
        account.check_end()


def test_an_account_knows_when_the_connection_must_end() -> None:
    account = live.Account()
    account.send(CLIENT_PROTOCOL.encode(wm.Query(1, "status")))  # before Hello
    assert account.ended
    account = account_of()
    account.send(b"\0\0\0\0")
    assert account.ended


def test_frame_errors_are_protocol_errors() -> None:
    """The fuzzers tell them apart by catching the narrower one first."""
    assert issubclass(FrameError, ProtocolError)
