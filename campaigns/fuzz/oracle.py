"""What a daemon owes a connection for the bytes that it was sent.

Each message that asks for an answer gets exactly one; which, its own description says. Requests may
have equal numbers, or the number 0 as messages have that cannot be read, so answers are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from gpud.errors import FrameError, ProtocolError
from gpud.wire import messages as wm
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import CLIENT_PROTOCOL

_UNASKED = frozenset(
    (
        wm.Arena,
        wm.Began,
        wm.Happened,
        wm.LaneOpened,
        wm.LaunchEnded,
        wm.MoveRegion,
        wm.TurnRecalled,
        wm.ZoneLent,
    )
)


class Unanswered(AssertionError):
    """The daemon did not do what it must."""


class Account:
    """What the daemon owes for the bytes that it was sent.

    Attributes:
        session: as `Welcome` said; 0 before.
        last: the number of the latest job.
        ended: the daemon must end the connection.
    """

    def __init__(self) -> None:
        self.session = 0
        self.last = 0
        self.ended = False
        self._said_hello = False
        self._decoder = FrameDecoder()
        self._owed: dict[int, list[frozenset[type[Any]]]] = {}
        self._nameless = 0  # answers with the number 0, as messages have that have none
        self._maybe = 0  # such that may come and need not
        self._failed: Counter[int] = Counter()
        self._jobs: Counter[int] = Counter()
        self.goodbye: wm.Goodbye | None = None
        self.outcomes: Counter[str] = Counter()

    def send(self, data: bytes) -> None:
        """These bytes go to the daemon."""
        try:
            self._decoder.feed(data)
            for body in self._decoder.frames():
                if not self.ended:
                    self._body(body)
        except FrameError:
            self.ended = True

    def _body(self, body: bytes) -> None:
        try:
            message = CLIENT_PROTOCOL.decode(body, Sender.CLIENT)
        except FrameError:
            self.ended = True
        except ProtocolError as error:
            if not self._said_hello:
                self.ended = True
            elif error.job is not None:
                self._job(error.job)
            else:
                self._owe(error.request or 0, frozenset())
        else:
            if not self._said_hello:
                self._said_hello = type(message) is wm.Hello and message.version >= 1
                self.ended = not self._said_hello
                if self._said_hello:
                    self._owe(message.request, answers_to(wm.Hello))
            elif isinstance(message, wm.Submit | wm.OpenLane):  # a lane is a job
                self._job(message.number)
            elif hasattr(message, "request"):
                self._owe(message.request, answers_to(type(message)))
            else:
                self._maybe += 1

    def _owe(self, request: int, classes: frozenset[type[Any]]) -> None:
        if request:
            self._owed.setdefault(request, []).append(classes)
        else:
            self._nameless += 1

    def _job(self, number: int) -> None:
        if number == self.last + 1:
            self.last = number
        self._jobs[number] += 1

    def receive(self, message: Any) -> None:
        """The daemon has sent this.

        Raises:
            Unanswered: it must not.
        """
        kind = type(message)
        self.outcomes[kind.__name__] += 1
        if self.goodbye is not None:
            raise Unanswered(f"{kind.__name__} came after Goodbye")
        if kind is wm.Goodbye:
            self.goodbye = message
        elif kind is wm.Finished:
            self._jobs[message.number] -= 1
            if self._jobs[message.number] < 0:
                raise Unanswered(f"job {message.number} has finished once too often")
        elif kind not in _UNASKED:
            self._answer(message)

    def _answer(self, message: Any) -> None:
        if type(message) is wm.Welcome:
            self.session = message.session
        if type(message) is wm.Failed and message.error["code"] == "internal":
            raise Unanswered(f"a bug of the daemon's: {message.error}")
        if not message.request:
            self._nameless -= 1
            return
        owed = self._owed.get(message.request, [])
        if type(message) is wm.Failed:
            # Requests may have equal numbers; which of them has failed shows from those that do
            # not fail.
            self._failed[message.request] += 1
            fits = len(owed) >= self._failed[message.request]
        else:
            found = next((classes for classes in owed if type(message) in classes), None)
            fits = found is not None
            if found is not None:
                owed.remove(found)
        if fits:
            if len(owed) == self._failed[message.request]:
                self._owed.pop(message.request, None)
                del self._failed[message.request]
            return
        raise Unanswered(f"nobody asked for {str(message)[:200]}; owed are {owed}")

    @property
    def in_a_frame(self) -> bool:
        """Whether a part of a frame was sent, of which the next message would be a part."""
        return not self.ended and self._decoder.pending_bytes > 0

    @property
    def open(self) -> int:
        """Answers that have to come yet."""
        jobs = sum(count for count in self._jobs.values() if count > 0)
        answers = sum(map(len, self._owed.values())) - self._failed.total()
        return answers + max(0, self._nameless + jobs)

    def check_end(self) -> None:
        """Nothing came that was not owed.

        Raises:
            Unanswered: something did.
        """
        jobs = sum(self._jobs.values())
        if -(self._nameless + jobs) > self._maybe:
            raise Unanswered(f"{-(self._nameless + jobs)} failures without a number too many")

    def __str__(self) -> str:
        jobs = {number: count for number, count in self._jobs.items() if count}
        names = {
            request: [sorted(cls.__name__ for cls in classes) for classes in owed]
            for request, owed in list(self._owed.items())[:10]
        }
        return f"requests {names}, jobs {jobs}, {self._nameless} without a number"


def answers_to(cls: type[Any]) -> frozenset[type[Any]]:
    """The classes that answer a message, as its own description says."""
    found = _ANSWERS.get(cls)
    if found is None:
        named = re.findall(r"`(\w+)`", cls.__doc__ or "")
        daemon = {one.__name__: one for one in CLIENT_PROTOCOL.codes}
        found = frozenset(
            daemon[name] for name in named if name in daemon and "request" in daemon[name]._fields
        )
        _ANSWERS[cls] = found
    return found


_ANSWERS: dict[type[Any], frozenset[type[Any]]] = {}
