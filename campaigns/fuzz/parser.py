"""The parser under fuzzed streams: what it must do with any bytes, checked on each message.

One *batch* is a stream of messages, made from the seed and the batch's number and from nothing
else, so a failure is run again by itself: ``check_batch(fuzzer, "SEED:BATCH", Counter())``.

Properties that are checked (`gpud.wire.framing`, `gpud.wire.message_table`):
    total: each body gives a message of the table, or a `ProtocolError` that is short and travels;
    round_trip: what is accepted is the same after one more trip;
    any_pieces: a stream that comes in pieces gives the same bodies;
    broken_stays_broken: after a `FrameError` the decoder gives nothing more;
    bounded: nothing that is refused is kept (`FrameDecoder.pending_bytes`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from campaigns.fuzz.choices import Choices, Dice
from campaigns.fuzz.messages import Fuzzer, Piece
from gpud.compiler.process.messages import COMPILE_PROTOCOL
from gpud.device.host.messages import HOST_PROTOCOL
from gpud.errors import FrameError, ProtocolError, from_wire
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import MessageTable, Sender
from gpud.wire.messages import CLIENT_PROTOCOL

BATCH = 64
"""Messages of a batch."""

_LIMIT_BYTES = 1 << 20
_WORDS = 4000  # the longest message of an error, in characters
_SPOILT_FRAMES_ONE_IN = 6

Outcomes = Counter[tuple[str, str, str]]
"""How many messages, by kind, by how they were spoilt, and by what became of them."""


def all_fuzzers() -> list[Fuzzer]:
    """One for each side of each protocol; the clients' six times, for it is the one that hostile
    programs can reach."""
    client = Fuzzer(CLIENT_PROTOCOL, Sender.CLIENT)
    others = [
        Fuzzer(table, sender)
        for table, sender in (
            (CLIENT_PROTOCOL, Sender.DAEMON),
            (HOST_PROTOCOL, Sender.CLIENT),
            (HOST_PROTOCOL, Sender.DAEMON),
            (COMPILE_PROTOCOL, Sender.CLIENT),
            (COMPILE_PROTOCOL, Sender.DAEMON),
        )
    ]
    return [client] * 6 + others


def check_batch(fuzzer: Fuzzer, seed: str, outcomes: Outcomes) -> None:
    """Makes the batch of a seed and checks it.

    Raises:
        AssertionError: a property does not hold.
        Exception: whatever else the parser raised.
    """
    dice = Dice(seed)
    if dice.below(_SPOILT_FRAMES_ONE_IN):
        for _ in range(BATCH):
            piece = fuzzer.piece(dice)
            outcome = check_body(
                fuzzer.table, fuzzer.sender, piece.data, thorough=not dice.below(16)
            )
            outcomes[piece.kind, piece.how, outcome] += 1
        return
    pieces = [
        fuzzer.piece(dice) if dice.below(8) else fuzzer.piece_without_frame(dice)
        for _ in range(BATCH)
    ]
    check_stream(fuzzer, pieces, dice, outcomes)


def check_body(table: MessageTable, sender: Sender, body: bytes, *, thorough: bool = True) -> str:
    """What becomes of a frame's body: accepted, refused or broken."""
    try:
        message = table.decode(body, sender)
    except FrameError:
        return "broken"
    except ProtocolError as error:
        if thorough:
            _check_error(error)
        return "refused"
    assert table.schema(type(message)).sender is sender
    if thorough:
        again = table.decode(table.encode(message)[4:], sender)
        assert repr(again) == repr(message), "it is another after one more trip"  # NaN is not NaN
    for field in ("launches",):
        data = getattr(message, field, None)
        if isinstance(data, bytes):
            _check_records(table, data)
    return "accepted"


def check_stream(fuzzer: Fuzzer, pieces: list[Piece], choices: Choices, outcomes: Outcomes) -> None:
    """The same for a stream of frames, some of which are none."""
    data = b"".join(piece.sent for piece in pieces)
    whole = bodies(data, [len(data)])
    cuts = [1 + choices.below(4096) for _ in range(8)]
    assert bodies(data, cuts) == whole, "the bodies depend on how the stream was cut"
    found, end = whole
    for body in found:
        outcome = check_body(fuzzer.table, fuzzer.sender, body)
        outcomes["(stream)", "spoilt frames", outcome] += 1
    # Messages after a frame that is none, and one that waits for its end, are never seen.
    outcomes["(stream)", "spoilt frames", end] += max(0, len(pieces) - len(found))


def bodies(data: bytes, cuts: list[int]) -> tuple[list[bytes], str]:
    """The bodies in a stream that comes in pieces of these sizes, and how it ends."""
    decoder = FrameDecoder(_LIMIT_BYTES)
    found: list[bytes] = []
    at = turn = 0
    try:
        while at < len(data):
            size = cuts[turn % len(cuts)]
            decoder.feed(data[at : at + size])
            at += size
            turn += 1
            found += decoder.frames()
    except FrameError:
        assert not decoder.pending_bytes
        for attempt in (lambda: decoder.feed(b"x"), lambda: next(decoder.frames())):
            try:
                attempt()
            except FrameError:
                continue
            raise AssertionError("a broken stream went on") from None
        return found, "behind a broken frame"
    assert decoder.pending_bytes <= _LIMIT_BYTES + 4 + max(cuts)
    return found, "in an unfinished frame"


def _check_error(error: ProtocolError) -> None:
    plain: dict[str, Any] = error.to_wire()
    assert len(plain["message"]) <= _WORDS, f"a message of {len(plain['message'])} characters"
    assert type(from_wire(plain)) is type(error)


def _check_records(table: MessageTable, data: bytes) -> None:
    for record in table.records:
        try:
            found = table.decode_records(record, data, least=1, most=4096)
        except ProtocolError as error:
            _check_error(error)
        else:
            assert table.decode_records(record, table.encode_records(found)) == found
